#include "src/train/routing_warnings.h"

#include <algorithm>
#include <numeric>

#include "src/text/strings.h"

namespace sy {
namespace {

Index sum_of(const std::vector<std::vector<Index>>& counts) {
  Index sum = 0;
  for (const auto& layer : counts) sum = std::accumulate(layer.begin(), layer.end(), sum);
  return sum;
}

// "steps 11 to 20"
std::string steps_text(Index before, Index step) {
  return before + 1 == step ? fmt::format("step {}", step) : fmt::format("steps {} to {}", before + 1, step);
}

}  // namespace

std::vector<std::string> RoutingWarnings::add(Index step, const ExpertCounts& counts) {
  std::vector<std::string> out;
  if (counts.routed.empty()) return out;
  if (routed_.empty()) {
    routed_ = counts.routed;
    dead_since_ = last_step_;
  } else {
    for (std::size_t l = 0; l < routed_.size(); ++l)
      for (std::size_t e = 0; e < routed_[l].size(); ++e) routed_[l][e] += counts.routed[l][e];
  }
  add_drops(step, counts, out);
  add_dead_experts(step, out);
  last_step_ = step;
  return out;
}

void RoutingWarnings::add_drops(Index step, const ExpertCounts& counts, std::vector<std::string>& out) {
  const Index routed = sum_of(counts.routed), dropped = sum_of(counts.dropped);
  if (warned_of_drops_ || 2 * dropped <= routed) return;
  warned_of_drops_ = true;
  out.push_back(fmt::format(
      "{:.0f} % of the assignments of {} were dropped: raise moe.capacity_factor (0: nothing is dropped), or "
      "moe.aux_loss, which balances the experts",
      100.0 * static_cast<double>(dropped) / static_cast<double>(routed), steps_text(last_step_, step)));
}

void RoutingWarnings::add_dead_experts(Index step, std::vector<std::string>& out) {
  // With fewer assignments an expert may have none by chance.
  constexpr Index min_assignments = 64;  // on average for each expert
  Index experts = 0, dead = 0;
  std::vector<std::string> layers;
  for (std::size_t l = 0; l < routed_.size(); ++l) {
    const std::vector<Index>& layer = routed_[l];
    if (std::accumulate(layer.begin(), layer.end(), Index{0}) < min_assignments * std::ssize(layer)) return;
    const Index none = std::count(layer.begin(), layer.end(), 0);
    if (none > 0) layers.push_back(fmt::format("{}: {}", names_[l], none));
    experts += std::ssize(layer);
    dead += none;
  }
  if (dead > 0 && dead >= 2 * warned_dead_experts_) {
    constexpr std::size_t max_layers = 8;
    const std::size_t omitted = layers.size() > max_layers ? layers.size() - max_layers : 0;
    layers.resize(layers.size() - omitted);
    out.push_back(fmt::format(
        "{} of {} experts got no token in {} ({}{}): raise moe.aux_loss, or set moe.bias_update_rate; `switchyard "
        "experts RUN` shows the load",
        dead, experts, steps_text(dead_since_, step), join(layers, ", "),
        omitted > 0 ? fmt::format(", and {} more layers", omitted) : ""));
    warned_dead_experts_ = dead;
  }
  routed_.clear();
}

}  // namespace sy
