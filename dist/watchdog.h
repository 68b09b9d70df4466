// Ends a job that hangs: if a rank is stopped or lost, if ranks wait for each other, or if a device
// stalls.
// A thread of each rank watches from before MPI starts until after it has ended.
// The ranks exchange signed heartbeats (dist/heartbeat.h).
// Design: docs/design/watchdog.md.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "dist/comm.h"
#include "dist/heartbeat.h"
#include "dist/rank_context.h"
#include "kernels/blocked_on.h"

namespace sy {

using Seconds = std::chrono::duration<double>;

// Returns $SWITCHYARD_TIMEOUT in seconds; ten minutes if it is not set.
// Throws InputError unless its value is a number above 0 and at most 1e9.
Seconds hang_timeout();

struct WatchdogLimits {
  Seconds hang = std::chrono::minutes(10);  // longest time without progress of any rank; above 0
  Seconds local = std::chrono::hours(1);    // longest local work of one rank; 0 means unlimited
};
// Returns hang_timeout() and $SWITCHYARD_LOCAL_TIMEOUT; one hour if it is not set.
// Throws InputError if a value is invalid.
WatchdogLimits watchdog_limits();

// Returns the ranks that a rank asks for their state. Up to 32 ranks, these are all others.
// Otherwise they are those at the distances 1, 2, 4, ... in both directions, modulo the number of
// ranks. News therefore reaches every rank after at most log2(ranks) answers. Pure function.
std::vector<int> ranks_to_ask(int rank, int ranks);

// Suspends the limit of local work until the end of the scope, for work that may take hours.
class UnlimitedLocalWork {
 public:
  explicit UnlimitedLocalWork(RankContext& rank) : scopes_(rank.unlimited_local_work) { ++scopes_; }
  ~UnlimitedLocalWork() { --scopes_; }
  UnlimitedLocalWork(const UnlimitedLocalWork&) = delete;
  UnlimitedLocalWork& operator=(const UnlimitedLocalWork&) = delete;

 private:
  std::atomic<int>& scopes_;
};

class Watchdog {
 public:
  using Clock = std::chrono::steady_clock;

  // Starts the thread that watches this rank. `context` must outlive it.
  // After a limit the watchdog prints a report to standard error, and exits with code 1. Launchers
  // then end the job. If a silent rank is on another host, the watchdog ends mpirun too. It does
  // not call MPI, since MPI_Abort may hang.
  Watchdog(const RankContext& context, const WatchdogLimits& limits);
  ~Watchdog();  // stops the thread
  // Exchanges the addresses and the key of all ranks, and replaces the limits. Collective.
  // Before this call the watchdog knows only this rank's own wait.
  void rendezvous(Comm& world, const WatchdogLimits& limits);
  Watchdog(const Watchdog&) = delete;
  Watchdog& operator=(const Watchdog&) = delete;

 private:
  // Address of a rank, and the socket of this rank that reaches it.
  struct Endpoint {
    std::uint32_t address = 0;  // IPv4
    std::uint16_t port = 0;
    int socket = -1;  // -1: not opened yet
  };
  struct Peer {
    std::string host;
    std::vector<Endpoint> endpoints;
    // Numbers of its latest question, and of this rank's question that it answered last.
    std::uint64_t last_question = 0, last_answer = 0;
    // Lower bounds of the time when it was last alive, and of the latest progress of which it knew.
    Clock::time_point last_alive{}, last_progress{};
    std::string state;  // state in its latest answer
  };

  void set_limits(const WatchdogLimits& limits);
  void open_sockets();
  int socket_to(const Endpoint& to) const;
  void watch();
  void read_heartbeats(int socket);
  void handle(const Heartbeat& heartbeat, const Endpoint& from);
  void send(const HeartbeatDatagram& datagram, const Endpoint& to) const;
  void check();
  void ask();
  Heartbeat own_state(std::uint64_t sequence) const;
  Clock::time_point latest_progress() const;
  std::vector<int> silent_ranks() const;
  void check_local_work();
  double idle(const BlockedOn& block) const;  // seconds
  bool is_responsive(const Peer& peer) const { return Clock::now() - peer.last_alive < limits_.hang / 2; }
  std::string own_name() const;
  std::string report(const BlockedOn& block) const;

  const RankContext& context_;
  // Guards the members below, but for started_, stopping_ and thread_. rendezvous() sets sockets_
  // without it, before the thread reads them.
  std::mutex mutex_;
  WatchdogLimits limits_;
  Clock::duration poll_interval_{};
  const Clock::time_point started_ = Clock::now();
  int rank_ = -1, wake_fd_ = -1;
  std::vector<Endpoint> sockets_;  // of this rank, each bound to one of its addresses
  HeartbeatKey key_{};
  std::vector<int> asked_;                              // ranks_to_ask()
  Clock::time_point asking_since_{};                    // first question of the current wait, or {}
  std::uint64_t num_questions_ = 0;                     // so far, each to the asked ranks
  std::array<Clock::time_point, 16> question_times_{};  // times of the latest questions
  std::vector<Peer> peers_;                             // empty before rendezvous()
  int silent_rank_ = -1;                                // latest one that an answer named, or -1
  Clock::time_point silent_since_{};                    // when that was found, at the earliest
  Clock::time_point last_check_, resumed_at_{};         // latest check; latest resumption
  Clock::time_point local_since_;                       // latest progress of local work
  std::uint64_t progress_count_ = 0;                    // sum of the progress counters at that time
  std::atomic<bool> stopping_{false};
  std::thread thread_;
};

// Describes the state of a rank as text. seconds: length of its wait. For example:
// "has waited 12 s in the forward pass of layer 1, step 3 for an all-to-all with ranks 1, 2"
// "computes in the forward pass of layer 1, step 3"
std::string describe_state(const BlockedOn& block, const Phase& phase, double seconds);

}  // namespace sy
