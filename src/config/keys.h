// The table of configuration keys, and its rows in one configuration. Only for the files of this
// folder.
#pragma once

#include <algorithm>
#include <limits>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "src/config.h"

namespace sy {

// The operations on the values of one C++ type.
struct ValueType {
  std::string (*accepts)();  // describes the values in an error message: "a whole number"
  // Returns the names of all values. Empty unless the type is bool or an enumeration.
  std::vector<std::string> (*names)();
  std::string (*show)(const void* value);
  // Sets `value` and returns true if the text is a value of this type.
  bool (*read)(const std::string& text, void* value);
  Json (*json)(const void* value);  // a number, a bool or text
};

// The allowed values of a number.
struct Bounds {
  double low = -std::numeric_limits<double>::infinity(), high = std::numeric_limits<double>::infinity();
};
constexpr double no_upper_bound = 1e15;

// Prefix of the sections in which kinds of layers set their own keys: [attention.NAME].
constexpr std::string_view attention_section = "attention";
// The sections in which the stacks of an encoder-decoder set theirs.
constexpr std::string_view stack_sections[] = {"encoder", "decoder"};

// A row of the table.
struct Key {
  std::string_view name;  // "model.window"
  const ValueType& type;
  // Returns the value. `model` and `moe` hold the values of [model] and [moe]: those of the
  // configuration, of a kind or of a stack.
  const void* (*address)(const Config& config, const Config::Model& model, const Config::Moe& moe);
  Bounds bounds;  // of a number
  ResumePolicy on_resume;
  std::string_view help;
  // all values of a text key, besides its default; empty if any text is allowed
  std::span<const std::string_view> values;
  bool by_kind = false;   // true: a kind of layers may set this key of [model] in its own section
  bool by_stack = false;  // true: a stack may set this key of [model] or [moe] in its own section
};
// The two parts of the table: [model] and [moe], and the other sections.
std::span<const Key> model_keys();
std::span<const Key> run_keys();
// Returns all keys, in the order of to_ini().
std::span<const Key> key_table();

// A key in one configuration: of all layers, or of a kind of layers.
struct KeyEntry {
  KeyEntry(const Config& config, const Key& key_row, const Config::Kind* of_kind);
  const Key* key;
  const Config::Kind* kind;  // nullptr for a key of all layers
  std::string name;          // "model.window", "attention.local.window", "encoder.window"
  const void* value;

  // Returns the value as text, which ValueType::read accepts.
  std::string text() const { return key->type.show(value); }
  // Returns false if the key is of a kind that does not set it. Its value is then that of [model].
  bool sets_value() const { return !kind || std::ranges::find(kind->own_keys, name) != kind->own_keys.end(); }
  // Returns the name of the key that sets the value.
  std::string source_key() const { return sets_value() ? name : std::string(key->name); }
};
// Adds the key to those that a kind or a stack sets, if its value is not that of [model]. The
// written configuration then has it.
void keep_own_value(const Config& config, Config::Kind& kind, const Key& key);
// Returns all keys of a configuration, in the order of to_ini(). Keys of kinds follow [model].
std::vector<KeyEntry> key_entries(const Config& config);

// The layers of one kind, or all layers if `kind` is nullptr.
struct LayerKind {
  const Config& config;
  const Config::Kind* kind;
  const Config::Model& model() const { return kind ? kind->model : config.model; }
  const Config::Moe& moe() const { return kind && kind->is_stack ? kind->moe : config.moe; }
  // Returns the key that sets this member: "attention.local.window", or "model.window".
  // A member without a key is an internal error.
  template <class T>
  std::string key(T Config::Model::*member) const {
    return key_at(&(model().*member));
  }

 private:
  std::string key_at(const void* value) const;
};
// Returns the entry of all layers, followed by that of each kind; or those of the stacks.
std::vector<LayerKind> layer_kinds(const Config& config);

}  // namespace sy
