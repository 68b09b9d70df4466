#include "src/params/cross_attention_spec.h"

namespace sy {

// k and v are adjacent in memory, so that one GEMM computes both. Each head is a matrix.
void add_params(ParamList& list, const std::string& name, const CrossAttentionSpec& a) {
  using enum Axis;
  const Index H = a.heads, K = a.kv_heads, qk = a.key_width, v = a.value_width, D = list.d_model();
  const MatrixDims heads{.stack_dims = 1, .heads = true};
  list.matrix(name + ".q.weight", {H, qk, D}, heads, {tp}, list.scaling().matrix());
  list.matrix(name + ".k.weight", {K, qk, D}, heads, {tp}, list.scaling().matrix());
  list.matrix(name + ".v.weight", {K, v, D}, heads, {tp}, list.scaling().matrix(), true);
  if (a.qkv_bias) {
    list.not_decayed(name + ".q.bias", {H, qk}, {tp}, init_zeros);
    list.not_decayed(name + ".k.bias", {K, qk}, {tp}, init_zeros);
    list.not_decayed(name + ".v.bias", {K, v}, {tp}, init_zeros, true);
  }
  add_core_params(list, name, a);
  if (a.out_bias) list.not_decayed(name + ".out.bias", {D}, {}, init_zeros);
}

SublayerCosts costs(const CrossAttentionSpec& a, Index) {
  const double pairs = static_cast<double>(a.encoder_length);
  return {.flops_per_token = 6 * static_cast<double>(a.heads * (a.key_width + a.value_width)) * pairs};
}

NamedSizes sizes_of(const CrossAttentionSpec& a) {
  return {{"K", a.kv_heads}};
}

}  // namespace sy
