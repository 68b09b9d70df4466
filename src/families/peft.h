// Adapters of LoRA in the format of PEFT (Hugging Face): adapter_config.json and
// adapter_model.safetensors.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "src/families/tensors.h"
#include "src/params/values.h"

namespace sy {

// A linear map with adapters, as a module of a Hugging Face model. The module's weight has the
// outputs and inputs of the map in another order if the family stores them so.
struct PeftModule {
  std::string name;                    // "model.layers.0.self_attn.q_proj"
  std::size_t param;                   // index of the weight W in `params`
  Index map;                           // index of the map among those of the parameter
  std::vector<Index> outputs, inputs;  // row of the module's B, and column of its A, of each one
};

// Returns the modules with adapters, ordered as the tensors are. Pure function.
// - tensors: those of the family for `params`, which have no adapters
// - config: with the keys of LoRA
// Throws InputError if PEFT cannot express the adapters, because a tensor holds several maps or a
// transpose.
std::vector<PeftModule> peft_modules(const FamilyTensors& tensors, const std::vector<ParamSpec>& params,
                                     const Config& config);

// Visits the elements of the adapters of a module. Element i of the parameter A or B of the weight
// is element j of NAME.lora_A.weight [rank, inputs] or NAME.lora_B.weight [outputs, rank].
void for_peft_elements(const PeftModule& module, Index rank,
                       const std::function<void(bool is_b, Index i, Index j)>& visit);

// Writes both files to `folder`. values: has the adapters. type: f32, bf16 or f16.
// Throws InputError as peft_modules does, or if the model has adapters of experts, for which PEFT
// has no format.
void write_peft_adapter(const FamilyTensors& tensors, const std::vector<ParamSpec>& params, const Config& config,
                        ValueSource& values, const std::string& type, const std::filesystem::path& folder);

}  // namespace sy
