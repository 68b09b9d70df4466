// Attention masks: which keys a query sees, and which queries see a key. The host and kernels of
// GPUs share these functions. They are constexpr, so nvcc compiles them for both.
#pragma once

#include <algorithm>

#include "kernels/tensor.h"

namespace sy {

// Positions [begin, end).
template <class Int>
struct PositionRange {
  Int begin, end;
  constexpr Int size() const { return end - begin; }
};

// Sparse attention pattern: the keys that a query sees. Empty: all of them. Query p sees key j if
// one of these conditions holds. If causal, j <= p.
//   |p - j| < local                  it is among the nearest keys
//   p / block - j / block <= before  (block > 0) it is in the query's own block, or in one of
//                                    `before` blocks before it
//   j % block >= block - summary     (block > 0) it is one of the last `summary` keys of its block
//   (p - j) % stride == 0            (stride > 0)
//   j < global                       it is among the first keys
//   p < global                       the query is among the first ones
// A query sees itself: local, block or stride is not 0. stride and block are not combined. If not
// causal, block, stride and the window are 0, and local and global are not.
template <class Int>
struct BasicSparsePattern {
  Int local = 0, block = 0, summary = 0, stride = 0, global = 0, before = 0;

  // Both heads of Child et al. ("Generating Long Sequences with Sparse Transformers", 2019) as one.
  static constexpr BasicSparsePattern strided(Int stride) { return {.local = stride, .stride = stride}; }
  static constexpr BasicSparsePattern fixed(Int stride, Int summary) { return {.block = stride, .summary = summary}; }
  // Queries see their own chunk and some chunks before it (Kitaev et al., "Reformer", 2020).
  static constexpr BasicSparsePattern chunks(Int length, Int before) { return {.block = length, .before = before}; }
  // Beltagy et al. ("Longformer", 2020). The window is on both sides if not causal.
  static constexpr BasicSparsePattern longformer(Int window, Int global) { return {.local = window, .global = global}; }

  constexpr explicit operator bool() const { return local > 0 || block > 0 || stride > 0 || global > 0; }
  constexpr bool operator==(const BasicSparsePattern&) const = default;

  // Whether query p sees key j. The pattern must not be empty.
  constexpr bool sees(Int p, Int j) const {
    if ((p - j < local && j - p < local) || j < global || p < global) return true;
    if (stride > 0) return (p - j) % stride == 0;
    const Int back = block > 0 ? p / block - j / block : 0;
    return block > 0 && ((back >= 0 && back <= before) || j % block >= block - summary);
  }
  // First key from which on query p sees all keys up to its own.
  constexpr Int near(Int p) const {
    return std::max<Int>(0, std::min(p + 1 - local, block > 0 ? (p / block - before) * block : p + 1));
  }
  // Whether a query sees only its nearest and the first keys, but for the first queries.
  constexpr bool is_local() const { return *this && block == 0 && stride == 0; }
  // Number of these keys that the pattern hides from query p. If causal, all are at p or before.
  constexpr Int hidden_keys(Int p, PositionRange<Int> keys) const {
    if (!*this || p < global) return 0;
    const Int first = std::max(keys.begin, global);
    const Int later = std::max<Int>(0, keys.end - std::max(first, p + std::max<Int>(local, 1)));
    const PositionRange<Int> far{first, std::min(near(p), keys.end)};
    if (far.size() <= 0) return later;
    Int seen = 0;
    if (stride > 0) seen = (p - far.begin) / stride + 1 - (p - far.end + stride) / stride;
    if (block > 0) seen = summary_keys(far.end) - summary_keys(far.begin);
    return later + far.size() - seen;
  }

