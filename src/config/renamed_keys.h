// Former names of configuration keys. Only for the files of this folder.
// A file or checkpoint that the program wrote may have them; reading it gives one warning.
// In other files and on the command line they are errors, which name the present key.
#pragma once

#include <string_view>

namespace sy {

// Former and present name of a key.
struct RenamedKey {
  std::string_view old_key, new_key;
};
constexpr RenamedKey renamed_keys[] = {
    {"model.kv_latent", "model.kv_lora_rank"},         {"model.q_latent", "model.q_lora_rank"},
    {"model.rope_head_dim", "model.qk_rope_head_dim"}, {"model.value_head_dim", "model.v_head_dim"},
    {"model.latent_eps", "model.latent_norm_eps"},     {"moe.group_limit", "moe.topk_groups"},
    {"moe.bias_rate", "moe.bias_update_rate"},         {"moe.placement", "moe.expert_map"},
    {"parallel.node", "parallel.ranks_per_node"},
};

// Returns the present name of a former key. Empty if `key` is no former key.
constexpr std::string_view new_key_of(std::string_view key) {
  for (const RenamedKey& renamed : renamed_keys)
    if (renamed.old_key == key) return renamed.new_key;
  return {};
}

}  // namespace sy
