// The model's layers as data: the sublayers of each block. A pure function of the configuration.
// The parameter list and the model read these specs, not the configuration.
#pragma once

#include <string>
#include <type_traits>
#include <variant>
#include <vector>

#include "src/params/attention_spec.h"
#include "src/params/cross_attention_spec.h"
#include "src/params/latent_attention_spec.h"
#include "src/params/lsh_attention_spec.h"
#include "src/params/mlp_spec.h"
#include "src/params/moe_spec.h"
#include "src/params/norm_spec.h"

namespace sy {

// One of the kinds of sublayer. The type of its spec selects the parameters, costs and sizes (the
// header of the spec) and the layer that runs (src/model/sublayer.cpp).
using SublayerSpec =
    std::variant<AttentionSpec, LatentAttentionSpec, LshAttentionSpec, CrossAttentionSpec, MlpSpec, MoeSpec>;

// Returns the spec if it is a Spec or derived from it, otherwise nullptr.
template <class Spec>
const Spec* sublayer_as(const SublayerSpec& sublayer) {
  return std::visit(
      [](const auto& spec) -> const Spec* {
        if constexpr (std::is_base_of_v<Spec, std::decay_t<decltype(spec)>>)
          return &spec;
        else
          return nullptr;
      },
      sublayer);
}

// A sublayer with its norms (ResidualBranch).
struct BranchSpec {
  std::string name;            // of the sublayer's parameters within the layer: "attention"
  std::string norm, out_norm;  // of the norms' parameters: "attention_norm", "attention_out_norm"
  NormPlacement norms;
  float scale = 1;  // factor of the branch's output in the residual stream
  // True: the branch reads the input norm of the first branch of its group, and `norm` is its name.
  bool shared_norm = false;
  SublayerSpec sublayer;
};

// Branches that read the same stream. Their sum is added to it.
struct ResidualGroupSpec {
  std::vector<BranchSpec> branches;
};

// One layer: residual groups, and the spec of all their norms.
struct BlockSpec {
  NormSpec norm;
  std::vector<ResidualGroupSpec> groups;  // in order of computation
  // Prefix of the names of its parameters: "encoder.layers.3."; empty: layer_prefix() of its index.
  std::string prefix = {};

  // Returns the prefix of the parameters of the block with this index.
  std::string prefix_of(Index layer) const { return prefix.empty() ? layer_prefix(layer) : prefix; }
  // Calls f(const BranchSpec&) for each branch, in order.
  template <class F>
  void for_each_branch(const F& f) const {
    for (const ResidualGroupSpec& group : groups)
      for (const BranchSpec& branch : group.branches) f(branch);
  }
  // Returns the sublayers that are a Spec or derived from it, in order.
  template <class Spec>
  std::vector<const Spec*> all() const {
    std::vector<const Spec*> found;
    for_each_branch([&](const BranchSpec& branch) {
      if (const Spec* spec = sublayer_as<Spec>(branch.sublayer)) found.push_back(spec);
    });
    return found;
  }
  // Returns the first of them, or nullptr.
  template <class Spec>
  const Spec* find() const {
    const std::vector<const Spec*> found = all<Spec>();
    return found.empty() ? nullptr : found.front();
  }
  // Returns the first attention, of any kind. A block without one is an internal error.
  const CoreAttentionSpec& attention() const;
};

// Returns the spec of each layer, in order. The blocks of multi-token prediction follow. In an
// encoder-decoder, the layers of the decoder follow those of the encoder.
std::vector<BlockSpec> block_specs(const Config& config);
// Returns the prefix of the parameters of the decoder beside its layers: "decoder." in an
// encoder-decoder, otherwise empty.
std::string decoder_prefix(const Config& config);
// Returns the spec of the norms of the residual stream.
NormSpec norm_spec(const Config& config);
// Returns the spec of the norm before the output.
// Its kind is `none` if blocks end with a norm (NormPosition::post).
NormSpec final_norm_spec(const Config& config);
// Returns whether dense FFNs have biases, and model.output_transform with them.
bool has_mlp_bias(const Config& config);
// Appends the parameters of a layer of this index, in the layer and bucket of the list.
void add_block_params(ParamList& list, const BlockSpec& block, Index layer);
// Returns the number of MoE sublayers.
Index count_moe(const std::vector<BlockSpec>& blocks);

}  // namespace sy
