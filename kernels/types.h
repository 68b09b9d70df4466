// Enumerations and small structs of operations that a configuration needs, too.
#pragma once

#include <cstdint>

namespace sy {

using Index = std::int64_t;

// batchnorm has operations of its own (kernels/ops/batch_norm.h).
enum class NormKind { none, rmsnorm, layernorm, batchnorm };
// The last one has learned parameters, and operations of its own (ops::XieluForward).
enum class Activation { relu, gelu, gelu_tanh, silu, relu2, sigmoid, identity, silu_clamped, hardtanh, xielu };
enum class Score { softmax, sigmoid, sqrt_softplus };
enum class GroupScore { top2, max };
enum class DropOrder { token, choice, probability };
// Pass of a linear layer y = x w^T that reads its weight: fprop (output), or dgrad (input), `dx =
// dy w`.
enum class GemmPass { fprop, dgrad };

struct FfnActivation {
  Activation act = Activation::silu;
  // h holds [act input | up projection] side by side: y = act(h[:, :F]) * h[:, F:]
  bool gated = true;
  // silu(x) = x sigmoid(beta x) (Ramachandran et al., "Searching for activation functions", 2017)
  float beta = 1;
  // Limit of silu_clamped: silu(min(x, limit)) (OpenAI, "gpt-oss", 2025). It replaces the up
  // projection l by clamp(l, -limit, limit) + 1. Also the limit of hardtanh: clamp(x, -limit,
  // limit).
  float limit = 7;
};

// Pairs of elements that RoPE rotates, of the first `rot` of a head: (i, i + rot/2), or neighbours,
// (2i, 2i + 1).
enum class RopePairs { half, interleaved };

}  // namespace sy
