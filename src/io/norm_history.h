// Gradient norms of the last updates, by which a training finds outliers (train.spike_sigma). Each
// checkpoint holds them, so that a resumed run skips the same updates as an uninterrupted one.
#pragma once

#include <string>
#include <vector>

#include "kernels/tensor.h"

namespace sy {

struct NormHistory {
  static constexpr Index window = 128;          // number of norms that count
  static constexpr Index least = 16;            // with fewer norms, no finite norm is an outlier
  static constexpr double least_spread = 0.01;  // smallest deviation, as a share of the mean

  std::vector<double> norms;  // of the last `window` updates, the latest one last; all finite
  Index skipped = 0;          // number of skipped updates since the run began
  Index in_a_row = 0;         // number of consecutive skipped updates up to now

  // Returns the largest norm that is no outlier: mean + sigma * deviation, over `norms`. The
  // deviation is the sample standard deviation, but at least least_spread * mean. Infinite if sigma
  // is 0, or if there are fewer than `least` norms.
  double limit(double sigma) const;
  // Adds the norm of an update that was not skipped. Sets in_a_row to 0, and discards the oldest
  // norm beyond `window`.
  void add(double norm);
  // Counts a skipped update.
  void skip();
  bool empty() const { return norms.empty() && skipped == 0; }
  bool operator==(const NormHistory&) const = default;
};

// Formats a history as JSON, for the /state group of a checkpoint. Every bit of a norm is kept.
std::string to_text(const NormHistory& history);
// Throws InputError if `text` is not such a history. where: the checkpoint, for the message.
NormHistory parse_norm_history(const std::string& text, const std::string& where);

}  // namespace sy
