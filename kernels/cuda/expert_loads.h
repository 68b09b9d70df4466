// Loads of the experts' products: a tile of an operand, from device memory to shared memory.
#pragma once

#include "kernels/cuda/device.h"
#include "kernels/cuda/grouped_tiles.h"

namespace sy::cuda {

constexpr int loading_threads = 128;

// Loads tiles of one operand: `extent` rows or columns of the output, by the depth of a step. Rows
// of the operand have `width` elements, a multiple of 8.
// - along_depth: elements of a row of the operand are neighbours in depth, otherwise in the output.
// - by_index: the operand has rows of the experts, which may be gathered.
template <int extent, bool along_depth, bool by_index>
class TileLoader {
 public:
  // index: nullptr if no row is gathered. thread: its number among loading_threads.
  __device__ TileLoader(In<bf16> values, In<std::int32_t> index, Index width, int thread)
      : values_(values), index_(index), width_(width), thread_(thread) {}

  // Chooses an output tile. first_row: of the expert, among all rows of the operand. first, end: of
  // the tile, and of the output. depth: of the product of the expert.
  __device__ void begin(Index first_row, Index first, Index end, Index depth) {
    first_row_ = first_row, first_ = first, end_ = static_cast<int>(end - first), depth_ = static_cast<int>(depth);
    if constexpr (along_depth && by_index)
      for (int i = 0; i < packs; ++i) row_[i] = outer(i) < end_ ? static_cast<int>(row(first + outer(i))) : 0;
  }

  // Starts to load a step: to(o, d) is the element in shared memory for o of the output and d of
  // the depth. Elements that the operand does not have become zero.
  template <class Tile>
  __device__ void load(Index step, const Tile& to) const {
    const int d = static_cast<int>(step) * GroupedTile::depth;
    // Rows of a thread that are not gathered have equal distances.
    Index next = (first_row_ + first_ + outer(0)) * width_ + d + inner(0);
#pragma unroll
    for (int i = 0; i < packs; ++i) {
      const bool used = outer(i) < end_ && d + inner(i) < depth_;
      Index at = next;
      if constexpr (along_depth && by_index)
        at = row_[i] * width_ + d + inner(i);
      else if constexpr (!along_depth)
        at = used ? row(d + inner(i)) * width_ + first_ + outer(i) : 0;
      load_async<pack>(reinterpret_cast<bf16*>(&to(outer(i), inner(i))), values_, used ? at : 0, used);
      next += loading_threads / packs_of_row * width_;
    }
  }

 private:
  static constexpr int pack = pack_size<bf16>;
  // of each thread
  static constexpr int packs = extent * GroupedTile::depth / pack / loading_threads;
  static constexpr int packs_of_row = (along_depth ? GroupedTile::depth : extent) / pack;

  // Number of row r of the expert among all rows of the operand.
  __device__ Index row(Index r) const {
    return by_index && index_ ? Index{index_[first_row_ + r]} : first_row_ + r;
  }
  // Position in the tile of pack i of this thread: in the output's dimension, and in depth.
  __device__ int of_row(int i) const {
    return (i * loading_threads + thread_) / packs_of_row;
  }
  __device__ int in_row(int i) const {
    return (i * loading_threads + thread_) % packs_of_row * pack;
  }
  __device__ int outer(int i) const {
    return along_depth ? of_row(i) : in_row(i);
  }
  __device__ int inner(int i) const {
    return along_depth ? in_row(i) : of_row(i);
  }

  In<bf16> values_;
  In<std::int32_t> index_;
  Index width_;
  int thread_;
  Index first_row_ = 0, first_ = 0;
  int end_ = 0, depth_ = 0;                       // numbers of elements after first_, in depth
  int row_[along_depth && by_index ? packs : 1];  // rows of the experts are numbered by 32 bits
};

}  // namespace sy::cuda
