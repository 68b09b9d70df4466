#include "src/params/latent_attention_spec.h"

namespace sy {
namespace {

// Projection to a latent, and its norm. Every rank of tp computes the whole latents.
void add_latent(ParamList& list, const std::string& name, Index width) {
  list.matrix(name + "_down.weight", {width, list.d_model()}, {.row_dims = 1}, {}, list.scaling().matrix());
  list.not_decayed(name + "_latent_norm.weight", {width}, {}, init_ones);
}

}  // namespace

// The heads are split over tp. The first elements of a query are the rotated ones.
void add_params(ParamList& list, const std::string& name, const LatentAttentionSpec& a) {
  using enum Axis;
  const Index D = list.d_model();
  if (a.q_lora_rank > 0) add_latent(list, name + ".q", a.q_lora_rank);
  list.matrix(name + ".q.weight", {a.heads, a.key_width, a.q_lora_rank > 0 ? a.q_lora_rank : D},
              {.stack_dims = 1, .heads = true}, {tp}, list.scaling().matrix());
  list.specs.back().qk_heads = QkHeads{list.query_heads, a.heads, a.heads, false, a.qk_rope_head_dim};
  add_latent(list, name + ".kv", a.kv_lora_rank);
  list.matrix(name + ".k_rope.weight", {a.qk_rope_head_dim, D}, {.row_dims = 1}, {}, list.scaling().matrix());
  list.matrix(name + ".k.weight", {a.heads, a.key_width - a.qk_rope_head_dim, a.kv_lora_rank},
              {.stack_dims = 1, .heads = true}, {tp}, list.scaling().matrix());
  list.specs.back().qk_heads = QkHeads{list.query_heads, a.heads, a.heads, true};
  list.query_heads += a.heads;
  list.matrix(name + ".v.weight", {a.heads, a.value_width, a.kv_lora_rank}, {.stack_dims = 1, .heads = true}, {tp},
              list.scaling().matrix());
  add_core_params(list, name, a);
  add_indexer_params(list, name, a, a.q_lora_rank > 0 ? a.q_lora_rank : D);
}

SublayerCosts costs(const LatentAttentionSpec& a, Index seq_len) {
  return {.flops_per_token = core_flops_per_token(a, seq_len),
          .cache_elements = a.qk_rope_head_dim + a.kv_lora_rank + index_cache_elements(a)};
}

NamedSizes sizes_of(const LatentAttentionSpec& a) {
  return {{"K", a.heads}, {"r", a.qk_rope_head_dim}, {"n", a.key_width - a.qk_rope_head_dim}};
}

}  // namespace sy
