// From which size on the products of experts are better off with a call of cuBLAS each, by what was measured both ways.
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
  double apart, together;  // seconds with a call for each expert, and with one for all
};

// The threshold of multiplications of the mean expert, from which on each expert has a call of its own, with the least sum
// of the logarithms of all times: so every product counts alike, however long it takes. It lies midway, in ratio, between
// the two sizes that it parts; 0: a call each for all; the largest number: one call for all. Of equal ones it is the
// largest, which makes the fewest calls. pairs: not empty, in any order.
inline Index best_threshold(std::vector<BothWays> pairs) {
  SY_ASSERT(!pairs.empty(), "nothing was measured");
  std::sort(pairs.begin(), pairs.end(),
            [](const BothWays& x, const BothWays& y) { return x.multiplications < y.multiplications; });
  // Downwards from one call for all: `loss` is what the products from number i on lose by a call each.
  double loss = 0, least = 0;
  Index best = std::numeric_limits<Index>::max();
  for (std::size_t i = pairs.size(); i-- > 0;) {
    loss += std::log(pairs[i].apart / pairs[i].together);
    const double below = i > 0 ? pairs[i - 1].multiplications : 0;
    if (below == pairs[i].multiplications || loss >= least) continue;  // no threshold parts products of one size
    least = loss;
    best = std::llround(std::sqrt(below * pairs[i].multiplications));
  }
  return best;
}

}  // namespace sy::bench
