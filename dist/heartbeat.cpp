#include "dist/heartbeat.h"

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <sys/random.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <type_traits>

#include "kernels/check.h"

namespace sy {
namespace {

static_assert(std::is_trivially_copyable_v<Heartbeat> &&
              std::has_unique_object_representations_v<std::array<char, 200>>);

// Writes the digest of the heartbeat's bytes after them.
void sign(HeartbeatDatagram& datagram, const HeartbeatKey& key) {
  std::array<std::uint8_t, EVP_MAX_MD_SIZE> digest{};
  if (!HMAC(EVP_sha256(), key.data(), static_cast<int>(key.size()), datagram.data(), sizeof(Heartbeat), digest.data(),
            nullptr))
    fail("HMAC-SHA256 is not available: see which OpenSSL library is installed");
  std::copy_n(digest.begin(), heartbeat_bytes - sizeof(Heartbeat), datagram.begin() + sizeof(Heartbeat));
}

}  // namespace

HeartbeatKey random_heartbeat_key() {
  HeartbeatKey key{};
  if (getrandom(key.data(), key.size(), 0) != static_cast<ssize_t>(key.size())) fail("getrandom gives no random bytes");
  return key;
}

HeartbeatDatagram seal(const Heartbeat& heartbeat, const HeartbeatKey& key) {
  HeartbeatDatagram datagram{};
  std::memcpy(datagram.data(), &heartbeat, sizeof heartbeat);
  sign(datagram, key);
  return datagram;
}

std::optional<Heartbeat> unseal(std::span<const std::uint8_t> datagram, const HeartbeatKey& key, double uptime) {
  if (datagram.size() != heartbeat_bytes) return {};
  HeartbeatDatagram expected{};
  std::copy_n(datagram.begin(), sizeof(Heartbeat), expected.begin());
  sign(expected, key);
  if (CRYPTO_memcmp(expected.data(), datagram.data(), heartbeat_bytes) != 0) return {};
  Heartbeat heartbeat;
  std::memcpy(&heartbeat, datagram.data(), sizeof heartbeat);
  for (double* const seconds : {&heartbeat.idle, &heartbeat.silent_age}) {
    if (!std::isfinite(*seconds)) return {};
    *seconds = std::clamp(*seconds, 0.0, uptime);
  }
  heartbeat.state[sizeof heartbeat.state - 1] = 0;
  return heartbeat;
}

}  // namespace sy
