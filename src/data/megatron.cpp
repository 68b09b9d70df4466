#include "src/data/megatron.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>
#include <functional>
#include <limits>
#include <string>

#include "src/system/files.h"

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

// Returns the first index of the range for which `holds` is true, by binary search. Returns the end
// if there is none. If `holds` is true for an index, it must be true for all after it.
Index first_index(Range range, const std::function<bool(Index)>& holds) {
  while (range.begin < range.end) {
    const Index middle = (range.begin + range.end) / 2;
    if (holds(middle))
      range.end = middle;
    else
      range.begin = middle + 1;
  }
  return range.begin;
}

template <class T>
T load(const std::byte* p) {
  T value;
  std::memcpy(&value, p, sizeof value);
  return value;
}

// Converts out.size() tokens. Returns the index of the first id outside [0, vocab), or -1.
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

class File {
 public:
  explicit File(const std::filesystem::path& path)
      // open() does not wait for a FIFO
      : path_(path.string()), file_(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)) {
    if (file_ < 0)
      bad_input("{}: {}: {}", path_, std::strerror(errno), errno == EMFILE ? "raise ulimit -n" : "check data.path");
    struct stat status;
    const bool regular = ::fstat(file_, &status) == 0 && S_ISREG(status.st_mode);
    if (regular) size_ = status.st_size;
    if (!regular) {
      ::close(file_);
      bad_input("{} is not a regular file: check data.path", path_);
    }
  }
  ~File() { ::close(file_); }
  File(const File&) = delete;
  Index size() const { return size_; }  // at the time of opening

  void read(Index offset, void* out, Index bytes) const {
    for (Index done = 0; done < bytes;) {
      const ssize_t n =
          ::pread(file_, static_cast<std::byte*>(out) + done, static_cast<std::size_t>(bytes - done), offset + done);
      if (n < 0 && errno == EINTR) continue;
      if (n < 0) fail("cannot read {}: {}", path_, std::strerror(errno));
      if (n == 0)
        bad_input(
            "{} ends before byte {}: it was cut short while it was in use; restore it, and leave data in use alone",
            path_, offset + bytes);
      done += n;
    }
  }

 private:
  std::string path_;
  int file_;
  Index size_ = 0;
};

// Consecutive numbers of a file, read in chunks. Indices must not decrease.
template <class T>
class Table {
 public:
  Table(const File& file, Index offset, Index count) : file_(file), offset_(offset), count_(count) {}
  Index operator[](Index i) {
    if (i >= first_ + static_cast<Index>(buffer_.size())) {
      first_ = i;
      buffer_.resize(static_cast<std::size_t>(std::min(Index{1} << 16, count_ - i)));
      file_.read(offset_ + i * Index{sizeof(T)}, buffer_.data(), static_cast<Index>(buffer_.size() * sizeof(T)));
    }
    return buffer_[static_cast<std::size_t>(i - first_)];
  }

 private:
  const File& file_;
  Index offset_, count_, first_ = 0;
  std::vector<T> buffer_;
};

}  // namespace

struct IndexedTokens::Pair {
  Pair(const std::filesystem::path& prefix, bool with_loss_mask, IndexCheck check)
      : idx_path(with_suffix(prefix, ".idx")),
        bin_path(with_suffix(prefix, ".bin")),
        idx(idx_path),
        bin(bin_path),
        loss_mask(with_loss_mask) {
    read_header();
    if (bin.size() % type->bytes != 0)
      bad_input("{} has {} bytes, and a token has {}: it is truncated or damaged; copy or prepare it again",
                bin_path.string(), bin.size(), type->bytes);
    tokens = bin.size() / type->bytes;
    if (loss_mask) check_has_modes();
    if (check == IndexCheck::header) return;
    check_tables();
    if (loss_mask) check_modes();
  }

  Index lengths() const { return header_bytes; }
  Index pointers() const { return lengths() + sequences * 4; }
  Index boundaries() const { return pointers() + sequences * 8; }
  Index modes() const { return boundaries() + (documents + 1) * 8; }

  std::filesystem::path idx_path, bin_path;
  File idx, bin;
  const TokenType* type = nullptr;
  bool loss_mask = false;
  Index sequences = 0, documents = 0, tokens = 0;

