// What is wrong with a configuration. For the files of this folder.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <map>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "src/config.h"

namespace sy {

// Where a key gets its value: a line of a file, or one of
constexpr int no_line = 0, command_line = std::numeric_limits<int>::max();

struct Location {
  int line = no_line;
  int source = 0;  // the number of the file (Problems::add_source); 0 is the configuration itself
  Location(int at = no_line, int of = 0) : line(at), source(of) {}
  // In the order of the messages: the command line comes last.
  friend bool operator<(const Location& a, const Location& b) {
    return std::tuple(a.line == command_line, a.source, a.line) < std::tuple(b.line == command_line, b.source, b.line);
  }
};

// What is wrong with a configuration, each thing with its place, so that all of it is said at once.
class Problems {
 public:
  explicit Problems(std::string origin) : sources_{std::move(origin)} {}
  // Returns the number of a further file.
  int add_source(std::string origin) {
    sources_.push_back(std::move(origin));
    return static_cast<int>(sources_.size()) - 1;
  }
  std::string place(Location at) const {
    if (at.line == command_line) return "command line";
    const std::string& origin = sources_.at(static_cast<std::size_t>(at.source));
    return at.line == no_line ? origin : fmt::format("{}:{}", origin, at.line);
  }
  // Notes where a key is given, and returns where it was before.
  Location give(const std::string& key, Location at) { return std::exchange(places_[key], at); }
  template <class... Args>
  void at(Location at, fmt::format_string<Args...> what, Args&&... args) {
    std::string text = place(at) + ": " + fmt::format(what, std::forward<Args>(args)...);
    const auto [first, last] = found_.equal_range(at);
    if (std::none_of(first, last, [&](const auto& found) { return found.second == text; }))
      found_.emplace(at, std::move(text));
  }
  // Where the key is given, or could be.
  template <class... Args>
  void of(const std::string& key, fmt::format_string<Args...> what, Args&&... args) {
    const auto place = places_.find(key);
    at(place == places_.end() ? Location() : place->second, what, std::forward<Args>(args)...);
  }
  // A message of its own, beside those of the keys.
  void more(const std::string& text) { found_.emplace(command_line, text); }
  std::size_t count() const { return found_.size(); }
  void raise() const {
    if (found_.empty()) return;
    std::string text;
    if (found_.size() > 1) text = fmt::format("{}: {} errors: correct each", sources_[0], found_.size());
    std::size_t shown = 0;
    for (const auto& [at, what] : found_) {
      if (shown++ == most_shown) break;
      text += (text.empty() ? "" : std::string(1, next_line)) + what;
    }
    if (shown > most_shown) text += fmt::format("{}and {} more", next_line, found_.size() - most_shown);
    throw InputError(text);
  }

 private:
  static constexpr std::size_t most_shown = 20;
  std::vector<std::string> sources_;
  std::map<std::string, Location> places_;
  std::multimap<Location, std::string> found_;
};

// Values outside of their bounds, and those that this version cannot compute.
void check_values(const Config& config, Problems& problems);
// Fills in what follows from other keys, where it was left 0, and notes what values that are each within their bounds cannot
// be together.
void complete(Config& config, Problems& problems);

}  // namespace sy
