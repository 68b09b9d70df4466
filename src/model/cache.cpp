#include "src/model/cache.h"

#include <algorithm>

#include "kernels/ops/elementwise.h"

namespace sy {

namespace {

// Returns positions [begin, begin + count) of one slot of x: [slots, capacity, heads, width].
View slot_positions(View x, Index slot, Index begin, Index count) {
  const Shape positions{x.dim(1), x.dim(2) * x.dim(3)};
  return x.rows(slot, 1).reshape(positions).rows(begin, count);
}

}  // namespace

Cache::Cache(Device& device, const std::vector<CacheSpec>& entries, DType dtype, Index slots, Index positions,
             Index tokens_per_pass, Index encoder_positions)
    : device_(device),
      encoder_positions_(encoder_positions),
      lengths_(static_cast<std::size_t>(slots)),
      encoder_lengths_(lengths_.size()) {
  for (const CacheSpec& spec : entries) {
    const auto same = std::find_if(groups_.begin(), groups_.end(), [&](const Group& g) {
      return g.window == spec.window && g.of_encoder == spec.of_encoder;
    });
    const auto group = static_cast<std::size_t>(same - groups_.begin());
    if (same == groups_.end()) {
      // A query sees window - 1 keys besides its own; a pass adds tokens_per_pass tokens to these.
      const Index capacity = spec.of_encoder   ? encoder_positions
                             : spec.window > 0 ? std::min(positions, spec.window - 1 + tokens_per_pass)
                                               : positions;
      groups_.push_back({spec.of_encoder, spec.window, capacity, std::vector<Index>(lengths_.size()), {}});
    }
    const Index capacity = groups_[group].capacity;
    layers_.push_back({group, device.tensor({slots, capacity, spec.heads, spec.key_width}, dtype),
                       device.tensor({slots, capacity, spec.heads, spec.value_width}, dtype),
                       device.tensor({slots, capacity, 1, spec.index_width}, dtype)});
  }
}

Index Cache::bytes() const {
  Index bytes = 0;
  for (const Layer& layer : layers_)
    for (const View x : layer.tensors()) bytes += x.size_bytes();
  return bytes;
}

void Cache::begin(Index first, Index count, Index tokens, Arena& arena, Arena& scratch) {
  first_ = first;
  count_ = count;
  for (std::size_t g = 0; g < groups_.size(); ++g) {
    Group& group = groups_[g];
    std::vector<std::int32_t> offsets;
    for (Index slot = first; slot < first + count; ++slot) {
      if (group.of_encoder) {
        const Index length = std::max<Index>(1, encoder_lengths_[static_cast<std::size_t>(slot)]);
        offsets.push_back(static_cast<std::int32_t>(length));
        continue;
      }
      Index& begin = group.begin[static_cast<std::size_t>(slot)];
      Index stored = length(slot) - begin;
      if (stored + tokens > group.capacity) {
        const Index retained = group.window > 0 ? std::min(group.window - 1, stored) : stored;
        SY_ASSERT(retained + tokens <= group.capacity, "{} more tokens in slot {}, which has {} of {}", tokens, slot,
                  stored, group.capacity);
        for (Layer& layer : layers_)
          if (layer.group == g) shift(layer, slot, stored - retained, retained, scratch);
        begin += stored - retained;
        stored = retained;
      }
      offsets.push_back(static_cast<std::int32_t>(stored));
    }
    const View on_device = arena.i32({count});
    device_.to_device(offsets.data(), on_device);
    group.offsets = on_device;
  }
}

void Cache::shift(Layer& layer, Index slot, Index begin, Index retained, Arena& scratch) {
  for (const View x : layer.tensors()) {
    const Arena::Scope scope(scratch);
    const View from = slot_positions(x, slot, begin, retained), temporary = scratch.take(from.shape(), from.dtype());
    run(device_, ops::Copy{.x = from, .y = temporary});  // source and destination may overlap
    run(device_, ops::Copy{.x = temporary, .y = slot_positions(x, slot, 0, retained)});
  }
}

LayerCache Cache::entry(Index index) const {
  const Layer& entry = layers_[static_cast<std::size_t>(index)];
  return {entry.keys.view().rows(first_, count_), entry.values.view().rows(first_, count_),
          entry.index_keys.view().rows(first_, count_), groups_[entry.group].offsets};
}

void Cache::end(Index sequences, Index tokens) {
  SY_ASSERT(sequences <= count_, "{} sequences of {}", sequences, count_);
  for (Index slot = first_; slot < first_ + sequences; ++slot) lengths_[static_cast<std::size_t>(slot)] += tokens;
}

std::vector<std::vector<Index>*> Cache::by_slot() {
  std::vector<std::vector<Index>*> all{&lengths_, &encoder_lengths_};
  for (Group& group : groups_) all.push_back(&group.begin);
  return all;
}

void Cache::remove(Index slot, Index last) {
  const auto to = static_cast<std::size_t>(slot), from = static_cast<std::size_t>(last);
  for (const Layer& layer : layers_) {
    const Index count = stored(groups_[layer.group], last);
    if (slot == last || count == 0) continue;
    for (const View x : layer.tensors())
      run(device_, ops::Copy{.x = slot_positions(x, last, 0, count), .y = slot_positions(x, slot, 0, count)});
  }
  for (std::vector<Index>* values : by_slot()) {
    (*values)[to] = (*values)[from];
    (*values)[from] = 0;
  }
}

Index Cache::stored(const Group& group, Index slot) const {
  const auto at = static_cast<std::size_t>(slot);
  return group.of_encoder ? encoder_lengths_[at] : lengths_[at] - group.begin[at];
}

void Cache::set_encoder_length(Index slot, Index tokens) {
  SY_ASSERT(tokens > 0 && tokens <= encoder_positions_, "{} tokens of an encoder, in a cache of {}", tokens,
            encoder_positions_);
  encoder_lengths_[static_cast<std::size_t>(slot)] = tokens;
}

void Cache::reorder(const std::vector<Index>& from, Arena& scratch) {
  const auto moves = [&](std::size_t slot) { return from[slot] != static_cast<Index>(slot); };
  for (const Layer& layer : layers_)
    for (const View x : layer.tensors()) {
      const Arena::Scope scope(scratch);
      // All sequences that move are copied before any is overwritten.
      std::vector<View> copies(from.size());
      for (std::size_t slot = 0; slot < from.size(); ++slot) {
        const Index count = moves(slot) ? stored(groups_[layer.group], from[slot]) : 0;
        if (count == 0) continue;
        const View source = slot_positions(x, from[slot], 0, count);
        copies[slot] = scratch.take(source.shape(), source.dtype());
        run(device_, ops::Copy{.x = source, .y = copies[slot]});
      }
      for (std::size_t slot = 0; slot < from.size(); ++slot)
        if (copies[slot])
          run(device_,
              ops::Copy{.x = copies[slot], .y = slot_positions(x, static_cast<Index>(slot), 0, copies[slot].dim(0))});
    }
  for (std::vector<Index>* values : by_slot()) {
    const std::vector<Index> before = *values;
    for (std::size_t slot = 0; slot < from.size(); ++slot)
      (*values)[slot] = before[static_cast<std::size_t>(from[slot])];
  }
}

void Cache::reset(Index slot) {
  for (std::vector<Index>* values : by_slot()) (*values)[static_cast<std::size_t>(slot)] = 0;
}

void Cache::clear() {
  for (std::vector<Index>* values : by_slot()) std::ranges::fill(*values, 0);
}

}  // namespace sy
