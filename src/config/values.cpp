#include "src/config/values.h"

#include <algorithm>
#include <cstdlib>
#include <set>
#include <sstream>

#include "src/optimizers/update_rule.h"
#include "src/text/strings.h"

namespace sy {

bool read(const std::string& text, bool& out) {
  out = text == "true" || text == "1" || text == "yes" || text == "on";
  return out || text == "false" || text == "0" || text == "no" || text == "off";
}

std::string without_exponent(const std::string& text) {
  const auto e = text.find_first_of("eE");
  if (e == text.npos || text.substr(0, e).find_first_of("0123456789") == text.npos) return text;
  const bool plus = text.find('+', e) == e + 1;
  int exponent = parse_number<int>(std::string_view(text).substr(e + 1 + (plus ? 1 : 0))).value_or(100);
  if (std::abs(exponent) > 99) return text;
  std::string digits = text.substr(0, e);
  if (const auto point = digits.find('.'); point != digits.npos) {
    exponent -= static_cast<int>(digits.size() - point) - 1;
    digits.erase(point, 1);
  }
  for (; exponent > 0; --exponent) digits += '0';
  for (; exponent < 0 && digits.ends_with('0'); ++exponent) digits.pop_back();
  return exponent == 0 ? digits : text;
}

std::string show(const Pattern& pattern) {
  std::vector<std::string> texts;
  for (const Pattern::Segment& segment : pattern.segments)
    texts.push_back(segment.layers == 1 ? segment.kind : fmt::format("{}*{}", segment.kind, segment.layers));
  return join(texts, ", ");
}

bool read(const std::string& text, Pattern& out) {
  constexpr std::string_view letters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ", others = "0123456789_-";
  constexpr Index max_layers = 10000;
  constexpr std::size_t max_kinds = 100;
  Index layers = 0;
  std::set<std::string> kinds;
  out.segments.clear();
  for (const std::string& item : split_list(text)) {
    const std::size_t star = item.find('*');
    Pattern::Segment segment{std::string(trimmed(item.substr(0, star)))};
    const bool named = !segment.kind.empty() && letters.find(segment.kind.front()) != letters.npos &&
                       segment.kind.find_first_not_of(std::string(letters).append(others)) == segment.kind.npos;
    const bool counted = star == item.npos || read(std::string(trimmed(item.substr(star + 1))), segment.layers);
    if (!named || !counted || segment.layers < 1 || segment.layers > max_layers - layers) return false;
    layers += segment.layers;
    kinds.insert(segment.kind);
    if (kinds.size() > max_kinds) return false;
    out.segments.push_back(std::move(segment));
  }
  return !text.ends_with(',');
}

namespace {

// Reads "STEP:TEXT, STEP:TEXT". Steps ascend, and the first one is above `last_step`.
// read_text(text, change) reads the text of a step.
template <class Change, class ReadText>
bool read_changes(const std::string& text, Index last_step, std::vector<Change>& out, ReadText read_text) {
  out.clear();
  for (const std::string& item : split_list(text)) {
    const std::size_t colon = item.find(':');
    Change change;
    if (colon == item.npos || !read(std::string(trimmed(item.substr(0, colon))), change.step) ||
        change.step <= last_step || !read_text(std::string(trimmed(item.substr(colon + 1))), change))
      return false;
    last_step = change.step;
    out.push_back(std::move(change));
  }
  return !text.ends_with(',');
}

}  // namespace

std::string show(const BatchRamp& ramp) {
  std::vector<std::string> texts;
  for (const BatchRamp::Change& change : ramp.changes) texts.push_back(fmt::format("{}:{}", change.step, change.batch));
  return join(texts, ", ");
}

bool read(const std::string& text, BatchRamp& out) {
  return read_changes(text, 1, out.changes, [](const std::string& batch, BatchRamp::Change& change) {
    return read(batch, change.batch) && change.batch >= 1;
  });
}

std::string show(const BlendSchedule& schedule) {
  std::vector<std::string> texts;
  for (const BlendSchedule::Change& change : schedule.changes) {
    std::vector<std::string> weights;
    for (const auto& [domain, weight] : change.weights) weights.push_back(fmt::format("{}={}", domain, weight));
    texts.push_back(fmt::format("{}:{}", change.step, join(weights, " ")));
  }
  return join(texts, ", ");
}

bool read(const std::string& text, BlendSchedule& out) {
  return read_changes(text, 0, out.changes, [](const std::string& list, BlendSchedule::Change& change) {
    double sum = 0;
    std::istringstream weights(list);
    for (std::string entry; weights >> entry;) {
      const std::size_t equals = entry.find('=');
      BlendSchedule::Weight weight{entry.substr(0, equals), 0};
      if (equals == entry.npos || equals == 0 || !read(entry.substr(equals + 1), weight.weight)) return false;
      const bool again = std::ranges::count(change.weights, weight.domain, &BlendSchedule::Weight::domain) > 0;
      if (again || weight.weight < 0) return false;
      sum += weight.weight;
      change.weights.push_back(std::move(weight));
    }
    return sum > 0 && std::isfinite(sum);
  });
}

std::string show(Optimizer optimizer) {
  return std::string(update_rule(optimizer).name);
}

bool read(const std::string& text, Optimizer& out) {
  const std::span<const UpdateRule> rules = update_rules();
  const auto rule = std::ranges::find(rules, text, &UpdateRule::name);
  if (rule != rules.end()) out = static_cast<Optimizer>(rule - rules.begin());
  return rule != rules.end();
}

std::string show(const std::vector<double>& numbers) {
  return fmt::format("{}", fmt::join(numbers, ", "));
}

bool read(const std::string& text, std::vector<double>& out) {
  out.clear();
  for (const std::string& item : split_list(text)) {
    double number = 0;
    if (!read(item, number)) return false;
    out.push_back(number);
  }
  return !text.ends_with(',');
}

}  // namespace sy
