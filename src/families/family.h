// The families of models whose checkpoints Hugging Face keeps, as data: how the tensors of their files and our parameters
// share their elements, and what the keys of config.json mean. A new family is a row of the list in families.cpp, and the tables that it alone has.
#pragma once

#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "src/config.h"
#include "src/text/json.h"

namespace sy {

// One parameter, or a part of it, in one tensor of the files.
//
// view says how, dimension by dimension: "H i D -> (H +1 i) D". On its left are the parameter's dimensions, on its right the
// tensor's, outermost first; a letter is a dimension of any size, and several in parentheses are one of their product.
//   (K g) on the left   the parameter's dimension is cut into K runs of g; K is the number of kv heads
//   0, 1 on the left    that element of the dimension alone: the gate (0) or the linear half (1) of a gated FFN
//   e on the left       one expert; each has a tensor of its own, and its number stands for {} in the name
//   i:n on the left     elements i to i + n of the dimension, as letters with sizes (sizes_of in tensors.cpp)
//   + on the right      along this dimension the parameters that share the tensor follow one another, in the order of the rows
//   a number there      a dimension of that size
// Names that begin with "/" are without the family's base.
// A row without a parameter fills its part of the tensor with what the imported file had there, or with zeros. A row without
// a tensor is a parameter that the family does not have, since it is one everywhere.
struct TensorRow {
  std::string_view theirs;  // behind the prefix of the layer
  std::string_view ours;    // behind "layers.3."
  std::string_view view;
  // Only in layers that have this parameter of ours, or, as "!...", that do not; or in models with "KEY=VALUE".
  std::string_view beside = {};
};

// A key of config.json.
struct ConfigRow {
  std::string_view theirs;  // "": it has none, and ours is always the one word. "a|b": some files say b
  std::string_view ours;    // "model.d_model"; "": we have none, and theirs must be one of the words
  // Their values, as JSON, and ours. None: both are written alike.
  std::vector<std::pair<std::string_view, std::string_view>> words{};
  // The value of an absent key in transformers, as JSON; "": our key keeps its default; "!": the key must be there. A null is
  // read as an absent key, unless zero_is_null.
  std::string_view missing = "!";
  bool zero_is_null = false;  // a null is read as 0, and a 0 is written as null
};

// The values of our keys that an import collects.
using KeySettings = std::vector<std::pair<std::string, std::string>>;

// What several keys say together.
struct ConfigPart {
  void (*read)(const Json& theirs, KeySettings& ours);
  void (*write)(const Config& ours, Json& theirs);
};

struct Family {
  std::string_view name;          // model_type of config.json: "llama"
  std::string_view architecture;  // "LlamaForCausalLM"
  std::string_view base;          // of all names but the output's; files that have none are read too: "transformer."
  std::string_view layers;        // behind it, of a layer's tensors: "h.{}."
  std::vector<std::span<const TensorRow>> of_model, of_layer;
  std::vector<std::span<const ConfigRow>> config;
  std::vector<const ConfigPart*> parts;
  // Tensors that files may have and that mean nothing: ends of their names.
  std::vector<std::string_view> ignored{};
};
const std::vector<Family>& families();
// The one that config.json is of. Throws InputError: which there are.
const Family& family_of(const Json& config);
// The one of this name. Throws InputError: which there are.
const Family& family_named(const std::string& name);

}  // namespace sy
