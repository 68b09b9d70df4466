#include "src/data/megatron.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <bit>
#include <cerrno>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "src/io/files.h"

namespace sy {
namespace {

static_assert(std::endian::native == std::endian::little, "the files are little-endian and read as they are");

constexpr char magic[9] = {'M', 'M', 'I', 'D', 'I', 'D', 'X', 0, 0};
constexpr std::uint64_t version = 1;
constexpr std::size_t header_bytes = sizeof magic + 8 + 1 + 8 + 8;
constexpr std::uint8_t code_i32 = 4, code_u16 = 8;
constexpr Index u16_vocab_limit = 65500;

std::filesystem::path with_suffix(std::filesystem::path prefix, const char* suffix) {
  return prefix += suffix;
}

template <class T>
T load(const std::byte* p) {
  T value;
  std::memcpy(&value, p, sizeof value);
  return value;
}

// Converts out.size() tokens; returns the first whose id is not in [0, vocab), or -1.
template <class T>
Index convert(const std::byte* in, Index vocab, std::span<std::int32_t> out) {
  for (std::size_t i = 0; i < out.size(); ++i) {
    const T id = load<T>(in + i * sizeof(T));
    if (std::cmp_less(id, 0) || std::cmp_greater_equal(id, vocab)) return static_cast<Index>(i);
    out[i] = static_cast<std::int32_t>(id);
  }
  return -1;
}

template <class T>
Index value_at(const std::byte* in) {
  return static_cast<Index>(load<T>(in));
}

struct TokenType {
  std::uint8_t code;
  Index bytes;
  Index (*convert)(const std::byte* in, Index vocab, std::span<std::int32_t> out);
  Index (*value)(const std::byte* in);
};

template <class T>
constexpr TokenType token_type(std::uint8_t code) {
  return {code, sizeof(T), convert<T>, value_at<T>};
}

constexpr TokenType token_types[] = {token_type<std::uint8_t>(1), token_type<std::int8_t>(2),
                                     token_type<std::int16_t>(3), token_type<std::int32_t>(code_i32),
                                     token_type<std::int64_t>(5), token_type<std::uint16_t>(code_u16)};

class MappedFile {
 public:
  explicit MappedFile(const std::filesystem::path& path) {
    const int file = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
    if (file < 0) bad_input("{}: {}: check data.path", path.string(), std::strerror(errno));
    struct stat status;
    const bool regular = ::fstat(file, &status) == 0 && S_ISREG(status.st_mode);
    if (regular) size_ = static_cast<std::size_t>(status.st_size);
    void* address = nullptr;
    if (size_ > 0) address = ::mmap(nullptr, size_, PROT_READ, MAP_SHARED, file, 0);
    const int error = errno;
    ::close(file);
    if (!regular) bad_input("{} is not a regular file: check data.path", path.string());
    if (address == MAP_FAILED) fail("cannot map {}: {}", path.string(), std::strerror(error));
    data_ = static_cast<const std::byte*>(address);
  }
  ~MappedFile() {
    if (data_) ::munmap(const_cast<std::byte*>(data_), size_);
  }
  MappedFile(const MappedFile&) = delete;
  const std::byte* data() const { return data_; }
  std::size_t size() const { return size_; }

 private:
  const std::byte* data_ = nullptr;
  std::size_t size_ = 0;
};

}  // namespace

struct IndexedTokens::Mapped {
  explicit Mapped(const std::filesystem::path& prefix)
      : idx_path(with_suffix(prefix, ".idx")), bin_path(with_suffix(prefix, ".bin")), idx(idx_path), bin(bin_path) {
    read_header();
    check_tables();
  }

  Index length(Index sequence) const { return load<std::int32_t>(lengths + sequence * 4); }
  Index pointer(Index sequence) const { return load<std::int64_t>(pointers + sequence * 8); }
  Index boundary(Index document) const { return load<std::int64_t>(boundaries + document * 8); }
  // The first token of a sequence; of one past the last: the number of tokens.
  Index first_token(Index sequence) const { return sequence == sequences ? tokens : pointer(sequence) / type->bytes; }

