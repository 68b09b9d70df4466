// The dry backend computes nothing. It counts what a device would do, so that a trainer can run as a plan, for models
// larger than the machine at hand. Its memory is address space that costs nothing until it is written.
//
// What host code reads is real: copies to and from the host, how many rows each expert gets, by default all as many, as
// far as they can, and how many tokens go to each rank, as dry_reach expects it. All other results are undefined, and mostly zeros.
#pragma once

#include <compare>
#include <functional>
#include <map>
#include <span>
#include <string_view>

#include "kernels/backend.h"

namespace sy {

// One call of an operation, by what a device's time for it depends on.
struct DryCall {
  std::string_view op;  // the name of Backend's function
  // Of a product the least of rows, columns and depth, of one expert's where it is a grouped one; of attention the width of a
  // head's queries; otherwise 0.
  Index size = 0;
  double flops = 0;  // of products and attention, with a multiply-add as two
  double bytes = 0;  // each operand is read or written once, or both where it is added to
  auto operator<=>(const DryCall&) const = default;  // NOLINT(modernize-use-nullptr): a false alarm
};

struct DryCounts {
  double flops = 0, bytes = 0;     // of all calls together
  std::map<DryCall, Index> calls;  // how often there was each
};

// The counts of a backend that make_dry made; any other backend is an internal error. Set them to {} to count anew.
DryCounts& dry_counts(Backend& backend);

// How many of a router's assignments each expert keeps: rows: [E], whose sum may be no more than `assignments`; as it is
// called they are as many for each expert. Asked whenever it is planned where tokens go.
using DryLoad = std::function<void(Index assignments, std::span<Index> rows)>;
void set_dry_load(Backend& backend, DryLoad load);

// The share of the tokens, each with k different experts, that is expected to have one of the n from `first` on, where so many
// tokens are kept for each expert. How often two experts are chosen together is not known; of all ways to choose that
// give each expert its tokens the most even one is taken (that of the largest entropy: conditional Poisson sampling, Hajek, "Asymptotic
// theory of rejective sampling", 1964), with the odds of an expert as its weight. Where all E are as busy this is
// 1 - C(E - n, k) / C(E, k). What is dropped counts as chosen of k more experts, which are nobody's.
double dry_reach(std::span<const Index> kept, Index tokens, Index k, Index first, Index n);

// Backend::logits_at_once of a backend that is planned for and cannot be made here.
void set_dry_logits(Backend& backend, Index logits);

}  // namespace sy
