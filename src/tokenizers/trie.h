// Maps for the inner loops of tokenizers.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

namespace sy {

// Hash map from 64-bit keys, except ~0, to values. put() replaces an existing value.
class FlatMap {
 public:
  void put(std::uint64_t key, std::uint64_t value) {
    if (2 * (used_ + 1) > slots_.size()) grow();
    Slot& slot = slots_[slot_of(key)];
    used_ += slot.key == none;
    slot = {key, value};
  }
  // Returns nullptr if the key is not found.
  const std::uint64_t* find(std::uint64_t key) const {
    if (slots_.empty()) return nullptr;
    const Slot& slot = slots_[slot_of(key)];
    return slot.key == none ? nullptr : &slot.value;
  }

 private:
  static constexpr std::uint64_t none = ~std::uint64_t{0};
  struct Slot {
    std::uint64_t key = none, value = 0;
  };
  // Returns the slot of the key, or the free slot for it. There is always one.
  std::size_t slot_of(std::uint64_t key) const {
    std::uint64_t hash = key * 0x9E3779B97F4A7C15u;
    hash ^= hash >> 32;
    std::size_t at = hash & (slots_.size() - 1);
    while (slots_[at].key != none && slots_[at].key != key) at = (at + 1) & (slots_.size() - 1);
    return at;
  }
  void grow() {
    std::vector<Slot> old(slots_.empty() ? 16 : 2 * slots_.size());
    old.swap(slots_);
    for (const Slot& slot : old)
      if (slot.key != none) slots_[slot_of(slot.key)] = slot;
  }
  std::vector<Slot> slots_;  // their number is a power of two; at most half are used
  std::size_t used_ = 0;
};

// Trie of texts with numbers of 0 or more.
class Trie {
 public:
  void put(std::string_view text, std::int32_t number) {
    std::uint64_t node = 0;
    for (const char byte : text) {
      const std::uint64_t* next = edges_.find(edge(node, byte));
      if (!next) {
        edges_.put(edge(node, byte), numbers_.size());
        numbers_.push_back(-1);
      }
      node = next ? *next : numbers_.size() - 1;
    }
    numbers_[node] = number;
  }
  // Calls visit(end, number) for each text that is text[begin, end), the shortest first.
  template <class Visit>
  void for_each_prefix(std::string_view text, std::size_t begin, const Visit& visit) const {
    std::uint64_t node = 0;
    for (std::size_t end = begin; end < text.size();) {
      const std::uint64_t* next = edges_.find(edge(node, text[end++]));
      if (!next) return;
      node = *next;
      if (numbers_[node] >= 0) visit(end, numbers_[node]);
    }
  }

 private:
  static std::uint64_t edge(std::uint64_t node, char byte) { return node << 8 | static_cast<unsigned char>(byte); }
  FlatMap edges_;
  std::vector<std::int32_t> numbers_ = {-1};  // by node; -1 if no text ends there
};

}  // namespace sy
