#include "src/params/costs.h"

#include "src/params/block_specs.h"

namespace sy {

ModelCosts model_costs(const Config& config, Index vocab) {
  ModelCosts model{count_params(config, vocab), 0, 0};
  // The gradients of frozen weights are not computed.
  const double of_weight = config.train.lora_rank > 0 || config.trains_indexers_alone() ? 4 : 6;
  const std::vector<BlockSpec> blocks = block_specs(config);
  // Shares of the tokens.
  const double encoder = static_cast<double>(config.encoder_length()) / static_cast<double>(config.tokens_per_sample()),
               decoder = static_cast<double>(config.decoder_length()) / static_cast<double>(config.tokens_per_sample());
  double& flops = model.flops_per_token;
  if (config.stacks.empty()) {
    flops = decoder * of_weight * static_cast<double>(model.parameters.products);
  } else {
    for (const ParamSpec& spec : param_specs(config, vocab)) {
      const bool reads_encoder = spec.name.starts_with("encoder.") || spec.name.ends_with("cross_attention.k.weight") ||
                                 spec.name.ends_with("cross_attention.v.weight");
      flops += (reads_encoder ? encoder : decoder) * of_weight * static_cast<double>(product_elements(config, spec));
    }
  }
  // Each module of multi-token prediction multiplies a token by the output's weights again.
  flops += decoder * of_weight * static_cast<double>(config.model.mtp_depth * vocab * config.model.d_model);
  for (std::size_t i = 0; i < blocks.size(); ++i)
    blocks[i].for_each_branch([&](const BranchSpec& branch) {
      const bool in_encoder = static_cast<Index>(i) < config.encoder_layers();
      const Index length = in_encoder ? config.encoder_length() : config.decoder_length();
      const SublayerCosts of = std::visit([&](const auto& spec) { return costs(spec, length); }, branch.sublayer);
      flops += (in_encoder ? encoder : decoder) * of.flops_per_token;
      // An encoder has no cache.
      if (!in_encoder && static_cast<Index>(i) < config.model.layers)
        model.kv_bytes_per_token += of.cache_elements * size_of(DType::bf16);
    });
  return model;
}

}  // namespace sy
