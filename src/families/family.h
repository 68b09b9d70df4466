// Model families of Hugging Face checkpoints, as tables. They map the tensors of the files to our
// parameters, and the keys of config.json to our keys. A new family is a row of the list in
// families.cpp, plus the tables that no other family has.
#pragma once

#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "src/config.h"
#include "src/text/json.h"

namespace sy {

// Maps a parameter, or a block of it, to a tensor of the files.
//
// `view` maps dimensions: "H i D -> (H +1 i) D". The left side lists the parameter's dimensions,
// the right side the tensor's, outermost first. A letter is a dimension of any size. Several in
// parentheses are one dimension, their product.
//   (K g) on the left   the parameter's dimension is K blocks of g; K is the number of kv heads
//   0, 1 on the left    one index of the dimension: the gate (0) or the up projection (1) of an FFN
//   e on the left       one expert with a tensor of its own; its number replaces {} in the name
//   i:n on the left     elements i to i + n; both letters have sizes (sizes_of in tensors.cpp)
//   + on the right      the rows of one tensor are concatenated along this dimension, in row order
//   a number there      a dimension of that size
// A name that begins with "/" lacks the family's base.
// A row without a parameter is a filler: its elements are copied from the imported file, or are 0.
// A row without a tensor is a parameter that the family lacks: all its elements are 1.
struct TensorRow {
  std::string_view theirs;  // name after the prefix of the layer
  std::string_view ours;    // name after "layers.3."
  std::string_view view;
  // Condition. "NAME": the layer has this parameter of ours; "!NAME": it lacks it; "KEY=VALUE": the
  // model has this setting. Empty if there is no condition.
  std::string_view beside = {};
};

// Maps a key of config.json to one of our keys.
struct ConfigRow {
  std::string_view theirs;  // "hidden_size", "a|b" if some files say b; empty: a constant of ours
  std::string_view ours;    // "model.d_model"; empty: only the values in `words` can be read
  // Pairs of their value, as JSON, and ours. Empty if both are written alike. A constant is one
  // pair with an empty first element.
  std::vector<std::pair<std::string_view, std::string_view>> words{};
  // Value of an absent key in transformers, as JSON. "": our key keeps its default. "!": the key is
  // required. A null is read as an absent key, unless zero_is_null is true.
  std::string_view missing = "!";
  bool zero_is_null = false;  // a null is read as 0, and a 0 is written as null
};

// Keys of ours and their values, as an import collects them.
using KeySettings = std::vector<std::pair<std::string, std::string>>;

// Conversion of several keys that depend on each other.
struct ConfigPart {
  void (*read)(const Json& theirs, KeySettings& ours);
  void (*write)(const Config& ours, Json& theirs);
};

struct Family {
  std::string_view name;          // model_type of config.json: "llama"
  std::string_view architecture;  // "LlamaForCausalLM"
  std::string_view base;          // prefix of names but the output's, "transformer."; optional
  std::string_view layers;        // prefix of a layer's tensors, after base: "h.{}."
  std::vector<std::span<const TensorRow>> of_model, of_layer;
  std::vector<std::span<const ConfigRow>> config;
  std::vector<const ConfigPart*> parts;
  // Suffixes of the names of tensors that an import ignores.
  std::vector<std::string_view> ignored{};
};
const std::vector<Family>& families();
// Returns the family of a config.json by model_type. Throws InputError that lists the families.
const Family& family_of(const Json& config);
// Returns the family of this name. Throws InputError that lists the families.
const Family& family_named(const std::string& name);

}  // namespace sy
