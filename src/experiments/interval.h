// Confidence interval of a median, without an assumption about the distribution.
#pragma once

#include <optional>
#include <vector>

namespace sy {

struct MedianInterval {
  double low = 0, high = 0;
  double coverage = 0;  // probability that such an interval contains the median
};

// Returns the narrowest interval between two order statistics, x_(j) and x_(n+1-j), that covers the
// median with at least this probability. Fewer than 6 values cannot cover it with 95 %: then it is
// the range of the values, whose `coverage` is below `confidence`. Empty for fewer than two values.
//
// The values must be independent and of one continuous distribution. Le Boudec, "Performance
// evaluation of computer and communication systems", 2010, section 2.2.2.
std::optional<MedianInterval> median_interval(std::vector<double> values, double confidence = 0.95);

}  // namespace sy
