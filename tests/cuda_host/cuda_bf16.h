// bf16 as in CUDA: the upper half of a float. Conversion rounds to nearest, ties to even.
#pragma once

#include "cuda_runtime.h"
#include "kernels/dtype.h"

struct __nv_bfloat16 {
  std::uint16_t bits;
  __nv_bfloat16() = default;
  __nv_bfloat16(float x) : bits(sy::bf16_of_float(x)) {}
  operator float() const { return sy::float_of_bf16(bits); }
};
struct alignas(4) __nv_bfloat162 {
  __nv_bfloat16 x, y;
};

inline __nv_bfloat16 __float2bfloat16(float x) {
  return x;
}
inline __nv_bfloat16 __float2bfloat16_rn(float x) {
  return x;
}
inline float __bfloat162float(__nv_bfloat16 x) {
  return x;
}
inline __nv_bfloat162 __floats2bfloat162_rn(float x, float y) {
  return {x, y};
}
inline float2 __bfloat1622float2(__nv_bfloat162 v) {
  return {v.x, v.y};
}
inline std::uint16_t __bfloat16_as_ushort(__nv_bfloat16 x) {
  return x.bits;
}
inline __nv_bfloat16 __ushort_as_bfloat16(std::uint16_t bits) {
  __nv_bfloat16 x;
  x.bits = bits;
  return x;
}
