// Estimate of the ranks that a token reaches, from the load of the experts alone.
#pragma once

#include <vector>

#include "kernels/types.h"

namespace sy {

// The routing of a layer, as far as it decides which ranks its tokens reach.
struct DryRouting {
  std::vector<Index> tokens_per_expert = {};  // [E]
  Index tokens = 0, k = 0;
  // Group limit: a token chooses its experts from at most `limit` groups.
  std::vector<Index> group_of = {};  // [E] group of each expert; empty if the router has no limit
  Index groups = 1, limit = 1;
  Index experts_of_rank = 0;
  bool operator==(const DryRouting&) const = default;
};

// Expected share of tokens that have one of some consecutive experts among their k different
// experts. `tokens_per_expert` is the number of tokens of each expert. The joint distribution of
// experts is unknown. Among all that give each expert its tokens, the one of largest entropy is
// used. This is conditional Poisson sampling (Hajek, "Asymptotic theory of rejective sampling",
// 1964) with the odds of an expert as its weight. If all E experts have equal load, the share of n
// of them is 1 - C(E - n, k) / C(E, k). Dropped assignments count as assignments to k more experts,
// which no rank holds.
//
// With a group limit, a token first chooses `limit` groups, in proportion to their load, and then k
// experts in them. If all experts have equal load, the share is a hypergeometric mean over all
// choices of groups. The chosen groups have U = E limit / groups experts. Let n' be the number of
// these among the n experts. The share is
//   1 - sum over choices of C(U - n', k) / C(U, k) / C(groups, limit)
//
// A router that chooses groups by their best experts reaches up to a tenth more ranks, because it
// rarely leaves a chosen group unused.
class DryReach {
 public:
  explicit DryReach(const DryRouting& routing);
  // Share of the tokens that have one of experts [first, first + n).
  double operator()(Index first, Index n) const;

 private:
  using ProductSums = std::vector<double>;  // [j]: the sum of the products of j different weights

  std::size_t group_of(Index e) const { return routing_.group_of.empty() ? 0 : routing_.group_of[e]; }

  DryRouting routing_;
  ProductSums empty_sums_, dropped_sums_;  // sums for no experts; for dropped assignments
  std::vector<double> shares_;             // [E] share of its group's tokens that choose it
  std::vector<ProductSums> all_;           // [groups] sums for all experts of a group
  std::vector<double> odds_;               // [groups] weights of groups
  double total_ = 0;
};

}  // namespace sy
