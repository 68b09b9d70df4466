// SHA-256.
#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>

namespace sy {

using Digest = std::array<std::uint8_t, 32>;
std::string to_hex(const Digest& digest);  // 64 lower-case digits

class Sha256 {
 public:
  Sha256();
  ~Sha256();
  Sha256(const Sha256&) = delete;
  Sha256& operator=(const Sha256&) = delete;
  void update(const void* data, std::size_t bytes);
  Digest finish();  // once, last

 private:
  struct State;
  std::unique_ptr<State> state_;
};

Digest sha256(std::string_view text);
// Reads the file in pieces. Throws InputError naming it when it cannot be read.
Digest sha256_file(const std::filesystem::path& path);
// Of the file's size and of up to 16 blocks of 16 KiB, evenly spread, its first and last bytes among them: the time
// that it takes is bounded, whatever the size. Throws the same.
Digest sha256_sampled(const std::filesystem::path& path);

}  // namespace sy
