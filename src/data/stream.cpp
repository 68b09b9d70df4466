#include "src/data/stream.h"

#include <zlib.h>
#include <zstd.h>

#include <algorithm>
#include <string>
#include <vector>

#include "kernels/check.h"
#include "src/system/files.h"

namespace sy {

namespace fs = std::filesystem;

namespace {

class PlainStream : public ByteStream {
 public:
  explicit PlainStream(const fs::path& path) : file_(path) {}
  std::size_t read_some(std::span<char> out) override { return file_.read_some(out); }

 private:
  InputFile file_;
};

// Common base of gzip and zstd: consecutive frames, decoded from a buffer of the file's bytes.
class DecodedStream : public ByteStream {
 public:
  explicit DecodedStream(const fs::path& path) : name_(path.string()), file_(path), buffer_(1 << 17) {}

  std::size_t read_some(std::span<char> out) override {
    for (;;) {
      if (in_.empty()) in_ = std::span(buffer_).first(file_.read(buffer_));
      const bool ended = in_.empty();
      if (ended && between_frames_) return 0;
      // At the end of the file too, the decoder may hold decoded text that did not fit into the
      // last `out`.
      if (const std::size_t n = decode(out); n > 0) {
        total_ += n;
        return n;
      }
      if (ended && !between_frames_)
        bad_input("{} ends in the middle of its compressed data, after {} bytes of text: copy it again", name_, total_);
    }
  }

 protected:
  // Decodes bytes from the front of in_, removes them, and sets between_frames_. Returns the number
  // of bytes written to `out`, which may be 0.
  virtual std::size_t decode(std::span<char> out) = 0;
  [[noreturn]] void damaged(const char* format, const char* why) const {
    bad_input("{} is no {} file, or is damaged after {} bytes of text ({}): copy it again, or rename it", name_, format,
              total_, why);
  }

  std::span<char> in_;
  bool between_frames_ = false;

 private:
  std::string name_;
  PlainStream file_;
  std::vector<char> buffer_;
  std::size_t total_ = 0;
};

class GzipStream : public DecodedStream {
 public:
  explicit GzipStream(const fs::path& path) : DecodedStream(path) {
    constexpr int gzip_alone = 16 + MAX_WBITS;
    if (inflateInit2(&state_, gzip_alone) != Z_OK) fail("zlib cannot start: there is not enough memory");
  }
  ~GzipStream() override { inflateEnd(&state_); }

 protected:
  std::size_t decode(std::span<char> out) override {
    if (between_frames_) inflateReset(&state_);
    state_.next_in = reinterpret_cast<Bytef*>(in_.data());
    state_.avail_in = static_cast<uInt>(in_.size());
    state_.next_out = reinterpret_cast<Bytef*>(out.data());
    const auto capacity = static_cast<uInt>(std::min<std::size_t>(out.size(), 1 << 30));
    state_.avail_out = capacity;
    const int status = inflate(&state_, Z_NO_FLUSH);
    if (status != Z_OK && status != Z_STREAM_END && status != Z_BUF_ERROR)
      damaged("gzip", state_.msg ? state_.msg : "it needs a dictionary");
    in_ = in_.last(state_.avail_in);
    between_frames_ = status == Z_STREAM_END;
    return capacity - state_.avail_out;
  }

 private:
  z_stream state_ = {};
};

class ZstdStream : public DecodedStream {
 public:
  explicit ZstdStream(const fs::path& path) : DecodedStream(path), state_(ZSTD_createDCtx(), ZSTD_freeDCtx) {
    if (!state_) fail("zstd cannot start: there is not enough memory");
  }

 protected:
  std::size_t decode(std::span<char> out) override {
    ZSTD_inBuffer from = {in_.data(), in_.size(), 0};
    ZSTD_outBuffer to = {out.data(), out.size(), 0};
    const std::size_t status = ZSTD_decompressStream(state_.get(), &to, &from);
    if (ZSTD_isError(status)) damaged("zstd", ZSTD_getErrorName(status));
    in_ = in_.subspan(from.pos);
    between_frames_ = status == 0;
    return to.pos;
  }

 private:
  std::unique_ptr<ZSTD_DCtx, std::size_t (*)(ZSTD_DCtx*)> state_;
};

}  // namespace

std::size_t ByteStream::read(std::span<char> out) {
  std::size_t done = 0;
  while (done < out.size()) {
    const std::size_t n = read_some(out.subspan(done));
    if (n == 0) break;
    done += n;
  }
  return done;
}

std::unique_ptr<ByteStream> open_stream(const fs::path& path) {
  if (path.extension() == ".gz") return std::make_unique<GzipStream>(path);
  if (path.extension() == ".zst") return std::make_unique<ZstdStream>(path);
  return std::make_unique<PlainStream>(path);
}

fs::path uncompressed_name(const fs::path& path) {
  return path.extension() == ".gz" || path.extension() == ".zst" ? path.stem() : path.filename();
}

}  // namespace sy
