// Who owns which box of which tensor, and which range of which flat buffer. Pure: any rank can ask for any other.
#pragma once

#include <string>
#include <vector>

#include "dist/mesh.h"
#include "kernels/tensor.h"

namespace sy {

// Which mesh axis splits each dimension of a parameter; those of one grid.
using Split = std::array<Axis, max_dims>;

// The axes that split a parameter.
Axes axes_of(const Split& split);
// The axes over which its gradient is summed: the ranks along them hold the same part of it, and each sees what its own tokens
// and parts of other parameters add. It follows from the split:
//   not split              dp x tp, the stage
//   over tp                dp
//   over ep and etp        edp
Axes summed_axes(const Split& split);

struct Range {
  Index begin = 0, end = 0;
  Index size() const { return end - begin; }
};

// Piece `index` of [0, n) cut in `parts` runs of ceil(n / parts); the last ones may be shorter or empty.
Range piece(Index n, int parts, int index);

struct Box {
  Shape begin, size;
  Index elements() const { return size.elements(); }
};

// How many coordinates of an axis of `parts` hold the same element of a dimension of n: more than one where n < parts.
inline int replicas_of(Index n, int parts) {
  return n > 0 && n < parts ? static_cast<int>(parts / n) : 1;
}

// The part of a tensor of this shape that a rank at `coord` holds. A dimension smaller than its axis (kv heads with
// K < tp) is replicated: coordinate c holds index c * n / parts.
Box owned_box(const Shape& shape, const Split& split, const Layout& layout, const Coord& coord);

// A run [begin, end) of the row-major elements of a box, as boxes within it, in order. At most 2 * dims - 1 of them.
std::vector<Box> boxes_of_run(const Shape& box, Range run);

}  // namespace sy
