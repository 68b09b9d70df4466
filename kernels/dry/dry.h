// The dry backend computes nothing. It counts what a device would do, so that a trainer can run as a plan, for models
// larger than the machine at hand. Its memory is address space that costs nothing until it is written.
//
// What host code reads is real: copies to and from the host, and a routing that sends tokens to the experts in turn.
// All other results are undefined, and mostly zeros.
#pragma once

#include "kernels/backend.h"

namespace sy {

struct DryCounts {
  double flops = 0;  // of products and attention, with a multiply-add as two
  double bytes = 0;  // each operand of each operation is read or written once, or both where it is added to
};

// The counts of a backend that make_dry made; any other backend is an internal error. Set them to {} to count anew.
DryCounts& dry_counts(Backend& backend);

}  // namespace sy