 private:
  // Number of summary keys before key `end`.
  constexpr Int summary_keys(Int end) const {
    return end / block * summary + std::max<Int>(0, end % block - block + summary);
  }
};

using SparsePattern = BasicSparsePattern<Index>;

// Attention mask. Query i of a sequence has position p = query_offset + i among the keys. It sees
// key j if all of these conditions hold:
//   j <= p                  (causal), or j < prefix_end[b, i] (prefix_end is not empty)
//   j > p - window          (window > 0)
//   j < p + window          (window > 0, not causal)
//   key j is in the document of query i    (document_start is not empty)
//   `sparse` allows it      (`sparse` is not empty; its p and j count from document_start)
//   j < key_lengths[b]      (key_lengths is not empty)
//   `selected` has it       (`selected` is not empty)
// If a query sees no key, the results of its sequence are undefined. All keys and values must be
// finite, even those that no query sees. Causal forward ignores keys after the last query, so these
// need not be finite.
struct AttentionMask {
  bool causal = true;
  // Number of keys that a query sees up to its own position; 0 means unlimited. If not causal, it
  // sees as many from its own position on.
  Index window = 0;
  Index query_offset = 0;  // number of keys before the first query, as in a cache; at least 0
  // [B, queries] i32 or empty. For several documents in a sequence: the key position of the first
  // token of each query's document. It must not decrease from one query of a sequence to the next.
  // If not causal, there are as many keys as queries, and query_offset is 0.
  ConstView document_start = {};
  SparsePattern sparse = {};  // its positions count from the start of the document
  // [B] i32 or empty. Replaces query_offset by one offset for each sequence, so that sequences of
  // different lengths share a cache. Only if causal, and only in forward. `sparse` and `bias` use
  // these positions. All keys and values must be finite.
  ConstView query_offsets = {};
  // [B] i32 or empty. Number of keys of each sequence; padding follows. At least 1. Only if not
  // causal.
  ConstView key_lengths = {};
  // [B, queries, n] i32 or empty. Positions of the keys that each query sees (ops::TopkKeys), in
  // ascending order; -1 after the last. The other conditions must hold for all of them. Only if
  // causal, and without `sparse`.
  ConstView selected = {};
  // [B, queries] i32 or empty. End of the visible prefix of each query's document, as a position of
  // keys: at most the end of the document's queries. It must not decrease from one query of a
  // sequence to the next. Only if causal, without window and `sparse`.
  ConstView prefix_end = {};
};

// Returns the mean number of pairs of a query and a later key that a visible prefix adds to causal
// attention. Its length is uniform from 1 to tokens - 1.
constexpr double mean_prefix_pairs(Index tokens) {
  return tokens > 2 ? static_cast<double>(tokens) * static_cast<double>(tokens - 2) / 6 : 0;
}

// Sizes and mask of one sequence, which is one document without a visible prefix. Int is the type
// of positions: Index, or int in kernels of GPUs, where it saves registers.
template <class Int>
struct MaskGeometry {
  // Sizes and positions are below it.
  static constexpr Int limit = Int{1} << (8 * sizeof(Int) - 3);

  Int Sq, Sk;  // numbers of queries and of keys
  Int query_offset;
  Int window;  // number of keys up to the query's own; 2 * limit if there is no window
  Int ahead;   // number of keys from the query's own on: 1 if causal, otherwise `window`
  BasicSparsePattern<Int> pattern;

  MaskGeometry(const AttentionMask& mask, Index queries, Index keys)
      : Sq(checked(queries)),
        Sk(checked(keys)),
        query_offset(checked(mask.query_offset)),
        window(mask.window > 0 ? static_cast<Int>(std::min<Index>(mask.window, 2 * limit)) : 2 * limit),
        ahead(mask.causal ? 1 : window),
        pattern{.local = limited(mask.sparse.local),
                .block = limited(mask.sparse.block),
                .summary = limited(mask.sparse.summary),
                .stride = limited(mask.sparse.stride),
                .global = limited(mask.sparse.global),
                .before = limited(mask.sparse.before)} {}
  static Int checked(Index n) {
    SY_ASSERT(n < limit, "attention with a dimension of {}", n);
    return static_cast<Int>(n);
  }

  // Keys that a query sees, without regard to the pattern. Neither end decreases from one query to
  // the next.
  constexpr PositionRange<Int> keys(Int query) const {
    const Int at = query_offset + query;
    return {at < window ? 0 : at - window + 1, std::min(at + ahead, Sk)};
  }
  // Queries from the first to the last that see a key, without regard to the pattern.
  constexpr PositionRange<Int> queries(Int key) const {
    const Int from = key - query_offset;
    return {std::max<Int>(from - ahead + 1, 0), from < Sq - window ? std::max<Int>(from + window, 0) : Sq};
  }
  // Whether `keys` contains the key, without a branch. The query may be after the last one.
  constexpr bool sees(Int query, Int key) const {
    const Int at = query_offset + query;
    return (key > at - window) & (key < std::min(at + ahead, Sk));
  }
  // Whether queries see no later key, but for a visible prefix.
  constexpr bool is_causal() const { return ahead == 1; }
  // Number of keys that a query sees.
  constexpr Int visible_keys(Int query) const {
    const PositionRange<Int> seen = keys(query);
    return seen.size() <= 0 ? 0 : seen.size() - pattern.hidden_keys(query_offset + query, seen);
  }

 private:
  static constexpr Int limited(Index n) { return static_cast<Int>(std::min<Index>(n, limit)); }
};

// Returns the number of pairs of a query and a key that it sees, in one sequence. A query sees at
// most `most` keys. Only a device knows documents, lengths and offsets. Therefore a sequence counts
// as one document without a visible prefix, and a cache as full.
inline double visible_pairs(const AttentionMask& mask, Index queries, Index keys, Index most) {
  MaskGeometry<Index> geometry(mask, queries, keys);
  if (mask.query_offsets) geometry.query_offset = keys - queries;
  double pairs = 0;
  for (Index i = 0; i < queries; ++i) pairs += static_cast<double>(std::min(geometry.visible_keys(i), most));
  return pairs;
}

}  // namespace sy
