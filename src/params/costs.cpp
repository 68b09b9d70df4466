#include "src/params/costs.h"

#include "src/params/block_specs.h"

namespace sy {

ModelCosts model_costs(const Config& config, Index vocab) {
  ModelCosts model{count_params(config, vocab), 0, 0};
  // The gradients of frozen weights are not computed.
  const double of_weight = config.train.lora_rank > 0 ? 4 : 6;
  model.flops_per_token = of_weight * static_cast<double>(model.parameters.products);
  // Each module of multi-token prediction multiplies a token by the output's weights again.
  model.flops_per_token += of_weight * static_cast<double>(config.model.mtp_depth * vocab * config.model.d_model);
  const std::vector<BlockSpec> blocks = block_specs(config);
  for (std::size_t i = 0; i < blocks.size(); ++i)
    blocks[i].for_each_branch([&](const BranchSpec& branch) {
      const SublayerCosts of =
          std::visit([&](const auto& spec) { return costs(spec, config.model.seq_len); }, branch.sublayer);
      model.flops_per_token += of.flops_per_token;
      if (static_cast<Index>(i) < config.model.layers)
        model.kv_bytes_per_token += of.cache_elements * size_of(DType::bf16);
    });
  return model;
}

}  // namespace sy
