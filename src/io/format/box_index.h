// Boxes of one tensor that can be found by an overlap, without a loop over all of them.
#pragma once

#include <functional>
#include <utility>
#include <vector>

#include "dist/shard.h"

namespace sy {

// Returns whether the boxes have a common element. They have the same number of dimensions.
bool overlap(const Box& a, const Box& b);

// Boxes in the order of their first elements, and a binary tree of their bounding boxes.
// - A node of the tree is a range of the order; its children are the two halves of the range.
// - The bounding box of a node contains all boxes of its range. If it does not overlap a box,
//   then none of them does. Therefore find() is exact for any boxes.
// - The slices of a tensor are nearly in row-major order. A box then meets a few nodes of each of
//   the log2(n) levels.
class BoxIndex {
 public:
  BoxIndex() = default;
  // boxes: all of the same number of dimensions
  explicit BoxIndex(std::vector<Box> boxes);

  // Calls found(i) for each boxes[i] that overlaps `box`. Returns the number of boxes and bounding
  // boxes that were compared with it.
  Index find(const Box& box, const std::function<void(std::size_t i)>& found) const;

 private:
  void bound(std::size_t node, std::size_t first, std::size_t last);
  Index find(std::size_t node, std::size_t first, std::size_t last, const Box& box,
             const std::function<void(std::size_t)>& found) const;

  std::vector<Box> boxes_;
  std::vector<std::size_t> order_;  // of the boxes, by their first elements
  std::vector<Box> bounds_;         // of the nodes: the children of node i are 2 i + 1 and 2 i + 2
};

}  // namespace sy
