#include "src/params/costs.h"

#include <algorithm>

#include "src/params/block_specs.h"

namespace sy {

double mean_visible(Index tokens, Index window) {
  // The first `full` tokens see one key more each; the others see `full` keys.
  const Index full = window > 0 ? std::min(window, tokens) : tokens;
  const double sum = 0.5 * static_cast<double>(full) * static_cast<double>(full + 1) +
                     static_cast<double>(tokens - full) * static_cast<double>(full);
  return tokens > 0 ? sum / static_cast<double>(tokens) : 0;
}

ModelCosts model_costs(const Config& config, Index vocab) {
  ModelCosts costs{count_params(config, vocab), 0, 0};
  // A row of the embedding is looked up; the table is multiplied by where it is the output's, too.
  const Index looked_up = config.model.tie_embeddings ? 0 : costs.parameters.embedding;
  costs.flops_per_token = 6 * static_cast<double>(costs.parameters.active - looked_up);
  for (const BlockSpec& block : block_specs(config)) {
    const AttentionSpec& a = block.attention;
    const Index widths = a.key_width + a.value_width;
    costs.flops_per_token += 6 * static_cast<double>(a.heads * widths) * mean_visible(config.model.seq_len, a.window);
    costs.kv_bytes_per_token += a.kv_heads * widths * size_of(DType::bf16);
  }
  return costs;
}

}  // namespace sy
