// The bytes of a file, decompressed if its name ends in .gz or .zst.
#pragma once

#include <filesystem>
#include <memory>
#include <span>

namespace sy {

// Reads a file from beginning to end in constant memory. Throws InputError that names the file if
// it is unreadable, has another format than its name, or ends within compressed data.
class ByteStream {
 public:
  virtual ~ByteStream() = default;
  // Fills `out` and returns the number of bytes, which is smaller only at the end. 0 means the end.
  std::size_t read(std::span<char> out);

 protected:
  // Reads at least one byte, unless the end is reached. Returns the number of bytes.
  virtual std::size_t read_some(std::span<char> out) = 0;
};
std::unique_ptr<ByteStream> open_stream(const std::filesystem::path& path);
// Returns the file name without .gz or .zst: "a.jsonl" for "a.jsonl.gz".
std::filesystem::path uncompressed_name(const std::filesystem::path& path);

}  // namespace sy
