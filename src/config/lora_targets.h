// The weight matrices that LoRA can change (train.lora_targets).
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "src/config.h"

namespace sy {

// A weight matrix that a layer may have.
struct LoraTarget {
  const char* name;  // "attention.q": its group, and its name in the group
  bool (*present)(const Config& config);
};

// Returns the table of all targets.
std::span<const LoraTarget> lora_targets();
// The name of the group of all targets.
constexpr const char* lora_all = "all";
// Returns `lora_all` and the names of the groups.
std::vector<std::string> lora_groups();

// Returns true if train.lora_targets covers this target. name: LoraTarget::name.
bool covers_lora_target(const Config& config, std::string_view name);

}  // namespace sy
