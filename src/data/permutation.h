// A keyed permutation of [0, n). Each element is computed in constant time and without memory.
//
// It is a balanced Feistel network over the smallest 4^h >= n. Each round is a bijection, whatever
// its function. An image outside [0, n) is permuted again until it is inside (cycle walking), so
// the map stays a bijection of [0, n). See Black and Rogaway, "Ciphers with arbitrary finite
// domains", 2002.
// Fewer than four walks are expected.
#pragma once

#include "kernels/check.h"
#include "kernels/philox.h"
#include "kernels/tensor.h"

namespace sy {

class Permutation {
 public:
  Permutation(Index n, std::uint64_t key) : n_(n), key_(key) {
    SY_ASSERT(n > 0, "a permutation of nothing");
    while (half_ < 31 && (Index{1} << (2 * half_)) < n) ++half_;
  }

  Index operator()(Index i) const {
    SY_ASSERT(i >= 0 && i < n_, "element {} of {}", i, n_);
    do i = shuffle(i);
    while (i >= n_);
    return i;
  }

 private:
  // Four rounds give a pseudo-random permutation (Luby and Rackoff, 1988). Two more help for small
  // n.
  static constexpr int rounds = 6;

  Index shuffle(Index i) const {
    const std::uint64_t mask = (std::uint64_t{1} << half_) - 1;
    std::uint64_t left = static_cast<std::uint64_t>(i) >> half_, right = static_cast<std::uint64_t>(i) & mask;
    for (int round = 0; round < rounds; ++round) {
      const std::uint64_t mixed = left ^ (philox(key_, right, static_cast<std::uint64_t>(round))[0] & mask);
      left = right;
      right = mixed;
    }
    return static_cast<Index>(left << half_ | right);
  }

  Index n_;
  std::uint64_t key_;
  int half_ = 0;  // bits of each half
};

}  // namespace sy
