// Grouped GEMMs: one GEMM for each expert over its rows. In y_e = x_e w_e^T, x_e and y_e are the
// rows of expert e, and w_e is its matrix. R is the number of rows of the GEMM, gathered or not.
#pragma once

#include <concepts>
#include <cstdint>
#include <initializer_list>

#include "kernels/ops/gemm.h"

namespace sy {

// Row offsets of the groups of a grouped operation: expert e has rows [offsets[e], offsets[e + 1]),
// and offsets[0] is 0.
struct GroupOffsets {
  ConstView offsets;  // [E + 1] i32
  // The same offsets in host memory. nullptr: this object is empty, and there is one matrix for all
  // rows. Only FFN operations accept an empty one.
  const std::int32_t* host = nullptr;
};

// Rows of a matrix, optionally gathered: row r is values[index[r]] with an index, otherwise
// values[r]. Gathered rows may be a range of the columns of `values`.
struct GatheredRows {
  GatheredRows() = default;
  template <std::convertible_to<ConstView> V>
  GatheredRows(const V& matrix, ConstView row_index = {}, Index first = 0)
      : values(matrix), index(row_index), first_column(first) {}
  ConstView values;  // [N, Q] c; [N, first_column + Q or more] with an index
  // [R] i32 in [0, N); empty: no gather. Requires Device::supports_gathered_rows
  ConstView index;
  Index first_column = 0;  // 0 without an index
  Index rows() const { return index ? index.dim(0) : values.dim(0); }
};

namespace ops {

// fprop: y_e = x_e w_e^T
struct GroupedGemm {
  static constexpr std::string_view name = "grouped_gemm";
  GatheredRows x;  // [R, Q] c
  Weight w;        // [E, N, Q] c
  GroupOffsets groups;
  View y;  // [R, N] c
  Cost cost() const;
};
void run(Device& device, const GroupedGemm& op);

// dgrad: dx_e = dy_e w_e
struct GroupedGemmDgrad {
  static constexpr std::string_view name = "grouped_gemm_dgrad";
  GatheredRows dy;  // [R, N] c
  Weight w;         // [E, N, Q] c
  GroupOffsets groups;
  View dx;  // [R, Q] c
  Cost cost() const;
};
void run(Device& device, const GroupedGemmDgrad& op);

// wgrad: dw_e (+)= dy_e^T x_e. The product is zero for an expert without rows.
struct GroupedGemmWgrad {
  static constexpr std::string_view name = "grouped_gemm_wgrad";
  GatheredRows dy;  // [R, N] c
  GatheredRows x;   // [R, Q] c
  GroupOffsets groups;
  bool accumulate = true;
  View dw;  // [E, N, Q]
  Cost cost() const;
};
void run(Device& device, const GroupedGemmWgrad& op);

// Checks the offsets of the groups of so many experts with so many rows in total.
void check_groups(const Operands& check, const GroupOffsets& groups, Index experts, Index rows);
// Checks an operand of a GEMM: it must be [rows, width], of the type of `like`.
void check_gathered_rows(const Operands& check, const char* name, const GatheredRows& x, Index rows, Index width,
                         ConstView like);
// Checks that the device supports an index of rows, if there is one. dims: those of the matrices.
void check_gather(std::string_view operation, const Device& device, const char* name, const GatheredRows& x,
                  std::initializer_list<Index> dims);

}  // namespace ops

}  // namespace sy
