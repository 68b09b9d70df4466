#include "src/params/param_list.h"

namespace sy {

WeightScaling::WeightScaling(const Config::Model& model)
    : std_(model.init_std),
      residual_std_(model.init_residual_scale > 0 ? std_ * model.init_residual_scale
                                                  : std_ / std::sqrt(2.0 * static_cast<double>(model.layers))),
      width_ratio_(model.width_ratio()) {}

void ParamList::matrix(std::string name, Shape shape, MatrixDims dims, Split split, Init init,
                       bool fused_with_previous) {
  ParamSpec& spec = decayed(std::move(name), shape, split, init);
  spec.fused_with_previous = fused_with_previous;
  spec.matrix = dims;
  spec.lr_factor = scaling_.lr_factor();
}

void ParamList::gate(std::string name, Index n, Init init) {
  decayed(std::move(name), {n, d_model_}, {}, init).lr_factor = scaling_.lr_factor();
}

ParamSpec& ParamList::decayed(std::string name, Shape shape, Split split, Init init) {
  ParamSpec& spec = append(std::move(name), shape, split, init);
  spec.decays = spec.is_weight = true;
  return spec;
}

void ParamList::not_decayed(std::string name, Shape shape, Split split, Init init, bool fused_with_previous) {
  append(std::move(name), shape, split, init).fused_with_previous = fused_with_previous;
}

void ParamList::norm(const std::string& name, const NormSpec& n, Index width) {
  if (n.kind == NormKind::none) return;
  if (width == 0) width = d_model_;
  not_decayed(name + ".weight", {width}, {}, init_scale(n.offset));
  if (n.kind == NormKind::batchnorm) specs.back().batch_norm = batch_norms++;
  const bool may_have_bias = n.kind == NormKind::layernorm || n.kind == NormKind::batchnorm;
  if (may_have_bias && n.bias) not_decayed(name + ".bias", {width}, {}, init_zeros);
}

ParamSpec& ParamList::append(std::string name, Shape shape, Split split, Init init) {
  return specs.emplace_back(ParamSpec{
      .name = std::move(name), .shape = shape, .split = split, .init = init, .layer = layer, .bucket = bucket});
}

}  // namespace sy