  std::filesystem::path idx_path, bin_path;
  MappedFile idx, bin;
  const TokenType* type = nullptr;
  Index sequences = 0, documents = 0, tokens = 0;
  const std::byte *lengths = nullptr, *pointers = nullptr, *boundaries = nullptr;

 private:
  void read_header() {
    const std::string name = idx_path.string();
    const std::byte* p = idx.data();
    if (idx.size() < header_bytes || std::memcmp(p, magic, sizeof magic) != 0)
      bad_input("{} is not a Megatron index (MMIDIDX): write it again with `switchyard prepare`", name);
    if (const auto found = load<std::uint64_t>(p + 9); found != version)
      bad_input("{} has version {}, but only version {} is known: convert it", name, found, version);
    const auto code = load<std::uint8_t>(p + 17);
    for (const TokenType& t : token_types)
      if (t.code == code) type = &t;
    if (!type) bad_input("{} has tokens of type {}: only integers of up to 64 bits are tokens", name, code);

    const auto n = load<std::uint64_t>(p + 18), m = load<std::uint64_t>(p + 26);
    // The first two comparisons keep the sum from overflowing.
    if (n > idx.size() || m > idx.size() || m == 0 || header_bytes + n * 12 + m * 8 != idx.size())
      bad_input(
          "{} has {} bytes, which does not fit its {} sequences and {} document boundaries: "
          "it is truncated or damaged; copy or prepare it again",
          name, idx.size(), n, m);
    sequences = static_cast<Index>(n);
    documents = static_cast<Index>(m) - 1;
    lengths = p + header_bytes;
    pointers = lengths + n * 4;
    boundaries = pointers + n * 8;
  }

