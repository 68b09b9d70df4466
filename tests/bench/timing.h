// Time measurement of the benchmarks, and the spread of several samples.
#pragma once

#include <algorithm>
#include <chrono>
#include <vector>

namespace sy::bench {

inline double seconds_now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

struct Spread {
  double least = 0, median = 0, most = 0;
};

// x: not empty.
inline Spread spread_of(std::vector<double> x) {
  std::sort(x.begin(), x.end());
  return {x.front(), x[x.size() / 2], x.back()};
}

}  // namespace sy::bench
