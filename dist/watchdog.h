// Ends a job that hangs: where a rank was stopped, killed or lost with its machine, where ranks wait for each other, where a
// device never ends what it was given.
//
// What is timed are waits (kernels/waiting.h): collectives, the host's waits for its device, and what is given to a device,
// since its queue may be full. Not timed is what the host computes, reads or writes: that may take as long as it takes.
// Progress is that a rank computes, that a wait ends, or that a part of what a wait is for has come (a call of MPI has
// returned, a collective on the device has ended). A job hangs where no rank has made progress for the timeout.
//
// A thread of each rank looks at this rank's wait. Once that has lasted for a while, it asks the other ranks' threads, by
// datagrams (UDP over IPv4), what they do: a rank that computes, or has waited for less long, lets the others wait on. One that was
// stopped or lost does not answer, and is named. Where no datagram gets through, a rank's own wait decides. A job that was
// suspended as a whole goes on.
#pragma once

#include <atomic>
#include <chrono>
#include <string>
#include <thread>
#include <vector>

#include "dist/activity.h"
#include "dist/comm.h"
#include "kernels/waiting.h"

namespace sy {

// How long a job may make no progress: $SWITCHYARD_TIMEOUT seconds, or ten minutes. Throws InputError where it is no such number.
std::chrono::duration<double> hang_timeout();

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

  // Watches from here on. After `timeout` without progress it prints what the ranks wait for to standard error, lets the launcher
  // read it, and ends this process with exit code 1, upon which launchers end the job. MPI is not called: MPI_Abort
  // may hang where another thread is in a call. Collective over `world`.
  Watchdog(Comm& world, std::chrono::duration<double> timeout);
  ~Watchdog();
  Watchdog(const Watchdog&) = delete;
  Watchdog& operator=(const Watchdog&) = delete;

 private:
  struct Peer {
    std::string host;
    std::vector<std::uint32_t> addresses;  // IPv4, all of its machine
    std::uint16_t port = 0;
    Clock::time_point heard{}, progress{};  // the latest answer, and the latest progress that one told of
    std::string words;                      // of the latest answer
  };
  struct Letter;

  void open_socket();
  void meet(Comm& world);
  void watch();
  void read_letters();
  void look();
  void send(const Letter& letter, std::uint32_t address, std::uint16_t port) const;
  double idle(const Wait& wait) const;  // seconds
  bool answers(const Peer& peer) const { return Clock::now() - peer.heard < timeout_ / 2; }
  std::string report(const Wait& wait) const;

  const std::chrono::duration<double> timeout_;
  const Clock::duration beat_;  // how often it looks
  int rank_, socket_ = -1, wake_ = -1;
  std::uint16_t port_ = 0;
  std::uint64_t job_ = 0;  // letters of other jobs have another number
  std::vector<Peer> peers_;
  Clock::time_point looked_, awake_since_{};  // it, or its machine, was stopped before
  std::atomic<bool> ends_{false};
  std::thread thread_;
};

// What a rank does, in words: "has waited 5 s in the forward pass of layer 1 of step 3 for an all-to-all with ranks 1, 2".
std::string words_of(const Wait& wait, const Activity& doing, double seconds);

}  // namespace sy