 private:
  void read_header() {
    const std::string name = idx_path.string();
    std::byte p[header_bytes];
    if (idx.size() >= Index{header_bytes}) idx.read(0, p, header_bytes);
    if (idx.size() < Index{header_bytes} || std::memcmp(p, magic, sizeof magic) != 0)
      bad_input("{} is not a Megatron index (MMIDIDX): write it again with `switchyard prepare`", name);
    if (const auto found = load<std::uint64_t>(p + 9); found != version)
      bad_input("{} has version {}, but only version {} is known: convert it", name, found, version);
    const auto code = load<std::uint8_t>(p + 17);
    for (const TokenType& t : token_types)
      if (t.code == code) type = &t;
    if (!type) bad_input("{} has tokens of type {}: only integers of up to 64 bits are tokens", name, code);

    const auto n = load<std::uint64_t>(p + 18), m = load<std::uint64_t>(p + 26);
    const auto size = static_cast<std::uint64_t>(idx.size());
    // The first two comparisons prevent an overflow of the sum.
    const bool possible = n <= size && m <= size && m > 0;
    const std::uint64_t without_modes = header_bytes + n * 12 + m * 8;
    if (!possible || (size != without_modes && size != without_modes + n))
      bad_input(
          "{} has {} bytes, which does not fit its {} sequences and {} document boundaries: "
          "it is truncated or damaged; copy or prepare it again",
          name, idx.size(), n, m);
    sequences = static_cast<Index>(n);
    documents = static_cast<Index>(m) - 1;
  }

  // Sequences must fill .bin without gaps, so that a token's index determines its offset in the
  // file.
  void check_tables() {
    const std::string name = idx_path.string();
    Table<std::int32_t> length(idx, lengths(), sequences);
    Table<std::int64_t> pointer(idx, pointers(), sequences), boundary(idx, boundaries(), documents + 1);
    Index offset = 0;
    for (Index s = 0; s < sequences; ++s) {
      if (length[s] < 0) bad_input("{}: sequence {} has length {}: the index is damaged", name, s, length[s]);
      if (pointer[s] != offset)
        bad_input(
            "{}: sequence {} begins at byte {} instead of {}: sequences must follow one another; "
            "prepare the data again",
            name, s, pointer[s], offset);
      offset += length[s] * type->bytes;
    }
    if (offset != bin.size())
      bad_input(
          "{} has {} bytes, but {} describes {}: one of them is truncated or of another data set; "
          "copy or prepare both again",
          bin_path.string(), bin.size(), name, offset);
    Index low = 0;
    for (Index d = 0; d <= documents; ++d) {
      const Index high = d == 0 ? 0 : sequences;
      if (boundary[d] < low || boundary[d] > high || (d == documents && boundary[d] != sequences))
        bad_input("{}: document boundary {} is at sequence {} of {}: the index is damaged", name, d, boundary[d],
                  sequences);
      low = boundary[d];
    }
  }

  void check_has_modes() const {
    if (idx.size() != modes() + sequences)
      bad_input("{} has no modes, so no loss mask: remove loss_mask from dataset.ini, or prepare the data again",
                idx_path.string());
  }

  void check_modes() const {
    const std::string name = idx_path.string();
    Table<std::uint8_t> mode(idx, modes(), sequences);
    for (Index s = 0; s < sequences; ++s)
      if (mode[s] > 1)
        bad_input("{}: sequence {} has mode {}, and a loss mask has 0 and 1: prepare the data again", name, s, mode[s]);
  }
};

IndexedTokens::IndexedTokens(const std::filesystem::path& prefix, bool loss_mask, IndexCheck check)
    : pair_(std::make_shared<Pair>(prefix, loss_mask, check)) {}

Index IndexedTokens::documents() const {
  return pair_ ? pair_->documents : 0;
}
Index IndexedTokens::tokens() const {
  return pair_ ? pair_->tokens : 0;
}

Range IndexedTokens::document(Index i) const {
  SY_ASSERT(i >= 0 && i < documents(), "document {} of {}", i, documents());
  const std::vector<Index> begins = document_begins(i, 2);
  return {begins[0], begins[1]};
}

