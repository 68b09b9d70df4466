// The tables of cos and sin by which attention rotates queries and keys.
#pragma once

#include <optional>
#include <utility>
#include <vector>

#include "kernels/backend.h"
#include "src/params/block_specs.h"

namespace sy {

// [positions, rotated / 2, 2] cos and sin of position * theta^(-2i / rotated), in double precision.
std::vector<float> rope_table(const RopeSpec& rope, Index positions);

// A table on the backend for each way of rotating that the layers have between them.
class RopeTables {
 public:
  RopeTables(Backend& backend, const std::vector<BlockSpec>& blocks, Index positions);
  // The table of one way of rotating; none for a layer that does not rotate.
  ConstView of(const std::optional<RopeSpec>& rope) const;

 private:
  std::vector<std::pair<RopeSpec, Tensor>> tables_;
};

}  // namespace sy
