// The bytes of a file, decompressed where its name ends in .gz or .zst.
#pragma once

#include <filesystem>
#include <memory>
#include <span>

namespace sy {

// From beginning to end, in constant memory. Throws InputError naming the file that cannot be read, is not what its
// name says, or ends in the middle of its compressed data.
class ByteStream {
 public:
  virtual ~ByteStream() = default;
  // Fills `out`, less only at the end, and returns how much: 0 and nothing else means that the end was reached.
  std::size_t read(std::span<char> out);

 protected:
  // At least a byte, unless the end was reached.
  virtual std::size_t read_some(std::span<char> out) = 0;
};
std::unique_ptr<ByteStream> open_stream(const std::filesystem::path& path);
// What open_stream makes of the name "a.jsonl.gz": "a.jsonl".
std::filesystem::path uncompressed_name(const std::filesystem::path& path);

}  // namespace sy
