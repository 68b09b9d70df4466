#include "src/io/digest.h"

#include <openssl/evp.h>

#include <algorithm>
#include <fstream>
#include <vector>

#include "kernels/check.h"
#include "src/io/files.h"

namespace sy {

std::string to_hex(const Digest& digest) {
  std::string hex;
  for (std::uint8_t byte : digest) hex += fmt::format("{:02x}", byte);
  return hex;
}

struct Sha256::State {
  std::unique_ptr<EVP_MD_CTX, void (*)(EVP_MD_CTX*)> context{EVP_MD_CTX_new(), EVP_MD_CTX_free};
};

Sha256::Sha256() : state_(std::make_unique<State>()) {
  if (!state_->context || EVP_DigestInit_ex(state_->context.get(), EVP_sha256(), nullptr) != 1)
    fail("OpenSSL offers no SHA-256 on this machine");
}

Sha256::~Sha256() = default;

void Sha256::update(const void* data, std::size_t bytes) {
  if (EVP_DigestUpdate(state_->context.get(), data, bytes) != 1) fail("OpenSSL cannot compute SHA-256");
}

Digest Sha256::finish() {
  Digest digest;
  unsigned size = 0;
  if (EVP_DigestFinal_ex(state_->context.get(), digest.data(), &size) != 1 || size != digest.size())
    fail("OpenSSL cannot compute SHA-256");
  return digest;
}

Digest sha256(std::string_view text) {
  Sha256 hash;
  hash.update(text.data(), text.size());
  return hash.finish();
}

Digest sha256_sampled(const std::filesystem::path& path) {
  constexpr std::int64_t block = 16 << 10, blocks = 16;
  std::error_code error;
  const auto size = static_cast<std::int64_t>(std::filesystem::file_size(path, error));
  std::ifstream file;
  if (!error) file.open(path, std::ios::binary);
  if (!file.is_open()) bad_input("cannot read {}: check the file and its permissions", path.string());
  Sha256 hash;
  hash.update(&size, sizeof size);
  std::vector<char> piece(block);
  const std::int64_t last = std::max<std::int64_t>(size - block, 0),
                     steps = std::min(blocks, (size + block - 1) / block);
  for (std::int64_t i = 0; i < steps; ++i) {
    // As a quotient and a remainder: the product of a large size and a number of blocks need not fit.
    const std::int64_t gaps = std::max<std::int64_t>(steps - 1, 1);
    file.seekg(last / gaps * i + last % gaps * i / gaps);
    if (!file.read(piece.data(), std::min(block, size)))
      bad_input("cannot read {}: it was cut short, or the disk fails", path.string());
    hash.update(piece.data(), static_cast<std::size_t>(file.gcount()));
  }
  return hash.finish();
}

Digest sha256_file(const std::filesystem::path& path) {
  Sha256 hash;
  read_pieces(path, [&](std::string_view piece) { hash.update(piece.data(), piece.size()); });
  return hash.finish();
}

}  // namespace sy
