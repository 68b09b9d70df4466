// Memory that ranks of one machine share: an MPI-3 shared window, a bounded part of it each, whatever is sent. CommMpi moves
// through it what goes to a rank's mates, those which share it; MPI carries the rest. One window serves all communicators.
//
// A rank writes in its own part alone, in one half and then in the other: what it has for its mates, and for each a letter that
// says where that is. A mate reads it there, and says so; only then is that half written again. So a rank never waits for all
// of a group, but for those of which it needs something, and no more is copied than into the window and out of it. Between two
// ranks letters are read in the order in which they were sent, which is the order of their calls.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "dist/comm_mpi.h"

namespace sy {

// Throws InputError unless $SWITCHYARD_WINDOW is a number of ranks, empty or unset.
void check_window_setting();

class Window {
 public:
  // Bytes of each of a rank's halves: small enough that what is written stays in a cache until it is read.
  static constexpr Index default_half = Index{512} << 10;

  // Those ranks of a machine share a window to which group() of their number on it gives the same number; below 0: none. Null
  // where a rank has no mates, or where there can be no window: `why` says so. Collective over `world`.
  static std::shared_ptr<Window> open(MPI_Comm world, const std::function<int(int)>& group, Index half,
                                      std::string* why);
  // $SWITCHYARD_WINDOW ranks share a window, one after the other: as if a machine had no more; 0: none do. Unset: all ranks
  // of a machine.
  static std::shared_ptr<Window> open(MPI_Comm world, std::string* why);
  ~Window();
  Window(const Window&) = delete;
  Window& operator=(const Window&) = delete;

  int size() const { return static_cast<int>(ranks_.size()); }
  int rank() const { return me_; }           // among the mates
  int id() const { return ranks_.front(); }  // the same for all mates, and of no other window
  Index half() const { return half_; }
  Index bytes() const { return part_ * size(); }  // of all mates

  // ---- one letter at a time ----
  // Turns to the other half, and waits until it has been read.
  void turn();
  // What each of so many pieces may have for all of them to fit into a half: a multiple of what a cache line holds.
  static constexpr Index line = 64;  // bytes
  static Index room(Index half, Index pieces) { return half / pieces / line * line; }
  // Copies into the half; returns where. What is copied between two turns must fit.
  Index put(const std::byte* data, Index bytes);
  // Tells a mate that so many bytes are there for it; once between two turns.
  void send(int mate, Index at, Index bytes);
  // What a mate's next letter tells of, once it is there. It may be overwritten after done().
  std::span<const std::byte> take(int mate);
  void done(int mate);

  // ---- messages of any length ----
  struct Give {
    const std::byte* data;
    Index bytes;
    std::span<const int> to;  // mates
  };
  struct Get {
    int from;
    std::byte* data;
    Index bytes;
  };
  // Gives and gets at the same time, at most one to and from each mate, which call this too.
  void trade(std::span<const Give> gives, std::span<Get> gets);

 private:
  struct Mail;
  struct Receipt;
  struct Part;
  enum Awaited : int { letter, receipt };

  Window(MPI_Comm mates, MPI_Win window, std::vector<int> ranks, Index half);
  template <class Ready>
  void await(int mate, Awaited what, Ready ready);
  void wake(int mate, Awaited what);

  MPI_Comm mates_;
  MPI_Win window_;
  std::vector<int> ranks_;  // of the mates, in the world
  int me_ = 0;
  Index half_, part_;
  std::vector<Part> parts_;                 // of each mate
  std::vector<std::uint64_t> sent_, read_;  // letters to and from each mate
  std::chrono::microseconds alone_{0};      // how long a rank that waits keeps its core for itself
  int turn_ = 0;
  Index used_ = 0;                                        // bytes of the half
  std::vector<std::pair<int, std::uint64_t>> unread_[2];  // of each half: a mate, and which of its letters
};

}  // namespace sy
