#include "src/params/cross_attention_spec.h"

namespace sy {

void add_params(ParamList& list, const std::string& name, const CrossAttentionSpec& a) {
  add_separate_projections(list, name, a, a.kv_heads, a.qkv_bias);
  add_core_params(list, name, a);
  if (a.out_bias) list.not_decayed(name + ".out.bias", {list.d_model()}, {}, init_zeros);
}

SublayerCosts costs(const CrossAttentionSpec& a, Index) {
  const double pairs = static_cast<double>(a.encoder_length);
  return {.flops_per_token = 6 * static_cast<double>(a.heads * (a.key_width + a.value_width)) * pairs};
}

NamedSizes sizes_of(const CrossAttentionSpec& a) {
  return {{"K", a.kv_heads}};
}

}  // namespace sy
