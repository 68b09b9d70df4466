#include "src/params/costs.h"

#include "src/params/block_specs.h"

namespace sy {

ModelCosts model_costs(const Config& config, Index vocab) {
  ModelCosts model{count_params(config, vocab), 0, 0};
  model.flops_per_token = 6 * static_cast<double>(model.parameters.products);
  for (const BlockSpec& block : block_specs(config))
    block.for_each_branch([&](const BranchSpec& branch) {
      const SublayerCosts of =
          std::visit([&](const auto& spec) { return costs(spec, config.model.seq_len); }, branch.sublayer);
      model.flops_per_token += of.flops_per_token;
      model.kv_bytes_per_token += of.cache_elements * size_of(DType::bf16);
    });
  return model;
}

}  // namespace sy
