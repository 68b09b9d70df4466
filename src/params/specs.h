// List of a model's parameters: a pure function of the configuration.
// Memory, initial values, optimizer, checkpoints, import and export derive from it.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "dist/shard.h"
#include "src/config.h"

namespace sy {

// Distribution of a parameter's initial values. Uniform values are within sqrt(3) * stddev.
enum class InitKind : std::uint8_t { normal, zeros, ones, uniform, constant };
struct Init {
  InitKind kind = InitKind::normal;
  double stddev = 0;  // of `normal` and `uniform`; of `constant`: the value
};

// Division of a parameter's dimensions into matrices: [stack..., rows..., columns...].
struct MatrixDims {
  int stack_dims = 0;  // number of leading dimensions that index matrices
  int row_dims = 1;    // number of dimensions after them that form rows; the others form columns
  // True: the matrices of the stack are heads, whose rows together form one linear map.
  bool heads = false;
};

// Part of a LoRA adapter (src/params/lora.h).
struct AdapterSpec {
  std::string weight;  // name of the weight W that the adapter changes
  double scale;        // alpha / rank
};

// Parameter of queries or keys whose heads QK-clip scales (kernels/ops/qk_clip.h). The first
// dimension of the parameter is its heads.
struct QkHeads {
  // index of the attention's first query head among those of all layers
  Index first;
  Index heads, kv_heads;  // of the attention
  bool keys;              // false: queries
  Index shared_rows = 0;  // first rows of a query head, whose keys all heads share
};

// Description of one parameter, equal on all ranks.
struct ParamSpec {
  std::string name;  // canonical: "layers.3.moe.experts.up.weight"
  Shape shape;       // global
  Split split{};     // mesh axis that splits each dimension
  Init init;
  // Weight decay applies to the embedding, learned positions and weights of GEMMs. These include
  // routers, their learned noise and the gate of shared experts. Norm weights do not decay, even as
  // matrices ([heads, width] of QK-norm). Biases, sinks and T5's table [heads, buckets] do not
  // decay. If train.decay_embeddings is false, embeddings and positions do not decay either.
  bool decays = false;
  // True: stored directly after the previous parameter, so that both form one matrix (q, k, v).
  bool fused_with_previous = false;
  // Layer, or block of multi-token prediction, that has the parameter. Empty for embedding, final
  // norm and output, and for a parameter that layers share.
  std::optional<Index> layer{};
  // [E] logical expert of each physical expert (MoeSpec::physical_to_logical). Physical experts
  // index the first dimension. Empty if both are equal, or if the parameter is not an expert's.
  std::vector<Index> physical_to_logical{};
  // Index of the module that reads the parameter first: 0 is the embedding, then come the layers,
  // then the head (final norm and output). Backward of this module completes the gradient.
  // Buckets never decrease along a list of specs.
  Index bucket = 0;
  // Its learning rate is that of the step times this factor, which is 1 without muP.
  double lr_factor = 1;
  Optimizer optimizer = Optimizer::adamw;  // its update rule (src/optimizers/update_rule.h)
  // Its matrices for update rules over whole matrices. Empty if such rules do not update it.
  std::optional<MatrixDims> matrix{};
  DType state_dtype = DType::f32;  // of its optimizer state, f32 or bf16
  std::optional<QkHeads> qk_heads{};
  // Index of a batch norm among those of the model; only its weight has one.
  std::optional<Index> batch_norm{};
  // True: a weight of GEMMs or of lookups, which are the parameters that decay by default.
  bool is_weight = false;
  // True: it is not trained, and has no gradient, optimizer state or master values (LoRA, and the
  // warm-up of indexers).
  bool frozen = false;
  std::optional<AdapterSpec> adapter{};  // of a matrix A or B of LoRA
  // Mesh axes over which the gradient is summed.
  Axes summed() const { return summed_axes(split); }
};

constexpr Index embedding_bucket = 0;
// Returns the bucket of a layer. The head has the bucket after the last layer's. The modules of
// multi-token prediction, whose backward comes first, have those after the head's.
constexpr Index bucket_of_layer(Index layer) {
  return 1 + layer;
}

// Returns the prefix of the names of a layer's parameters: "layers.3."
std::string layer_prefix(Index layer);
// Returns the prefix of the other parameters of a module of multi-token prediction, whose block has
// this number: "layers.4.mtp."
std::string mtp_prefix(Index layer);

// Returns the name of the position vectors of an axis (model.position = axial), without the prefix
// of the stack. Axis 0 has a vector for each row of positions, axis 1 one for each column.
const char* axial_position_name(int axis);

// Returns the number of rows of the embedding: model.vocab. If it is 0, those of the ids of the
// data and of the special tokens of [model].
// token_ids: number of token ids of the data.
// Throws InputError if model.vocab is above 0 and less than these ids.
Index model_vocab(const Config& config, Index token_ids);

// Returns the number of query heads of all layers (QkHeads::first).
Index count_query_heads(const std::vector<ParamSpec>& specs);

// Returns the number of batch norms of the model (ParamSpec::batch_norm).
Index count_batch_norms(const std::vector<ParamSpec>& specs);

// Returns the specs of all parameters, ordered by bucket. vocab: number of rows of the embedding.
std::vector<ParamSpec> param_specs(const Config& config, Index vocab);

// Numbers of elements of a model's parameters, over all ranks.
struct ParamCount {
  Index total = 0;      // all parameters
  Index active = 0;     // parameters that one token uses: k of the E experts
  Index trained = 0;    // parameters that the optimizer updates
  Index embedding = 0;  // of embedding.weight
  Index mtp = 0;        // of multi-token prediction, which generation does not use
  // Elements of the weights that GEMMs multiply a token by: `active` without biases, norms, sinks,
  // T5's table, learned positions and queries of global tokens. The embedding counts if the
  // output shares it.
  Index products = 0;
};
// Returns the elements of a parameter that GEMMs multiply a token by (ParamCount::products).
Index product_elements(const Config& config, const ParamSpec& spec);
// Counts the elements of param_specs(config, vocab).
ParamCount count_params(const Config& config, Index vocab);

}  // namespace sy
