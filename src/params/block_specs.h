// The decoder's layers as data: what each is made of, and of which sizes. A pure function of the configuration, which
// parameters and the model read in its place.
#pragma once

#include <optional>
#include <variant>
#include <vector>

#include "src/config.h"

namespace sy {

struct NormSpec {
  NormKind kind;
  float eps;
  bool bias;
  float offset = 0;  // is added to the weight, which starts at 1 less
  NormDesc desc() const { return {kind, eps, offset}; }
};

// Where a block has norms, for a sublayer f (attention or the FFN) that reads x of the residual stream.
struct NormPlaces {
  bool input, output, sum;  // f(norm(x)); x + norm(f(.)); norm(x + f(.))
};
NormPlaces norm_places(NormPosition position);

// Rotary positions (Su et al., "RoFormer", 2021), and how their frequencies theta^(-2i / rotated) are changed for sequences
// that are longer than those of an earlier training. rope_table in src/model/rope.h has the formulas.
struct RopeSpec {
  double theta;   // the base of the frequencies
  Index rotated;  // elements of each head that are rotated, the first ones: an even number
  RopePairs pairs = RopePairs::half;
  RopeScaling scaling = RopeScaling::none;
  // What follows is used as far as the scaling needs it.
  double factor = 1;                             // how many times as long
  Index original_length = 0, length = 0;         // positions of the earlier training, and of the model
  double low_frequency = 1, high_frequency = 4;  // llama3
  double beta_fast = 32, beta_slow = 1;          // yarn
  bool whole_dimensions = true;                  // yarn
  double attention_factor = 1;                   // cos and sin are multiplied by it
  std::vector<double> factors{};                 // longrope: [rotated / 2], each frequency is divided by its own
  bool operator==(const RopeSpec&) const = default;
};

// Biases of scores by the distance from query to key (src/model/relative.h).
struct RelativeSpec {
  Position kind;                // alibi or t5
  Index buckets, max_distance;  // of t5
  bool shared;                  // t5: all layers that have one read the same table
};

// Multi-head latent attention (DeepSeek-AI, "DeepSeek-V2", 2024): keys and values of all heads are made of one latent of
// the token, and queries perhaps of another. The first rope elements of a key are shared by all heads, and they and those
// of the queries alone are rotated; the others, and the values, each head makes of the latent.
struct LatentSpec {
  Index kv, q;  // widths of the latents; q 0: queries are made of the attention's input
  Index rope;   // of a key's width
  float eps;    // of the RMSNorms of latents
};

struct AttentionSpec {
  Index heads, kv_heads;
  Index key_width, value_width;  // of one head
  Index window;                  // latest keys that a query sees, its own included; 0: all
  std::optional<RopeSpec> rope;
  std::optional<float> qk_norm;  // norm of queries and keys, with this eps
  float scale;                   // of the scores
  float softcap;                 // 0: none
  bool qkv_bias, out_bias;
  bool whole_qk_norm = false;   // that norm is over all heads together; otherwise each head is normalised alone
  bool head_layernorm = false;  // it is a LayerNorm with a weight of each head; otherwise an RMSNorm
  Sparsity sparse = {};         // all earlier tokens: empty; otherwise window is 0
  std::optional<RelativeSpec> relative = {};
  float norm_offset = 0;  // is added to the weights of qk_norm, which start at 1 less
  bool sinks = false;     // a learned logit a head that takes part in the softmax and has no value
  std::optional<LatentSpec> latent = {};
  // The elements that generation keeps of a token, of all heads together.
  Index cached() const { return latent ? latent->rope + latent->kv : kv_heads * (key_width + value_width); }
};

// A feed-forward network of `width`.
struct MlpSpec {
  FfnActivation activation;
  Index width;
  bool bias;
  bool gate = false;                                         // its output is multiplied by sigmoid(w x)
  Index halves() const { return activation.gated ? 2 : 1; }  // of the first product: gate and linear part
};

struct RouterSpec {
  RouteDesc route;
  double capacity_factor;  // 0: dropless
  CapacityScope capacity_scope;
  DropOrder drop_order;
  double aux_loss;
  AuxScope aux_scope;
  double z_loss;
  bool balanced_together = false;  // all layers have one load-balance loss
  bool bias = false;               // of the logits
  // Of the choice, and what the elements of the input are multiplied by; while training. Their seed and stream are the
  // router's to set.
  std::optional<Draw> noise{}, jitter{};
  bool learned_noise = false;  // the noise is of the logits, and of a size that is learned
};

struct MoeSpec {
  Index experts;
  RouterSpec router;
  MlpSpec expert;
  std::optional<MlpSpec> shared;  // all shared experts as one network
  std::vector<Index> order{};     // [E] the expert in each place (ExpertSplit); empty: in order
};

struct BlockSpec {
  NormSpec norm;
  NormPlaces norms;
  bool parallel;     // attention and FFN read the same input
  bool shared_norm;  // and the same norm of it
  AttentionSpec attention;
  std::variant<MlpSpec, MoeSpec> ffn;
  const MoeSpec* moe() const { return std::get_if<MoeSpec>(&ffn); }
};

// One for each layer, in order.
std::vector<BlockSpec> block_specs(const Config& config);
// Of the norms of the residual stream.
NormSpec norm_spec(const Config& config);
// Of the norm before the output; none where blocks end with a norm (NormPosition::post).
NormSpec final_norm_spec(const Config& config);
// How many of them are MoE layers.
Index count_moe(const std::vector<BlockSpec>& blocks);

}  // namespace sy
