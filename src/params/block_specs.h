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
  NormDesc desc() const { return {kind, eps}; }
};

// Rotary positions (Su et al., "RoFormer", 2021).
struct RopeSpec {
  double theta;   // the base of the frequencies
  Index rotated;  // elements of each head that are rotated, the first ones: an even number
  bool operator==(const RopeSpec&) const = default;
};

// Biases of scores by the distance from query to key (src/model/relative.h).
struct RelativeSpec {
  Position kind;                // alibi or t5
  Index distances;              // 0, 1 ... distances - 1
  Index buckets, max_distance;  // of t5
  bool shared;                  // t5: all layers that have one read the same table
};

struct AttentionSpec {
  Index heads, kv_heads;
  Index key_width, value_width;  // of one head
  Index window;                  // latest keys that a query sees, its own included; 0: all
  std::optional<RopeSpec> rope;
  std::optional<float> qk_norm;  // RMSNorm of queries and keys by head, with this eps
  float softcap;                 // 0: none
  bool bias;
  Sparsity sparse = {};  // within the window
  std::optional<RelativeSpec> relative = {};
  bool sinks = false;  // a learned logit a head that takes part in the softmax and has no value
};

// A feed-forward network of `width`.
struct MlpSpec {
  FfnActivation activation;
  Index width;
  bool bias;
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
};

struct MoeSpec {
  Index experts;
  RouterSpec router;
  MlpSpec expert;
  std::optional<MlpSpec> shared;  // all shared experts as one network
};

struct BlockSpec {
  NormSpec norm;
  NormPosition norm_position;
  bool parallel;  // attention and FFN read the same input
  AttentionSpec attention;
  std::variant<MlpSpec, MoeSpec> ffn;
  const MoeSpec* moe() const { return std::get_if<MoeSpec>(&ffn); }
};

// One for each layer, in order.
std::vector<BlockSpec> block_specs(const Config& config);
// Of the norm before the output.
NormSpec final_norm_spec(const Config& config);
// How many of them are MoE layers.
Index count_moe(const std::vector<BlockSpec>& blocks);

}  // namespace sy
