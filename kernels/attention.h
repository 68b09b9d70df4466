// The operands of attention: heads of queries, keys and values, wherever they lie, and which keys a query sees.
#pragma once

#include <algorithm>

#include "kernels/tensor.h"

namespace sy {

// For every position of every sequence, the vectors of several heads, all of one width. The vector of (b, s, h) begins
//   b * sequence_stride + s * token_stride + h * head_stride
// elements after the first one. Such an operand may be part of a tensor that holds more heads, part of a cache that holds
// more positions, or some columns of wider vectors, so that keys and values may share vectors.
template <class Byte>
struct BasicHeads {
  Byte* data = nullptr;
  DType dtype = DType::f32;
  Index sequences = 0, positions = 0, heads = 0, width = 0;
  Index token_stride = 0, sequence_stride = 0, head_stride = 0;  // in elements

  BasicHeads() = default;
  // Heads [first, first + count) of x: [B, S, N, width].
  BasicHeads(BasicView<Byte> x, Index first, Index count)
      : data(x.bytes()),
        dtype(x.dtype()),
        sequences(x.dim(0)),
        positions(x.dim(1)),
        heads(count),
        width(x.dim(3)),
        token_stride(x.dim(2) * x.dim(3)),
        sequence_stride(x.dim(1) * token_stride),
        head_stride(width) {
    SY_ASSERT(first >= 0 && count >= 0 && first + count <= x.dim(2), "heads {}+{} of {}", first, count,
              x.shape().str());
    if (data) data += first * width * size_of(dtype);
  }
  // All heads of x: [B, S, N, width].
  template <class From>
  BasicHeads(BasicView<From> x) : BasicHeads(x, 0, x.dim(2)) {}
  operator BasicHeads<const std::byte>() const {
    BasicHeads<const std::byte> same;
    same.data = data;
    same.dtype = dtype;
    same.sequences = sequences;
    same.positions = positions;
    same.heads = heads;
    same.width = width;
    same.token_stride = token_stride;
    same.sequence_stride = sequence_stride;
    same.head_stride = head_stride;
    return same;
  }

  Shape shape() const { return {sequences, positions, heads, width}; }
  Index elements() const { return sequences * positions * heads * width; }
  // From the first element to the last, with all that lies between the vectors.
  BasicView<Byte> span() const {
    const Index last =
        (sequences - 1) * sequence_stride + (positions - 1) * token_stride + (heads - 1) * head_stride + width;
    return {data, {elements() > 0 ? last : 0}, dtype};
  }
  // Elements [first, first + count) of each vector alone.
  BasicHeads columns(Index first, Index count) const {
    SY_ASSERT(first >= 0 && count >= 0 && first + count <= width, "columns {}+{} of {}", first, count, shape().str());
    BasicHeads part = *this;
    part.width = count;
    if (data) part.data += first * size_of(dtype);
    return part;
  }
  // Whether the vectors of a position's heads follow one another without gaps.
  bool side_by_side() const { return heads <= 1 || head_stride == width; }
  // The same of sequences [begin, begin + count) alone.
  BasicHeads of_sequences(Index begin, Index count) const {
    SY_ASSERT(begin >= 0 && count >= 0 && begin + count <= sequences, "sequences {}+{} of {}", begin, count,
              shape().str());
    BasicHeads part = *this;
    part.sequences = count;
    if (data) part.data += begin * sequence_stride * size_of(dtype);
    return part;
  }
};

using Heads = BasicHeads<std::byte>;
using ConstHeads = BasicHeads<const std::byte>;

template <class Byte>
BasicHeads<Byte> heads_of(BasicView<Byte> x, Index first, Index count) {
  return {x, first, count};
}

// Which earlier keys a query sees, where not all. Query p sees key j <= p where one of these holds:
//   p - j < local                    it is among the latest keys
//   j / block == p / block           (block > 0) it is in the query's own block
//   j % block >= block - summary     (block > 0) it is one of the last `summary` keys of its block
//   (p - j) % stride == 0            (stride > 0)
//   j < global                       it is among the first keys
// A query sees itself: local, block or stride is not 0. stride and block are not combined.
struct Sparsity {
  Index local = 0, block = 0, summary = 0, stride = 0, global = 0;

  // The two heads of Child et al. ("Generating Long Sequences with Sparse Transformers", 2019), as one.
  static Sparsity strided(Index stride) { return {.local = stride, .stride = stride}; }
  static Sparsity fixed(Index stride, Index summary) { return {.block = stride, .summary = summary}; }
  // Beltagy et al. ("Longformer", 2020), causal.
  static Sparsity longformer(Index window, Index global) { return {.local = window, .global = global}; }

  explicit operator bool() const { return local > 0 || block > 0 || stride > 0 || global > 0; }
  // The first key from which on query p sees all, up to its own.
  Index near(Index p) const {
    return std::max<Index>(0, std::min(p + 1 - local, block > 0 ? p / block * block : p + 1));
  }
  bool operator==(const Sparsity&) const = default;
};

// Which keys a query sees. Query i of a sequence stands at position p = query_offset + i of the keys, and sees key j
//   where j <= p (causal),  j > p - window (window > 0),  j >= first_key[b, i] (where given),
//   and `sparse`, where it says anything, lets it see the key; p and j count from first_key there.
// Every query must see at least one key. All keys and values must be finite, even those that no query sees. The
// exception is what lies behind the last query of a causal forward call: it is not looked at.
struct Visibility {
  bool causal = true;
  Index window = 0;        // where causal: how many of the latest keys a query sees, its own included; 0: all
  Index query_offset = 0;  // how many keys come before the first query, as in a cache; at least 0
  // [B, queries] i32, where causal and several documents share a sequence: the position, among the keys, of the first
  // token of each query's document. It must not fall from one query of a sequence to the next.
  ConstView first_key = {};
  Sparsity sparse = {};  // where causal
  // [B] i32, where causal, and forward alone: the query_offset of each sequence, in place of the one above. So sequences of
  // different lengths lie in one cache. A pattern and a bias go by these positions. All keys and values must be finite.
  ConstView query_offsets = {};
};

// score = scale q . k, capped, + bias. The weights of a query's keys are exp(score) divided by the sum of these and, with
// sinks, of exp(sink), so that a head may attend to nothing.
struct AttentionDesc {
  float scale = 1.0f;    // of the scores, usually 1/sqrt(width of queries and keys)
  float softcap = 0.0f;  // cap * tanh(score / cap); 0: none
  Visibility visible = {};
  // [H, n] f32, where causal and there is no cap: of the query at p and key j it is bias[h, n - 1 - (p - j)], so that it
  // lies as keys do. n is at least query_offset + queries; with query_offsets, which the host does not know, at least the
  // number of keys, as no query stands behind the last one.
  ConstView bias = {};
  ConstView sinks = {};  // [H] f32, or none
};

}  // namespace sy
