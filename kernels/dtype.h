// Element types, in a table. Each is a value of DType and a row. Host code reads elements through
// DTypeOf. Collectives and checkpoints name the types that they support: dist/comm_mpi.cpp,
// dist/nccl/comm_nccl.cpp and src/io/checkpoint_tensors.cpp.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <string_view>
#include <type_traits>

namespace sy {

enum class DType : std::uint8_t { f32, f64, bf16, i32, i64, u16, u8 };

struct DTypeInfo {
  DType type;
  std::string_view name;
  std::int64_t bytes;
};

// In the order of the enumeration.
constexpr DTypeInfo dtype_table[] = {{DType::f32, "f32", 4}, {DType::f64, "f64", 8}, {DType::bf16, "bf16", 2},
                                     {DType::i32, "i32", 4}, {DType::i64, "i64", 8}, {DType::u16, "u16", 2},
                                     {DType::u8, "u8", 1}};
static_assert(std::ranges::all_of(dtype_table, [](const DTypeInfo& row) {
  return &row == &dtype_table[static_cast<int>(row.type)];
}));

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

// Maps floats to unsigned integers in the same order. A NaN is in this order, too, so that sorting
// is safe.
constexpr std::uint32_t ordered_bits(float x) {
  const auto bits = std::bit_cast<std::uint32_t>(x + 0.0f);  // -0 becomes 0
  return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

// Element type of a C++ type. The one of bf16 is in kernels/bf16.h.
template <class T>
struct DTypeOf;
template <>
struct DTypeOf<float> : std::integral_constant<DType, DType::f32> {};
template <>
struct DTypeOf<double> : std::integral_constant<DType, DType::f64> {};
template <>
struct DTypeOf<std::int32_t> : std::integral_constant<DType, DType::i32> {};
template <>
struct DTypeOf<std::int64_t> : std::integral_constant<DType, DType::i64> {};
template <>
struct DTypeOf<std::uint16_t> : std::integral_constant<DType, DType::u16> {};
template <>
struct DTypeOf<std::uint8_t> : std::integral_constant<DType, DType::u8> {};

}  // namespace sy
