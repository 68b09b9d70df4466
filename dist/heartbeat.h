// Signed UDP datagrams of the watchdogs (dist/watchdog.h): questions and answers about progress.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

namespace sy {

// Addresses at which the other ranks reach a rank.
struct PeerInfo {
  static constexpr std::size_t max_endpoints = 7;

  char host[64];
  std::uint64_t machine;  // hash of boot and network namespace: equal means one loopback interface
  struct {
    std::uint32_t address, port;  // IPv4; both in network byte order; port 0: unused
  } endpoints[max_endpoints];     // the first one is the loopback address
};

// Key of the HMAC, shared by the ranks of a job.
using HeartbeatKey = std::array<std::uint8_t, 32>;

// A question for a rank's state, or the answer.
struct Heartbeat {
  std::int32_t from = 0;         // rank of the sender
  std::int32_t is_question = 0;  // 1: question; 0: answer
  std::uint64_t sequence = 0;    // number of the question; equal in its answer
  // Seconds since the latest progress that the sender knows of, its own included; 0 in a question.
  double idle = 0;
  char state[200] = {};  // state of the sender as text, truncated; empty in a question
  // A rank that does not answer, or -1 if no such rank is known; seconds since a rank found that.
  std::int32_t silent_rank = -1;
  std::int32_t reserved = 0;
  double silent_age = 0;
};

// Returns a random key. Throws Failure if the system has no random bytes.
HeartbeatKey random_heartbeat_key();

// A heartbeat, followed by the first 16 bytes of its HMAC-SHA256.
constexpr std::size_t heartbeat_bytes = sizeof(Heartbeat) + 16;
using HeartbeatDatagram = std::array<std::uint8_t, heartbeat_bytes>;
// Returns the signed datagram of a heartbeat.
HeartbeatDatagram seal(const Heartbeat& heartbeat, const HeartbeatKey& key);

// Returns the heartbeat of a datagram. Empty if its size or its HMAC is invalid, or if `idle` or
// `silent_age` is not finite.
// The result has `idle` and `silent_age` clamped to [0, uptime], and a zero-terminated `state`.
// Uptime is the time in seconds since the receiver's watchdog started.
std::optional<Heartbeat> unseal(std::span<const std::uint8_t> datagram, const HeartbeatKey& key, double uptime);

}  // namespace sy
