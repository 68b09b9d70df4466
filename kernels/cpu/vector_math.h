// Elementary functions without branches or calls. For floats, they let the compiler vectorise the
// loop around them. They also take the compiler's own vectors of floats (GCC and Clang vector
// extensions). They rely on strict IEEE comparisons: do not compile with -ffast-math.
#pragma once

#include <bit>
#include <cstdint>
#include <type_traits>

namespace sy::cpu {

template <class T>
concept FloatOrVector = std::is_same_v<T, float> || !std::is_arithmetic_v<T>;

namespace detail {

template <class T>
struct ExpTerms {
  T half_scale;  // 2^(n - 1): 2^128 has no float
  T r;           // x - n ln 2, within +-ln(2)/2
  T q;           // e^r = 1 + r + r^2 q
};

// The type of 32-bit integers with the shape of T.
template <class T>
struct Bits {
  using Type = decltype(T{} < T{});
};
template <>
struct Bits<float> {
  using Type = std::int32_t;
};

// x is in [-87, 89] or a NaN, which r and q preserve. The relative error of 1 + r + r^2 q is 3e-9
// before rounding. The coefficients minimise its maximum over |r| <= ln(2)/2 (Lawson's iteration).
// 15 FLOPs.
template <class T>
[[gnu::always_inline]] inline ExpTerms<T> exp_terms(T x) {
  // 1.5 * 2^23: adding it rounds to an integer, in the low bits
  constexpr float magic = 12582912.0f;
  const T t = x * 1.44269504f + magic;
  const T n = t - magic;
  // ln 2 as a sum of two: n times the first is exact.
  const T r = (x - n * 0.693359375f) + n * 2.12194440e-4f;
  T q = r * 1.381453982e-3f + 8.368745124e-3f;
  q = q * r + 4.166839079e-2f;
  q = q * r + 1.666652040e-1f;
  q = q * r + 4.999999343e-1f;
  // The bits of the exponent n + 126. The shift drops the bits of magic, and n = -126 gives 0.
  using Integer = typename Bits<T>::Type;
  const T half_scale = std::bit_cast<T>((std::bit_cast<Integer>(t) << 23) + (126 << 23));
  return {half_scale, r, q};
}

}  // namespace detail

// The larger, or the smaller, of x and the limit. A NaN stays a NaN.
template <FloatOrVector T>
[[gnu::always_inline]] inline T at_least(T x, float limit) {
  const T bound = T{} + limit;
  return x < bound ? bound : x;
}
template <FloatOrVector T>
[[gnu::always_inline]] inline T at_most(T x, float limit) {
  const T bound = T{} + limit;
  return x > bound ? bound : x;
}

// e^x within 1.02 ulp. 0 below -87 (-infinity included), infinity above 88.73, NaN for NaN; exactly
// 1 at 0. 21 FLOPs.
template <FloatOrVector T>
[[gnu::always_inline]] inline T exp_(T x) {
  const auto e = detail::exp_terms(at_most(at_least(x, -87.0f), 89.0f));
  const T twice = 2.0f * e.r;
  return (2.0f + (twice + twice * (e.r * e.q))) * e.half_scale;
}

// 23 FLOPs.
template <FloatOrVector T>
[[gnu::always_inline]] inline T sigmoid_(T x) {
  return 1.0f / (1.0f + exp_(-x));
}

// tanh within 3 ulp: m / (m + 2) with m = e^(2|x|) - 1, which loses no digits near 0. 25 FLOPs.
template <FloatOrVector T>
[[gnu::always_inline]] inline T tanh_(T x) {
  const T magnitude = x < T{} ? -x : x;
  const auto e = detail::exp_terms(at_most(2.0f * magnitude, 40.0f));
  const T scale = 2.0f * e.half_scale;
  const T m = (e.r + e.r * (e.r * e.q)) * scale + (scale - 1.0f);
  const T y = m / (m + 2.0f);
  return x < T{} ? -y : y;
}

// Overloads for other arithmetic types, which become floats.
inline float exp_(float x) {
  return exp_<float>(x);
}
inline float sigmoid_(float x) {
  return sigmoid_<float>(x);
}
inline float tanh_(float x) {
  return tanh_<float>(x);
}

}  // namespace sy::cpu
