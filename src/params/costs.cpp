#include "src/params/costs.h"

#include <algorithm>

#include "src/params/block_specs.h"

namespace sy {

namespace {

// Returns the number of keys below `end` that query p sees by the pattern, beyond the near keys.
// A pattern has only one kind of far keys.
Index far_keys(const SparsePattern& s, Index p, Index end) {
  if (s.stride > 0) return end > p % s.stride ? (end - 1 - p % s.stride) / s.stride + 1 : 0;
  if (s.block > 0) return end / s.block * s.summary + std::max<Index>(0, end % s.block - (s.block - s.summary));
  return std::min(s.global, end);
}

}  // namespace

double mean_visible_keys(Index tokens, Index window, const SparsePattern& sparse) {
  double sum = 0;
  for (Index p = 0; p < tokens; ++p) {
    if (sparse)
      sum += static_cast<double>(p + 1 - sparse.near(p) + far_keys(sparse, p, sparse.near(p)));
    else
      sum += static_cast<double>(window > 0 ? std::min(window, p + 1) : p + 1);
  }
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
