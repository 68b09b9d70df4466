// Check of the settings of LoRA.
#include "src/config/check.h"
#include "src/config/lora_targets.h"
#include "src/config/values.h"
#include "src/optimizers/update_rule.h"
#include "src/text/strings.h"

namespace sy {

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
    if (!is_lora_target(target))
      problems.add("train.lora_targets", "train.lora_targets has '{}': expected {}, or one matrix as in attention.q",
                   target, fmt::join(lora_groups(), ", "));
    else if (!has_lora_target(c, target))
      problems.add("train.lora_targets", "train.lora_targets has '{}', which the model does not have: leave it out",
                   target);
  }
}

}  // namespace sy
