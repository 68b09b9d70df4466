// Random numbers of a Philox stream: noise of routers and jitter of their inputs.
#pragma once

#include "kernels/formulas/host_device.h"
#include "kernels/ops/operation.h"
#include "kernels/philox.h"

namespace sy {

// uniform: in [-1, 1). round_robin: forced load balancing. Row r of n elements holds n, n - 1, ...
// 1, which begin at element r mod n and continue cyclically.
enum class Distribution { normal, gumbel, uniform, round_robin };

// Element i of row r of Distribution::round_robin.
constexpr Index round_robin(Index r, Index i, Index n) {
  const Index offset = i - r % n;
  return n - (offset < 0 ? offset + n : offset);
}

// Random numbers of a Philox stream (kernels/philox.h), or the values of
// Distribution::round_robin, which ignore seed and stream.
struct RandomDesc {
  Distribution distribution = Distribution::normal;
  std::uint64_t seed = 0, stream = 0;
  float scale = 1;  // factor of all numbers

  // Number i of row r of n numbers, without `scale`. It costs a block of Philox and up to four
  // functions in f64.
  SY_HOST_DEVICE double number(Index r, Index i, Index n) const {
    const RandomStream numbers(seed, stream);
    const auto at = static_cast<std::uint64_t>(r * n + i);
    switch (distribution) {
      case Distribution::normal:
        return numbers.normal(at);
      case Distribution::gumbel:
        return numbers.gumbel(at);
      case Distribution::uniform:
        return numbers.symmetric(at);
      case Distribution::round_robin:
        return static_cast<double>(round_robin(r, i, n));
    }
    return 0;
  }
};

namespace ops {

// x[t, i] = scale * number (index[t] * N + i) of the stream. The numbers are computed in f64 from
// the same bits on every device, and rounded.
struct Draw {
  static constexpr std::string_view name = "draw";
  ConstView index;  // [T] i64
  RandomDesc desc = {};
  View x;  // [T, N]
  Cost cost() const { return Cost().reads(index).writes(x); }
};

// y (+)= x * (1 + the element of the stream). It is its own adjoint.
struct Jitter {
  static constexpr std::string_view name = "jitter";
  ConstView x;      // [T, N] c
  ConstView index;  // [T] i64
  RandomDesc desc = {};
  bool accumulate = false;
  View y;  // [T, N] c
  Cost cost() const { return Cost().reads(x, index, accumulate ? y : View()).writes(y); }
};

// Noisy top-k gating (Shazeer et al., "Outrageously large neural networks", 2017). The standard
// deviation is learned: x += the element of the stream * softplus(stddev).
struct NoisyGatingForward {
  static constexpr std::string_view name = "noisy_gating_forward";
  ConstView stddev;  // [T, N]
  ConstView index;   // [T] i64
  RandomDesc desc = {};
  View x;  // [T, N] +=
  Cost cost() const { return Cost().reads(stddev, index).updates(x); }
};

struct NoisyGatingBackward {
  static constexpr std::string_view name = "noisy_gating_backward";
  ConstView dx;      // [T, N] c
  ConstView stddev;  // [T, N]
  ConstView index;   // [T] i64
  RandomDesc desc = {};
  View dstddev;  // [T, N] c
  bool is_empty() const { return dx.elements() == 0; }
  Cost cost() const { return Cost().reads(dx, stddev, index).writes(dstddev); }
};

}  // namespace ops

}  // namespace sy
