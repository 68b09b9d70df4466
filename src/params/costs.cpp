#include "src/params/costs.h"

#include "src/params/block_specs.h"

namespace sy {

double mean_visible_keys(Index tokens, Index window, const SparsePattern& sparse) {
  const MaskGeometry<Index> mask({.window = window, .sparse = sparse}, tokens, tokens);
  double sum = 0;
  for (Index p = 0; p < tokens; ++p) sum += static_cast<double>(mask.visible_keys(p));
  return tokens > 0 ? sum / static_cast<double>(tokens) : 0;
}

ModelCosts model_costs(const Config& config, Index vocab) {
  ModelCosts costs{count_params(config, vocab), 0, 0};
  // The embedding is a lookup without FLOPs. A tied table is also the output's weight.
  const Index looked_up = config.model.tie_embeddings ? 0 : costs.parameters.embedding;
  costs.flops_per_token = 6 * static_cast<double>(costs.parameters.active - looked_up);
  for (const BlockSpec& block : block_specs(config)) {
    const AttentionSpec& a = block.attention;
    const Index widths = a.key_width + a.value_width;
    costs.flops_per_token +=
        6 * static_cast<double>(a.heads * widths) * mean_visible_keys(config.model.seq_len, a.window, a.sparse);
    costs.kv_bytes_per_token += a.cache_elements() * size_of(DType::bf16);
  }
  return costs;
}

}  // namespace sy
