// Values of parameters from Hugging Face's files, and from a dense model for one with experts.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "src/families/tensors.h"
#include "src/io/safetensors.h"
#include "src/params/values.h"

namespace sy {

// The folder of a model: config.json and its tensors.
struct FamilyModel {
  const Family* family;
  Json json;  // config.json
  Config config;
  Index vocab;
};
// Reads config.json alone. overrides: --section.key=value. Throws InputError.
FamilyModel open_family_model(const std::filesystem::path& folder, const std::vector<std::string>& overrides);

// Each element of a parameter from where the family's table says that it is.
class FamilyValues final : public ValueSource {
 public:
  // Compares what the files hold with what the model needs. Throws InputError that names tensors that are missing, of another
  // shape or type, or more than the model has.
  FamilyValues(const std::filesystem::path& folder, const FamilyModel& model);

  // Throws InputError where a value is not finite.
  void read(const ParamSpec& spec, const Box& box, std::span<float> values) override;

  const StoredTensors& stored() const { return *stored_; }
  const std::vector<FileTensor>& tensors() const { return tensors_.files; }
  // The parameters, selection biases included.
  const std::vector<ParamSpec>& params() const { return params_; }

 private:
  void compare(const Family& family) const;

  std::filesystem::path folder_;
  std::unique_ptr<StoredTensors> stored_;
  std::vector<ParamSpec> params_;
  FamilyTensors tensors_;
  struct Place {
    std::size_t tensor, part;
  };
  std::map<std::string, std::vector<Place>> places_;  // of each parameter; none: it is one everywhere
};

// All routers' selection biases, [MoE layer, expert]; none where the model has none.
std::vector<float> selection_biases(ValueSource& source, const std::vector<ParamSpec>& params);

}  // namespace sy
