// The decoder's layers as data: structure and sizes of each block. A pure function of the
// configuration. The parameter list and the model read these specs, not the configuration.
#pragma once

#include <optional>
#include <variant>
#include <vector>

#include "kernels/attention.h"
#include "kernels/ops/norm.h"
#include "kernels/ops/random.h"
#include "kernels/ops/route.h"
#include "src/config.h"

namespace sy {

struct NormSpec {
  NormKind kind;
  float eps;
  bool bias;
  float offset = 0;  // added to the weight, whose initial value is 1 - offset
  NormDesc desc() const { return {kind, eps, offset}; }
};

// Norm placement of a sublayer f (attention or FFN) with input x from the residual stream.
struct NormPlacement {
  bool pre, post_sublayer, post_residual;  // f(norm(x)); x + norm(f(.)); norm(x + f(.))
  bool normed_residual = false;            // with pre: norm(x) + f(norm(x))
};
NormPlacement norm_placement(NormPosition position);

// Rotary position embedding (Su et al., "RoFormer", 2021) with frequencies theta^(-2i / rotated).
// A scaling changes the frequencies for sequences longer than those of an earlier training.
// rope_table in src/model/rope.h has the formulas.
struct RopeSpec {
  double theta;   // base of the frequencies
  Index rotated;  // number of leading elements of each head that are rotated; even
  RopePairs pairs = RopePairs::half;
  RopeScaling scaling = RopeScaling::none;
  // Each scaling uses some of the following values.
  double factor = 1;                             // ratio of the new length to the original one
  Index original_length = 0, length = 0;         // positions: earlier and this training
  double low_frequency = 1, high_frequency = 4;  // llama3
  double beta_fast = 32, beta_slow = 1;          // yarn
  bool whole_dimensions = true;                  // yarn
  double attention_factor = 1;                   // multiplies cos and sin
  // longrope: [rotated / 2] divisors of the frequencies, for texts of up to original_length tokens
  // and for longer ones. If one is empty, the other is for all texts.
  std::vector<double> short_factors{}, long_factors{};
  bool operator==(const RopeSpec&) const = default;
};

// Bias of attention scores by the distance from query to key (src/model/relative_bias.h).
struct RelativeSpec {
  Position kind;                // alibi or t5
  Index buckets, max_distance;  // t5
  bool shared;                  // t5: all layers with such a bias read one table
  double scale = 1;             // alibi: factor of the slopes
};

// Multi-head latent attention (DeepSeek-AI, "DeepSeek-V2", 2024).
// Keys and values of all heads are projections of one compressed vector (latent) per token. Queries
// may be projections of another one. The first qk_rope_head_dim elements of a key are shared by all
// heads. They and the same elements of the queries are rotated, no others.
struct LatentSpec {
  // Widths of the latents. q_lora_rank = 0: queries are projections of the attention's input.
  Index kv_lora_rank, q_lora_rank;
  Index qk_rope_head_dim;  // rotated elements of a key, included in key_width
  float eps;               // of the RMSNorms of the latents
};

struct AttentionSpec {
  Index heads, kv_heads;
  Index key_width, value_width;  // of one head
  Index window;                  // latest keys that a query sees, including its own; 0: all
  std::optional<RopeSpec> rope;
  std::optional<float> qk_norm;  // eps of the norm of queries and keys; empty: no norm
  float scale;                   // of the scores
  float softcap;                 // of the scores; 0: no cap
  bool qkv_bias, out_bias;
  bool whole_qk_norm = false;   // true: qk_norm is over all heads together; false: per head
  bool head_layernorm = false;  // true: LayerNorm with a weight per head; false: RMSNorm
  SparsePattern sparse = {};    // empty: all earlier tokens; otherwise window is 0
  std::optional<RelativeSpec> relative = {};
  float norm_offset = 0;  // added to the weights of qk_norm, whose initial value is 1 - norm_offset
  bool sinks = false;     // true: each head has a learned logit in its softmax, without a value
  float clip_qkv = 0;     // limit of the elements of queries, keys and values, before RoPE; 0: none
  std::optional<LatentSpec> latent = {};
  // Number of elements that the cache stores per token, for all heads.
  Index cache_elements() const {
    return latent ? latent->qk_rope_head_dim + latent->kv_lora_rank : kv_heads * (key_width + value_width);
  }
};

// A feed-forward network of `width`.
struct MlpSpec {
  FfnActivation activation;
  Index width;
  bool bias;
  bool gate = false;  // true: multiplies the output by sigmoid(w x)
  // Number of projections of the first GEMM: gate and up, or up alone.
  Index num_projections() const { return activation.gated ? 2 : 1; }
};

struct RouterSpec {
  RouteDesc route;
  double capacity_factor;  // 0: dropless
  CapacityScope capacity_scope;
  DropOrder drop_order;
  double aux_loss;
  AuxScope aux_scope;
  double z_loss;
  bool balanced_together = false;  // true: one load-balancing loss for all layers
  bool bias = false;               // bias of the logits
  // Only while training: noise of the selection, and factors of the input's elements. The router
  // sets their seed and stream.
  std::optional<RandomDesc> noise{}, jitter{};
  bool learned_noise_stddev = false;  // true: noisy top-k gating with a learned standard deviation
};

struct MoeSpec {
  Index experts;
  RouterSpec router;
  MlpSpec expert;
  std::optional<MlpSpec> shared;  // all shared experts as one network
  // [E] logical expert of each physical one; empty: the identity
  std::vector<Index> physical_to_logical{};
};

struct BlockSpec {
  NormSpec norm;
  NormPlacement norms;
  bool parallel;     // true: attention and FFN read the same input
  bool shared_norm;  // true: they read the same norm of it
  AttentionSpec attention;
  std::variant<MlpSpec, MoeSpec> ffn;
  const MoeSpec* moe() const { return std::get_if<MoeSpec>(&ffn); }
};

// Returns the spec of each layer, in order.
std::vector<BlockSpec> block_specs(const Config& config);
// Returns the spec of the norms of the residual stream.
NormSpec norm_spec(const Config& config);
// Returns the spec of the norm before the output.
// Its kind is `none` if blocks end with a norm (NormPosition::post).
NormSpec final_norm_spec(const Config& config);
// Returns the number of MoE layers.
Index count_moe(const std::vector<BlockSpec>& blocks);

}  // namespace sy
