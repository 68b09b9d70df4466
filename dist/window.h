// Shared-memory transport between ranks of one machine, over an MPI-3 shared window.
// One window serves all communicators. Its peers (`mates`) are the ranks that share it; CommMpi
// sends to other ranks by MPI. Each rank has a segment of fixed size, independent of message sizes.
//
// A rank writes only its own segment. It alternates between two send buffers (`half`). A message is
// data in the current buffer and a header (`letter`) in the mailbox of the receiver, which says
// where the data is. The receiver reads the data in place, and then acknowledges it (`receipt`).
// A buffer is written again only after all its messages are acknowledged.
//
// Therefore a rank waits only for the ranks that it exchanges data with. Data is copied once into
// and once out of the window. Messages between two ranks are received in the order of sending.
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

// Throws InputError unless $SWITCHYARD_WINDOW is a number of ranks, empty or not set.
void check_window_setting();

class Window {
 public:
  // Bytes of a send buffer: small enough that data stays in a cache until it is read.
  static constexpr Index default_half = Index{512} << 10;

  // Opens a window for this rank. Collective over `world`.
  // group: maps the index of a rank on its machine to a group.
  // Ranks of one machine with equal groups share a window; a negative group means no window.
  // half: bytes of a send buffer, rounded up to whole cache lines.
  // Returns nullptr if this rank has no peers, or if shared memory is unavailable. `why` is then
  // set to the reason, if there are peers.
  static std::shared_ptr<Window> open(MPI_Comm world, const std::function<int(int)>& group, Index half,
                                      std::string* why);
  // Opens a window of the default size for all ranks of a machine.
  // $SWITCHYARD_WINDOW limits the ranks that share one, in order of their ranks; 0 means no window.
  static std::shared_ptr<Window> open(MPI_Comm world, std::string* why);
  ~Window();
  Window(const Window&) = delete;
  Window& operator=(const Window&) = delete;

  // Number of ranks of the window.
  int size() const { return static_cast<int>(ranks_.size()); }
  int rank() const { return me_; }           // rank of this process in the window
  int id() const { return ranks_.front(); }  // unique number of the window, equal on all its ranks
  // Bytes of a send buffer.
  Index half() const { return half_; }
  Index bytes() const { return part_ * size(); }  // size of the whole window

  // ---- single messages ----
  // Ranks are those in the window. Each message must fit into a send buffer.

  // Switches to the other send buffer. Waits until all its messages are acknowledged.
  void turn();
  static constexpr Index line = 64;  // bytes of a cache line
  // Returns the maximum size of each of `pieces` messages
  // that share a send buffer: whole cache lines.
  static Index room(Index half, Index pieces) { return half / pieces / line * line; }
  // Copies data into the current send buffer, and returns its offset for send().
  // All data between two calls of turn() must fit into the buffer.
  Index put(const std::byte* data, Index bytes);
  // Sends the `bytes` bytes at offset `at` to a peer. Does not wait. Peers may share the bytes.
  // At most one message per peer between two calls of turn().
  void send(int mate, Index at, Index bytes);
  // Waits for the next message of a peer, and returns its data in the peer's segment.
  // The data is valid until done(). Each take() of a peer needs one done() before the next take().
  std::span<const std::byte> take(int mate);
  // Acknowledges the message that take() returned.
  void done(int mate);

  // ---- messages of any length ----
  // Data to send.
  struct Give {
    const std::byte* data;
    Index bytes;
    std::span<const int> to;  // peers that receive it
  };
  // Data to receive. trade() advances `data` and decreases `bytes`.
  struct Get {
    int from;
    std::byte* data;
    Index bytes;
  };
  // Sends and receives concurrently. At most one message to each peer and one from each.
  // The peer of each message must call it too, with an equal number of bytes.
  // Returns when all data to receive is in place, and the data to send may change.
  // trade() calls turn() as needed.
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
  std::vector<int> ranks_;  // world rank of each rank of the window
  int me_ = 0;
  Index half_, part_;                       // bytes of a send buffer, and of a segment
  std::vector<Part> parts_;                 // segment of each rank
  std::vector<std::uint64_t> sent_, read_;  // number of messages to and from each peer
  std::chrono::microseconds alone_{0};      // spin time of a waiting rank before it yields its core
  int turn_ = 0;                            // current send buffer
  Index used_ = 0;                          // bytes used of it
  // For each send buffer: peers with unacknowledged messages,
  // and the sequence number of the message.
  std::vector<std::pair<int, std::uint64_t>> unread_[2];
};

}  // namespace sy
