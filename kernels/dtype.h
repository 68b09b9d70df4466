// Element types, in a table: a new type is one line of it.
#pragma once

#include <bit>
#include <cstdint>
#include <string_view>

namespace sy {

enum class DType : std::uint8_t { f32, f64, bf16, i32, i64, u16, u8 };

struct DTypeInfo {
  std::string_view name;
  std::int64_t bytes;
};

constexpr DTypeInfo dtype_table[] = {{"f32", 4}, {"f64", 8}, {"bf16", 2}, {"i32", 4},
                                     {"i64", 8}, {"u16", 2}, {"u8", 1}};

constexpr const DTypeInfo& info(DType type) {
  return dtype_table[static_cast<int>(type)];
}
constexpr std::int64_t size_of(DType type) {
  return info(type).bytes;
}

// bf16 is the upper half of f32.
constexpr std::uint16_t bf16_of_float(float x) {
  const auto bits = std::bit_cast<std::uint32_t>(x);
  if (x != x) return static_cast<std::uint16_t>(bits >> 16 | 0x40);  // stays a NaN
  // To nearest, ties to even
  return static_cast<std::uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}
constexpr float float_of_bf16(std::uint16_t x) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(x) << 16);
}

// Element type of a C++ type. The one of bf16 is in kernels/bf16.h.
template <class T>
struct DTypeOf;
template <>
struct DTypeOf<float> {
  static constexpr DType value = DType::f32;
};
template <>
struct DTypeOf<double> {
  static constexpr DType value = DType::f64;
};
template <>
struct DTypeOf<std::int32_t> {
  static constexpr DType value = DType::i32;
};
template <>
struct DTypeOf<std::int64_t> {
  static constexpr DType value = DType::i64;
};
template <>
struct DTypeOf<std::uint16_t> {
  static constexpr DType value = DType::u16;
};
template <>
struct DTypeOf<std::uint8_t> {
  static constexpr DType value = DType::u8;
};

}  // namespace sy
