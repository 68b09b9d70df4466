// Formats of packed weights (ops::PackWeight), in a table.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <string_view>
#include <vector>

#include "kernels/tensor.h"
#include "kernels/types.h"

namespace sy {

enum class WeightFormat : std::uint8_t { native };

// Block of elements that share one scale: rows of the GEMM's operand, and elements along its depth,
// over which the GEMM sums. 0 and 0: the format has no scales.
struct ScaleBlock {
  Index rows = 0, depth = 0;
  constexpr bool present() const { return rows > 0; }
  // Shape of the scales of a weight [N, Q] or [E, N, Q] for one pass. fprop has N rows of depth Q,
  // dgrad Q rows of depth N.
  Shape scales(const Shape& weight, GemmPass pass) const {
    SY_ASSERT(present(), "a format without scales");
    const int last = weight.size() - 1, row_dim = pass == GemmPass::fprop ? last - 1 : last;
    Shape shape = weight;
    shape[last - 1] = ceil_div(weight[row_dim], rows);
    shape[last] = ceil_div(weight[2 * last - 1 - row_dim], depth);
    return shape;
  }
};

struct WeightFormatInfo {
  WeightFormat format;
  std::string_view name;
  // 0: the device defines the layout and the type of the elements (Device::packed_weight_bytes).
  Index element_bytes;
  ScaleBlock scale_block;                   // one f32 for each block
  std::array<std::string_view, 2> devices;  // names of the devices that support it; empty: all
};

// In the order of the enumeration.
// - native: the same bits in a GEMM as the weight itself, without a loss of precision
constexpr WeightFormatInfo weight_formats[] = {
    {WeightFormat::native, "native", 0, {}, {}},
};
static_assert(std::ranges::all_of(weight_formats, [](const WeightFormatInfo& row) {
  return &row == &weight_formats[static_cast<int>(row.format)];
}));

constexpr const WeightFormatInfo& info(WeightFormat format) {
  return weight_formats[static_cast<int>(format)];
}

// How the owner of a weight packs it.
struct WeightPacking {
  std::vector<GemmPass> passes;  // that read packed weights; empty: weights are not packed
  WeightFormat format = WeightFormat::native;
};

}  // namespace sy
