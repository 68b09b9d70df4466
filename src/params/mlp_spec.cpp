#include "src/params/mlp_spec.h"

#include <cmath>

namespace sy {
namespace {

// Returns the parameter whose softplus is this value.
double inverse_softplus(double value) {
  return std::log(std::expm1(value));
}

}  // namespace

// Gate and up projection are adjacent in memory: [num_projections, F, D].
void add_params(ParamList& list, const std::string& name, const MlpSpec& f) {
  using enum Axis;
  const Index D = list.d_model();
  list.matrix(name + ".up.weight", {f.num_projections(), f.width, D}, {.stack_dims = 1}, {none, tp},
              list.scaling().matrix());
  if (f.bias) list.not_decayed(name + ".up.bias", {f.num_projections(), f.width}, {none, tp}, init_zeros);
  if (f.activation.act == Activation::xielu) {  // both factors of ops::XieluForward start at 0.8
    list.not_decayed(name + ".xielu.positive", {1}, {}, {InitKind::constant, inverse_softplus(0.8)});
    list.not_decayed(name + ".xielu.negative", {1}, {}, {InitKind::constant, inverse_softplus(0.3)}, true);
  }
  list.matrix(name + ".down.weight", {D, f.width}, {.row_dims = 1}, {none, tp}, list.scaling().residual());
  if (f.bias) list.not_decayed(name + ".down.bias", {D}, {}, init_zeros);
}

}  // namespace sy
