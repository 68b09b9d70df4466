#include "src/params/param_list.h"

#include <cmath>

namespace sy {

// Smaller initial values of residual outputs keep the variance independent of depth (GPT-2).
ParamList::ParamList(Index d_model, Index layers)
    : d_model_(d_model), residual_init_{InitKind::normal, 0.02 / std::sqrt(2.0 * static_cast<double>(layers))} {}

void ParamList::matrix(std::string name, Shape shape, Split split, Init init, bool fused_with_previous) {
  append(std::move(name), shape, split, init, true, fused_with_previous);
}

void ParamList::vector(std::string name, Shape shape, Split split, Init init, bool fused_with_previous) {
  append(std::move(name), shape, split, init, false, fused_with_previous);
}

void ParamList::norm(const std::string& name, const NormSpec& n) {
  if (n.kind == NormKind::none) return;
  vector(name + ".weight", {d_model_}, {}, init_scale(n.offset));
  if (n.kind == NormKind::layernorm && n.bias) vector(name + ".bias", {d_model_}, {}, init_zeros);
}

void ParamList::append(std::string name, Shape shape, Split split, Init init, bool decays, bool fused_with_previous) {
  specs.push_back({std::move(name), shape, split, init, decays, fused_with_previous, layer, {}, bucket});
}

}  // namespace sy
