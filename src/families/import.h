// Parameter values from the files of a Hugging Face model.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "src/families/tensors.h"
#include "src/io/safetensors.h"
#include "src/params/values.h"

namespace sy {

// A model folder's config.json, and our configuration of that model.
struct FamilyModel {
  const Family* family;
  Json json;  // config.json
  Config config;
  Index vocab;
};
// Reads config.json. The output is not tied to the embedding if the files have other values for it.
// overrides: --section.key=value. Throws InputError.
FamilyModel open_family_model(const std::filesystem::path& folder, const std::vector<std::string>& overrides);

// Reads parameters from the tensors to which the family's tables map them.
class FamilyValues final : public ValueSource {
 public:
  // Compares the tensors of the files with those that the model needs. Throws InputError that names
  // tensors that are missing, have another shape or type, or are not in the model.
  FamilyValues(const std::filesystem::path& folder, const FamilyModel& model);

  // Throws InputError if a value is not finite.
  void read(const ParamSpec& spec, const Box& box, std::span<float> values) override;

  const StoredTensors& stored() const { return *stored_; }
  const std::vector<FileTensor>& tensors() const { return tensors_.tensors; }
  // Parameters, including selection biases.
  const std::vector<ParamSpec>& params() const { return params_; }

 private:
  void compare(const Family& family) const;

  std::filesystem::path folder_;
  std::unique_ptr<StoredTensors> stored_;
  std::vector<ParamSpec> params_;
  FamilyTensors tensors_;
  struct MappingIndex {
    std::size_t tensor, mapping;
  };
  // By parameter. Empty if all its elements are 1.
  std::map<std::string, std::vector<MappingIndex>> mappings_of_param_;
};

// Selection biases of all routers, [MoE layer, expert]. Empty if the model has none.
std::vector<float> selection_biases(ValueSource& source, const std::vector<ParamSpec>& params);

}  // namespace sy
