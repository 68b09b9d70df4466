// Operands of type c as loops see them: floats. f32 is used directly. bf16 is widened into a
// buffer, and a result is rounded from its buffer once. So each operation has one loop for both
// types, which sums in f32 and rounds at its end. The elements of one access should fit the L1 or
// L2 cache.
//
// An element of bf16 costs half the bytes of memory, plus a read and a write of a cache.
#pragma once

#include <cstring>
#include <memory>

#include "kernels/bf16.h"
#include "kernels/cpu/parallel.h"
#include "kernels/tensor.h"

namespace sy::cpu {

inline void widen(const Bf16* x, Index n, float* y) {
#pragma omp simd
  for (Index i = 0; i < n; ++i) y[i] = x[i];
}
// Rounds to nearest, ties to even.
inline void round(const float* x, Index n, Bf16* y) {
#pragma omp simd
  for (Index i = 0; i < n; ++i) y[i] = x[i];
}

// Number of elements per access in element-wise loops.
constexpr Index slice_elements = 2048;

// Read access to slices of x of at most `max_elements` elements. A slice is valid until the next
// access. If x is empty, the result is nullptr.
class Floats {
 public:
  Floats(ConstView x, Index max_elements)
      : bytes_(x.bytes()), max_elements_(max_elements), is_bf16_(x.dtype() == DType::bf16) {
    if (is_bf16_ && bytes_) memory_ = scratch<float>(max_elements);
  }
  const float* at(Index first, Index n) {
    if (!is_bf16_) return reinterpret_cast<const float*>(bytes_) + (bytes_ ? first : 0);
    if (bytes_) widen(reinterpret_cast<const Bf16*>(bytes_) + first, n, memory_.get());
    return memory_.get();
  }
  const float* at(Index first) { return at(first, max_elements_); }

 private:
  const std::byte* bytes_;
  Index max_elements_;
  bool is_bf16_;
  std::unique_ptr<float[]> memory_;
};

// Write access to slices of y of at most `max_elements` elements, one after the other. A slice is
// stored in y when the next one begins, or when this object is destroyed.
class Results {
 public:
  Results(View y, Index max_elements)
      : bytes_(y.bytes()), max_elements_(max_elements), is_bf16_(y.dtype() == DType::bf16) {
    if (is_bf16_) memory_ = scratch<float>(max_elements);
  }
  Results(const Results&) = delete;
  Results& operator=(const Results&) = delete;
  ~Results() { end(); }

  // Begins a slice. The caller must write all of its elements.
  float* begin(Index first, Index n) {
    if (!is_bf16_) return reinterpret_cast<float*>(bytes_) + first;
    end();
    to_ = reinterpret_cast<Bf16*>(bytes_) + first;
    n_ = n;
    return memory_.get();
  }
  float* begin(Index first) { return begin(first, max_elements_); }
  // Begins a slice that contains the values of y.
  float* update(Index first, Index n) {
    float* const slice = begin(first, n);
    if (is_bf16_) widen(to_, n, slice);
    return slice;
  }
  float* update(Index first) { return update(first, max_elements_); }
  void end() {
    round(memory_.get(), n_, to_);
    n_ = 0;
  }

 private:
  std::byte* bytes_;
  Index max_elements_, n_ = 0;
  bool is_bf16_;
  Bf16* to_ = nullptr;
  std::unique_ptr<float[]> memory_;
};

// Returns the sum of the bits of elements [begin, end) of x (ops::BitSum). x may be empty.
inline std::uint32_t bit_sum(ConstView x, Index begin, Index end) {
  const auto sum = [&]<class Unsigned>(Unsigned) {
    using Bits [[gnu::may_alias]] = Unsigned;
    const Bits* const bits = reinterpret_cast<const Bits*>(x.bytes());
    std::uint32_t total = 0;
#pragma omp simd reduction(+ : total)
    for (Index i = begin; i < end; ++i) total += bits[i];
    return total;
  };
  if (!x) return 0;
  return x.dtype() == DType::bf16 ? sum(std::uint16_t{}) : sum(std::uint32_t{});
}
// Adds a sum of bits to out: [1] i32, modulo 2^32.
inline void add_bit_sum(std::uint32_t sum, View out) {
  std::int32_t& total = *out.as<std::int32_t>();
  total = static_cast<std::int32_t>(static_cast<std::uint32_t>(total) + sum);
}

// y[to + i] = x[from + i], i < n. x and y have the same type.
inline void copy_elements(ConstView x, Index from, Index n, View y, Index to) {
  const Index width = size_of(x.dtype());
  std::memcpy(y.bytes() + to * width, x.bytes() + from * width, static_cast<std::size_t>(n * width));
}
// y[to + i] = 0, i < n
inline void clear_elements(View y, Index to, Index n) {
  const Index width = size_of(y.dtype());
  std::memset(y.bytes() + to * width, 0, static_cast<std::size_t>(n * width));
}

}  // namespace sy::cpu
