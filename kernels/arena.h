// A stack allocator of device memory. A step needs the same buffers again and again, so blocks are
// allocated once and reused. Buffers are freed in the reverse order of allocation: rewind(mark)
// frees all buffers allocated after mark().
//
// A training step uses two arenas:
//   * `saved`: its buffers live from a layer's forward to its backward
//   * `scratch`: its buffers live until the end of the function that allocated them (Arena::Scope)
// Each micro-batch in flight has its own `saved`.
//
// An arena grows by blocks, and the first block has the expected size. Or it allocates from one end
// of a FixedBlock. Another arena may allocate from the other end, and use the memory that the first
// does not need.
#pragma once

#include <functional>
#include <vector>

#include "kernels/tensor.h"

namespace sy {

enum class End { low, high };

// Sizes of the arenas of a training step, in bytes.
struct ArenaSizes {
  Index saved = 0;  // of each slot, which is the state of one micro-batch in flight
  Index scratch = 0;

  // Bytes of all arenas.
  Index total(Index slots = 1) const { return slots * saved + scratch; }
};

// One block for an arena at each end.
class FixedBlock {
 public:
  FixedBlock(DeviceMemory memory, Index bytes) : memory_(std::move(memory)), bytes_(bytes) {}
  Index bytes() const { return bytes_; }

 private:
  friend class Arena;
  DeviceMemory memory_;
  Index bytes_;
  Index used_[2] = {0, 0};  // bytes in use at each end
};

// Allocates views and frees them in reverse order. Not thread-safe.
class Arena {
 public:
  using Allocate = std::function<DeviceMemory(Index bytes)>;
  static constexpr Index alignment = 256;
  static constexpr Index block_bytes = Index{1} << 20;

  // An arena that grows by blocks of at least block_bytes. The first block has at least `expected`
  // bytes.
  explicit Arena(Allocate allocate, Index expected = 0) : allocate_(std::move(allocate)), expected_(expected) {}
  // An arena that allocates from one end of a block, which must outlive it. take() throws NoMemory
  // if both ends meet.
  Arena(FixedBlock& block, End end) : fixed_(&block), end_(end) {}

  // State of an arena: the point that rewind() returns to.
  struct Mark {
    std::size_t block;
    Index used;
    Index in_use;
  };

  // Allocates a buffer, aligned to `alignment` bytes. Its content is undefined.
  // Throws NoMemory if the device has too little memory.
  View take(Shape shape, DType dtype) {
    const Index bytes = round_up(shape.elements() * size_of(dtype), alignment);
    if (fixed_) return {take_fixed(bytes), shape, dtype};
    if (in_use_ == 0 && blocks_.size() > 1) join_blocks();
    while (current_ >= blocks_.size() || used_ + bytes > blocks_[current_].bytes) {
      if (current_ + 1 < blocks_.size()) {
        ++current_;
      } else {
        add_block(std::max({bytes, block_bytes, blocks_.empty() ? expected_ : 0}));
        current_ = blocks_.size() - 1;
      }
      used_ = 0;
    }
    std::byte* data = blocks_[current_].memory.get() + used_;
    used_ += bytes;
    count(bytes);
    return {data, shape, dtype};
  }
  View f32(Shape shape) { return take(shape, DType::f32); }
  View i32(Shape shape) { return take(shape, DType::i32); }

  Mark mark() const { return {current_, used_, in_use_}; }
  // Frees all buffers that were allocated after m = mark(). Device memory stays reserved.
  void rewind(const Mark& m) {
    current_ = m.block;
    used_ = m.used;
    in_use_ = m.in_use;
    if (fixed_) fixed_->used_[static_cast<int>(end_)] = in_use_;
  }

  // Frees all buffers.
  void clear() { rewind({0, 0, 0}); }

  Index in_use() const { return in_use_; }  // bytes in use
  Index peak() const { return peak_; }      // largest number of bytes in use so far
  // Bytes allocated on the device. If two arenas share a FixedBlock, both return its size.
  Index reserved() const { return fixed_ ? fixed_->bytes_ : reserved_; }

  // Frees, at the end of a C++ scope, the buffers that were allocated in the scope.
  class Scope {
   public:
    explicit Scope(Arena& arena) : arena_(arena), mark_(arena.mark()) {}
    ~Scope() { arena_.rewind(mark_); }
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

   private:
    Arena& arena_;
    Mark mark_;
  };

 private:
  struct Block {
    DeviceMemory memory;
    Index bytes;
  };
  void count(Index bytes) {
    in_use_ += bytes;
    peak_ = std::max(peak_, in_use_);
  }
  std::byte* take_fixed(Index bytes) {
    Index& mine = fixed_->used_[static_cast<int>(end_)];
    const Index other = fixed_->used_[1 - static_cast<int>(end_)];
    if (mine + bytes + other > fixed_->bytes_)
      no_memory("no memory for {} bytes more, {} of the {:.1f} GB for activations are free", bytes,
                fixed_->bytes_ - mine - other, static_cast<double>(fixed_->bytes_) / 1e9);
    mine += bytes;
    count(bytes);
    return fixed_->memory_.get() + (end_ == End::low ? mine - bytes : fixed_->bytes_ / alignment * alignment - mine);
  }
  void add_block(Index bytes) {
    blocks_.push_back({allocate_(bytes), bytes});
    reserved_ += bytes;
  }
  // Merges the blocks of an empty arena into one, an eighth larger than the peak. Sizes differ from
  // step to step, because experts get more or fewer rows. A buffer that does not fit into the rest
  // of its block goes to the next block, and so do all later ones. Without the merge, the
  // blocks would have many times the size of the memory in use.
  void join_blocks() {
    blocks_.clear();
    current_ = 0;
    used_ = reserved_ = 0;
    add_block(peak_ + peak_ / 8);
  }

  Allocate allocate_;
  Index expected_ = 0;
  FixedBlock* fixed_ = nullptr;
  End end_ = End::low;
  std::vector<Block> blocks_;
  std::size_t current_ = 0;
  Index used_ = 0, in_use_ = 0, peak_ = 0, reserved_ = 0;
};

}  // namespace sy
