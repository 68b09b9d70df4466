#include "dist/shard.h"

#include <algorithm>

namespace sy {

Axes axes_of(const Split& split) {
  Axes axes;
  for (const Axis axis : split) axes = axes | axis;
  return axes;
}

Axes summed_axes(const Split& split) {
  const Axes axes = axes_of(split);
  return grid_of(axes) - axes;
}

Range block_range(Index n, int num_blocks, int index) {
  const Index size = ceil_div(n, num_blocks);
  return {std::min(n, size * index), std::min(n, size * (index + 1))};
}

Box full_box(const Shape& shape) {
  Box box{shape, shape};
  for (int i = 0; i < shape.size(); ++i) box.begin[i] = 0;
  return box;
}

Box owned_box(const Shape& shape, const Split& split, const Layout& layout, const Coord& coord) {
  Box box;
  for (int d = 0; d < shape.size(); ++d) {
    const auto [axis_size, index] = group_rank(layout, coord, split[d]);
    Range r = block_range(shape[d], axis_size, index);
    if (shape[d] > 0 && shape[d] < axis_size) {  // replicated
      const Index i = index * shape[d] / axis_size;
      r = {i, i + 1};
    }
    box.begin.push_back(r.begin);
    box.size.push_back(r.size());
  }
  return box;
}

std::vector<Box> boxes_of_range(const Shape& box, Range range) {
  std::vector<Box> out;
  if (range.size() <= 0) return out;
  const int n = box.size();
  if (n == 0) return {{Shape{}, Shape{}}};
  Index at = range.begin;
  while (at < range.end) {
    // d: the outermost dimension along which a whole slab starts at `at` and fits into the range;
    // otherwise the innermost one.
    int d = 0;
    while (d < n - 1 && (at % box.elements(d + 1) != 0 || at + box.elements(d + 1) > range.end)) ++d;
    const Index slab = box.elements(d + 1);
    const Index i = at / slab % box[d];
    const Index count = std::min((range.end - at) / slab, box[d] - i);
    Box b;
    for (int k = 0; k < n; ++k) {
      b.begin.push_back(k <= d ? at / box.elements(k + 1) % box[k] : 0);
      b.size.push_back(k < d ? 1 : k == d ? count : box[k]);
    }
    out.push_back(b);
    at += count * slab;
  }
  return out;
}

}  // namespace sy
