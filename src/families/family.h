// Model families of Hugging Face checkpoints, as tables. They map the tensors of the files to our
// parameters, and the keys of config.json to our keys. A new family is a row of a list, plus the
// tables that no other family has. The lists are dense_families.cpp, moe_families.cpp and
// encoder_families.cpp.
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
//   i:n on the left     elements [i, i + n); both letters have sizes (sizes_of in tensors.cpp)
//   + on the right      the rows of one tensor are concatenated along this dimension, in row order
//   1 on the right      a dimension of size 1; any other number likewise
//   V without a left    the size of the vocabulary, in Family::model_rows
// hf_name "/NAME" in Family::model_rows is the tensor NAME, without Family::base as a prefix.
// "*" at the end of names stands for "weight" and "bias", in this order. `view` is then that of the
// weight, ";" and that of the bias, or one view of both.
// "#" in hf_name is the index of the table in Family::layer_rows: the sublayer in its layer.
// A row is skipped if the model lacks its parameter.
// A row without a parameter is a filler: its elements are copied from the imported file, or are 0.
// A row without a tensor is a parameter that the family lacks: all its elements are 1.
struct TensorRow {
  std::string_view hf_name;  // name of the tensor, after Family::base and the layer's prefix
  // Name of the parameter, after "layers.3." if it is a layer's. "/NAME" in a layer's row is a copy
  // of the parameter NAME of the whole model: an export writes it, and an import ignores it.
  std::string_view param;
  std::string_view view;
  // Condition of a row. "NAME": the layer, or the model, has this parameter; "!NAME": it lacks it;
  // "KEY=VALUE": the model has this setting. Empty if there is no condition.
  std::string_view only_if = {};
  // Value of all elements of a filler. An import refuses another one.
  double constant = 0;
};

// Maps a key of config.json to one of our keys.
struct ConfigRow {
  std::string_view hf_name;  // "hidden_size", "a|b" if some files have b; empty: constant
  // "model.d_model". Empty if no key of ours corresponds: only values in `value_map` can be read,
  // and an export writes the first one.
  std::string_view key;
  // Pairs of the value in config.json, as JSON, and the value of `key`. Empty if both are written
  // alike. A constant is one pair with an empty first element.
  std::vector<std::pair<std::string_view, std::string_view>> value_map{};
  // Value of an absent key in transformers, as JSON. "": our key keeps its default. "!": the key is
  // required. A null is read as an absent key, unless zero_is_null is true.
  std::string_view default_value = "!";
  bool zero_is_null = false;  // a null is read as 0, and a 0 is written as null
};

// Keys of our configuration with their values, as an import collects them.
using KeySettings = std::vector<std::pair<std::string, std::string>>;

// Conversion of several keys that depend on each other. `read` is for imports, `write` for exports.
struct ConfigRule {
  void (*read)(const Json& hf_config, KeySettings& settings);
  void (*write)(const Config& config, Json& hf_config);
};

// Tables of one model family.
struct Family {
  std::string_view name;          // model_type of config.json: "llama"
  std::string_view architecture;  // "LlamaForCausalLM"
  // Prefix of all names that do not begin with "/": "transformer.". Files may lack it.
  std::string_view base;
  std::string_view layer_prefix;  // prefix of a layer's tensors, after base: "h.{}."
  std::vector<std::span<const TensorRow>> model_rows, layer_rows;
  std::vector<std::span<const ConfigRow>> config_rows;
  std::vector<const ConfigRule*> rules;
  // An import ignores tensors whose names contain one of these texts.
  std::vector<std::string_view> ignored{};
  // Prefix and rows of the decoder of an encoder-decoder, whose encoder has those above.
  std::string_view decoder_layer_prefix{};
  std::vector<std::span<const TensorRow>> decoder_layer_rows{};
};
// Returns all families.
const std::vector<Family>& families();
// Their parts. Only families() calls them.
std::vector<Family> dense_families();
std::vector<Family> moe_families();
std::vector<Family> encoder_families();
// Returns the family of a config.json by model_type.
// Throws InputError if the model_type is absent or unknown.
const Family& family_of(const Json& config);
// Returns the family of this name. Throws InputError that lists the families if there is none.
const Family& family_named(const std::string& name);

}  // namespace sy
