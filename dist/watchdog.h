// Ends a job that hangs: where a rank was stopped, killed or lost with its machine, where ranks wait for each other, where a
// device never ends what it was given, or where a rank's own work does not end.
//
// What is timed are waits (kernels/waiting.h): collectives, the host's waits for its device, and what is given to a device,
// since its queue may be full; and the start and the end of MPI. Progress is that a rank computes, that a wait ends, or that a
// part of what a wait is for has come (a call of MPI has returned, a collective on the device has ended). A job hangs where no
// rank has made progress for the timeout. What the host computes, reads or writes has a longer timeout of its own, which
// begins anew with each wait, activity, and piece of a file (dist/activity.h).
//
// A thread of each rank looks at this rank's wait, from before MPI starts until after it has ended. Once that has lasted for a
// while, it asks the other ranks' threads, by datagrams (UDP over IPv4), what they do: a rank that computes, or has waited for
// less long, lets the others wait on. One that was stopped or lost does not answer, and is named. Where no datagram gets
// through, and before the ranks know each other, a rank's own wait decides. A job that was suspended as a whole goes on.
// Datagrams are signed (dist/heartbeat.h), and an answer counts from when its question was asked, so that others can neither
// end a job nor keep it. Ranks of one machine use its loopback address alone.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "dist/activity.h"
#include "dist/comm.h"
#include "dist/heartbeat.h"
#include "kernels/waiting.h"

namespace sy {

using Seconds = std::chrono::duration<double>;

// How long a job may make no progress: $SWITCHYARD_TIMEOUT seconds, or ten minutes. Throws InputError where it is no such number.
Seconds hang_timeout();

struct WatchdogLimits {
  Seconds hang = std::chrono::minutes(10);  // of a job without progress
  Seconds local = std::chrono::hours(1);    // of one rank's own work; 0: unlimited
};
// The limits of $SWITCHYARD_TIMEOUT and $SWITCHYARD_LOCAL_TIMEOUT. Throws InputError if one of them is not a number of seconds.
WatchdogLimits watchdog_limits();

// Suspends the limit of local work until the end of the scope: a command that one process runs may take hours.
class UnlimitedLocalWork {
 public:
  UnlimitedLocalWork() { ++scopes; }
  ~UnlimitedLocalWork() { --scopes; }
  UnlimitedLocalWork(const UnlimitedLocalWork&) = delete;
  UnlimitedLocalWork& operator=(const UnlimitedLocalWork&) = delete;

  inline static std::atomic<int> scopes{0};
};

// The collective on a device that the host knows to be under way: the oldest, as of the host's latest look, or one given since.
struct OnDevice {
  const char* what = nullptr;
  const char* whom = "";
  RowsMoved rows;
  Activity activity;
};
inline Seqlock<OnDevice> on_device;

class Watchdog {
 public:
  using Clock = std::chrono::steady_clock;

  // Watches this process from here on. After a limit it prints what the ranks wait for to standard error, lets the launcher
  // read it, and ends this process with exit code 1, upon which launchers end the job. MPI is not called: MPI_Abort
  // may hang where another thread is in a call.
  explicit Watchdog(const WatchdogLimits& limits);
  ~Watchdog();
  // Tells the ranks how to reach each other, so that they ask each other from here on. Collective.
  void rendezvous(Comm& world, const WatchdogLimits& limits);
  Watchdog(const Watchdog&) = delete;
  Watchdog& operator=(const Watchdog&) = delete;

 private:
  // Where a rank is reached, and the socket of this rank that reaches it.
  struct Endpoint {
    std::uint32_t address = 0;  // IPv4
    std::uint16_t port = 0;
    int socket = -1;  // -1: not looked for yet
  };
  struct Peer {
    std::string host;
    std::vector<Endpoint> endpoints;
    std::uint64_t asked = 0,
                  answered = 0;  // numbers of its latest question, and of this rank's that it answered latest
    Clock::time_point heard{}, progress{};  // at least when it answered last, and its latest progress
    std::string words;                      // of the latest answer
  };

  void set_limits(const WatchdogLimits& limits);
  void open_sockets();
  int socket_to(const Endpoint& to) const;
  void watch();
  void read_heartbeats(int socket);
  void take(const Heartbeat& heartbeat, const Endpoint& from);
  void send(const HeartbeatDatagram& datagram, const Endpoint& to) const;
  void look();
  void look_at_local_work();
  double idle(const Wait& wait) const;  // seconds
  bool answers(const Peer& peer) const { return Clock::now() - peer.heard < limits_.hang / 2; }
  std::string own_name() const;
  std::string report(const Wait& wait) const;

  std::mutex mutex_;  // of all below, which rendezvous() sets while the thread watches
  WatchdogLimits limits_;
  Clock::duration poll_interval_{};
  const Clock::time_point started_ = Clock::now();
  int rank_ = -1, wake_ = -1;
  std::vector<Endpoint> sockets_;  // of this rank, each bound to one of its addresses
  HeartbeatKey key_{};
  std::uint64_t questions_ = 0;                   // asked so far, of all peers at a time
  std::array<Clock::time_point, 16> asked_at_{};  // the latest of them
  std::vector<Peer> peers_;                       // empty before rendezvous()
  Clock::time_point looked_, awake_since_{};      // it, or its machine, was stopped before
  Clock::time_point local_since_;                 // when this rank's own work was last seen to go on
  std::uint64_t versions_ = 0;                    // of the published wait and activity at that time, and local_progress
  std::atomic<bool> ends_{false};
  std::thread thread_;
};

// What a rank does, in words: "has waited 5 s in the forward pass of layer 1 of step 3 for an all-to-all with ranks 1, 2".
std::string words_of(const Wait& wait, const Activity& doing, double seconds);

}  // namespace sy
