#include "src/io/format/box_index.h"

#include <algorithm>
#include <bit>
#include <numeric>

namespace sy {
namespace {

constexpr std::size_t leaf_boxes = 4;  // a node of at most as many boxes has no children

// Extends `bounds` to contain `box`.
void extend(Box& bounds, const Box& box) {
  for (int d = 0; d < box.size.size(); ++d) {
    const Index end = std::max(bounds.begin[d] + bounds.size[d], box.begin[d] + box.size[d]);
    bounds.begin[d] = std::min(bounds.begin[d], box.begin[d]);
    bounds.size[d] = end - bounds.begin[d];
  }
}

}  // namespace

bool overlap(const Box& a, const Box& b) {
  for (int d = 0; d < a.size.size(); ++d)
    if (a.begin[d] + a.size[d] <= b.begin[d] || b.begin[d] + b.size[d] <= a.begin[d]) return false;
  return true;
}

BoxIndex::BoxIndex(std::vector<Box> boxes) : boxes_(std::move(boxes)), order_(boxes_.size()) {
  if (boxes_.empty()) return;
  std::iota(order_.begin(), order_.end(), std::size_t{0});
  std::ranges::stable_sort(order_, [&](std::size_t a, std::size_t b) {
    return std::ranges::lexicographical_compare(boxes_[a].begin, boxes_[b].begin);
  });
  // Halving stops after as many levels as the number of leaves has bits.
  const std::size_t leaves = std::bit_ceil((boxes_.size() + leaf_boxes - 1) / leaf_boxes);
  bounds_.resize(2 * leaves - 1);
  bound(0, 0, boxes_.size());
}

void BoxIndex::bound(std::size_t node, std::size_t first, std::size_t last) {
  bounds_[node] = boxes_[order_[first]];
  for (std::size_t i = first; i < last; ++i) extend(bounds_[node], boxes_[order_[i]]);
  if (last - first <= leaf_boxes) return;
  const std::size_t middle = first + (last - first) / 2;
  bound(2 * node + 1, first, middle);
  bound(2 * node + 2, middle, last);
}

Index BoxIndex::find(const Box& box, const std::function<void(std::size_t i)>& found) const {
  return boxes_.empty() ? 0 : find(0, 0, boxes_.size(), box, found);
}

Index BoxIndex::find(std::size_t node, std::size_t first, std::size_t last, const Box& box,
                     const std::function<void(std::size_t)>& found) const {
  Index compared = 1;
  if (!overlap(bounds_[node], box)) return compared;
  if (last - first <= leaf_boxes) {
    for (std::size_t i = first; i < last; ++i, ++compared)
      if (overlap(boxes_[order_[i]], box)) found(order_[i]);
    return compared;
  }
  const std::size_t middle = first + (last - first) / 2;
  compared += find(2 * node + 1, first, middle, box, found);
  return compared + find(2 * node + 2, middle, last, box, found);
}

}  // namespace sy
