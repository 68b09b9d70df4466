// A LIFO allocator of device memory. A step needs the same buffers again and again, so they are carved from blocks
// that stay. Memory is given back in the reverse order of its taking: rewind(mark) frees all that was taken since
// mark(). A fixed arena (one block, sized before the first step) throws Failure where a growing one takes a new block.
//
// Two arenas serve a training step: `saved`, whose content lives from a layer's forward to its backward, and `scratch`,
// whose content dies with the function that took it (Arena::Scope).
#pragma once

#include <functional>
#include <vector>

#include "kernels/tensor.h"

namespace sy {

class Arena {
 public:
  using Allocate = std::function<DeviceMemory(Index bytes)>;
  static constexpr Index alignment = 256;
  static constexpr Index block_bytes = Index{1} << 20;

  // capacity 0: grows by blocks of at least block_bytes. Otherwise holds exactly that many bytes.
  explicit Arena(Allocate allocate, Index capacity = 0) : allocate_(std::move(allocate)), fixed_(capacity > 0) {
    if (fixed_) add_block(capacity);
  }

  struct Mark {
    std::size_t block;
    Index used;
    Index in_use;
  };

  View take(Shape shape, DType dtype) {
    if (in_use_ == 0 && blocks_.size() > 1) join_blocks();
    const Index bytes = (shape.elements() * size_of(dtype) + alignment - 1) / alignment * alignment;
    while (current_ >= blocks_.size() || used_ + bytes > blocks_[current_].bytes) {
      if (current_ + 1 < blocks_.size()) {
        ++current_;
        used_ = 0;
      } else {
        if (fixed_) fail("the step needs more memory than the {} bytes planned: lower train.micro_batch", reserved_);
        add_block(std::max(bytes, block_bytes));
        current_ = blocks_.size() - 1;
        used_ = 0;
      }
    }
    std::byte* data = blocks_[current_].memory.get() + used_;
    used_ += bytes;
    in_use_ += bytes;
    peak_ = std::max(peak_, in_use_);
    return {data, shape, dtype};
  }
  View f32(Shape shape) { return take(shape, DType::f32); }
  View i32(Shape shape) { return take(shape, DType::i32); }

  Mark mark() const { return {current_, used_, in_use_}; }
  void rewind(const Mark& m) {
    current_ = m.block;
    used_ = m.used;
    in_use_ = m.in_use;
  }

  Index in_use() const { return in_use_; }      // bytes taken now
  Index peak() const { return peak_; }          // the most ever taken
  Index reserved() const { return reserved_; }  // bytes asked of the device

  // Frees on leaving a scope what was taken within it.
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
  void add_block(Index bytes) {
    blocks_.push_back({allocate_(bytes), bytes});
    reserved_ += bytes;
  }
  // Sizes differ from step to step, as experts get more or fewer rows: what no longer fits its block passes it over, and
  // all that follows moves on. Left alone, blocks would pile up to many times what is in use. So an arena that has grown
  // becomes, when it is next empty, one block of all that was ever in use at once and an eighth more.
  void join_blocks() {
    blocks_.clear();
    current_ = 0;
    used_ = reserved_ = 0;
    add_block(peak_ + peak_ / 8);
  }

  Allocate allocate_;
  bool fixed_;
  std::vector<Block> blocks_;
  std::size_t current_ = 0;
  Index used_ = 0, in_use_ = 0, peak_ = 0, reserved_ = 0;
};

}  // namespace sy
