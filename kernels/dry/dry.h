// The dry device: it computes nothing and counts the work that a device would do. A trainer runs
// with it as a plan, for models larger than this machine. Its memory is address space, which costs
// nothing until it is written.
//
// Values that host code reads are defined:
//   * copies to and from the host
//   * tokens per expert: by default as equal as possible
//   * tokens per rank: the expectation of DryReach (kernels/dry/reach.h)
//
// All other results are undefined, and mostly zeros.
#pragma once

#include <compare>
#include <functional>
#include <map>
#include <span>
#include <string_view>

#include "kernels/device.h"

namespace sy {

// Key of a call: the properties of an operation that determine its time on a device.
struct DryCall {
  std::string_view op;  // its name
  Index size = 0;       // its Cost: size, flops and bytes()
  double flops = 0, bytes = 0;
  auto operator<=>(const DryCall&) const = default;  // NOLINT(modernize-use-nullptr): a false alarm
};

struct DryCounts {
  double flops = 0, bytes = 0;     // sums over all calls
  std::map<DryCall, Index> calls;  // number of calls with each key
};

// Counts of a device that make_dry made; any other device is an internal error. Assign {} to
// restart them.
DryCounts& dry_counts(Device& device);

// Sets the number of a router's assignments that each expert keeps, rows: [E]. On entry, `rows`
// holds the equal distribution. The sum of `rows` must not exceed `assignments`.
// ops::DispatchLayout calls it.
using DryLoad = std::function<void(Index assignments, std::span<Index> rows)>;
void set_dry_load(Device& device, DryLoad load);

// Sets Device::logits_chunk of a planned device that cannot be created on this machine.
void set_dry_logits(Device& device, Index logits);

}  // namespace sy
