#include "src/params/param_list.h"

#include <cmath>

namespace sy {

// Smaller initial values of residual outputs keep the variance independent of depth (GPT-2).
ParamList::ParamList(Index d_model, Index layers)
    : d_model_(d_model), residual_init_{InitKind::normal, 0.02 / std::sqrt(2.0 * static_cast<double>(layers))} {}

void ParamList::matrix(std::string name, Shape shape, MatrixDims dims, Split split, Init init,
                       bool fused_with_previous) {
  ParamSpec& spec = append(std::move(name), shape, split, init);
  spec.decays = true;
  spec.fused_with_previous = fused_with_previous;
  spec.matrix = dims;
}

void ParamList::decayed(std::string name, Shape shape, Split split, Init init) {
  append(std::move(name), shape, split, init).decays = true;
}

void ParamList::not_decayed(std::string name, Shape shape, Split split, Init init, bool fused_with_previous) {
  append(std::move(name), shape, split, init).fused_with_previous = fused_with_previous;
}

void ParamList::norm(const std::string& name, const NormSpec& n) {
  if (n.kind == NormKind::none) return;
  not_decayed(name + ".weight", {d_model_}, {}, init_scale(n.offset));
  if (n.kind == NormKind::layernorm && n.bias) not_decayed(name + ".bias", {d_model_}, {}, init_zeros);
}

ParamSpec& ParamList::append(std::string name, Shape shape, Split split, Init init) {
  return specs.emplace_back(ParamSpec{
      .name = std::move(name), .shape = shape, .split = split, .init = init, .layer = layer, .bucket = bucket});
}

}  // namespace sy
