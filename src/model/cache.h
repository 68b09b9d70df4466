// Key-value cache of generation. Keys and values are stored as attention reads them, after rotation
// and normalisation.
//
// A cache has slots, one for each sequence. In every layer, a slot has capacity for the latest
// tokens of its sequence. A layer with a window stores little more than the window. If its capacity
// is exceeded, the tokens that the next queries still see move to the front. The first stored token
// therefore depends on the window and on the slot.
#pragma once

#include <array>
#include <vector>

#include "kernels/arena.h"
#include "kernels/device.h"

namespace sy {

// Shape of the entry of one attention for a token, on this rank.
struct CacheSpec {
  Index heads;                   // number of heads of keys, and of values
  Index key_width, value_width;  // of one head
  Index window;                  // latest keys that a query sees, including its own; 0: all
  bool of_encoder = false;       // true: of the tokens of an encoder, which are cached once
  Index index_width = 0;         // of the key of the layer's indexer; 0: it has none
};

// Cache of one attention, as seen by a pass over B sequences.
struct LayerCache {
  View keys, values;  // [B, capacity, heads, width]
  View index_keys;    // [B, capacity, 1, CacheSpec::index_width]
  // [B] i32 cache position of each sequence's first token in the pass. Of an encoder: the number of
  // its tokens, at least 1.
  ConstView offsets;
  explicit operator bool() const { return keys.present(); }
};

class Cache {
 public:
  // - entries: one for each attention of the stage, in order
  // - slots: maximum number of sequences
  // - positions: maximum number of tokens in each of them
  // - tokens_per_pass: maximum number of tokens that a pass adds to one sequence
  // - encoder_positions: maximum number of tokens of an encoder; 0 without an encoder
  Cache(Device& device, const std::vector<CacheSpec>& entries, DType dtype, Index slots, Index positions,
        Index tokens_per_pass, Index encoder_positions = 0);

  // Returns the number of computed tokens of a slot's sequence.
  Index length(Index slot) const { return lengths_[static_cast<std::size_t>(slot)]; }
  Index bytes() const;

  // Sets the number of tokens of the encoder whose keys and values the slot gets. The next pass
  // over the slot writes them.
  void set_encoder_length(Index slot, Index tokens);

  // Begins a pass over the slots [first, first + count), with `tokens` next tokens of each: at most
  // `tokens_per_pass`. Frees capacity for them; the pass writes their keys and values.
  // Allocates the offsets of LayerCache from `arena`; they must stay until end().
  void begin(Index first, Index count, Index tokens, Arena& arena, Arena& scratch);
  // Returns the cache of one attention for that pass.
  LayerCache entry(Index index) const;
  // Ends the pass. The first `sequences` of its slots become longer by `tokens`; other computed
  // tokens are discarded.
  void end(Index sequences, Index tokens);

  // Ends the sequence of a slot. The sequence of `last`, the last slot in use, moves to the slot.
  // Slot `last` is then empty.
  void remove(Index slot, Index last);
  // Replaces the sequence of each slot i < from.size() by that of slot from[i].
  void reorder(const std::vector<Index>& from, Arena& scratch);
  // Forgets the tokens of a slot.
  void reset(Index slot);
  // Forgets the tokens of all slots.
  void clear();

 private:
  // Layers with the same window, which store the same tokens.
  struct Group {
    bool of_encoder;
    Index window, capacity;
    std::vector<Index> begin;  // [slots] index of the first stored token
    ConstView offsets;         // LayerCache::offsets of the pass
  };
  struct Layer {
    std::size_t group;
    Tensor keys, values, index_keys;  // [slots, capacity, heads, width]
    std::array<View, 3> tensors() const { return {keys.view(), values.view(), index_keys.view()}; }
  };
  // Returns all values that each slot has: [slots] each.
  std::vector<std::vector<Index>*> by_slot();
  // Returns the number of stored tokens of a slot, in the layers of a group.
  Index stored(const Group& group, Index slot) const;
  // Moves `retained` positions of a slot from `begin` to the front, in one layer.
  void shift(Layer& layer, Index slot, Index begin, Index retained, Arena& scratch);

  Device& device_;
  Index encoder_positions_;
  std::vector<Index> lengths_;          // [slots]
  std::vector<Index> encoder_lengths_;  // [slots]
  std::vector<Group> groups_;
  std::vector<Layer> layers_;
  Index first_ = 0, count_ = 0;  // slots of the current pass
};

}  // namespace sy
