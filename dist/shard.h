// Shards: boxes of tensors and block ranges of flat buffers that each rank owns.
// Pure functions: any rank can compute them for any other rank.
#pragma once

#include <string>
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

// Returns block `index` of [0, n) divided into `parts` blocks of ceil(n / parts) elements.
// The last blocks may be shorter or empty.
Range piece(Index n, int parts, int index);

// Box of a tensor: first index and size along each dimension.
struct Box {
  Shape begin, size;
  Index elements() const { return size.elements(); }
};

// Returns how many coordinates of an axis of size `parts` hold the same index of a dimension of n.
// It is greater than 1 only if n < parts.
inline int replicas_of(Index n, int parts) {
  return n > 0 && n < parts ? static_cast<int>(parts / n) : 1;
}

// Returns the box of a tensor of this shape that the rank at `coord` holds.
// A dimension of n smaller than its axis of size `parts` is replicated (kv heads with K < tp).
// Coordinate c then holds index c * n / parts.
Box owned_box(const Shape& shape, const Split& split, const Layout& layout, const Coord& coord);

// Returns the range `run` of a box's row-major elements as boxes within the box, in order.
// There are at most 2 * dims - 1 of them.
std::vector<Box> boxes_of_run(const Shape& box, Range run);

}  // namespace sy
