#include "src/plan/load.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "src/analyse/experts.h"
#include "src/config/layout.h"
#include "src/io/checkpoint.h"
#include "src/model/router.h"
#include "src/params/block_specs.h"

namespace sy {

Shares recorded_load(const std::filesystem::path& run, const Config& config) {
  const std::filesystem::path folder = resolve_checkpoint(run, nullptr);
  const TrainState state = read_state(folder);
  const ExpertHistory& h = state.experts;
  const Index moe_layers = count_moe(block_specs(config));
  if (h.layers == 0) bad_input("--load {}: the run has no experts: give a run of a model with experts", run.string());
  if (h.windows() == 0)
    bad_input("--load {}: {} holds no counts yet: give a checkpoint of a later step", run.string(), folder.string());
  if (h.layers != moe_layers || h.experts != config.moe.experts)
    bad_input(
        "--load {}: it has {} experts in each of {} layers, and the configuration {} in {}: give a run of this model",
        run.string(), h.experts, h.layers, config.moe.experts, moe_layers);
  const Config before = parse_config(state.config, folder.string());
  const bool as_recorded = before.moe.capacity_factor == config.moe.capacity_factor;
  const Index S = config.longest_sequence();
  const Index capacity = expert_capacity(config.moe.capacity_factor, config.moe.top_k, S, h.experts);

  const double most =
      as_recorded || capacity == 0 ? 1 : static_cast<double>(capacity) / static_cast<double>(config.moe.top_k * S);
  Shares load;
  for (const LayerLoad& layer : layer_loads(h, last_tenth(h), h.windows())) {
    if (layer.routed == 0) bad_input("--load {}: {} has no assignments", run.string(), config.layer_name(layer.layer));
    std::vector<double>& shares = load.emplace_back();
    for (const ExpertLoad& e : layer.experts)
      shares.push_back(std::min(
          static_cast<double>(e.routed - (as_recorded ? e.dropped : 0)) / static_cast<double>(layer.routed), most));
  }
  // From here on in the order of physical experts, because a rank's load is the sum of its physical
  // ones.
  const std::vector<std::vector<Index>> physical_to_logical = read_expert_map(config);
  for (std::size_t l = 0; l < physical_to_logical.size(); ++l) {
    const std::vector<double> by_expert = load[l];
    for (std::size_t physical_expert = 0; physical_expert < by_expert.size(); ++physical_expert)
      load[l][physical_expert] = by_expert[physical_to_logical[l][physical_expert]];
  }
  return load;
}

void rows_of(const std::vector<double>& shares, Index assignments, std::span<Index> rows) {
  double sum = 0;
  Index assigned = 0;
  for (std::size_t e = 0; e < shares.size(); ++e) {
    sum += shares[e];
    const Index until = std::min(assignments, static_cast<Index>(std::llround(sum * static_cast<double>(assignments))));
    rows[e] = until - assigned;
    assigned = until;
  }
}

Shares by_rank(const Shares& load, int ep) {
  Shares ranks;
  for (const std::vector<double>& layer : load) {
    const auto each = static_cast<std::ptrdiff_t>(layer.size()) / ep;
    std::vector<double>& sums = ranks.emplace_back();
    for (int r = 0; r < ep; ++r)
      sums.push_back(std::accumulate(layer.begin() + r * each, layer.begin() + (r + 1) * each, 0.0));
  }
  return ranks;
}

Shares busiest_first(const Shares& load, int ep) {
  Shares out = load;
  const Shares ranks = by_rank(load, ep);
  for (std::size_t l = 0; l < load.size(); ++l) {
    const auto busiest = std::max_element(ranks[l].begin(), ranks[l].end()) - ranks[l].begin();
    const auto each = std::ssize(load[l]) / ep;
    if (busiest > 0) std::swap_ranges(out[l].begin(), out[l].begin() + each, out[l].begin() + busiest * each);
  }
  return out;
}

Shares evened(const Shares& load) {
  Shares out = load;
  for (std::vector<double>& layer : out)
    std::ranges::fill(layer, std::accumulate(layer.begin(), layer.end(), 0.0) / static_cast<double>(layer.size()));
  return out;
}

}  // namespace sy
