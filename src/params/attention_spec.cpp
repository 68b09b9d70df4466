#include "src/params/attention_spec.h"

#include <algorithm>

#include "kernels/attention_mask.h"

namespace sy {
namespace {

constexpr const char* relative_bias = "relative_bias.weight";

// Relative position bias of T5: one value per head and bucket of distances.
void add_relative_bias(ParamList& list, const std::string& prefix, const CoreAttentionSpec& a) {
  list.not_decayed(prefix + relative_bias, {a.heads, a.relative->buckets}, {Axis::tp}, list.scaling().embedding());
}

bool has_table(const CoreAttentionSpec& a, bool shared) {
  return a.relative && a.relative->kind == Position::t5 && a.relative->shared == shared;
}

}  // namespace

void add_core_params(ParamList& list, const std::string& name, const CoreAttentionSpec& a) {
  using enum Axis;
  if (has_table(a, false)) add_relative_bias(list, name + ".", a);
  if (a.sinks) list.not_decayed(name + ".sinks", {a.heads}, {tp}, init_zeros);
  list.matrix(name + ".out.weight", {list.d_model(), a.heads, a.value_width}, {.row_dims = 1}, {none, tp},
              list.scaling().residual());
  if (a.out_bias) list.not_decayed(name + ".out.bias", {list.d_model()}, {}, init_zeros);
}

// The scores of a token's heads are no matrix of a linear map, like those of a router.
void add_indexer_params(ParamList& list, const std::string& name, const CoreAttentionSpec& a, Index query_input) {
  if (!a.indexer) return;
  const Index heads = a.indexer->heads, width = a.indexer->head_dim;
  const std::string prefix = name + ".indexer.";
  list.matrix(prefix + "q.weight", {heads, width, query_input}, {.stack_dims = 1, .heads = true}, {},
              list.scaling().matrix());
  list.matrix(prefix + "k.weight", {width, list.d_model()}, {.row_dims = 1}, {}, list.scaling().matrix());
  list.not_decayed(prefix + "k_norm.weight", {width}, {}, init_ones);
  list.not_decayed(prefix + "k_norm.bias", {width}, {}, init_zeros);
  list.gate(prefix + "head_weights.weight", heads, list.scaling().gate());
}

bool is_of_indexer(std::string_view name) {
  return name.find(".indexer.") != name.npos;
}

void add_shared_params(ParamList& list, const CoreAttentionSpec& a) {
  if (!has_table(a, true)) return;
  const std::string name = a.relative->stack + relative_bias;
  const bool present =
      std::any_of(list.specs.begin(), list.specs.end(), [&](const ParamSpec& spec) { return spec.name == name; });
  if (!present) add_relative_bias(list, a.relative->stack, a);
}

void add_projections(ParamList& list, const std::string& name, const CoreAttentionSpec& a, bool fuses_queries) {
  using enum Axis;
  const Index H = a.heads, K = a.kv_heads, qk = a.key_width, v = a.value_width, D = list.d_model();
  const MatrixDims heads{.stack_dims = 1, .heads = true};
  list.matrix(name + ".q.weight", {H, qk, D}, heads, {tp}, list.scaling().matrix());
  list.matrix(name + ".k.weight", {K, qk, D}, heads, {tp}, list.scaling().matrix(), fuses_queries);
  list.matrix(name + ".v.weight", {K, v, D}, heads, {tp}, list.scaling().matrix(), true);
  if (!a.qkv_bias) return;
  list.not_decayed(name + ".q.bias", {H, qk}, {tp}, init_zeros);
  list.not_decayed(name + ".k.bias", {K, qk}, {tp}, init_zeros, fuses_queries);
  list.not_decayed(name + ".v.bias", {K, v}, {tp}, init_zeros, true);
}

void add_params(ParamList& list, const std::string& name, const AttentionSpec& a) {
  using enum Axis;
  const Index H = a.heads, K = a.kv_heads, qk = a.key_width, D = list.d_model();
  const QkHeads of_q{list.query_heads, H, K, false}, of_k{list.query_heads, H, K, true};
  list.query_heads += H;
  const std::size_t first = list.specs.size();
  add_projections(list, name, a, true);
  // The weights, and then the biases, are in the order q, k, v.
  for (std::size_t i = first; i < list.specs.size(); i += 3) {
    list.specs[i].qk_heads = of_q;
    list.specs[i + 1].qk_heads = of_k;
  }
  if (a.qk_norm) {
    const bool per_head = a.qk_norm->weight_per_head();
    const Split split = per_head ? Split{tp} : Split{};
    const Init init = init_scale(a.qk_norm->offset);
    list.not_decayed(name + ".q_norm.weight", per_head ? Shape{H, qk} : Shape{qk}, split, init);
    list.not_decayed(name + ".k_norm.weight", per_head ? Shape{K, qk} : Shape{qk}, split, init, true);
  }
  if (a.global_projections) add_projections(list, name + "." + global_attention_name, a, false);
  add_core_params(list, name, a);
  add_indexer_params(list, name, a, D);
}

SublayerCosts costs(const AttentionSpec& a, Index seq_len) {
  return {.flops_per_token = core_flops_per_token(a, seq_len),
          .cache_elements = a.kv_heads * (a.key_width + a.value_width) + index_cache_elements(a)};
}

double core_flops_per_token(const CoreAttentionSpec& a, Index seq_len) {
  const Index widths = a.key_width + a.value_width;
  double seen = mean_visible_keys(seq_len, a.mask(), a.indexer ? a.indexer->topk : 0);
  if (a.visible_prefix && seq_len > 0) seen += mean_prefix_pairs(seq_len) / static_cast<double>(seq_len);
  double flops = 6 * static_cast<double>(a.heads * widths) * seen;
  if (a.indexer)
    flops += static_cast<double>(a.indexer->heads * a.indexer->head_dim) *
             (2 * mean_visible_keys(seq_len, a.mask()) + 4 * seen);
  return flops;
}

Index index_cache_elements(const CoreAttentionSpec& a) {
  return a.indexer && a.indexer->topk > 0 ? a.indexer->head_dim : 0;
}

double mean_visible_keys(Index tokens, const AttentionMask& mask, Index most) {
  if (tokens == 0) return 0;
  return visible_pairs(mask, tokens, tokens, most > 0 ? most : tokens) / static_cast<double>(tokens);
}

}  // namespace sy
