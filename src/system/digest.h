// SHA-256, and a faster checksum.
#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>

struct evp_md_ctx_st;
struct evp_mac_ctx_st;

namespace sy {

using Digest = std::array<std::uint8_t, 32>;
std::string to_hex(const Digest& digest);  // 64 lower-case digits

class Sha256 {
 public:
  Sha256();
  void update(const void* data, std::size_t bytes);
  Digest finish();  // call once, after the last update

 private:
  std::unique_ptr<evp_md_ctx_st, void (*)(evp_md_ctx_st*)> context_;
};

// A 128-bit checksum against accidents, not against forgery: GMAC with a fixed key. It is about
// five times as fast as SHA-256 (9 GB/s against 1.8 GB/s on one core with the instructions for
// both). Equal bytes give equal checksums, however they are divided over calls of update().
class Checksum {
 public:
  using Value = std::array<std::uint8_t, 16>;
  Checksum();
  void update(const void* data, std::size_t bytes);
  void update(std::string_view text) { update(text.data(), text.size()); }
  Value finish();  // call once, after the last update

 private:
  std::unique_ptr<evp_mac_ctx_st, void (*)(evp_mac_ctx_st*)> context_;
};
Checksum::Value checksum(const void* data, std::size_t bytes);

Digest sha256(std::string_view text);
// Reads the file in chunks. Throws InputError naming the file if it cannot be read.
Digest sha256_file(const std::filesystem::path& path);
// Digest of the file's size and of up to 16 blocks of 16 KiB, evenly spread, including its first
// and last bytes. Its time does not grow with the size. Throws InputError likewise.
Digest sha256_sampled(const std::filesystem::path& path);

}  // namespace sy
