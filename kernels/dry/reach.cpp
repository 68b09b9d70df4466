#include "kernels/dry/reach.h"

#include <algorithm>
#include <cmath>

namespace sy {

namespace {

using ProductSums = std::vector<double>;  // see DryReach

double number(Index x) {
  return static_cast<double>(x);
}

void add_weight(ProductSums& sums, double share) {
  const double p = std::clamp(share, 0.0, 1 - 1e-9);
  for (std::size_t j = sums.size() - 1; j > 0; --j) sums[j] += sums[j - 1] * p / (1 - p);
}

// Sums, over all choices, the product of the weights of the chosen groups and experts. A choice is
// `limit` groups, and k experts of these groups or of `common`. odds: [groups] weights of groups.
double sum_over_choices(const std::vector<ProductSums>& groups, const std::vector<double>& odds, Index limit,
                        const ProductSums& common) {
  const std::size_t sizes = common.size();
  std::vector<ProductSums> chosen(static_cast<std::size_t>(limit) + 1, ProductSums(sizes));
  chosen[0] = common;
  for (std::size_t g = 0; g < groups.size(); ++g)
    for (std::size_t n = chosen.size() - 1; n > 0; --n)
      for (std::size_t j = 0; j < sizes; ++j)
        for (std::size_t i = 0; i + j < sizes; ++i) chosen[n][i + j] += chosen[n - 1][j] * odds[g] * groups[g][i];
  return chosen.back().back();
}

// Weight of a group that tokens choose with this probability. It is the odds of the group, divided
// by the sum over choices of `size` of its experts. A fractional `size` interpolates that sum.
double group_odds(double probability, const ProductSums& experts, double size) {
  const double q = std::clamp(probability, 0.0, 1 - 1e-9);
  const std::size_t low = std::min(static_cast<std::size_t>(size), experts.size() - 1),
                    high = std::min(low + 1, experts.size() - 1);
  if (experts[low] <= 0) return 0;
  const double between = size - static_cast<double>(low), above = experts[high] > 0 ? experts[high] : experts[low];
  return q / (1 - q) / (std::pow(experts[low], 1 - between) * std::pow(above, between));
}

}  // namespace

DryReach::DryReach(const DryRouting& routing)
    : routing_(routing), empty_sums_(static_cast<std::size_t>(routing.k) + 1), dropped_sums_(empty_sums_.size()) {
  const std::vector<Index>& tokens_per_expert = routing.tokens_per_expert;
  const Index k = routing.k;
  const bool has_limit = !routing.group_of.empty();
  const auto number_of_groups = static_cast<std::size_t>(routing.groups);
  std::vector<double> chosen(number_of_groups);  // [groups] sum of the shares of its experts
  double dropped = number(k);
  for (const Index assignments : tokens_per_expert) shares_.push_back(number(assignments) / number(routing.tokens));
  for (Index e = 0; e < std::ssize(tokens_per_expert); ++e) {
    dropped -= shares_[e];
    chosen[group_of(e)] += shares_[e];
  }
  // Mean number of a token's dispatched experts in a chosen group.
  const double experts_of_group = (number(k) - dropped) / number(routing.limit);
  if (experts_of_group <= 0) return;
  empty_sums_[0] = dropped_sums_[0] = 1;
  all_.assign(number_of_groups, empty_sums_);
  for (Index e = 0; e < std::ssize(tokens_per_expert); ++e) {
    const double of_all = chosen[group_of(e)] / experts_of_group;
    // The share among the tokens that choose the expert's group.
    if (has_limit && of_all > 0) shares_[e] /= std::min(1.0, of_all);
    add_weight(all_[group_of(e)], shares_[e]);
  }
  odds_.assign(number_of_groups, 1.0);
  for (std::size_t g = 0; g < number_of_groups && has_limit; ++g)
    odds_[g] = group_odds(chosen[g] / experts_of_group, all_[g], experts_of_group);
  for (Index i = 0; i < k && dropped > 0; ++i) add_weight(dropped_sums_, dropped / number(k));
  total_ = sum_over_choices(all_, odds_, routing.limit, dropped_sums_);
}

double DryReach::operator()(Index first, Index n) const {
  if (total_ <= 0) return 0;
  std::vector<ProductSums> others = all_;  // sums over the other experts
  std::vector<bool> touched(others.size());
  for (Index e = first; e < first + n; ++e) touched[group_of(e)] = true;
  for (std::size_t g = 0; g < others.size(); ++g)
    if (touched[g]) others[g] = empty_sums_;
  for (Index e = 0; e < std::ssize(shares_); ++e)
    if (touched[group_of(e)] && (e < first || e >= first + n)) add_weight(others[group_of(e)], shares_[e]);
  return 1 - sum_over_choices(others, odds_, routing_.limit, dropped_sums_) / total_;
}

}  // namespace sy
