// The dry-run backend: it computes nothing and counts the work that a device would do. A trainer
// runs with it as a plan, for models larger than this machine. Its memory is address space, which
// costs nothing until it is written.
//
// Values that host code reads are defined:
//   * copies to and from the host
//   * tokens per expert: by default as equal as possible
//   * tokens per rank: the expectation of dry_reach
//
// All other results are undefined, and mostly zeros.
#pragma once

#include <compare>
#include <functional>
#include <map>
#include <span>
#include <string_view>

#include "kernels/backend.h"

namespace sy {

// Key of a call: the properties of an operation that determine its time on a device.
struct DryCall {
  std::string_view op;  // name of the function of Backend
  // GEMM: the least of rows, columns and depth, of one expert if it is grouped. Attention: the
  // width of a query head. Other operations: 0.
  Index size = 0;
  // FLOPs of GEMMs and attention; a multiply-add counts as two
  double flops = 0;
  // Bytes moved: each operand counts once, or twice if the operation adds to it
  double bytes = 0;
  auto operator<=>(const DryCall&) const = default;  // NOLINT(modernize-use-nullptr): a false alarm
};

struct DryCounts {
  double flops = 0, bytes = 0;     // sums over all calls
  std::map<DryCall, Index> calls;  // number of calls with each key
};

// Counts of a backend that make_dry made; any other backend is an internal error. Assign {} to
// restart them.
DryCounts& dry_counts(Backend& backend);

// Sets the number of a router's assignments that each expert keeps, rows: [E]. On entry, `rows`
// holds the equal distribution. The sum of `rows` must not exceed `assignments`. dispatch_layout
// calls it.
using DryLoad = std::function<void(Index assignments, std::span<Index> rows)>;
void set_dry_load(Backend& backend, DryLoad load);

// Group limit of a router: a token chooses its experts from at most `limit` groups.
struct DryGroups {
  std::span<const Index> group_of{};  // [E] group of each expert; empty if the router has no limit
  Index groups = 1, limit = 1;
};

// Returns the expected share of tokens that have one of experts [first, first + n) among their k
// different experts. `tokens_per_expert` is the number of tokens of each expert. The joint
// distribution of experts is unknown. Among all that give each expert its tokens, the one of
// largest entropy is used. This is conditional Poisson sampling (Hajek, "Asymptotic theory of
// rejective sampling", 1964) with the odds of an expert as its weight. If all E experts have equal
// load, the share is 1 - C(E - n, k) / C(E, k). Dropped assignments count as assignments to k more
// experts, which no rank holds.
//
// With a group limit, a token first chooses `limit` groups, in proportion to their load, and then k
// experts in them. If all experts have equal load, the share is a hypergeometric mean over all
// choices of groups. The chosen groups have U = E limit / groups experts. Let n' be the number of
// these in [first, first + n). The share is
//   1 - sum over choices of C(U - n', k) / C(U, k) / C(groups, limit)
//
// A router that chooses groups by their best experts reaches up to a tenth more ranks, because it
// rarely leaves a chosen group unused.
double dry_reach(std::span<const Index> tokens_per_expert, Index tokens, Index k, Index first, Index n,
                 const DryGroups& groups = {});

// Sets Backend::logits_chunk of a planned backend that cannot be created on this machine.
void set_dry_logits(Backend& backend, Index logits);

}  // namespace sy
