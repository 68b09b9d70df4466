// Best-fit packing of documents into windows (Ding et al., "Fewer Truncations Improve Language
// Modeling", 2024).
//
// A document that fits a window is in one window. A longer one gives windows of its own, and its
// rest is packed like a document. Consecutive documents form groups, each of which is packed alone,
// so memory does not depend on their number and a window is packed again when it is read. In a
// group the longest document comes first. It goes to the window with the least space that suffices,
// or to a new window.
#pragma once

#include <vector>

#include "kernels/philox.h"
#include "src/data/megatron.h"

namespace sy {

class Packing {
 public:
  static constexpr Index documents_per_group = 4096;

  // Tokens of one document in a window.
  struct Segment {
    Range tokens;
    bool ends_document;  // false: the document goes on after the segment
  };

  // Packs all groups once, to count windows. order: keys the order of equally long documents, and
  // that of the documents of a window.
  Packing(IndexedTokens tokens, Index seq_len, RandomStream order);
  Index windows() const { return first_window_.back(); }
  // Returns the segments of a window, whose tokens are at most seq_len in all.
  std::vector<Segment> window(Index i) const;

 private:
  std::vector<std::vector<Segment>> pack(Index group) const;

  IndexedTokens tokens_;
  Index seq_len_;
  RandomStream order_;
  std::vector<Index> first_window_;  // [groups + 1]
};

}  // namespace sy
