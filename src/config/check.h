// What is wrong with a configuration. For the files of this folder.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <map>
#include <string>
#include <utility>

#include "src/config.h"

namespace sy {

// Where a key gets its value: a line of the file, or one of
constexpr int no_line = 0, command_line = std::numeric_limits<int>::max();

// What is wrong with a configuration, each thing with its place, so that all of it is said at once.
class Problems {
 public:
  explicit Problems(std::string origin) : origin_(std::move(origin)) {}
  std::string place(int line) const {
    return line == no_line ? origin_ : line == command_line ? "command line" : fmt::format("{}:{}", origin_, line);
  }
  // Notes where a key is given, and returns where it was before.
  int give(const std::string& key, int line) { return std::exchange(lines_[key], line); }
  template <class... Args>
  void at(int line, fmt::format_string<Args...> what, Args&&... args) {
    std::string text = place(line) + ": " + fmt::format(what, std::forward<Args>(args)...);
    const auto [first, last] = found_.equal_range(line);
    if (std::none_of(first, last, [&](const auto& found) { return found.second == text; }))
      found_.emplace(line, std::move(text));
  }
  // Where the key is given, or could be.
  template <class... Args>
  void of(const std::string& key, fmt::format_string<Args...> what, Args&&... args) {
    const auto line = lines_.find(key);
    at(line == lines_.end() ? no_line : line->second, what, std::forward<Args>(args)...);
  }
  // A message of its own, beside those of the keys.
  void more(const std::string& text) { found_.emplace(command_line, text); }
  std::size_t count() const { return found_.size(); }
  void raise() const {
    if (found_.empty()) return;
    std::string text;
    if (found_.size() > 1) text = fmt::format("{}: {} errors: correct each", origin_, found_.size());
    std::size_t shown = 0;
    for (const auto& [line, what] : found_) {
      if (shown++ == most_shown) break;
      text += (text.empty() ? "" : std::string(1, next_line)) + what;
    }
    if (shown > most_shown) text += fmt::format("{}and {} more", next_line, found_.size() - most_shown);
    throw InputError(text);
  }

 private:
  static constexpr std::size_t most_shown = 20;
  std::string origin_;
  std::map<std::string, int> lines_;
  std::multimap<int, std::string> found_;
};

// Values outside of their bounds, and those that this version cannot compute.
void check_values(const Config& config, Problems& problems);
// Fills in what follows from other keys, where it was left 0, and notes what values that are each within their bounds cannot
// be together.
void complete(Config& config, Problems& problems);

}  // namespace sy
