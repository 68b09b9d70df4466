// What attention keeps of the tokens that a pass does not compute again: the keys and values of generation, rotated and
// normalised as they are read.
//
// A cache has slots, one for each sequence, and in every layer room for the keys and values of each slot's latest tokens.
// A layer with a window keeps little more than that: where its room ends, what the next queries still see moves to the
// front. Which token lies first therefore depends on the window and on the slot.
#pragma once

#include <vector>

#include "kernels/arena.h"
#include "kernels/backend.h"

namespace sy {

// What one layer keeps of each token, on this rank.
struct CacheSpec {
  Index heads;                   // of keys and of values
  Index key_width, value_width;  // of one head
  Index window;                  // latest keys that a query sees, its own included; 0: all
};

// One layer's part of a pass of B sequences.
struct LayerCache {
  View keys, values;  // [B, capacity, heads, width]
  ConstView offsets;  // [B] i32 where, among these, the pass's first token of each sequence belongs
  explicit operator bool() const { return keys.present(); }
};

class Cache {
 public:
  // slots: sequences at most. positions: tokens of one of them at most. at_once: tokens of one that a pass may add.
  Cache(Backend& backend, const std::vector<CacheSpec>& layers, DType dtype, Index slots, Index positions,
        Index at_once);

  Index slots() const { return static_cast<Index>(lengths_.size()); }
  Index positions() const { return positions_; }
  // How many tokens of a slot's sequence have been computed.
  Index length(Index slot) const { return lengths_[static_cast<std::size_t>(slot)]; }
  Index bytes() const;

  // Begins a pass over slots [first, first + count) that computes so many next tokens of each: makes room for them, and takes
  // from `arena` what the layers are told.
  void begin(Index first, Index count, Index tokens, Arena& arena, Arena& scratch);
  // One layer's part of that pass.
  LayerCache layer(Index layer) const;
  // Ends it. Of its slots the first `sequences` have so many tokens more; what else was computed is forgotten.
  void end(Index sequences, Index tokens);

  // Ends the sequence of a slot: that of slot `last`, the last one in use, takes its place.
  void remove(Index slot, Index last);
  // Forgets the tokens of a slot.
  void restart(Index slot);
  void clear();

 private:
  // Layers of one window, whose keys lie alike.
  struct Group {
    Index window, capacity;
    std::vector<Index> begin;  // [slots] which token lies first
    ConstView offsets;         // of the pass
  };
  struct Layer {
    std::size_t group;
    Tensor keys, values;  // [slots, capacity, heads, width]
  };
  // Makes room for so many tokens in one slot of one layer.
  void shift(Layer& layer, Index slot, Index begin, Index keep, Arena& scratch);

  Backend& backend_;
  Index positions_;
  std::vector<Index> lengths_;  // [slots]
  std::vector<Group> groups_;
  std::vector<Layer> layers_;
  Index first_ = 0, count_ = 0;  // slots of the pass
};

}  // namespace sy
