#include "src/io/safetensors.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>
#include <limits>
#include <set>

#include "kernels/check.h"
#include "src/system/files.h"
#include "src/text/json.h"
#include "src/text/table.h"

namespace sy {
namespace fs = std::filesystem;

namespace {

static_assert(std::endian::native == std::endian::little, "the files are little-endian and read as they are");

// ---- number types ----

// IEEE 754 binary16: 1 sign, 5 exponent, 10 fraction bits.
float float_of_half(std::uint16_t half) {
  const std::uint32_t sign = std::uint32_t{half} >> 15 << 31, exponent = half >> 10 & 0x1f, fraction = half & 0x3ff;
  // Infinity or NaN.
  if (exponent == 0x1f) return std::bit_cast<float>(sign | 0x7f800000 | fraction << 13);
  if (exponent != 0) return std::bit_cast<float>(sign | (exponent + 112) << 23 | fraction << 13);
  const float small = static_cast<float>(fraction) * 0x1p-24f;  // subnormal: exact in f32
  return sign ? -small : small;
}

std::uint16_t half_of_float(float x) {
  const auto bits = std::bit_cast<std::uint32_t>(x);
  const auto sign = static_cast<std::uint16_t>(bits >> 16 & 0x8000);
  const std::uint32_t magnitude = bits & 0x7fffffff;
  if (magnitude > 0x7f800000) return sign | 0x7e00;
  // 65520 and more become infinity.
  if (magnitude >= 0x477ff000) return sign | 0x7c00;
  // Below 2^-14, the addition rounds to a multiple of 2^-24.
  if (magnitude < 0x38800000) {
    const float shifted = std::bit_cast<float>(magnitude) + 0.5f;
    return sign | static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(shifted) - 0x3f000000);
  }
  const std::uint32_t rounded = magnitude + 0xfff + (magnitude >> 13 & 1);
  return sign | static_cast<std::uint16_t>((rounded - 0x38000000) >> 13);
}

template <class Stored, auto decode>
void load_numbers(const std::byte* from, Index stride, Index n, float* to) {
  for (Index i = 0; i < n; ++i) {
    Stored stored;
    std::memcpy(&stored, from + i * stride * Index{sizeof stored}, sizeof stored);
    to[i] = decode(stored);
  }
}
template <class Stored, auto encode>
void store_numbers(const float* from, Index n, std::byte* to, Index stride) {
  for (Index i = 0; i < n; ++i) {
    const Stored stored = encode(from[i]);
    std::memcpy(to + i * stride * Index{sizeof stored}, &stored, sizeof stored);
  }
}
constexpr auto same = [](float x) { return x; };

// Bytes per number for each type of the format.
constexpr std::pair<std::string_view, Index> type_bytes[] = {
    {"BOOL", 1}, {"U8", 1},  {"I8", 1},  {"F8_E4M3", 1}, {"F8_E5M2", 1}, {"I16", 2}, {"U16", 2}, {"F16", 2},
    {"BF16", 2}, {"I32", 4}, {"U32", 4}, {"F32", 4},     {"F64", 8},     {"I64", 8}, {"U64", 8},
};

// ---- headers ----

constexpr std::size_t length_bytes = 8, max_header_bytes = 100'000'000;  // limit of the format

// A tensor, and the offsets of its data from the end of the header.
struct Entry {
  StoredTensor tensor;
  Index begin, end;
};

[[noreturn]] void bad_file(const fs::path& path, const std::string& what) {
  bad_input("{} is no whole safetensors file: {}: fetch it again", path.string(), what);
}

Entry read_entry(const fs::path& path, const Json::Member& member, Index data_bytes) {
  const std::string& name = member.name;
  Entry entry{
      {name, member.value.at("dtype").get<std::string>(), member.value.at("shape").get<std::vector<Index>>()}, 0, 0};
  const auto offsets = member.value.at("data_offsets").get<std::vector<Index>>();
  if (offsets.size() != 2) bad_file(path, fmt::format("{} has {} data_offsets", name, offsets.size()));
  entry.begin = offsets[0], entry.end = offsets[1];
  if (entry.begin < 0 || entry.begin > entry.end || entry.end > data_bytes)
    bad_file(path, fmt::format("{} lies at bytes {} to {} of {}", name, entry.begin, entry.end, data_bytes));
  const auto type = std::ranges::find(type_bytes, entry.tensor.type, [](const auto& row) { return row.first; });
  if (type == std::end(type_bytes))
    bad_file(path, fmt::format("{} is of type {}, which is not known", name, entry.tensor.type));
  Index bytes = type->second;
  for (const Index n : entry.tensor.shape) {
    if (n < 0 || (n > 0 && bytes > std::numeric_limits<Index>::max() / n))
      bad_file(path, fmt::format("{} has shape {}", name, shape_text(entry.tensor.shape)));
    bytes *= n;
  }
  if (bytes != entry.end - entry.begin)
    bad_file(path, fmt::format("{} of type {} and shape {} has {} bytes", name, entry.tensor.type,
                               shape_text(entry.tensor.shape), entry.end - entry.begin));
  entry.tensor.bytes = bytes;
  return entry;
}

// Returns the tensors of a header in order of their data.
std::vector<Entry> read_header(const fs::path& path, std::string_view text, Index data_bytes,
                               std::map<std::string, std::string>& metadata) {
  std::vector<Entry> entries;
  std::set<std::string> names;
  try {
    const Json header = Json::parse(text);
    for (const Json::Member& member : header.members()) {
      if (!names.insert(member.name).second) bad_file(path, member.name + " is there twice");
      if (member.name == "__metadata__")
        for (const Json::Member& m : member.value.members()) metadata[m.name] = m.value.get<std::string>();
      else
        entries.push_back(read_entry(path, member, data_bytes));
    }
  } catch (const JsonError& e) {
    bad_file(path, fmt::format("its header: {}", e.what()));
  }
  std::ranges::sort(entries, {}, [](const Entry& entry) { return std::pair(entry.begin, entry.end); });
  Index at = 0;
  for (const Entry& entry : entries) {
    if (entry.begin != at)
      bad_file(path, fmt::format("{} begins at byte {}, and what is before it ends at {}", entry.tensor.name,
                                 entry.begin, at));
    at = entry.end;
  }
  if (at != data_bytes) bad_file(path, fmt::format("its tensors end at byte {} of {}", at, data_bytes));
  return entries;
}

// Returns the memory of a mapping, which is unmapped with its last owner.
std::shared_ptr<std::byte> own_mapping(void* mapped, std::size_t bytes) {
  return {static_cast<std::byte*>(mapped), [bytes](std::byte* memory) { munmap(memory, bytes); }};
}

constexpr const char *index_file = "model.safetensors.index.json", *single_file = "model.safetensors";

// Returns the safetensors files of a folder.
std::vector<std::string> file_names(const fs::path& folder) {
  if (!is_folder(folder)) bad_input("{} is no folder: give one with config.json and {}", folder.string(), single_file);
  const fs::path index = folder / index_file;
  if (!file_exists(index)) {
    if (!file_exists(folder / single_file))
      bad_input("{} has neither {} nor {}: save the model as safetensors first", folder.string(), single_file,
                index_file);
    return {single_file};
  }
  std::set<std::string> names;
  try {
    const Json json = Json::parse(read_file(index));
    for (const Json::Member& member : json.at("weight_map").members()) {
      const std::string name = member.value.get<std::string>();
      if (!is_plain_name(name))
        bad_input("{} names the file '{}', which is no file of its folder", index.string(), visible(name));
      names.insert(name);
    }
  } catch (const JsonError& e) {
    bad_input("{} cannot be read: {}: fetch it again", index.string(), e.what());
  }
  return {names.begin(), names.end()};
}

}  // namespace

