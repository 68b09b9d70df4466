#include "src/params/specs.h"

#include <cmath>

namespace sy {

std::vector<ParamSpec> param_specs(const Config& config, Index vocab) {
  const auto& m = config.model;
  const auto& e = config.moe;
  const Index D = m.d_model, H = m.heads, K = m.kv_heads, hd = m.head_dim;
  const Index halves = config.ffn_activation().gated ? 2 : 1;
  const Init normal{InitKind::normal, 0.02};
  // What is added to the residual stream starts smaller, so that its variance does not grow with depth (GPT-2).
  const Init residual{InitKind::normal, 0.02 / std::sqrt(2.0 * static_cast<double>(m.layers))};
  const Init zeros{InitKind::zeros, 0}, ones{InitKind::ones, 0};
  constexpr Axis none = Axis::none, tp = Axis::tp, ep = Axis::ep, etp = Axis::etp;

  std::vector<ParamSpec> specs;
  const auto matrix = [&](std::string name, Shape shape, Split split, Init init, bool joined = false) {
    specs.push_back({std::move(name), shape, split, init, true, joined});
  };
  const auto vector = [&](std::string name, Shape shape, Split split, Init init, bool joined = false) {
    specs.push_back({std::move(name), shape, split, init, false, joined});
  };
  const auto norm = [&](const std::string& name) {
    if (m.norm == NormKind::none) return;
    vector(name + ".weight", {D}, {}, ones);
    if (m.norm == NormKind::layernorm && m.bias) vector(name + ".bias", {D}, {}, zeros);
  };
  // A dense FFN of width F: the gate's and the linear half's rows side by side, [halves, F, D].
  const auto mlp = [&](const std::string& name, Index F, bool bias) {
    matrix(name + ".up.weight", {halves, F, D}, {none, tp}, normal);
    if (bias) vector(name + ".up.bias", {halves, F}, {none, tp}, zeros);
    matrix(name + ".down.weight", {D, F}, {none, tp}, residual);
    if (bias) vector(name + ".down.bias", {D}, {}, zeros);
  };

  matrix("embedding.weight", {vocab, D}, {tp}, normal);
  for (Index layer = 0; layer < m.layers; ++layer) {
    const std::string prefix = "layers." + std::to_string(layer) + ".";
    norm(prefix + "attention_norm");
    const std::string attention = prefix + "attention.";
    matrix(attention + "q.weight", {H, hd, D}, {tp}, normal);
    matrix(attention + "k.weight", {K, hd, D}, {tp}, normal, true);
    matrix(attention + "v.weight", {K, hd, D}, {tp}, normal, true);
    if (m.bias) {
      vector(attention + "q.bias", {H, hd}, {tp}, zeros);
      vector(attention + "k.bias", {K, hd}, {tp}, zeros, true);
      vector(attention + "v.bias", {K, hd}, {tp}, zeros, true);
    }
    if (m.qk_norm) {
      vector(attention + "q_norm.weight", {hd}, {}, ones);
      vector(attention + "k_norm.weight", {hd}, {}, ones, true);
    }
    matrix(attention + "out.weight", {D, H, hd}, {none, tp}, residual);
    if (m.bias) vector(attention + "out.bias", {D}, {}, zeros);
    norm(prefix + "ffn_norm");
    if (config.is_moe(layer)) {
      const std::string moe = prefix + "moe.";
      matrix(moe + "router.weight", {e.experts, D}, {}, normal);
      matrix(moe + "experts.up.weight", {e.experts, halves, e.d_ff, D}, {ep, none, etp}, normal);
      matrix(moe + "experts.down.weight", {e.experts, D, e.d_ff}, {ep, none, etp}, residual);
      if (e.shared_experts > 0) mlp(moe + "shared", e.shared_experts * e.d_ff, false);
    } else {
      mlp(prefix + "mlp", m.d_ff, m.bias);
    }
  }
  norm("final_norm");
  if (!m.tie_embeddings) matrix("output.weight", {vocab, D}, {tp}, normal);
  return specs;
}

ParamCount count_params(const Config& config, Index vocab) {
  ParamCount count;
  for (const ParamSpec& s : param_specs(config, vocab)) {
    const Index n = s.shape.elements();
    count.total += n;
    count.active += s.group() == GradGroup::expert ? n / config.moe.experts * config.moe.top_k : n;
    if (s.name == "embedding.weight") count.embedding = n;
  }
  return count;
}

}  // namespace sy
