// Errors and checks of a configuration. Only for the files of this folder.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <map>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "src/config.h"
#include "src/text/error_list.h"

namespace sy {

// The location of a setting: a line of a file, or one of these two.
constexpr int no_line = 0, command_line = std::numeric_limits<int>::max();

struct Location {
  int line = no_line;
  int source = 0;  // number of the file (Problems::add_source); 0 is the configuration itself
  Location(int at = no_line, int of = 0) : line(at), source(of) {}
  // Orders the messages: the command line comes last.
  friend bool operator<(const Location& a, const Location& b) {
    return std::tuple(a.line == command_line, a.source, a.line) < std::tuple(b.line == command_line, b.source, b.line);
  }
};

// Collects all errors of a configuration with their locations, to report them together.
class Problems {
 public:
  explicit Problems(std::string origin) : sources_{std::move(origin)} {}
  // Adds a further file and returns its number.
  int add_source(std::string origin) {
    sources_.push_back(std::move(origin));
    return static_cast<int>(sources_.size()) - 1;
  }
  std::string location_text(Location at) const {
    if (at.line == command_line) return "command line";
    const std::string& origin = sources_.at(static_cast<std::size_t>(at.source));
    return at.line == no_line ? origin : fmt::format("{}:{}", origin, at.line);
  }
  // Records the location of a key's value and returns the previous location.
  Location set_location(const std::string& key, Location at) { return std::exchange(locations_[key], at); }
  template <class... Args>
  void add_at(Location at, fmt::format_string<Args...> what, Args&&... args) {
    std::string text = location_text(at) + ": " + fmt::format(what, std::forward<Args>(args)...);
    const auto [first, last] = found_.equal_range(at);
    if (std::none_of(first, last, [&](const auto& found) { return found.second == text; }))
      found_.emplace(at, std::move(text));
  }
  // Adds an error at the location of the key's value, or of the whole configuration if it is not
  // set.
  template <class... Args>
  void add(const std::string& key, fmt::format_string<Args...> what, Args&&... args) {
    const auto location = locations_.find(key);
    add_at(location == locations_.end() ? Location() : location->second, what, std::forward<Args>(args)...);
  }
  // Adds an error if `is_wrong`: the value of the key excludes another setting. with: that setting,
  // and the reason. to: values that do not exclude it.
  void refuse(bool is_wrong, const Config& config, const std::string& key, std::string_view with, std::string_view to) {
    if (is_wrong) add(key, "{} = {} with {}: set it to {}", key, value_of(config, key), with, to);
  }
  // Records that the value of a key is unreadable or out of bounds. Checks that need the value are
  // skipped.
  void mark_wrong(const std::string& key) { wrong_values_.insert(key); }
  template <class... Args>
  void wrong_value(const std::string& key, fmt::format_string<Args...> what, Args&&... args) {
    mark_wrong(key);
    add(key, what, std::forward<Args>(args)...);
  }
  // Records that a misspelt line may have meant this key. Empty: it may have meant any key.
  void mark_doubtful(const std::string& key) { doubtful_values_.insert(key); }
  // Returns true if a key that begins with one of `prefixes` has a wrong (or doubtful) value.
  bool any_wrong(std::span<const std::string_view> prefixes) const { return any_of(wrong_values_, prefixes); }
  bool any_doubtful(std::span<const std::string_view> prefixes) const {
    return doubtful_values_.contains("") || any_of(doubtful_values_, prefixes);
  }
  // Adds the messages of an error that belongs to no key.
  void add_error(const InputError& error) {
    if (const auto* several = dynamic_cast<const InputErrors*>(&error))
      for (const std::string& text : several->errors) found_.emplace(command_line, text);
    else
      found_.emplace(command_line, error.what());
  }
  std::size_t count() const { return found_.size(); }
  void add_warning(std::string text) { warnings_.push_back(std::move(text)); }
  // `warnings` may be nullptr.
  void append_warnings(std::vector<std::string>* warnings) const {
    if (warnings) warnings->insert(warnings->end(), warnings_.begin(), warnings_.end());
  }
  void raise() const {
    if (found_.empty()) return;
    std::vector<std::string> errors;
    for (const auto& [at, what] : found_) errors.push_back(what);
    throw InputErrors(sources_[0], std::move(errors));
  }

 private:
  static bool any_of(const std::set<std::string>& keys, std::span<const std::string_view> prefixes) {
    return std::ranges::any_of(keys, [&](const std::string& key) {
      return std::ranges::any_of(prefixes, [&](std::string_view prefix) { return key.starts_with(prefix); });
    });
  }
  std::vector<std::string> sources_, warnings_;
  std::set<std::string> wrong_values_, doubtful_values_;
  std::map<std::string, Location> locations_;
  std::multimap<Location, std::string> found_;
};

// Adds errors for values out of bounds and for values that this version cannot compute.
void check_values(const Config& config, Problems& problems);
// Fills in values of 0 that follow from other keys, and adds errors for incompatible values. If a
// size is wrong by itself, only the checks that need no size run.
void complete(Config& config, Problems& problems);
// Fills in such values of the stacks of an encoder-decoder, and adds errors for unsupported ones.
void complete_stacks(Config& config, Problems& problems);
// Adds an error if train.objective and model.kind are not of each other.
void check_objective_of_pairs(const Config& config, Problems& problems);
// Checks that all tokens of a visible prefix can see each other, and that no module predicts a
// token that its input sees.
void check_visible_prefix(const Config& c, Problems& problems);
// Adds errors for the settings of indexers, and for those that indexers exclude.
void check_indexers(const Config& config, Problems& problems);
// Adds errors for the targets of LoRA, and for settings that it excludes.
void check_lora(const Config& config, Problems& problems);
// Adds errors for settings that model.global_projections excludes.
void check_global_projections(const Config& config, Problems& problems);
// Fills in model.lsh_buckets if it is empty and a layer has attention by hashing.
void complete_buckets(Config& config);
// Adds errors for the settings of attention by hashing, and for those that it excludes.
void check_hashing(const Config& config, Problems& problems);
// Adds errors for settings that train.reversible excludes, or that need it.
void check_reversible(const Config& config, Problems& problems);

// Prefixes of the keys that set the model, its batch and its layout (size_keys), and of those on
// which a layout depends (layout_keys).
constexpr std::string_view size_keys[] = {"model.",
                                          "attention.",
                                          "encoder.",
                                          "decoder.",
                                          "moe.",
                                          "parallel.",
                                          "train.global_batch",
                                          "train.micro_batch",
                                          "train.validate_every"};
constexpr std::string_view layout_keys[] = {
    "model.heads",   "model.kv_heads", "model.d_ff",         "model.d_model",     "model.ffn",
    "encoder.",      "decoder.",       "model.kind",         "train.objective",   "train.mask_rate",
    "model.seq_len", "moe.experts",    "moe.d_ff",           "moe.shared",        "moe.bias",
    "moe.ffn",       "parallel.",      "train.global_batch", "train.micro_batch", "train.validate_every"};

}  // namespace sy
