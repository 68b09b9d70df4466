// Shards: boxes of tensors and block ranges of flat buffers that each rank owns.
// Pure functions: any rank can compute them for any other rank.
#pragma once

#include <vector>

#include "dist/mesh.h"
#include "kernels/tensor.h"

namespace sy {

// Mesh axis that splits each dimension of a parameter. All axes are of one grid.
using Split = std::array<Axis, max_dims>;

// Returns the axes that split a parameter.
Axes axes_of(const Split& split);
// Returns the axes over which the gradient of a parameter is summed.
// Ranks along these axes hold the same shard. Each has the gradient of its own tokens, and of its
// own shards of other parameters.
//   not split              dp x tp, the stage
//   over tp                dp
//   over ep and etp        edp
Axes summed_axes(const Split& split);

struct Range {
  Index begin = 0, end = 0;
  Index size() const { return end - begin; }
};

// Returns block `index` of [0, n) divided into blocks of ceil(n / num_blocks) elements.
// The last blocks may be shorter or empty.
Range block_range(Index n, int num_blocks, int index);

// Box of a tensor: first index and size along each dimension.
struct Box {
  Shape begin, size;
  Index elements() const { return size.elements(); }
};

// Returns the box that covers a whole tensor.
Box full_box(const Shape& shape);

// Returns how many coordinates of an axis hold the same index of a dimension of n.
// It is greater than 1 only if n < axis_size.
inline int num_replicas(Index n, int axis_size) {
  return n > 0 && n < axis_size ? static_cast<int>(axis_size / n) : 1;
}

// Returns the box of a tensor of this shape that the rank at `coord` holds.
// A dimension of n smaller than the size of its axis is replicated (kv heads with K < tp).
// Coordinate c then holds index c * n / size.
Box owned_box(const Shape& shape, const Split& split, const Layout& layout, const Coord& coord);

// Returns a range of a box's row-major elements as boxes within the box, in order.
// There are at most 2 * dims - 1 of them.
std::vector<Box> boxes_of_range(const Shape& box, Range range);

}  // namespace sy
