#include "src/config/lora_targets.h"

#include <algorithm>

#include "src/text/strings.h"

namespace sy {
namespace {

bool always(const Config&) {
  return true;
}
bool has_latents(const Config& c) {
  return c.model.kv_lora_rank > 0;
}
bool has_query_latents(const Config& c) {
  return has_latents(c) && c.model.q_lora_rank > 0;
}
template <bool moe>
bool has_blocks(const Config& c) {
  for (Index layer = 0; layer < c.num_blocks(); ++layer)
    if (c.is_moe(layer) == moe) return true;
  return false;
}
bool has_shared_experts(const Config& c) {
  return has_blocks<true>(c) && c.moe.shared_experts > 0;
}

// The targets of a group are adjacent. The names are those of the parameters, without layer.
constexpr LoraTarget table[] = {
    {"attention.q", always},
    {"attention.k", always},
    {"attention.v", always},
    {"attention.out", always},
    {"attention.q_down", has_query_latents},
    {"attention.kv_down", has_latents},
    {"attention.k_rope", has_latents},
    {"mlp.up", has_blocks<false>},
    {"mlp.down", has_blocks<false>},
    {"experts.up", has_blocks<true>},
    {"experts.down", has_blocks<true>},
    {"shared.up", has_shared_experts},
    {"shared.down", has_shared_experts},
};

std::string_view group_of(std::string_view name) {
  return name.substr(0, name.find('.'));
}

bool covers(std::string_view text, std::string_view name) {
  return text == lora_all || text == name || text == group_of(name);
}

}  // namespace

std::span<const LoraTarget> lora_targets() {
  return table;
}

std::vector<std::string> lora_groups() {
  std::vector<std::string> groups{lora_all};
  for (const LoraTarget& target : table)
    if (groups.back() != group_of(target.name)) groups.emplace_back(group_of(target.name));
  return groups;
}

bool is_lora_target(std::string_view text) {
  return std::ranges::any_of(table, [&](const LoraTarget& target) { return covers(text, target.name); });
}

bool has_lora_target(const Config& config, std::string_view text) {
  return std::ranges::any_of(
      table, [&](const LoraTarget& target) { return covers(text, target.name) && target.present(config); });
}

bool covers_lora_target(const Config& config, std::string_view name) {
  return std::ranges::any_of(split_list(config.train.lora_targets),
                             [&](const std::string& text) { return covers(text, name); });
}

}  // namespace sy
