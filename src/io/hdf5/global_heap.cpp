#include "src/io/hdf5/global_heap.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <fstream>

#include "kernels/check.h"

namespace sy {

namespace {

constexpr std::string_view signature("GCOL\1", 5);  // and the version byte
constexpr std::uint64_t header_bytes = 16, min_heap_bytes = 4096;
static_assert(std::endian::native == std::endian::little);

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

std::string GlobalHeaps::problem(const std::filesystem::path& file) const {
  if (begins_.empty()) return "";
  std::ifstream in(file, std::ios::binary);
  if (!in) return fmt::format("{} cannot be read", file.string());
  // Heaps do not overlap. This bounds the number of objects in all of them.
  std::uint64_t objects_left = bytes_ / header_bytes;
  for (const std::uint64_t begin : begins_) {
    std::uint64_t size = 0;
    const auto read = [&](std::uint64_t at, auto& value) {
      in.seekg(static_cast<std::streamoff>(at));
      return static_cast<bool>(in.read(reinterpret_cast<char*>(&value), sizeof value));
    };
    // Skips bytes that are no heap by their size, or a heap that the library refuses itself.
    if (begin + header_bytes > bytes_ || !read(begin + 8, size) || size < min_heap_bytes || size > bytes_ - begin)
      continue;
    std::uint64_t at = header_bytes;
    while (size - at >= header_bytes) {
      struct Object {
        std::uint16_t index, references;
        std::uint32_t reserved;
        std::uint64_t bytes;
      } object;
      static_assert(sizeof object == header_bytes);
      if (!read(begin + at, object)) return fmt::format("{} cannot be read", file.string());
      const std::uint64_t left = size - at;
      // The object of index 0 is the free space, including its header.
      const std::uint64_t max_bytes = object.index == 0 ? left : left - header_bytes;
      if (objects_left == 0 || object.bytes > max_bytes || (object.index == 0 && object.bytes < header_bytes))
        return fmt::format("{} is damaged: the global heap at byte {} does not end where it should", file.string(),
                           begin);
      --objects_left;
      at += object.index == 0 ? object.bytes : header_bytes + (object.bytes + 7) / 8 * 8;
      if (at > size) at = size;
    }
  }
  return "";
}

}  // namespace sy
