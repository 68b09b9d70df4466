#include "src/params/lsh_attention_spec.h"

#include <algorithm>
#include <numeric>

namespace sy {

Index LshAttentionSpec::rotation_columns() const {
  return std::accumulate(factors.begin(), factors.end(), Index{0}) / 2;
}

Shape LshAttentionSpec::order_shape(Index sequences, Index seq_len, Index of_heads) const {
  if (factors.empty() || seq_len <= desc.chunk) return {};
  return {sequences, of_heads, rounds, round_up(seq_len, desc.chunk)};
}

// The projections of queries and values are adjacent in memory, so that one GEMM computes both.
void add_params(ParamList& list, const std::string& name, const LshAttentionSpec& a) {
  using enum Axis;
  const Index H = a.heads, D = list.d_model();
  list.query_heads += H;
  list.matrix(name + ".q.weight", {H, a.key_width, D}, {.stack_dims = 1, .heads = true}, {tp}, list.scaling().matrix());
  list.matrix(name + ".v.weight", {H, a.value_width, D}, {.stack_dims = 1, .heads = true}, {tp},
              list.scaling().matrix(), true);
  if (a.qkv_bias) {
    list.not_decayed(name + ".q.bias", {H, a.key_width}, {tp}, init_zeros);
    list.not_decayed(name + ".v.bias", {H, a.value_width}, {tp}, init_zeros, true);
  }
  add_core_params(list, name, a);
}

// Every pair of a query and a key of its chunks counts, as the CPU computes it. The hash has no
// gradient.
SublayerCosts costs(const LshAttentionSpec& a, Index seq_len) {
  const bool sorted = a.order_shape(1, seq_len, a.heads).size() > 0;
  const Index rounds = sorted ? a.rounds : 1;
  const Index chunks = seq_len <= a.desc.chunk ? 1 : 1 + a.desc.before + a.desc.after;
  const Index seen = std::min(seq_len, a.desc.chunk * chunks) * rounds;
  const Index hash = sorted ? 2 * a.key_width * a.rounds * a.rotation_columns() : 0;
  return {.flops_per_token = static_cast<double>(a.heads * (6 * (a.key_width + a.value_width) * seen + hash)),
          .cache_elements = 0};
}

}  // namespace sy