const std::vector<StoredType>& stored_types() {
  static const std::vector<StoredType> types = {
      {"F32", "f32", 4, load_numbers<float, +same>, store_numbers<float, +same>},
      {"F16", "f16", 2, load_numbers<std::uint16_t, float_of_half>, store_numbers<std::uint16_t, half_of_float>},
      {"BF16", "bf16", 2, load_numbers<std::uint16_t, float_of_bf16>, store_numbers<std::uint16_t, bf16_of_float>},
  };
  return types;
}

const StoredType* stored_type(std::string_view name) {
  for (const StoredType& type : stored_types())
    if (type.name == name || type.dtype_name == name) return &type;
  return nullptr;
}

std::string shape_text(const std::vector<Index>& shape) {
  return fmt::format("[{}]", fmt::join(shape, ", "));
}

StoredTensors::StoredTensors(const fs::path& folder) {
  for (const std::string& name : file_names(folder)) open(folder, name);
}

void StoredTensors::open(const fs::path& folder, const std::string& name) {
  const fs::path path = folder / name;
  const InputFile input(path);
  const auto size = static_cast<std::size_t>(input.size());
  if (size < length_bytes) bad_file(path, fmt::format("it has {} bytes", size));
  void* const mapped = mmap(nullptr, size, PROT_READ, MAP_PRIVATE, input.descriptor(), 0);
  if (mapped == MAP_FAILED) fail("{} cannot be mapped into memory ({})", path.string(), std::strerror(errno));
  const std::byte* const file = mappings_.emplace_back(own_mapping(mapped, size)).get();
  std::uint64_t length = 0;
  std::memcpy(&length, file, sizeof length);
  if (length > max_header_bytes || length > size - length_bytes)
    bad_file(path, fmt::format("it has {} bytes, and its header {}", size, length));
  const std::byte* data = file + length_bytes + length;
  const auto data_bytes = static_cast<Index>(size - length_bytes - length);
  File entry{name, {}, {}};
  const std::string_view header(reinterpret_cast<const char*>(file) + length_bytes, length);
  for (Entry& found : read_header(path, header, data_bytes, entry.metadata)) {
    entry.tensors.push_back(found.tensor.name);
    found.tensor.data = data + found.begin;
    if (!tensors_.emplace(found.tensor.name, found.tensor).second)
      bad_input("{} and another file of its folder both have {}: keep one", path.string(), found.tensor.name);
  }
  files_.push_back(std::move(entry));
}

