#include "src/io/norm_history.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/check.h"
#include "src/text/json.h"

namespace sy {

double NormHistory::limit(double sigma) const {
  if (sigma <= 0 || std::ssize(norms) < least) return std::numeric_limits<double>::infinity();
  const auto n = static_cast<double>(norms.size());
  double mean = 0, squares = 0;
  for (const double norm : norms) mean += norm / n;
  for (const double norm : norms) squares += (norm - mean) * (norm - mean);
  return mean + sigma * std::max(std::sqrt(squares / (n - 1)), least_spread * mean);
}

void NormHistory::add(double norm) {
  in_a_row = 0;
  norms.push_back(norm);
  if (std::ssize(norms) > window) norms.erase(norms.begin());
}

void NormHistory::skip() {
  ++skipped;
  ++in_a_row;
}

std::string to_text(const NormHistory& history) {
  Json norms = Json::array();
  for (const double norm : history.norms) norms.push_back(norm);
  return Json{{"norms", std::move(norms)}, {"skipped", history.skipped}, {"in_a_row", history.in_a_row}}.dump();
}

NormHistory parse_norm_history(const std::string& text, const std::string& where) {
  constexpr Index max_value = Index{1} << 53;
  try {
    const Json json = Json::parse(text);
    NormHistory history;
    history.skipped = json.at("skipped").get<Index>();
    history.in_a_row = json.at("in_a_row").get<Index>();
    for (const Json& norm : json.at("norms").elements()) history.norms.push_back(norm.get<double>());
    if (history.skipped >= 0 && history.skipped <= max_value && history.in_a_row >= 0 &&
        history.in_a_row <= history.skipped && std::ssize(history.norms) <= NormHistory::window &&
        std::ranges::all_of(history.norms, [](double norm) { return std::isfinite(norm) && norm >= 0; }))
      return history;
  } catch (const JsonError&) {
  }
  bad_input("{} has a damaged history of gradient norms: use another checkpoint", where);
}

}  // namespace sy
