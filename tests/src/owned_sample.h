// A sample with memory of its own.
#pragma once

#include <vector>

#include "src/data/dataset.h"

namespace sy::test {

struct OwnedSample {
  std::vector<std::int32_t> ids, targets;
  explicit OwnedSample(Index seq_len) : ids(static_cast<std::size_t>(seq_len)), targets(ids.size()) {}
  operator Sample() { return {ids, targets}; }
  bool operator==(const OwnedSample&) const = default;
};

}  // namespace sy::test
