#include "src/io/digest.h"

#include <openssl/evp.h>

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

Digest sha256_file(const std::filesystem::path& path) {
  Sha256 hash;
  read_pieces(path, [&](std::string_view piece) { hash.update(piece.data(), piece.size()); });
  return hash.finish();
}

}  // namespace sy
