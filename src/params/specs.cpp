#include "src/params/specs.h"

#include <algorithm>
#include <cmath>

#include "src/params/block_specs.h"
#include "src/params/update_rule.h"

namespace sy {

namespace {

constexpr Axis none = Axis::none, tp = Axis::tp, ep = Axis::ep, etp = Axis::etp;
const Init normal{InitKind::normal, 0.02}, zeros{InitKind::zeros, 0}, ones{InitKind::ones, 0};

// Builds the list of specs. Its functions append the parameters of one module, named `name`.
class Specs {
 public:
  explicit Specs(const Config& config) : D_(config.model.d_model) {
    // Smaller initial values of residual outputs keep the variance independent of depth (GPT-2).
    residual_ = {InitKind::normal, 0.02 / std::sqrt(2.0 * static_cast<double>(config.model.layers))};
  }

  void matrix(std::string name, Shape shape, Split split, Init init, bool fused_with_previous = false) {
    list.push_back({std::move(name), shape, split, init, true, fused_with_previous, layer, {}, bucket});
  }
  void vector(std::string name, Shape shape, Split split, Init init, bool fused_with_previous = false) {
    list.push_back({std::move(name), shape, split, init, false, fused_with_previous, layer, {}, bucket});
  }
  void norm(const std::string& name, const NormSpec& n) {
    if (n.kind == NormKind::none) return;
    vector(name + ".weight", {D_}, {}, scale(n.offset));
    if (n.kind == NormKind::layernorm && n.bias) vector(name + ".bias", {D_}, {}, zeros);
  }
  void attention(const std::string& name, const AttentionSpec& a) {
    a.latent ? latent_heads(name, a, *a.latent) : plain_heads(name, a);
    if (a.relative && a.relative->kind == Position::t5 && !a.relative->shared) relative_bias(name + ".", a);
    if (a.sinks) vector(name + ".sinks", {a.heads}, {tp}, zeros);
    matrix(name + ".out.weight", {D_, a.heads, a.value_width}, {none, tp}, residual_);
    if (a.out_bias) vector(name + ".out.bias", {D_}, {}, zeros);
  }
  // q, k and v are adjacent in memory, so that one GEMM computes all three.
  void plain_heads(const std::string& name, const AttentionSpec& a) {
    const Index H = a.heads, K = a.kv_heads, qk = a.key_width, v = a.value_width;
    matrix(name + ".q.weight", {H, qk, D_}, {tp}, normal);
    matrix(name + ".k.weight", {K, qk, D_}, {tp}, normal, true);
    matrix(name + ".v.weight", {K, v, D_}, {tp}, normal, true);
    if (a.qkv_bias) {
      vector(name + ".q.bias", {H, qk}, {tp}, zeros);
      vector(name + ".k.bias", {K, qk}, {tp}, zeros, true);
      vector(name + ".v.bias", {K, v}, {tp}, zeros, true);
    }
    if (a.qk_norm && (a.whole_qk_norm || a.head_layernorm)) {
      vector(name + ".q_norm.weight", {H, qk}, {tp}, scale(a.norm_offset));
      vector(name + ".k_norm.weight", {K, qk}, {tp}, scale(a.norm_offset), true);
    } else if (a.qk_norm) {
      vector(name + ".q_norm.weight", {qk}, {}, scale(a.norm_offset));
      vector(name + ".k_norm.weight", {qk}, {}, scale(a.norm_offset), true);
    }
  }
  // Every rank of tp computes the whole latents; the heads are split.
  // The first elements of a query are the rotated ones.
  void latent_heads(const std::string& name, const AttentionSpec& a, const LatentSpec& latent) {
    if (latent.q_lora_rank > 0) down(name + ".q", latent.q_lora_rank);
    matrix(name + ".q.weight", {a.heads, a.key_width, latent.q_lora_rank > 0 ? latent.q_lora_rank : D_}, {tp}, normal);
    down(name + ".kv", latent.kv_lora_rank);
    matrix(name + ".k_rope.weight", {latent.qk_rope_head_dim, D_}, {}, normal);
    matrix(name + ".k.weight", {a.heads, a.key_width - latent.qk_rope_head_dim, latent.kv_lora_rank}, {tp}, normal);
    matrix(name + ".v.weight", {a.heads, a.value_width, latent.kv_lora_rank}, {tp}, normal);
  }
  void down(const std::string& name, Index width) {
    matrix(name + "_down.weight", {width, D_}, {}, normal);
    vector(name + "_latent_norm.weight", {width}, {}, ones);
  }
  // Relative position bias of T5: one value per head and bucket of distances.
  void relative_bias(const std::string& prefix, const AttentionSpec& a) {
    vector(prefix + "relative_bias.weight", {a.heads, a.relative->buckets}, {tp}, normal);
  }
  // Gate and up projection are adjacent in memory: [num_projections, F, D].
  void ffn(const std::string& name, const MlpSpec& f) {
    matrix(name + ".up.weight", {f.num_projections(), f.width, D_}, {none, tp}, normal);
    if (f.bias) vector(name + ".up.bias", {f.num_projections(), f.width}, {none, tp}, zeros);
    matrix(name + ".down.weight", {D_, f.width}, {none, tp}, residual_);
    if (f.bias) vector(name + ".down.bias", {D_}, {}, zeros);
  }
  void ffn(const std::string& name, const MoeSpec& m) {
    const MlpSpec& e = m.expert;
    matrix(name + ".router.weight", {m.experts, D_}, {}, normal);
    if (m.router.learned_noise_stddev) matrix(name + ".router.noise.weight", {m.experts, D_}, {}, zeros);
    if (m.router.bias) vector(name + ".router.bias", {m.experts}, {}, zeros);
    const std::size_t first = list.size();
    matrix(name + ".experts.up.weight", {m.experts, e.num_projections(), e.width, D_}, {ep, none, etp}, normal);
    if (e.bias) vector(name + ".experts.up.bias", {m.experts, e.num_projections(), e.width}, {ep, none, etp}, zeros);
    matrix(name + ".experts.down.weight", {m.experts, D_, e.width}, {ep, none, etp}, residual_);
    // Each etp shard of an expert adds its slice of the bias, so that the sum has the bias once.
    if (e.bias) vector(name + ".experts.down.bias", {m.experts, D_}, {ep, etp}, zeros);
    for (std::size_t i = first; i < list.size(); ++i) list[i].physical_to_logical = m.physical_to_logical;
    if (!m.shared) return;
    ffn(name + ".shared", *m.shared);
    if (m.shared->gate) matrix(name + ".shared_gate.weight", {1, D_}, {}, normal);
  }

