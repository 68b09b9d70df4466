#include "src/params/specs.h"

#include <algorithm>

#include "src/optimizers/update_rule.h"
#include "src/params/block_specs.h"
#include "src/params/lora.h"

namespace sy {

std::string layer_prefix(Index layer) {
  return "layers." + std::to_string(layer) + ".";
}

const char* axial_position_name(int axis) {
  return axis == 0 ? "row_position.weight" : "column_position.weight";
}

std::string mtp_prefix(Index layer) {
  return layer_prefix(layer) + "mtp.";
}

namespace {

// Appends the parameters that a stack adds to the embedding.
void add_embedding_params(ParamList& list, const Config& stack, const std::string& prefix) {
  const Config::Model& m = stack.model;
  const Init init = list.scaling().embedding();
  const Index positions = stack.decoder_length();
  if (m.position == Position::learned) list.decayed(prefix + "position.weight", {positions, m.d_model}, {}, init);
  if (m.position == Position::axial)
    for (const int axis : {0, 1})
      list.decayed(prefix + axial_position_name(axis),
                   {static_cast<Index>(m.axial_shape[axis]), static_cast<Index>(m.axial_widths[axis])}, {}, init);
  if (m.segments > 0) list.decayed(prefix + "segment.weight", {m.segments, m.d_model}, {}, init);
  if (m.embedding_norm) list.norm(prefix + "embedding_norm", norm_spec(stack));
}

// block: of the module
void add_mtp_params(ParamList& list, const Config& config, const BlockSpec& block, Index layer) {
  list.layer = layer;
  list.bucket = bucket_of_layer(layer) + 1;
  const std::string prefix = mtp_prefix(layer);
  const Shape square{list.d_model(), list.d_model()};
  for (const std::string name : {"hidden", "embedding"}) {
    list.norm(prefix + name + "_norm", norm_spec(config));
    list.matrix(prefix + name + "_projection.weight", square, {}, {}, list.scaling().matrix());
  }
  add_block_params(list, block, layer);
  list.norm(prefix + "head_norm", final_norm_spec(config));
}

// Returns the elements of a parameter that one token uses.
Index active_elements(const Config& config, const ParamSpec& s) {
  const Index n = s.shape.elements();
  return axes_of(s.split).has(Axis::ep) ? n / config.moe.experts * config.moe.top_k : n;
}

}  // namespace

Index model_vocab(const Config& config, Index token_ids) {
  const Index rows = config.model.vocab, mask_token = config.model.mask_token,
              special = std::max({mask_token, config.model.sentinel_token, config.model.start_token});
  if (rows > 0 && rows < token_ids)
    bad_input("model.vocab = {} is less than the {} token ids of the data: raise it, or set it to 0", rows, token_ids);
  if (rows > 0 && rows <= mask_token)
    bad_input("model.vocab = {} has no row for model.mask_token = {}: raise it, or set it to 0", rows, mask_token);
  if (rows > 0 && rows <= special)
    bad_input("model.vocab = {} has no row for the special token {}: raise it, or set it to 0", rows, special);
  return rows > 0 || token_ids == 0 ? rows : std::max(token_ids, special + 1);
}

std::vector<ParamSpec> param_specs(const Config& config, Index vocab) {
  using enum Axis;
  const Index D = config.model.d_model;
  const std::vector<BlockSpec> blocks = block_specs(config);
  ParamList list(config.model);
  const Init init = list.scaling().embedding();
  list.decayed("embedding.weight", {vocab, D}, {tp}, init);
  if (!config.stacks.empty()) add_embedding_params(list, config.of_stack(0), "encoder.");
  add_embedding_params(list, config.stacks.empty() ? config : config.of_stack(1), decoder_prefix(config));
  for (const BlockSpec& block : blocks)
    for (const CoreAttentionSpec* attention : block.all<CoreAttentionSpec>()) add_shared_params(list, *attention);
  for (Index layer = 0; layer < config.model.layers; ++layer) {
    list.layer = layer;
    list.bucket = bucket_of_layer(layer);
    add_block_params(list, blocks[static_cast<std::size_t>(layer)], layer);
    // The last layer of an encoder has its norm, so that both are of one bucket.
    list.layer.reset();
    if (!config.stacks.empty() && layer + 1 == config.stacks[0].model.layers)
      list.norm("encoder.final_norm", final_norm_spec(config));
  }
  list.bucket = bucket_of_layer(config.model.layers);
  list.norm(decoder_prefix(config) + "final_norm", final_norm_spec(config), config.model.output_width());
  if (config.model.output_transform) {
    list.matrix("output_transform.weight", {D, D}, {}, {}, list.scaling().matrix());
    if (has_mlp_bias(config)) list.not_decayed("output_transform.bias", {D}, {}, init_zeros);
    list.norm("output_transform_norm", norm_spec(config));
  }
  if (!config.model.tie_embeddings) list.decayed("output.weight", {vocab, config.model.output_width()}, {tp}, init);
  if (config.model.output_bias) list.not_decayed("output.bias", {vocab}, {tp}, init_zeros);
  for (Index layer = config.model.layers; layer < config.num_blocks(); ++layer)
    add_mtp_params(list, config, blocks[static_cast<std::size_t>(layer)], layer);
  const bool only_matrices = update_rule(config.train.optimizer).matrix_rule != nullptr;
  if (config.train.lora_rank > 0) list.specs = with_adapters(std::move(list.specs), config);
  const bool only_indexers = config.trains_indexers_alone();
  for (ParamSpec& spec : list.specs) {
    if (only_indexers) spec.frozen = !is_of_indexer(spec.name);
    spec.optimizer = only_matrices && !spec.matrix ? Optimizer::adamw : config.train.optimizer;
    if (spec.bucket == embedding_bucket && !config.train.decay_embeddings) spec.decays = false;
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

Index count_batch_norms(const std::vector<ParamSpec>& specs) {
  return std::ranges::count_if(specs, [](const ParamSpec& spec) { return spec.batch_norm.has_value(); });
}

Index product_elements(const Config& config, const ParamSpec& s) {
  if (s.name.ends_with(".attention.global.q.weight")) return 0;  // of few tokens
  const bool lookup = s.name.ends_with("position.weight") || s.name == "segment.weight" ||
                      (s.name == "embedding.weight" && !config.model.tie_embeddings);
  return s.is_weight && !lookup ? active_elements(config, s) : 0;
}

ParamCount count_params(const Config& config, Index vocab) {
  ParamCount count;
  for (const ParamSpec& s : param_specs(config, vocab)) {
    const Index n = s.shape.elements();
    count.total += n;
    count.active += active_elements(config, s);
    if (s.layer && *s.layer >= config.model.layers) count.mtp += n;
    if (s.name == "embedding.weight") count.embedding = n;
    if (!s.frozen) count.trained += n;
    count.products += product_elements(config, s);
  }
  return count;
}

}  // namespace sy
