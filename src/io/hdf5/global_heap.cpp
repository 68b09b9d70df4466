#include "src/io/hdf5/global_heap.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <fstream>

#include "kernels/check.h"
#include "kernels/tensor.h"

namespace sy {

namespace {

constexpr std::string_view signature("GCOL\1", 5);  // and the version byte
constexpr std::uint64_t header_bytes = 16, min_heap_bytes = 4096;
static_assert(std::endian::native == std::endian::little);

// Consumes the values of an object in the heap. It stops, and ok() is false, at the end of the
// object, or at a value that cannot be.
class ObjectReader {
 public:
  explicit ObjectReader(std::string_view content) : rest_(content) {}
  bool ok() const { return ok_; }
  std::size_t rest() const { return rest_.size(); }

  template <class T>
  T number() {
    T value = 0;
    if (skip(sizeof value)) std::memcpy(&value, rest_.data() - sizeof value, sizeof value);
    return value;
  }
  void text() {
    const std::size_t end = rest_.find('\0');
    skip(end == rest_.npos ? rest_.size() + 1 : end + 1);
  }
  // A selection: all elements, or blocks (HDF5 File Format Specification 3.0, "Dataspace
  // Selection"). This program writes single blocks.
  void selection() {
    constexpr std::uint32_t hyperslab = 2, all = 3;
    const auto type = number<std::uint32_t>(), version = number<std::uint32_t>();
    if (type == all && version == 1) {
      skip(8);
    } else if (type == hyperslab && version == 1) {
      skip(8);
      const std::uint32_t rank = dimensions();
      require(number<std::uint32_t>() == 1);
      std::array<std::uint32_t, max_dims> first{};
      for (std::uint32_t i = 0; i < rank; ++i) first[i] = number<std::uint32_t>();
      for (std::uint32_t i = 0; i < rank; ++i) require(number<std::uint32_t>() >= first[i]);
    } else if (type == hyperslab && version == 2) {
      require(number<std::uint8_t>() == 1);  // start, stride, count and block follow
      skip(4);
      skip(std::size_t{dimensions()} * 4 * 8);
    } else if (type == hyperslab && version == 3) {
      require(number<std::uint8_t>() == 1);
      const auto number_bytes = number<std::uint8_t>();
      require(number_bytes == 2 || number_bytes == 4 || number_bytes == 8);
      skip(std::size_t{dimensions()} * 4 * number_bytes);
    } else {
      require(false);
    }
  }

 private:
  void require(bool holds) { ok_ = ok_ && holds; }
  bool skip(std::size_t bytes) {
    require(bytes <= rest_.size());
    if (ok_) rest_.remove_prefix(bytes);
    return ok_;
  }
  std::uint32_t dimensions() {
    const auto rank = number<std::uint32_t>();
    require(rank >= 1 && rank <= max_dims);
    return ok_ ? rank : 0;
  }

  std::string_view rest_;
  bool ok_ = true;
};

// Returns whether an object is the list of mappings of a virtual dataset. libhdf5 1.10 reads them
// before it compares their checksum, and copies as many dimensions as they claim.
bool are_mappings(std::string_view content) {
  constexpr std::size_t checksum_bytes = 4;
  ObjectReader object(content);
  if (object.number<std::uint8_t>() != 0) return false;  // version
  const auto count = object.number<std::uint64_t>();
  for (std::uint64_t i = 0; i < count && object.ok(); ++i) {
    object.text();  // file
    object.text();  // dataset
    object.selection();
    object.selection();
  }
  return object.ok() && object.rest() == checksum_bytes;
}

}  // namespace

void GlobalHeaps::scan(std::string_view chunk) {
  const std::string boundary = tail_ + std::string(chunk.substr(0, signature.size() - 1));
  for (const auto& [text, begin] :
       {std::pair{std::string_view(boundary), bytes_ - tail_.size()}, std::pair{chunk, bytes_}})
    for (auto at = text.find(signature); at != text.npos; at = text.find(signature, at + 1))
      begins_.push_back(begin + at);
  bytes_ += chunk.size();
  tail_ += chunk.substr(chunk.size() - std::min(chunk.size(), signature.size() - 1));
  tail_.erase(0, tail_.size() - std::min(tail_.size(), signature.size() - 1));
}

std::string GlobalHeaps::problem(const std::filesystem::path& file, const std::string_view* content) const {
  if (begins_.empty()) return "";
  std::ifstream in;
  if (!content) in.open(file, std::ios::binary);
  if (!in) return fmt::format("{} cannot be read", file.string());
  const auto read = [&](std::uint64_t at, void* out, std::uint64_t bytes) {
    if (content) return at <= content->size() && content->copy(static_cast<char*>(out), bytes, at) == bytes;
    in.seekg(static_cast<std::streamoff>(at));
    return static_cast<bool>(in.read(static_cast<char*>(out), static_cast<std::streamsize>(bytes)));
  };
  // Heaps do not overlap. This bounds the number of objects in all of them, and their bytes.
  std::uint64_t objects_left = bytes_ / header_bytes, bytes_left = bytes_;
  enum class Check { sizes, contents };
  for (const Check check : {Check::sizes, Check::contents})
    for (const std::uint64_t begin : begins_) {
      std::uint64_t size = 0;
      // Skips bytes that are no heap by their size, or a heap that the library refuses itself.
      if (begin + header_bytes > bytes_ || !read(begin + 8, &size, sizeof size) || size < min_heap_bytes ||
          size > bytes_ - begin)
        continue;
      std::uint64_t at = header_bytes;
      while (size - at >= header_bytes) {
        struct Object {
          std::uint16_t index, references;
          std::uint32_t reserved;
          std::uint64_t bytes;
        } object;
        static_assert(sizeof object == header_bytes);
        if (!read(begin + at, &object, sizeof object)) return fmt::format("{} cannot be read", file.string());
        const std::uint64_t left = size - at;
        // The object of index 0 is the free space, including its header.
        const std::uint64_t max_bytes = object.index == 0 ? left : left - header_bytes;
        if (check == Check::sizes &&
            (objects_left == 0 || object.bytes > max_bytes || (object.index == 0 && object.bytes < header_bytes)))
          return fmt::format("{} is damaged: the global heap at byte {} does not end where it should", file.string(),
                             begin);
        if (check == Check::sizes) --objects_left;
        if (check == Check::contents && object.index != 0) {
          std::string mappings(object.bytes > bytes_left ? 0 : object.bytes, '\0');
          bytes_left -= mappings.size();
          if (!read(begin + at + header_bytes, mappings.data(), mappings.size()) || !are_mappings(mappings))
            return fmt::format("{} is damaged: object {} of the global heap at byte {} holds no mappings of a dataset",
                               file.string(), object.index, begin);
        }
        at += object.index == 0 ? object.bytes : header_bytes + (object.bytes + 7) / 8 * 8;
        if (at > size) at = size;
      }
    }
  return "";
}

}  // namespace sy
