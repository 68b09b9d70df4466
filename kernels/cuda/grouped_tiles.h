// Output tiles of the GEMMs of all experts, and their order. For kernels and the host.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/tensor.h"

namespace sy::cuda {

// Sizes of a tile: it has `rows` x `columns` outputs, and sums `depth` products in each step.
struct GroupedTile {
  static constexpr int rows = 128, columns = 256, depth = 64;
};

// The outputs of a grouped product. The pointer is to memory of the caller of TileWalk: a kernel
// reads the offsets from the device.
struct GroupedOutputs {
  Index experts = 0;
  const std::int32_t* offsets = nullptr;  // [experts + 1], see GroupOffsets
  Index rows = 0;                         // of each output; 0: as many as the expert owns
  Index columns = 0;                      // of each output
  bool skips_empty = false;               // whether an expert that owns no rows has no tile
};

// A tile of an expert's output: its first row and its first column.
struct TileOrigin {
  Index expert = 0, row = 0, column = 0;
};

// Numbers the tiles of all experts, expert by expert. The tiles of an expert are in bands of 8 tile
// rows, because blocks with near numbers run concurrently and then share operands in L2.
class TileWalk {
 public:
  // outputs: must outlive this object
  __host__ __device__ explicit TileWalk(const GroupedOutputs& outputs) : outputs_(outputs) { count_tiles(); }
  explicit TileWalk(const GroupedOutputs&&) = delete;

  // Moves to a tile. Its number must not be less than that of the call before. Returns false if
  // there is no such tile.
  __host__ __device__ bool move_to(Index number) {
    while (expert_ < outputs_.experts && number - before_ >= tile_rows_ * tile_columns()) {
      before_ += tile_rows_ * tile_columns();
      ++expert_;
      count_tiles();
    }
    if (expert_ >= outputs_.experts) return false;
    const Index of_band = band * tile_columns(), first = (number - before_) / of_band * band,
                rest = (number - before_) % of_band,
                height = tile_rows_ - first < band ? tile_rows_ - first : Index{band};
    origin_ = {expert_, (first + rest % height) * GroupedTile::rows, rest / height * GroupedTile::columns};
    return true;
  }
  __host__ __device__ const TileOrigin& origin() const { return origin_; }
  // Number of rows that the expert of the tile owns.
  __host__ __device__ Index owned() const { return outputs_.offsets[expert_ + 1] - outputs_.offsets[expert_]; }

 private:
  static constexpr Index band = 8;

  __host__ __device__ Index tile_columns() const {
    return (outputs_.columns + GroupedTile::columns - 1) / GroupedTile::columns;
  }
  __host__ __device__ void count_tiles() {
    if (expert_ >= outputs_.experts) return;
    const Index rows = outputs_.rows > 0 ? outputs_.rows : owned();
    tile_rows_ = outputs_.skips_empty && owned() == 0 ? 0 : (rows + GroupedTile::rows - 1) / GroupedTile::rows;
  }

  const GroupedOutputs& outputs_;
  Index expert_ = 0;     // of the tile
  Index before_ = 0;     // number of tiles of the experts before it
  Index tile_rows_ = 0;  // number of rows of tiles of the expert
  TileOrigin origin_;
};

// An upper bound of the number of tiles, for a grouped product with so many rows in all.
inline Index max_tiles(const GroupedOutputs& outputs, Index rows) {
  const Index tile_columns = ceil_div(outputs.columns, Index{GroupedTile::columns}),
              tile_rows = outputs.rows > 0 ? outputs.experts * ceil_div(outputs.rows, Index{GroupedTile::rows})
                                           : rows / GroupedTile::rows + outputs.experts;
  return tile_rows * tile_columns;
}

}  // namespace sy::cuda
