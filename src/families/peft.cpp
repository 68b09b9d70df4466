#include "src/families/peft.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <set>

#include "src/io/safetensors.h"
#include "src/params/lora.h"
#include "src/system/files.h"
#include "src/text/json.h"

namespace sy {
namespace {

namespace fs = std::filesystem;

// Returns the offsets of all indices of dimensions [first, first + count) of a mapping, row-major.
std::vector<Index> offsets_of(const TensorMapping& mapping, int first, int count) {
  std::vector<Index> offsets{0};
  for (int d = first; d < first + count; ++d) {
    const MappedDim& dim = mapping.dims[static_cast<std::size_t>(d)];
    std::vector<Index> longer;
    for (const Index offset : offsets)
      for (Index i = dim.range.begin; i < dim.range.end; ++i) longer.push_back(offset + dim.offset(i));
    offsets = std::move(longer);
  }
  return offsets;
}

PeftModule module_of(const FileTensor& tensor, const std::vector<ParamSpec>& params) {
  const TensorMapping& mapping = tensor.mappings.front();
  const ParamSpec& spec = params[*mapping.param];
  const LinearDims dims = linear_dims(spec);
  constexpr std::string_view suffix = ".weight";
  PeftModule module{tensor.name.substr(0, tensor.name.size() - std::min(tensor.name.size(), suffix.size())),
                    *mapping.param, 0, offsets_of(mapping, dims.stack, dims.outputs),
                    offsets_of(mapping, dims.stack + dims.outputs, dims.inputs)};
  bool one_map = tensor.mappings.size() == 1 && tensor.shape.size() == 2 && tensor.name.ends_with(suffix);
  Index base = mapping.base;
  for (int d = 0; d < dims.stack; ++d) {
    const MappedDim& dim = mapping.dims[static_cast<std::size_t>(d)];
    one_map = one_map && dim.range.size() == 1;
    module.map = module.map * spec.shape[d] + dim.range.begin;
    base += dim.offset(dim.range.begin);
  }
  const Index Q = tensor.shape.back();
  one_map = one_map && base == 0 && std::ssize(module.inputs) == Q && std::ssize(module.outputs) == tensor.shape[0] &&
            std::ranges::all_of(module.outputs, [&](Index offset) { return offset % Q == 0; }) &&
            std::ranges::all_of(module.inputs, [&](Index offset) { return offset < Q; });
  if (!one_map)
    bad_input(
        "export: {} does not hold {} alone, or holds its transpose: PEFT has no such adapter: export the model "
        "without --adapter",
        tensor.name, spec.name);
  for (Index& offset : module.outputs) offset /= Q;
  return module;
}

// Returns the shortest names that mean these modules and no others: the last component, if all
// modules with it have adapters.
Json target_modules(const std::vector<PeftModule>& modules, const FamilyTensors& tensors) {
  const auto last = [](std::string_view name) { return name.substr(name.rfind('.') + 1); };
  std::map<std::string_view, std::size_t> adapted, all;
  for (const PeftModule& module : modules) ++adapted[last(module.name)];
  for (const FileTensor& tensor : tensors.tensors)
    if (const std::string_view name = tensor.name; name.ends_with(".weight"))
      ++all[last(name.substr(0, name.size() - std::strlen(".weight")))];
  std::set<std::string> names;
  for (const PeftModule& module : modules) {
    const std::string_view name = last(module.name);
    names.emplace(adapted[name] == all[name] ? name : std::string_view(module.name));
  }
  Json list = Json::array();
  for (const std::string& name : names) list.push_back(name);
  return list;
}

}  // namespace

std::vector<PeftModule> peft_modules(const FamilyTensors& tensors, const std::vector<ParamSpec>& params,
                                     const Config& config) {
  std::set<std::string> adapted;  // names of the weights that have adapters
  for (const ParamSpec& spec : param_specs(config, config.model.vocab))
    if (spec.adapter) adapted.insert(spec.adapter->weight);
  std::vector<PeftModule> modules;
  for (const FileTensor& tensor : tensors.tensors) {
    const bool has_adapter = std::ranges::any_of(tensor.mappings, [&](const TensorMapping& mapping) {
      return mapping.param && adapted.contains(params[*mapping.param].name);
    });
    if (has_adapter && !tensor.is_copy) modules.push_back(module_of(tensor, params));
  }
  return modules;
}

void for_peft_elements(const PeftModule& module, Index rank,
                       const std::function<void(bool is_b, Index i, Index j)>& visit) {
  const Index Q = std::ssize(module.inputs), N = std::ssize(module.outputs);
  for (Index k = 0; k < rank; ++k)
    for (Index i = 0; i < Q; ++i)
      visit(false, (module.map * rank + k) * Q + i, k * Q + module.inputs[static_cast<std::size_t>(i)]);
  for (Index o = 0; o < N; ++o)
    for (Index k = 0; k < rank; ++k)
      visit(true, (module.map * N + o) * rank + k, module.outputs[static_cast<std::size_t>(o)] * rank + k);
}

void write_peft_adapter(const FamilyTensors& tensors, const std::vector<ParamSpec>& params, const Config& config,
                        ValueSource& values, const std::string& type, const fs::path& folder) {
  const Index rank = config.train.lora_rank;
  const double scale = config.train.lora_scale();
  std::vector<PeftModule> modules = peft_modules(tensors, params, config);
  // The modules of multi-token prediction are none of the model that PEFT opens.
  std::erase_if(modules, [&](const PeftModule& m) { return *params[m.param].layer >= config.model.layers; });
  const StoredType& stored = *stored_type(type);
  std::vector<StoredLayout> layout;
  for (const PeftModule& module : modules) {
    const ParamSpec& spec = params[module.param];
    if (axes_of(spec.split).has(Axis::ep))
      bad_input(
          "export: {} has adapters, and PEFT has no format for those of experts: export the model without "
          "--adapter",
          spec.name);
    const std::string prefix = "base_model.model." + module.name;
    layout.push_back({prefix + ".lora_A.weight", stored.name, {rank, std::ssize(module.inputs)}});
    layout.push_back({prefix + ".lora_B.weight", stored.name, {std::ssize(module.outputs), rank}});
  }
  const StoredHeader header = stored_header(layout, {{"format", "pt"}});
  MappedOutput file(folder / "adapter_model.safetensors", header.file_bytes, true);
  std::memcpy(file.data(), header.bytes.data(), header.bytes.size());
  for (std::size_t m = 0; m < modules.size(); ++m) {
    std::vector<float> whole[2];
    for (const LoraMatrix matrix : {LoraMatrix::a, LoraMatrix::b}) {
      const ParamSpec spec = lora_spec(params[modules[m].param], matrix, rank, scale);
      std::vector<float>& numbers = whole[static_cast<int>(matrix)];
      numbers.resize(static_cast<std::size_t>(spec.shape.elements()));
      values.read(spec, full_box(spec.shape), numbers);
    }
    for_peft_elements(modules[m], rank, [&](bool is_b, Index i, Index j) {
      const std::size_t tensor = 2 * m + (is_b ? 1 : 0);
      stored.store(&whole[is_b ? 1 : 0][static_cast<std::size_t>(i)], 1,
                   file.data() + header.begins[tensor] + j * stored.bytes, 1);
    });
  }
  file.sync();
  const Json adapter_config{{"peft_type", "LORA"},
                            // PEFT has none for masked language models.
                            {"task_type", config.model.kind == ModelKind::encoder ? Json() : Json("CAUSAL_LM")},
                            {"base_model_name_or_path", Json()},
                            {"r", rank},
                            {"lora_alpha", config.train.lora_alpha},
                            {"target_modules", target_modules(modules, tensors)},
                            {"lora_dropout", 0.0},
                            {"bias", "none"},
                            {"fan_in_fan_out", false},
                            {"use_rslora", false},
                            {"inference_mode", true}};
  write_file(folder / "adapter_config.json", json_text(adapter_config));
}

}  // namespace sy
