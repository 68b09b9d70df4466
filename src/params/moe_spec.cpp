#include "src/params/moe_spec.h"

namespace sy {

void add_params(ParamList& list, const std::string& name, const MoeSpec& m) {
  using enum Axis;
  const MlpSpec& e = m.expert;
  const Index E = m.experts, D = list.d_model();
  list.gate(name + ".router.weight", E, list.scaling().gate());
  if (m.router.learned_noise_stddev) list.gate(name + ".router.noise.weight", E, init_zeros);
  if (m.router.bias) list.not_decayed(name + ".router.bias", {E}, {}, init_zeros);
  const std::size_t first = list.specs.size();
  list.matrix(name + ".experts.up.weight", {E, e.num_projections(), e.width, D}, {.stack_dims = 2}, {ep, none, etp},
              list.scaling().matrix());
  if (e.bias)
    list.not_decayed(name + ".experts.up.bias", {E, e.num_projections(), e.width}, {ep, none, etp}, init_zeros);
  list.matrix(name + ".experts.down.weight", {E, D, e.width}, {.stack_dims = 1}, {ep, none, etp},
              list.scaling().residual());
  // Each etp shard of an expert adds its slice of the bias, so that the sum has the bias once.
  if (e.bias) list.not_decayed(name + ".experts.down.bias", {E, D}, {ep, etp}, init_zeros);
  for (std::size_t i = first; i < list.specs.size(); ++i) list.specs[i].physical_to_logical = m.physical_to_logical;
  if (!m.shared) return;
  add_params(list, name + ".shared", *m.shared);
  if (m.shared->output_gate) list.gate(name + ".shared_gate.weight", 1, list.scaling().gate());
}

}  // namespace sy
