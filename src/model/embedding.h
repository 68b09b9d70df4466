// Token ids to rows of a table, and what is done to them before the first block: scaled, positions added, normalised.
// Vocabulary-parallel: each rank holds a run of the rows, [first row, first row + V).
#pragma once

#include <optional>

#include "src/config.h"
#include "src/model/norm.h"

namespace sy {

class Embedding {
 public:
  struct Saved {
    View sum, moments;  // [T, D] and [T, 2] of the norm, where there is one
  };

  // positions: those that a sequence may have.
  Embedding(const Config& config, ParamStore& store, Index positions);

  // Returns the rows of the batch's ids, own tokens: [T, D], taken from pass.saved.
  View forward(const Pass& pass, Saved& s) const;
  // The gradients += those by d: [T, D], own tokens, which is used up.
  void backward(const Device& device, const Batch& batch, const Saved& s, View d) const;

 private:
  Param table_;  // [V, D]
  Index first_row_;
  float scale_;      // 1: none
  Param positions_;  // [positions, D] of learned positions, or none
  Tensor sines_;     // [positions, D] of sinusoidal ones, or empty
  std::optional<Norm> norm_;
};

// [positions, D] sin(p / 10000^(2i / D)) and cos of the same, at columns 2i and 2i + 1 (Vaswani et al., "Attention is all you
// need", 2017).
std::vector<float> sinusoidal_positions(Index positions, Index d_model);

}  // namespace sy
