// Attention on random operands.
#pragma once

#include "tests/bench/gpu/operands.h"

namespace sy::bench {

struct AttentionSizes {
  Index sequences, positions, heads, kv_heads, width;
};

// Returns a function that runs causal attention on operands of `o`. They must outlive the function.
// q, k and v are the heads of one tensor [sequences, positions, heads + 2 kv_heads, width] of the
// compute type.
Run attention_forward(Operands& o, const AttentionSizes& sizes);
// Returns a function that runs its backward pass. This call runs the forward pass once.
Run attention_backward(Operands& o, const AttentionSizes& sizes);

}  // namespace sy::bench
