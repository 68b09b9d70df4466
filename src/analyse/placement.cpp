#include "src/analyse/placement.h"

#include <algorithm>
#include <functional>
#include <numeric>

namespace sy {
namespace {

std::vector<Index> rank_loads(const LayerLoad& load, const std::vector<Index>& physical_to_logical, Index ranks) {
  std::vector<Index> out(static_cast<std::size_t>(ranks));
  const Index each = std::ssize(physical_to_logical) / ranks;
  for (std::size_t physical = 0; physical < physical_to_logical.size(); ++physical)
    out[physical / each] += load.experts[physical_to_logical[physical]].routed;
  return out;
}

}  // namespace

std::vector<LayerPlacement> balance_placement(const std::vector<LayerLoad>& load, Index ranks) {
  std::vector<LayerPlacement> out;
  for (const LayerLoad& layer : load) {
    const Index experts = std::ssize(layer.experts);
    if (ranks < 1 || experts % ranks != 0)
      bad_input("--placement ep={}: {} experts cannot be shared out equally: ep has to divide them", ranks, experts);
    std::vector<Index> identity(static_cast<std::size_t>(experts)), by_load;
    std::iota(identity.begin(), identity.end(), Index{0});
    by_load = identity;
    std::ranges::stable_sort(by_load, std::greater(), [&](Index e) { return layer.experts[e].routed; });
    std::vector<std::vector<Index>> held(static_cast<std::size_t>(ranks));
    std::vector<Index> sums(held.size());
    for (Index e : by_load) {
      std::size_t best = held.size();
      for (std::size_t r = 0; r < held.size(); ++r)
        if (std::ssize(held[r]) < experts / ranks && (best == held.size() || sums[r] < sums[best])) best = r;
      held[best].push_back(e);
      sums[best] += layer.experts[e].routed;
    }
    LayerPlacement p{layer.layer, {}, rank_loads(layer, identity, ranks), {}};
    for (auto& of_rank : held) {
      std::sort(of_rank.begin(), of_rank.end());
      p.physical_to_logical.insert(p.physical_to_logical.end(), of_rank.begin(), of_rank.end());
    }
    p.after = rank_loads(layer, p.physical_to_logical, ranks);
    if (max_over_mean(p.before) <= max_over_mean(p.after)) {
      p.physical_to_logical = identity;
      p.after = p.before;
    }
    out.push_back(std::move(p));
  }
  return out;
}

Section placement_section(const std::vector<LayerPlacement>& placement, const Dimension& layers) {
  const Index ranks = std::ssize(placement[0].before);
  Section out{
      "placement", fmt::format("Load of {} expert-parallel ranks", ranks),
      "What the load of the experts means for the ranks that hold them: all of a layer wait for the busiest rank. "
      "Longest processing time first, with as many experts on each rank, evens it out."};
  Figure before{"imbalance_before",
                "max/mean, in order",
                "ratio",
                "Load of the busiest rank over the mean rank, where rank 0 has the first experts, and so on.",
                {layers}};
  Figure after{"imbalance_after", "max/mean, placed", "ratio", "The same with the placement.", {layers}};
  Figure order{"order",
               "placement",
               "expert",
               fmt::format("The logical expert of each physical expert: rank 0 holds the first {}, and so on.",
                           std::ssize(placement[0].physical_to_logical) / ranks),
               {layers, counted_dimension("place", std::ssize(placement[0].physical_to_logical))},
               {},
               Look::none};
  for (const LayerPlacement& p : placement) {
    before.values.push_back(max_over_mean(p.before));
    after.values.push_back(max_over_mean(p.after));
    order.values.insert(order.values.end(), p.physical_to_logical.begin(), p.physical_to_logical.end());
  }
  out.figures = {std::move(before), std::move(after), std::move(order)};
  return out;
}

Json placement_json(const std::vector<LayerPlacement>& placement) {
  Json layers = Json::array();
  for (const LayerPlacement& p : placement)
    layers.push_back({{"layer", p.layer},
                      {"order", p.physical_to_logical},
                      {"max_over_mean_before", max_over_mean(p.before)},
                      {"max_over_mean", max_over_mean(p.after)}});
  return {{"ep", std::ssize(placement[0].before)},
          {"experts", std::ssize(placement[0].physical_to_logical)},
          {"layers", layers}};
}

}  // namespace sy
