// Size from which expert products are faster with one cuBLAS call each, from measurements of both
// ways.
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "kernels/check.h"
#include "kernels/tensor.h"

namespace sy::bench {

struct BothWays {
  double multiplications;  // of the mean expert
  double apart, together;  // seconds with a call for each expert, and with one call for all
};

// Returns the multiplications of the mean expert from which each expert should have its own call.
//
// The threshold has the least sum of the logarithms of all times, so that every product counts
// alike, however long it takes. It is the geometric mean of the two sizes that it separates. 0
// means a call for each expert at every size, the largest number one call for all. Among equal
// thresholds it returns the largest, which makes the fewest calls. pairs: not empty, in any order.
inline Index best_threshold(std::vector<BothWays> pairs) {
  SY_ASSERT(!pairs.empty(), "nothing was measured");
  std::sort(pairs.begin(), pairs.end(),
            [](const BothWays& x, const BothWays& y) { return x.multiplications < y.multiplications; });
  // Starts at one call for all and goes down. `loss` is the loss of separate calls for the products
  // from index i on.
  double loss = 0, least = 0;
  Index best = std::numeric_limits<Index>::max();
  for (std::size_t i = pairs.size(); i-- > 0;) {
    loss += std::log(pairs[i].apart / pairs[i].together);
    const double below = i > 0 ? pairs[i - 1].multiplications : 0;
    if (below == pairs[i].multiplications || loss >= least) continue;  // one size
    least = loss;
    best = std::llround(std::sqrt(below * pairs[i].multiplications));
  }
  return best;
}

}  // namespace sy::bench
