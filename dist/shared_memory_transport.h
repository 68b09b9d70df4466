// Shared-memory transport between ranks of one machine, over an MPI-3 shared window.
// One window serves all communicators. Its peers are the ranks that share it; CommMpi sends to
// other ranks by MPI. Each rank has a segment of fixed size, independent of message sizes.
//
// A rank writes only its own segment. It alternates between two send buffers. A message is data in
// the current buffer and a header in the mailbox of the receiver, which says where the data is.
// The receiver reads the data in place, and then acknowledges it. A buffer is written again only
// after all its messages are acknowledged.
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
#include "dist/core_sharing.h"
#include "kernels/blocked_on.h"

namespace sy {

// Throws InputError unless $SWITCHYARD_WINDOW is a number of ranks, empty or not set.
void check_window_setting();

// Sends and receives host data between the ranks that share one window.
class SharedMemoryTransport {
 public:
  // Bytes of a send buffer: small enough that data stays in a cache until it is read.
  static constexpr Index default_buffer_bytes = Index{512} << 10;

  // Opens a window for this rank. Collective over `world`.
  // blocked: gets the progress of waits; it must outlive the window.
  // group: maps the index of a rank on its machine to a group.
  // Ranks of one machine with equal groups share a window; a negative group means no window.
  // buffer_bytes: bytes of a send buffer, rounded up to whole cache lines.
  // Returns nullptr if this rank has no peers, or if shared memory is unavailable. `why` is then
  // set to the reason, if there are peers.
  static std::shared_ptr<SharedMemoryTransport> open(BlockState& blocked, MPI_Comm world,
                                                     const std::function<int(int)>& group, Index buffer_bytes,
                                                     std::string* why);
  // Opens a window of the default size for all ranks of a machine.
  // $SWITCHYARD_WINDOW limits the ranks that share one, in order of their ranks. 0 and 1 mean no
  // window. An invalid value is ignored here: check_window_setting() reports it.
  static std::shared_ptr<SharedMemoryTransport> open(BlockState& blocked, MPI_Comm world, std::string* why);
  ~SharedMemoryTransport();
  SharedMemoryTransport(const SharedMemoryTransport&) = delete;
  SharedMemoryTransport& operator=(const SharedMemoryTransport&) = delete;

  // Number of ranks of the window.
  int size() const { return static_cast<int>(world_ranks_.size()); }
  int rank() const { return rank_; }               // rank of this process in the window
  int id() const { return world_ranks_.front(); }  // world rank of its first rank: names the window
  // Bytes of a send buffer.
  Index buffer_bytes() const { return buffer_bytes_; }
  Index bytes() const { return segment_bytes_ * size(); }  // size of the whole window

  // ---- single messages ----
  // Ranks are those in the window. Each message must fit into a send buffer.

  // Switches to the other send buffer. Waits until all its messages are acknowledged.
  void next_buffer();
  static constexpr Index line = 64;  // bytes of a cache line
  // Returns the maximum size of each of `num_messages` messages
  // that share a send buffer: whole cache lines.
  static Index max_message_bytes(Index buffer_bytes, Index num_messages) {
    return buffer_bytes / num_messages / line * line;
  }
  // Copies data into the current send buffer, and returns its offset for send().
  // All data between two calls of next_buffer() must fit into the buffer.
  Index write(const std::byte* data, Index bytes);
  // Sends the `bytes` bytes at offset `at` to a peer. Does not wait. Peers may share the bytes.
  // At most one message per peer between two calls of next_buffer().
  void send(int peer, Index at, Index bytes);
  // Waits for the next message of a peer, and returns its data in the peer's segment.
  // The data is valid until acknowledge(). Each receive() from a peer needs one acknowledge()
  // before the next receive().
  std::span<const std::byte> receive(int peer);
  // Acknowledges the message that receive() returned.
  void acknowledge(int peer);

  // ---- messages of any length ----
  // Data to send.
  struct SendOp {
    const std::byte* data;
    Index bytes;
    std::span<const int> to;  // peers that receive it
  };
  // Data to receive. send_receive() advances `data` and decreases `bytes`.
  struct ReceiveOp {
    int from;
    std::byte* data;
    Index bytes;
  };
  // Sends and receives concurrently. At most one message to each peer and one from each.
  // The peer of each message must call it too, with an equal number of bytes.
  // Returns after all received data is in place. The caller may then change the sent data.
  // send_receive() calls next_buffer() as needed.
  void send_receive(std::span<const SendOp> sends, std::span<ReceiveOp> receives);

 private:
  struct Mailbox;
  struct Acknowledgement;
  struct Segment;
  enum Event : int { message, acknowledgement };

  SharedMemoryTransport(BlockState& blocked, MPI_Comm comm, MPI_Win window, std::vector<int> ranks, Index buffer_bytes);
  template <class Ready>
  void wait_until(int peer, Event event, Ready ready);
  void wake(int peer, Event event);

  BlockState& blocked_;
  MPI_Comm comm_;
  MPI_Win window_;
  std::vector<int> world_ranks_;  // world rank of each rank of the window
  int rank_ = 0;
  Index buffer_bytes_, segment_bytes_;                  // bytes of a send buffer, and of a segment
  std::vector<Segment> segments_;                       // segment of each rank
  std::vector<std::uint64_t> num_sent_, num_received_;  // number of messages to and from each peer
  std::chrono::microseconds spin_time_{0};              // before a waiting rank yields its core
  CoreSharing core_;
  int current_buffer_ = 0;  // current send buffer
  Index used_bytes_ = 0;    // bytes used of it
  // For each send buffer: peers with unacknowledged messages,
  // and the sequence number of the message.
  std::vector<std::pair<int, std::uint64_t>> unacknowledged_[2];
};

}  // namespace sy
