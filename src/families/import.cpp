#include "src/families/import.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <set>

#include "dist/file_activity.h"
#include "src/families/settings.h"
#include "src/params/block_specs.h"
#include "src/system/files.h"
#include "src/text/strings.h"

namespace sy {
namespace fs = std::filesystem;

namespace {

// Joins at most `shown` items, to limit the length of a message.
std::string join_first(std::vector<std::string> items) {
  constexpr std::size_t shown = 5;
  const std::size_t count = items.size();
  items.resize(std::min(count, shown));
  return join(items) + (count > shown ? fmt::format("; and {} more", count - shown) : "");
}

// Some files of models with tied weights also have it.
constexpr const char* output_name = "lm_head.weight";

std::vector<float> values_of(const StoredTensor& stored) {
  const StoredType& type = *stored_type(stored.type);
  std::vector<float> values(static_cast<std::size_t>(stored.bytes / type.bytes));
  type.load(stored.data, 1, std::ssize(values), values.data());
  return values;
}

// Returns false if the files lack multi-token prediction, which transformers does not load and
// therefore does not save, while config.json still has its key.
bool has_mtp(const fs::path& folder, const FamilyModel& model) {
  const std::string name =
      fmt::format(fmt::runtime(model.family->layer_prefix), model.config.model.layers) + "enorm.weight";
  const StoredTensors stored(folder);
  return stored.find(std::string(model.family->base) + name) || stored.find(name);
}

// Returns the tensor of the token embedding, nullptr if there is none. Files of the base model's
// class have names without the prefix.
const StoredTensor* find_embedding(const StoredTensors& stored, const Family& family) {
  for (const auto& table : family.model_rows)
    for (const TensorRow& row : table)
      for (const std::string_view base : {family.base, std::string_view()})
        if (row.param == "embedding.weight")
          if (const StoredTensor* found = stored.find(fmt::format("{}{}", base, row.hf_name))) return found;
  return nullptr;
}

// Returns true if the files have an output with other values than the embedding's.
bool has_own_output(const fs::path& folder, const Family& family) {
  const StoredTensors stored(folder);
  const StoredTensor *const output = stored.find(output_name), *const embedding = find_embedding(stored, family);
  if (!output || !embedding) return false;
  return output->type != embedding->type || output->bytes != embedding->bytes ||
         std::memcmp(output->data, embedding->data, static_cast<std::size_t>(output->bytes)) != 0;
}

// transformers 5 does not tie weights that differ in the files, whatever tie_word_embeddings is. It
// writes such files for T5 v1.1 and mT5.
void untie_output(const fs::path& file, const std::vector<std::string>& overrides, FamilyModel& model) {
  model.json["tie_word_embeddings"] = false;
  const Config untied = config_of(*model.family, model.json, file.string(), overrides);
  if (untied.model.tie_embeddings || untied.model.logit_scale != model.config.model.logit_scale)
    bad_input(
        "{}: tie_word_embeddings is true, and {} has other values than the embedding: set tie_word_embeddings to false "
        "if the model has an output of its own, otherwise remove {}",
        file.string(), output_name, output_name);
  model.config = untied;
}

}  // namespace

FamilyModel open_family_model(const fs::path& folder, const std::vector<std::string>& overrides) {
  const fs::path file = folder / "config.json";
  if (!file_exists(file))
    bad_input("{} has no config.json: give the folder of a model as Hugging Face keeps it", folder.string());
  FamilyModel model{};
  const std::string text = read_file(file);
  try {
    model.json = Json::parse(standard_json(text));
    model.family = &family_of(model.json);
  } catch (const JsonError& e) {
    bad_input("{} cannot be read: {}: fetch it again", file.string(), e.what());
  } catch (const InputError& e) {
    bad_input("{}: {}", file.string(), e.what());
  }
  model.config = config_of(*model.family, model.json, file.string(), overrides);
  if (model.config.model.tie_embeddings && has_own_output(folder, *model.family)) untie_output(file, overrides, model);
  if (model.config.model.mtp_depth > 0 && !has_mtp(folder, model)) model.config.model.mtp_depth = 0;
  model.vocab = model.config.model.vocab;
  if (model.vocab < 1) bad_input("{}: vocab_size = {}: expected 1 or more", file.string(), model.vocab);
  return model;
}

FamilyValues::FamilyValues(const fs::path& folder, const FamilyModel& model)
    : folder_(folder),
      stored_(std::make_unique<StoredTensors>(folder)),
      params_(model_tensors(model.config, model.vocab)) {
  const Family& family = *model.family;
  // config.json may claim any number of experts, and family_tensors makes a name for each. Refuse a
  // large number first if the files have fewer tensors.
  const Index experts = model.config.moe.experts * count_moe(block_specs(model.config));
  const auto stored = static_cast<Index>(stored_->size());
  if (constexpr Index unlikely = 100'000; experts > unlikely && experts > stored)
    bad_input("{} does not fit its config.json: it has {} tensors, expected {} experts of all layers", folder.string(),
              stored, experts);
  tensors_ = family_tensors(family, model.config, params_, family.base);
  const auto has_some = [&](const FamilyTensors& tensors, std::string_view prefix) {
    return std::ranges::any_of(
        tensors.tensors, [&](const FileTensor& t) { return t.name.starts_with(prefix) && stored_->find(t.name); });
  };
  // Files of the base model class have names without the prefix.
  if (!has_some(tensors_, family.base)) {
    FamilyTensors bare = family_tensors(family, model.config, params_, "");
    if (has_some(bare, "")) tensors_ = std::move(bare);
  }
  compare(family);
  for (const std::size_t param : tensors_.ones) mappings_of_param_[params_[param].name];
  for (std::size_t t = 0; t < tensors_.tensors.size(); ++t) {
    if (tensors_.tensors[t].is_copy) continue;
    for (std::size_t m = 0; m < tensors_.tensors[t].mappings.size(); ++m)
      if (const auto param = tensors_.tensors[t].mappings[m].param)
        mappings_of_param_[params_[*param].name].push_back({t, m});
  }
}

void FamilyValues::compare(const Family& family) const {
  std::vector<std::string> problems;
  std::set<std::string> known;
  for (const FileTensor& tensor : tensors_.tensors) {
    known.insert(tensor.name);
    const StoredTensor* stored = stored_->find(tensor.name);
    if (tensor.is_copy) continue;
    if (!stored)
      problems.push_back(fmt::format("{} {} is missing", tensor.name, shape_text(tensor.shape)));
    else if (stored->shape != tensor.shape)
      problems.push_back(
          fmt::format("{} is {}, expected {}", tensor.name, shape_text(stored->shape), shape_text(tensor.shape)));
    else if (!stored_type(stored->type))
      problems.push_back(fmt::format("{} is of type {}, expected F32, BF16 or F16", tensor.name, stored->type));
    else if (tensor.constant != 0)
      for (const float value : values_of(*stored))  // f16 has few bits of 1e-6
        if (!(std::abs(value - tensor.constant) <= std::abs(tensor.constant) / 32))
          problems.push_back(fmt::format("{} is {}, expected {}", tensor.name, value, tensor.constant));
  }
  for (const StoredTensors::File& file : stored_->files())
    for (const std::string& name : file.tensors) {
      const auto is_within = [&](std::string_view text) { return name.find(text) != name.npos; };
      if (known.count(name) == 0 && name != output_name &&
          std::none_of(family.ignored.begin(), family.ignored.end(), is_within))
        problems.push_back(fmt::format("{} {} is more than the model of config.json has", name,
                                       shape_text(stored_->find(name)->shape)));
    }
  if (!problems.empty()) bad_input("{} does not fit its config.json: {}", folder_.string(), join_first(problems));
}

void FamilyValues::read(const ParamSpec& spec, const Box& box, std::span<float> values) {
  const auto entry = mappings_of_param_.find(spec.name);
  if (entry == mappings_of_param_.end()) bad_input("{} has no {}", folder_.string(), spec.name);
  if (entry->second.empty()) return std::fill(values.begin(), values.end(), 1.0f);
  Index found = 0;
  for (const MappingIndex& index : entry->second) {
    ++file_activity().chunks;
    const FileTensor& tensor = tensors_.tensors[index.tensor];
    const StoredTensor& stored = *stored_->find(tensor.name);
    const StoredType& type = *stored_type(stored.type);
    found +=
        for_mapped_ranges(tensor.mappings[index.mapping], box, [&](Index first, Index offset, Index stride, Index n) {
          type.load(stored.data + offset * type.bytes, stride, n, values.data() + first);
        });
  }
  SY_ASSERT(found == box.elements(), "{} of {} elements of {} are in the files", found, box.elements(), spec.name);
  for (const float value : values)
    if (!std::isfinite(value)) bad_input("{} of {} holds values that are not finite", spec.name, folder_.string());
}

std::vector<float> selection_biases(ValueSource& source, const std::vector<ParamSpec>& params) {
  std::vector<float> biases;
  for (const ParamSpec& param : params)
    if (param.name.ends_with(selection_bias)) {
      std::vector<float> of_layer(static_cast<std::size_t>(param.shape[0]));
      source.read(param, {{0}, {param.shape[0]}}, of_layer);
      biases.insert(biases.end(), of_layer.begin(), of_layer.end());
    }
  return biases;
}

}  // namespace sy
