// Attention on random operands.
#pragma once

#include "tests/bench/gpu/operands.h"

namespace sy::bench {

struct AttentionSizes {
  Index sequences, positions, heads, kv_heads, width;
};

// Causal attention over q, k and v that lie side by side in one tensor
// [sequences, positions, heads + 2 kv_heads, width] of the compute type of `o`.
Run attention_forward(Operands& o, const AttentionSizes& sizes);
// The same for its backward pass. Runs the forward pass once.
Run attention_backward(Operands& o, const AttentionSizes& sizes);

}  // namespace sy::bench
