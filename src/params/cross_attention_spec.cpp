#include "src/params/cross_attention_spec.h"

namespace sy {

void add_params(ParamList& list, const std::string& name, const CrossAttentionSpec& a) {
  add_projections(list, name, a, false);
  add_core_params(list, name, a);
}

SublayerCosts costs(const CrossAttentionSpec& a, Index) {
  const double pairs = static_cast<double>(a.encoder_length);
  return {.flops_per_token = 6 * static_cast<double>(a.heads * (a.key_width + a.value_width)) * pairs};
}

}  // namespace sy
