// The targets of LoRA, and the check of its settings.
#include <algorithm>

#include "src/config/check.h"
#include "src/config/lora_targets.h"
#include "src/config/values.h"
#include "src/optimizers/update_rule.h"
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

bool covers_lora_target(const Config& config, std::string_view name) {
  return std::ranges::any_of(split_list(config.train.lora_targets),
                             [&](const std::string& text) { return covers(text, name); });
}

void check_lora(const Config& c, Problems& problems) {
  const Config::Train& t = c.train;
  if (t.lora_rank == 0) {
    for (const auto& [key, text] : {std::pair{"train.lora_alpha", t.lora_alpha > 0 ? show(t.lora_alpha) : ""},
                                    std::pair{"train.lora_targets", t.lora_targets}})
      if (!text.empty())
        problems.add(key, "{} = {} with train.lora_rank = 0: set train.lora_rank, or leave this out", key, text);
    return;
  }
  const auto refuse = [&](bool is_set, const char* key, const char* why, const char* to) {
    problems.refuse(is_set, c, key, fmt::format("train.lora_rank = {}: {}", t.lora_rank, why), to);
  };
  refuse(update_rule(t.optimizer).matrix_rule, "train.optimizer", "it does not update adapters as matrices",
         "adamw or sgd");
  refuse(t.qk_clip > 0, "train.qk_clip", "it would scale frozen weights", "0");
  refuse(c.model.mup, "model.mup", "muP has no learning rates of adapters", "false");
  refuse(c.model.norm == NormKind::batchnorm, "model.norm",
         "training changes its running averages, and adapters do not hold them", "rmsnorm or layernorm");
  for (const std::string& target : split_list(t.lora_targets)) {
    const auto covered = [&](const LoraTarget& of) { return covers(target, of.name); };
    if (std::ranges::none_of(table, covered))
      problems.add("train.lora_targets", "train.lora_targets has '{}': expected {}, or one matrix as in attention.q",
                   target, fmt::join(lora_groups(), ", "));
    else if (std::ranges::none_of(table, [&](const LoraTarget& of) { return covered(of) && of.present(c); }))
      problems.add("train.lora_targets", "train.lora_targets has '{}', which the model does not have: leave it out",
                   target);
  }
}

}  // namespace sy
