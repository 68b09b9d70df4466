#include "src/params/specs.h"

#include <algorithm>

#include "src/optimizers/update_rule.h"
#include "src/params/block_specs.h"

namespace sy {

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
  using enum Axis;
  const Index D = config.model.d_model;
  const std::vector<BlockSpec> blocks = block_specs(config);
  ParamList list(D, config.model.layers);
  list.decayed("embedding.weight", {vocab, D}, {tp}, init_normal);
  if (config.model.position == Position::learned)
    list.decayed("position.weight", {config.model.seq_len, D}, {}, init_normal);
  if (config.model.embedding_norm) list.norm("embedding_norm", norm_spec(config));
  for (const BlockSpec& block : blocks)
    for (const CoreAttentionSpec* attention : block.all<CoreAttentionSpec>()) add_shared_params(list, *attention);
  for (Index layer = 0; layer < std::ssize(blocks); ++layer)
    add_block_params(list, blocks[static_cast<std::size_t>(layer)], layer);
  list.layer.reset();
  list.bucket = bucket_of_layer(std::ssize(blocks));
  list.norm("final_norm", final_norm_spec(config));
  if (!config.model.tie_embeddings) list.decayed("output.weight", {vocab, D}, {tp}, init_normal);
  if (config.model.output_bias) list.not_decayed("output.bias", {vocab}, {tp}, init_zeros);
  const bool only_matrices = update_rule(config.train.optimizer).matrix_rule != nullptr;
  for (ParamSpec& spec : list.specs) {
    spec.optimizer = only_matrices && !spec.matrix ? Optimizer::adamw : config.train.optimizer;
    spec.state_dtype = config.moment_dtype();
  }
  return std::move(list.specs);
}

Index count_query_heads(const std::vector<ParamSpec>& specs) {
  Index heads = 0;
  for (const ParamSpec& spec : specs)
    if (spec.qk_heads) heads = std::max(heads, spec.qk_heads->first + spec.qk_heads->heads);
  return heads;
}

ParamCount count_params(const Config& config, Index vocab) {
  ParamCount count;
  for (const ParamSpec& s : param_specs(config, vocab)) {
    const Index n = s.shape.elements();
    const Index active = axes_of(s.split).has(Axis::ep) ? n / config.moe.experts * config.moe.top_k : n;
    count.total += n;
    count.active += active;
    const bool embedding = s.name == "embedding.weight";
    if (embedding) count.embedding = n;
    const bool lookup = s.name == "position.weight" || (embedding && !config.model.tie_embeddings);
    if (s.decays && !lookup) count.products += active;
  }
  return count;
}

}  // namespace sy