  std::vector<ParamSpec> list;
  std::optional<Index> layer;  // layer and bucket of the next specs
  Index bucket = embedding_bucket;

 private:
  // Initial value of a norm's weight: weight + offset is 1.
  static Init scale(float offset) { return offset == 1 ? zeros : ones; }

  Index D_;
  Init residual_;
};

}  // namespace

std::string layer_prefix(Index layer) {
  return "layers." + std::to_string(layer) + ".";
}

Index model_vocab(const Config& config, Index token_ids) {
  const Index rows = config.model.vocab;
  if (rows > 0 && rows < token_ids)
    bad_input("model.vocab = {} is less than the {} token ids of the data: raise it, or set it to 0", rows, token_ids);
  return rows > 0 ? rows : token_ids;
}

std::vector<ParamSpec> param_specs(const Config& config, Index vocab) {
  const Index D = config.model.d_model;
  const std::vector<BlockSpec> blocks = block_specs(config);
  Specs specs(config);
  specs.matrix("embedding.weight", {vocab, D}, {tp}, normal);
  if (config.model.position == Position::learned)
    specs.matrix("position.weight", {config.model.seq_len, D}, {}, normal);
  if (config.model.embedding_norm) specs.norm("embedding_norm", norm_spec(config));
  const auto shares = [](const BlockSpec& block) {
    const std::optional<RelativeSpec>& relative = block.attention.relative;
    return relative && relative->kind == Position::t5 && relative->shared;
  };
  const auto sharing = std::find_if(blocks.begin(), blocks.end(), shares);
  if (sharing != blocks.end()) specs.relative_bias("", sharing->attention);
  for (std::size_t layer = 0; layer < blocks.size(); ++layer) {
    const BlockSpec& block = blocks[layer];
    specs.layer = static_cast<Index>(layer);
    specs.bucket = bucket_of_layer(*specs.layer);
    const std::string prefix = layer_prefix(static_cast<Index>(layer));
    const NormPlacement& norms = block.norms;
    const bool input_norm = norms.pre || norms.post_residual;  // the parameter of both
    if (input_norm) specs.norm(prefix + "attention_norm", block.norm);
    specs.attention(prefix + "attention", block.attention);
    if (norms.post_sublayer) specs.norm(prefix + "attention_out_norm", block.norm);
    if (input_norm && !block.shared_norm) specs.norm(prefix + "ffn_norm", block.norm);
    const std::string ffn = prefix + (block.moe() ? "moe" : "mlp");
    std::visit([&](const auto& spec) { specs.ffn(ffn, spec); }, block.ffn);
    if (norms.post_sublayer) specs.norm(prefix + "ffn_out_norm", block.norm);
  }
  specs.layer.reset();
  specs.bucket = bucket_of_layer(std::ssize(blocks));
  specs.norm("final_norm", final_norm_spec(config));
  if (!config.model.tie_embeddings) specs.matrix("output.weight", {vocab, D}, {tp}, normal);
  if (config.model.output_bias) specs.vector("output.bias", {vocab}, {tp}, zeros);
  assign_optimizer(config.train.optimizer, specs.list);
  return std::move(specs.list);
}

ParamCount count_params(const Config& config, Index vocab) {
  ParamCount count;
  for (const ParamSpec& s : param_specs(config, vocab)) {
    const Index n = s.shape.elements();
    count.total += n;
    count.active += axes_of(s.split).has(Axis::ep) ? n / config.moe.experts * config.moe.top_k : n;
    if (s.name == "embedding.weight") count.embedding = n;
  }
  return count;
}

}  // namespace sy
