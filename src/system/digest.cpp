#include "src/system/digest.h"

#include <openssl/core_names.h>
#include <openssl/evp.h>
#include <openssl/params.h>

#include <algorithm>
#include <vector>

#include "kernels/check.h"
#include "src/system/files.h"

namespace sy {

std::string to_hex(const Digest& digest) {
  std::string hex;
  for (std::uint8_t byte : digest) hex += fmt::format("{:02x}", byte);
  return hex;
}

Sha256::Sha256() : context_(EVP_MD_CTX_new(), EVP_MD_CTX_free) {
  if (!context_ || EVP_DigestInit_ex(context_.get(), EVP_sha256(), nullptr) != 1)
    fail("OpenSSL offers no SHA-256 on this machine");
}

void Sha256::update(const void* data, std::size_t bytes) {
  if (EVP_DigestUpdate(context_.get(), data, bytes) != 1) fail("OpenSSL cannot compute SHA-256");
}

Digest Sha256::finish() {
  Digest digest;
  unsigned size = 0;
  if (EVP_DigestFinal_ex(context_.get(), digest.data(), &size) != 1 || size != digest.size())
    fail("OpenSSL cannot compute SHA-256");
  return digest;
}

Checksum::Checksum() : context_(nullptr, EVP_MAC_CTX_free) {
  static EVP_MAC* const gmac = EVP_MAC_fetch(nullptr, "GMAC", nullptr);
  char cipher[] = "AES-128-GCM";
  unsigned char key[16] = "switchyard sums", iv[12] = "fixed";
  const OSSL_PARAM settings[] = {OSSL_PARAM_construct_utf8_string(OSSL_MAC_PARAM_CIPHER, cipher, 0),
                                 OSSL_PARAM_construct_octet_string(OSSL_MAC_PARAM_IV, iv, sizeof iv),
                                 OSSL_PARAM_construct_end()};
  if (gmac) context_.reset(EVP_MAC_CTX_new(gmac));
  if (!context_ || EVP_MAC_init(context_.get(), key, sizeof key, settings) != 1)
    fail("OpenSSL offers no GMAC on this machine");
}

void Checksum::update(const void* data, std::size_t bytes) {
  if (bytes > 0 && EVP_MAC_update(context_.get(), static_cast<const unsigned char*>(data), bytes) != 1)
    fail("OpenSSL cannot compute GMAC");
}

Checksum::Value Checksum::finish() {
  Value value;
  std::size_t size = 0;
  if (EVP_MAC_final(context_.get(), value.data(), &size, value.size()) != 1 || size != value.size())
    fail("OpenSSL cannot compute GMAC");
  return value;
}

Checksum::Value checksum(const void* data, std::size_t bytes) {
  Checksum sum;
  sum.update(data, bytes);
  return sum.finish();
}

Digest sha256(std::string_view text) {
  Sha256 hash;
  hash.update(text.data(), text.size());
  return hash.finish();
}

Digest sha256_sampled(const std::filesystem::path& path) {
  constexpr std::int64_t block = 16 << 10, blocks = 16;
  const InputFile file(path);
  const std::int64_t size = file.size();
  Sha256 hash;
  hash.update(&size, sizeof size);
  std::vector<char> buffer(block);
  const std::int64_t last = std::max<std::int64_t>(size - block, 0),
                     steps = std::min(blocks, (size + block - 1) / block);
  for (std::int64_t i = 0; i < steps; ++i) {
    // Scales quotient and remainder separately: the product of a large size and i may overflow.
    const std::int64_t gaps = std::max<std::int64_t>(steps - 1, 1);
    const std::int64_t at = last / gaps * i + last % gaps * i / gaps;
    const auto bytes = static_cast<std::size_t>(std::min(block, size));
    for (std::size_t done = 0; done < bytes;) {
      const std::size_t n = file.read_at(at + static_cast<Index>(done), std::span(buffer).subspan(done, bytes - done));
      if (n == 0) bad_input("cannot read {}: it was cut short while it was read", path.string());
      done += n;
    }
    hash.update(buffer.data(), bytes);
  }
  return hash.finish();
}

Digest sha256_file(const std::filesystem::path& path) {
  Sha256 hash;
  read_chunks(path, [&](std::string_view chunk) { hash.update(chunk.data(), chunk.size()); });
  return hash.finish();
}

}  // namespace sy