const StoredTensor* StoredTensors::find(const std::string& name) const {
  const auto it = tensors_.find(name);
  return it == tensors_.end() ? nullptr : &it->second;
}

StoredHeader stored_header(const std::vector<StoredLayout>& tensors,
                           const std::map<std::string, std::string>& metadata) {
  Json json = Json::object();
  if (!metadata.empty()) {
    Json& entries = json.append("__metadata__", Json::object());
    for (const auto& [key, value] : metadata) entries.append(key, value);
  }
  StoredHeader header;
  Index at = 0;
  for (const StoredLayout& tensor : tensors) {
    Index bytes = stored_type(tensor.type)->bytes;
    for (const Index n : tensor.shape) bytes *= n;
    json.append(
        tensor.name,
        {{"dtype", std::string(tensor.type)}, {"shape", tensor.shape}, {"data_offsets", std::vector{at, at + bytes}}});
    header.begins.push_back(at);
    at += bytes;
  }
  std::string text = json.dump();
  text.resize((text.size() + 7) / 8 * 8, ' ');  // aligns the data
  const std::uint64_t length = text.size();
  header.bytes.assign(reinterpret_cast<const char*>(&length), sizeof length);
  header.bytes += text;
  for (Index& begin : header.begins) begin += std::ssize(header.bytes);
  header.file_bytes = std::ssize(header.bytes) + at;
  return header;
}

MappedOutput::MappedOutput(const fs::path& path, Index bytes, bool create) : path_(path), bytes_(bytes) {
  const int file = ::open(path.c_str(), O_RDWR | O_CLOEXEC | O_NOFOLLOW | (create ? O_CREAT | O_EXCL : 0), 0666);
  if (file < 0) fail("cannot write {}: {}", path.string(), std::strerror(errno));
  write_point("allocate", path);
  const int error = create && bytes > 0 ? posix_fallocate(file, 0, bytes) : 0;
  void* mapped = error || bytes == 0
                     ? MAP_FAILED
                     : mmap(nullptr, static_cast<std::size_t>(bytes), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  const int reason = error ? error : errno;
  ::close(file);
  if (bytes > 0 && mapped == MAP_FAILED) fail("cannot write {}: {}", path.string(), std::strerror(reason));
  if (bytes > 0) data_ = own_mapping(mapped, static_cast<std::size_t>(bytes));
}

void MappedOutput::sync() {
  write_point("sync", path_);
  if (data_ && msync(data_.get(), static_cast<std::size_t>(bytes_), MS_SYNC) != 0)
    fail("cannot write {}: {}", path_.string(), std::strerror(errno));
}

}  // namespace sy