  // Sequences must fill .bin one after another, so that a token's position is its place in the file.
  void check_tables() {
    const std::string name = idx_path.string();
    Index offset = 0;
    for (Index s = 0; s < sequences; ++s) {
      if (length(s) < 0) bad_input("{}: sequence {} has length {}: the index is damaged", name, s, length(s));
      if (pointer(s) != offset)
        bad_input(
            "{}: sequence {} begins at byte {} instead of {}: sequences must follow one another; "
            "prepare the data again",
            name, s, pointer(s), offset);
      offset += length(s) * type->bytes;
    }
    if (static_cast<std::size_t>(offset) != bin.size())
      bad_input(
          "{} has {} bytes, but {} describes {}: one of them is truncated or of another data set; "
          "copy or prepare both again",
          bin_path.string(), bin.size(), name, offset);
    tokens = offset / type->bytes;
    for (Index d = 0; d <= documents; ++d) {
      const Index low = d == 0 ? 0 : boundary(d - 1), high = d == 0 ? 0 : sequences;
      if (boundary(d) < low || boundary(d) > high || (d == documents && boundary(d) != sequences))
        bad_input("{}: document boundary {} is at sequence {} of {}: the index is damaged", name, d, boundary(d),
                  sequences);
    }
  }
};

IndexedTokens::IndexedTokens(const std::filesystem::path& prefix) : mapped_(std::make_shared<Mapped>(prefix)) {}

Index IndexedTokens::documents() const {
  return mapped_ ? mapped_->documents : 0;
}
Index IndexedTokens::tokens() const {
  return mapped_ ? mapped_->tokens : 0;
}

Range IndexedTokens::document(Index i) const {
  SY_ASSERT(i >= 0 && i < documents(), "document {} of {}", i, documents());
  return {mapped_->first_token(mapped_->boundary(i)), mapped_->first_token(mapped_->boundary(i + 1))};
}

void IndexedTokens::read(Index begin, Index vocab, std::span<std::int32_t> out) const {
  const Index count = static_cast<Index>(out.size());
  SY_ASSERT(begin >= 0 && begin + count <= tokens(), "tokens {}+{} of {}", begin, count, tokens());
  if (count == 0) return;
  const TokenType& type = *mapped_->type;
  const std::byte* in = mapped_->bin.data() + begin * type.bytes;
  if (const Index bad = type.convert(in, vocab, out); bad >= 0)
    bad_input(
        "{}: token {} is id {}, but the vocabulary has only {}: the data was made with another tokenizer; "
        "prepare it again, or correct `vocab` in dataset.ini",
        mapped_->bin_path.string(), begin + bad, type.value(in + bad * type.bytes), vocab);
}

IndexedWriter::IndexedWriter(const std::filesystem::path& prefix, Index vocab)
    : bin_path_(with_suffix(prefix, ".bin")),
      idx_path_(with_suffix(prefix, ".idx")),
      bin_(std::fopen(bin_path_.c_str(), "wb"), std::fclose),
      idx_(std::fopen(idx_path_.c_str(), "w+b"), std::fclose),
      narrow_(vocab < u16_vocab_limit) {
  if (!bin_ || !idx_) fail("cannot create {}.{{bin,idx}}: {}", prefix.string(), std::strerror(errno));
  const char empty[header_bytes] = {};
  write(idx_.get(), idx_path_, empty, sizeof empty);
}

void IndexedWriter::write(std::FILE* file, const std::filesystem::path& path, const void* data, std::size_t bytes) {
  if (bytes == 0) return;  // `data` may then be null
  write_point("write", path);
  if (std::fwrite(data, 1, bytes, file) != bytes) fail("cannot write {}: {}", path.string(), std::strerror(errno));
}

void IndexedWriter::add(std::span<const std::int32_t> document) {
  SY_ASSERT(document.size() <= std::numeric_limits<std::int32_t>::max(), "a document of {} tokens", document.size());
  if (narrow_) {
    const std::vector<std::uint16_t> tokens(document.begin(), document.end());
    write(bin_.get(), bin_path_, tokens.data(), tokens.size() * sizeof tokens[0]);
  } else {
    write(bin_.get(), bin_path_, document.data(), document.size_bytes());
  }
  const auto length = static_cast<std::int32_t>(document.size());
  write(idx_.get(), idx_path_, &length, sizeof length);
  ++documents_;
  tokens_ += length;
}

void IndexedWriter::finish() {
  std::FILE* idx = idx_.get();
  const auto append = [&](Index value) { write(idx, idx_path_, &value, sizeof value); };

  // Lengths are read back and pointers appended by turns; a stream wants a seek between reading and writing.
  constexpr Index chunk = 1 << 16;
  std::vector<std::int32_t> lengths;
  Index offset = 0;
  for (Index first = 0; first < documents_; first += chunk) {
    lengths.resize(static_cast<std::size_t>(std::min(chunk, documents_ - first)));
    if (std::fseek(idx, static_cast<long>(header_bytes) + first * 4, SEEK_SET) != 0 ||
        std::fread(lengths.data(), 4, lengths.size(), idx) != lengths.size() || std::fseek(idx, 0, SEEK_END) != 0)
      fail("cannot read back {}: {}", idx_path_.string(), std::strerror(errno));
    for (const std::int32_t length : lengths) {
      append(offset);
      offset += length * Index{narrow_ ? 2 : 4};
    }
  }
  for (Index d = 0; d <= documents_; ++d) append(d);

  std::byte header[header_bytes];
  std::memcpy(header, magic, sizeof magic);
  std::memcpy(header + 9, &version, 8);
  std::memcpy(header + 17, narrow_ ? &code_u16 : &code_i32, 1);
  const std::uint64_t sequences = static_cast<std::uint64_t>(documents_), boundaries = sequences + 1;
  std::memcpy(header + 18, &sequences, 8);
  std::memcpy(header + 26, &boundaries, 8);
  std::rewind(idx);
  write(idx, idx_path_, header, sizeof header);

  for (auto [file, path] : {std::pair{&bin_, &bin_path_}, std::pair{&idx_, &idx_path_}}) {
    write_point("close", *path);
    if (std::fclose(file->release()) != 0) fail("cannot write {}: {}", path->string(), std::strerror(errno));
    sync_file(*path);
  }
}

}  // namespace sy
