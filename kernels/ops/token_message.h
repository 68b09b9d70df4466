// Messages of dispatched tokens: the metadata of a token travels in front of its values.
#pragma once

#include "kernels/ops/operation.h"

namespace sy {

// A row of a message: k physical experts (i32), k weights (f32), then `width` values. Values begin
// and rows end at multiples of 16 bytes; zeros fill the gaps.
struct TokenRow {
  Index k, width;
  DType dtype;  // of the values
  // Column of the first value, and number of columns, in elements of `dtype`.
  Index first_value() const { return rounded_up(2 * k * size_of(DType::i32)); }
  Index columns() const { return first_value() + rounded_up(width * size_of(dtype)); }

 private:
  Index rounded_up(Index bytes) const { return (bytes + 15) / 16 * 16 / size_of(dtype); }
};

namespace ops {

// Row r of y holds the metadata and the values of token index[r]. If the index is -1, the row keeps
// its value.
struct PackTokens {
  static constexpr std::string_view name = "pack_tokens";
  ConstView physical_experts;  // [T, k] i32
  ConstView weights;           // [T, k]
  ConstView x;                 // [T, D] c
  ConstView index;             // [n] i32
  View y;                      // [n, TokenRow::columns()] c
  Cost cost() const { return Cost().reads(index, y).writes(y); }
};

// Reads the metadata of rows that PackTokens wrote.
struct UnpackTokens {
  static constexpr std::string_view name = "unpack_tokens";
  ConstView x;            // [n, TokenRow::columns()] c
  View physical_experts;  // [n, k] i32
  View weights = {};      // [n, k], or empty
  bool is_empty() const { return physical_experts.elements() == 0; }
  Cost cost() const { return Cost().reads(physical_experts, weights).writes(physical_experts, weights); }
};

}  // namespace ops

}  // namespace sy
