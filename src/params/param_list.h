// List of parameters under construction, and the functions that each kind of sublayer declares for
// its spec.
#pragma once

#include <cmath>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "src/params/norm_spec.h"
#include "src/params/specs.h"

namespace sy {

inline constexpr Init init_zeros{InitKind::zeros, 0}, init_ones{InitKind::ones, 0};

// Returns the initial value of a norm's weight: weight + offset is 1.
constexpr Init init_scale(float offset) {
  return offset == 1 ? init_zeros : init_ones;
}

// Initial values and learning rates of the weights of a model, by their kind. With muP, they depend
// on the width: the table of docs/guide/training.md (Yang et al., "Tensor Programs V", 2022, table
// 8, with Adam).
class WeightScaling {
 public:
  explicit WeightScaling(const Config::Model& model);
  // Embedding, positions and output.
  Init embedding() const { return normal(std_); }
  // Weights of attention, FFNs and experts.
  Init matrix() const { return normal(std_ / std::sqrt(width_ratio_)); }
  // The last weight of a sublayer. Smaller values keep the variance of the residual stream
  // independent of depth (Radford et al., "GPT-2", 2019).
  Init residual() const { return normal(residual_std_ / std::sqrt(width_ratio_)); }
  // Weights of scores of a token: a router, a gate.
  Init gate() const { return normal(std_ / width_ratio_); }
  // Factor of the learning rate of matrices and gates.
  double lr_factor() const { return 1 / width_ratio_; }

 private:
  static Init normal(double stddev) { return {InitKind::normal, stddev}; }
  double std_, residual_std_, width_ratio_;
};

class ParamList {
 public:
  explicit ParamList(const Config::Model& model) : d_model_(model.d_model), scaling_(model) {}

  // Appends a weight matrix of attention, an FFN or experts, or a stack of them: ParamSpec::matrix.
  // It decays.
  void matrix(std::string name, Shape shape, MatrixDims dims, Split split, Init init, bool fused_with_previous = false);
  // Appends weights [n, d_model] of n scores of a token: a router, its noise, a gate. They decay.
  void gate(std::string name, Index n, Init init);
  // Appends another parameter that decays (ParamSpec::decays), and returns it: an embedding, the
  // output.
  ParamSpec& decayed(std::string name, Shape shape, Split split, Init init);
  // Appends a parameter that does not decay. It may have several dimensions.
  void not_decayed(std::string name, Shape shape, Split split, Init init, bool fused_with_previous = false);
  // Appends the parameters of a norm over `width` elements; 0 means d_model. No-op if its kind is
  // `none`.
  void norm(const std::string& name, const NormSpec& n, Index width = 0);

  Index d_model() const { return d_model_; }
  const WeightScaling& scaling() const { return scaling_; }

  std::vector<ParamSpec> specs;
  std::optional<Index> layer;  // layer and bucket of the next specs
  Index bucket = embedding_bucket;
  Index query_heads = 0;  // of all attention so far (QkHeads::first)
  Index batch_norms = 0;  // so far (ParamSpec::batch_norm)

 private:
  ParamSpec& append(std::string name, Shape shape, Split split, Init init);

  Index d_model_;
  WeightScaling scaling_;
};

// Each kind of sublayer has a header of its spec, with functions of these forms:
//   void add_params(ParamList&, const std::string& name, const Spec&)    its parameters, in order
//   SublayerCosts costs(const Spec&, Index seq_len)
//   NamedSizes sizes_of(const Spec&)           sizes that its parameters' shapes do not determine
struct SublayerCosts {
  // Training FLOPs of one token, on average over a sequence of seq_len tokens. They come in
  // addition to 6 for each weight of ParamCount::products (ModelCosts).
  double flops_per_token = 0;
  // Number of elements that the cache of generation stores per token, over all heads.
  Index cache_elements = 0;
};
// Sizes by the letters of the views of parameters in the tables of families (TensorRow::view).
using NamedSizes = std::map<std::string, Index>;

}  // namespace sy