std::vector<Index> IndexedTokens::document_begins(Index first, Index count) const {
  SY_ASSERT(first >= 0 && count >= 0 && first + count <= documents() + 1, "documents {}+{} of {}", first, count,
            documents());
  std::vector<Index> begins(static_cast<std::size_t>(count));  // first the sequences
  if (count == 0) return begins;
  pair_->idx.read(pair_->boundaries() + first * 8, begins.data(), count * 8);
  // Documents of few sequences have adjacent pointers, which one read gets.
  const Index begin = begins.front(), sequences = std::min(begins.back() + 1, pair_->sequences) - begin;
  std::vector<std::int64_t> pointers(static_cast<std::size_t>(sequences <= 16 * count ? sequences : 0));
  if (!pointers.empty())
    pair_->idx.read(pair_->pointers() + begin * 8, pointers.data(), static_cast<Index>(pointers.size()) * 8);
  for (Index& at : begins) {
    const Index sequence = at;
    if (sequence == pair_->sequences)
      at = pair_->tokens * pair_->type->bytes;
    else if (!pointers.empty())
      at = pointers[static_cast<std::size_t>(sequence - begin)];
    else
      pair_->idx.read(pair_->pointers() + sequence * 8, &at, sizeof at);
    at /= pair_->type->bytes;
  }
  return begins;
}

std::vector<Index> IndexedTokens::document_begins_in(Range tokens) const {
  constexpr Index chunk = 64;
  const Index of_range =
      first_index({0, documents()}, [&](Index d) { return document_begins(d, 1)[0] >= tokens.begin; });
  std::vector<Index> begins;
  for (Index first = of_range; first < documents(); first += chunk)
    for (const Index begin : document_begins(first, std::min(chunk, documents() - first))) {
      if (begin >= std::min(tokens.end, this->tokens())) return begins;
      if (begins.empty() || begins.back() != begin) begins.push_back(begin);
    }
  return begins;
}

void IndexedTokens::read(Index begin, Index vocab, std::span<std::int32_t> out) const {
  const Index count = static_cast<Index>(out.size());
  SY_ASSERT(begin >= 0 && begin + count <= tokens(), "tokens {}+{} of {}", begin, count, tokens());
  if (count == 0) return;
  const TokenType& type = *pair_->type;
  const auto in = std::make_unique_for_overwrite<std::byte[]>(static_cast<std::size_t>(count * type.bytes));
  pair_->bin.read(begin * type.bytes, in.get(), count * type.bytes);
  if (const Index bad = type.convert(in.get(), vocab, out); bad >= 0)
    bad_input(
        "{}: token {} is id {}, but the vocabulary has only {}: the data was made with another tokenizer; "
        "prepare it again, or correct `vocab` in dataset.ini",
        pair_->bin_path.string(), begin + bad, type.value(in.get() + bad * type.bytes), vocab);
}

void IndexedTokens::ignore_masked(Index begin, std::span<std::int32_t> targets) const {
  if (!pair_ || !pair_->loss_mask || targets.empty()) return;
  const Pair& p = *pair_;
  const Index end = begin + std::ssize(targets);
  const auto begin_of = [&](Index sequence) {
    std::int64_t offset = p.tokens * p.type->bytes;
    if (sequence < p.sequences) p.idx.read(p.pointers() + sequence * 8, &offset, sizeof offset);
    return offset / p.type->bytes;
  };
  // the last sequence that begins at or before `begin`
  const Index containing = first_index({1, p.sequences}, [&](Index s) { return begin_of(s) > begin; }) - 1;
  constexpr Index chunk = 64;
  for (Index first = containing, at = begin; first < p.sequences && at < end; first += chunk) {
    const Index count = std::min(chunk, p.sequences - first);
    std::int32_t length[chunk];
    std::uint8_t mode[chunk];
    p.idx.read(p.lengths() + first * 4, length, count * 4);
    p.idx.read(p.modes() + first, mode, count);
    Index next = begin_of(first);
    for (Index s = 0; s < count && at < end; ++s) {
      next += length[s];
      const Index last = std::min(next, end);
      if (mode[s] == 1 && last > at) std::ranges::fill(targets.subspan(at - begin, last - at), -1);
      at = std::max(at, last);
    }
  }
}

