// Signed datagrams by which the watchdogs of the ranks ask each other what they do (dist/watchdog.h).
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

namespace sy {

// How a rank is reached, for the other ranks.
struct PeerInfo {
  static constexpr std::size_t max_endpoints = 7;

  char host[64];
  std::uint64_t machine;  // the same for ranks that share a loopback address
  struct {
    std::uint32_t address, port;  // IPv4, in network byte order; port 0: unused
  } endpoints[max_endpoints];     // the first one is the loopback address
};

using HeartbeatKey = std::array<std::uint8_t, 32>;

struct Heartbeat {
  std::int32_t from = 0;       // rank of the sender
  std::int32_t asks = 0;       // 1: a question; 0: an answer
  std::uint64_t sequence = 0;  // number of the question, also in its answer
  double idle = 0;             // seconds without progress
  char words[200] = {};        // what the sender does; cut off if it is longer
};

// Bytes that no process can guess. Throws a Failure if the system has none.
HeartbeatKey random_heartbeat_key();

// The bytes of a datagram: the heartbeat and its digest (HMAC-SHA256, its first 16 bytes).
constexpr std::size_t heartbeat_bytes = sizeof(Heartbeat) + 16;
using HeartbeatDatagram = std::array<std::uint8_t, heartbeat_bytes>;
HeartbeatDatagram seal(const Heartbeat& heartbeat, const HeartbeatKey& key);

// Returns the heartbeat of a datagram; empty if its size or its digest is wrong, or if `idle` is not finite. `idle` is then at least
// 0 and at most `uptime` seconds, and `words` ends with a zero.
std::optional<Heartbeat> unseal(std::span<const std::uint8_t> datagram, const HeartbeatKey& key, double uptime);

}  // namespace sy
