// Elementary functions without branches or calls, so that the compiler vectorises the loops that use them. They rely on
// strict IEEE comparisons: do not compile with -ffast-math.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>

namespace sy::cpu {

namespace detail {

struct ExpParts {
  float n;      // 2^n, as a float; 2^(n-1) is half_scale
  float half_scale;
  float r;      // x - n ln 2, in +-ln(2)/2
  float q;      // e^r = 1 + r + r^2 q
};

// x within [-87, 89] (or a NaN, which r and q keep). Error of 1 + r + r^2 q: 3e-9 relative before rounding; the
// coefficients minimise the maximum over |r| <= ln(2)/2 (Lawson's iteration).
[[gnu::always_inline]] inline ExpParts exp_parts(float x) {
  constexpr float magic = 12582912.0f;  // 1.5 * 2^23: adding it rounds to an integer, left in the low bits
  const float t = x * 1.44269504f + magic;
  const float n = t - magic;
  // ln 2 in two parts: n times the first is exact.
  const float r = (x - n * 0.693359375f) + n * 2.12194440e-4f;
  float q = 1.381453982e-3f;
  q = q * r + 8.368745124e-3f;
  q = q * r + 4.166839079e-2f;
  q = q * r + 1.666652040e-1f;
  q = q * r + 4.999999343e-1f;
  // The bits of magic vanish in the shift; n = -126 gives 0.
  const float half_scale = std::bit_cast<float>((std::bit_cast<std::uint32_t>(t) << 23) + (126u << 23));
  return {n, half_scale, r, q};
}

}  // namespace detail

// e^x within 1.02 ulp. 0 below -87 (-infinity included), infinity above 88.73, NaN for NaN; exactly 1 at 0.
[[gnu::always_inline]] inline float exp_(float x) {
  x = x < -87.0f ? -87.0f : x;
  x = x > 89.0f ? 89.0f : x;
  const detail::ExpParts e = detail::exp_parts(x);
  // Twice e^r, as the scale is half of 2^n: 2^128 has no float.
  return (2.0f + (2.0f * e.r + (2.0f * e.r) * (e.r * e.q))) * e.half_scale;
}

[[gnu::always_inline]] inline float sigmoid_(float x) { return 1.0f / (1.0f + exp_(-x)); }

// tanh x = m / (m + 2), m = e^(2|x|) - 1, which loses no digits near 0. Within 3 ulp.
[[gnu::always_inline]] inline float tanh_(float x) {
  float y = 2.0f * std::fabs(x);
  y = y > 40.0f ? 40.0f : y;
  const detail::ExpParts e = detail::exp_parts(y);
  const float scale = 2.0f * e.half_scale;
  const float m = (e.r + e.r * (e.r * e.q)) * scale + (scale - 1.0f);
  return std::copysign(m / (m + 2.0f), x);
}

}  // namespace sy::cpu