IndexedWriter::IndexedWriter(const std::filesystem::path& prefix, Index vocab, bool loss_mask)
    : bin_path_(with_suffix(prefix, ".bin")),
      idx_path_(with_suffix(prefix, ".idx")),
      bin_(std::fopen(bin_path_.c_str(), "wb"), std::fclose),
      idx_(std::fopen(idx_path_.c_str(), "w+b"), std::fclose),
      narrow_(vocab < u16_vocab_limit),
      loss_mask_(loss_mask) {
  if (!bin_ || !idx_) fail("cannot create {}.{{bin,idx}}: {}", prefix.string(), std::strerror(errno));
  const char empty[header_bytes] = {};
  write(idx_.get(), idx_path_, empty, sizeof empty);
}

void IndexedWriter::write(std::FILE* file, const std::filesystem::path& path, const void* data, std::size_t bytes) {
  if (bytes == 0) return;  // `data` may be nullptr
  write_point("write", path);
  if (std::fwrite(data, 1, bytes, file) != bytes) fail("cannot write {}: {}", path.string(), std::strerror(errno));
}

void IndexedWriter::add(std::span<const std::int32_t> document) {
  if (loss_mask_) return add(document, std::vector<bool>(document.size(), true));
  add_sequence(document);
  ++documents_;
}

void IndexedWriter::add(std::span<const std::int32_t> document, const std::vector<bool>& counted) {
  SY_ASSERT(loss_mask_ && counted.size() == document.size(), "{} mask bits of {}", counted.size(), document.size());
  boundaries_.push_back(sequences_);
  for (std::size_t begin = 0; begin < counted.size();) {
    const auto end = std::find(counted.begin() + static_cast<std::ptrdiff_t>(begin), counted.end(), !counted[begin]);
    const auto size = static_cast<std::size_t>(end - counted.begin()) - begin;
    add_sequence(document.subspan(begin, size));
    modes_.push_back(counted[begin] ? 0 : 1);
    begin += size;
  }
  ++documents_;
}

void IndexedWriter::add_sequence(std::span<const std::int32_t> document) {
  SY_ASSERT(document.size() <= std::numeric_limits<std::int32_t>::max(), "a document of {} tokens", document.size());
  if (narrow_) {
    const std::vector<std::uint16_t> tokens(document.begin(), document.end());
    write(bin_.get(), bin_path_, tokens.data(), tokens.size() * sizeof tokens[0]);
  } else {
    write(bin_.get(), bin_path_, document.data(), document.size_bytes());
  }
  const auto length = static_cast<std::int32_t>(document.size());
  write(idx_.get(), idx_path_, &length, sizeof length);
  ++sequences_;
  tokens_ += length;
}

void IndexedWriter::finish() {
  std::FILE* idx = idx_.get();
  const auto append = [&](Index value) { write(idx, idx_path_, &value, sizeof value); };

  // Alternates between reading back lengths and appending pointers. A stream requires a seek
  // between reading and writing.
  constexpr Index chunk = 1 << 16;
  std::vector<std::int32_t> lengths;
  Index offset = 0;
  for (Index first = 0; first < sequences_; first += chunk) {
    lengths.resize(static_cast<std::size_t>(std::min(chunk, sequences_ - first)));
    if (std::fseek(idx, static_cast<long>(header_bytes) + first * 4, SEEK_SET) != 0 ||
        std::fread(lengths.data(), 4, lengths.size(), idx) != lengths.size() || std::fseek(idx, 0, SEEK_END) != 0)
      fail("cannot read back {}: {}", idx_path_.string(), std::strerror(errno));
    for (const std::int32_t length : lengths) {
      append(offset);
      offset += length * Index{narrow_ ? 2 : 4};
    }
  }
  if (loss_mask_) boundaries_.push_back(sequences_);
  for (Index d = 0; d <= documents_; ++d) append(loss_mask_ ? boundaries_[static_cast<std::size_t>(d)] : d);
  write(idx, idx_path_, modes_.data(), modes_.size());

  std::byte header[header_bytes];
  std::memcpy(header, magic, sizeof magic);
  std::memcpy(header + 9, &version, 8);
  std::memcpy(header + 17, narrow_ ? &code_u16 : &code_i32, 1);
  const auto sequences = static_cast<std::uint64_t>(sequences_);
  const std::uint64_t boundaries = static_cast<std::uint64_t>(documents_) + 1;
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
