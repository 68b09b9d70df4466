// The tables of cos and sin by which attention rotates queries and keys.
#pragma once

#include <optional>
#include <utility>
#include <vector>

#include "kernels/backend.h"
#include "src/params/block_specs.h"

namespace sy {

// [rotated / 2] by how much each pair turns from one position to the next: theta^(-2i / rotated), scaled. With factor s,
// original length L, and n = L * frequency / (2 pi), the turns of a pair over the original length, the scalings are
//   linear    frequency / s                                            (Chen et al., "Extending context window", 2023)
//   ntk       theta * s^(rotated / (rotated - 2)) in place of theta    (bloc97, "NTK-aware scaled RoPE", 2023)
//   dynamic   the same with s * length / L - (s - 1) in place of s, where the length is more than L
//   llama3    frequency / s below n = low, frequency above n = high, between them a mean of both, linear in n
//             (Grattafiori et al., "The Llama 3 herd of models", 2024)
//   yarn      the same with beta_slow and beta_fast, the mean being linear in i (Peng et al., "YaRN", 2023)
//   longrope  frequency / a factor of its own (Ding et al., "LongRoPE", 2024)
std::vector<double> rope_frequencies(const RopeSpec& rope);

// [positions, rotated / 2, 2] cos and sin of position * frequency, computed in double precision, times the attention
// factor.
std::vector<float> rope_table(const RopeSpec& rope, Index positions);

// A table on the backend for each way of rotating that the layers have between them.
class RopeTables {
 public:
  RopeTables(Backend& backend, const std::vector<BlockSpec>& blocks, Index positions);
  // The table of one way of rotating; none for a layer that does not rotate.
  ConstView of(const std::optional<RopeSpec>& rope) const;
  // Those that a sequence may have, for all tables by position or distance.
  Index positions() const { return positions_; }

 private:
  Index positions_;
  std::vector<std::pair<RopeSpec, Tensor>> tables_;
};

}  // namespace sy
