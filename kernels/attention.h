// Operands of attention: heads of queries, keys and values, and the form of scores.
#pragma once

#include "kernels/attention_mask.h"
#include "kernels/tensor.h"

namespace sy {

// Type, sizes and strides of heads.
struct HeadsLayout {
  DType dtype = DType::f32;
  Index sequences = 0, positions = 0, heads = 0, width = 0;
  Index token_stride = 0, sequence_stride = 0, head_stride = 0;  // in elements
};

// A strided view of head vectors: several heads of one width, for every position of every sequence.
// The vector of (b, s, h) begins at this element:
//   b * sequence_stride + s * token_stride + h * head_stride
// The view may cover some of the heads of a tensor, or some of the positions of a cache. It may
// also cover some columns of wider vectors, so that keys and values may share vectors.
template <class Byte>
struct BasicHeads : HeadsLayout {
  Byte* data = nullptr;

  BasicHeads() = default;
  // Heads [first, first + count) of x: [B, S, N, width].
  BasicHeads(BasicView<Byte> x, Index first, Index count)
      : BasicHeads({.dtype = x.dtype(),
                    .sequences = x.dim(0),
                    .positions = x.dim(1),
                    .heads = count,
                    .width = x.dim(3),
                    .token_stride = x.dim(2) * x.dim(3),
                    .sequence_stride = x.dim(1) * x.dim(2) * x.dim(3),
                    .head_stride = x.dim(3)},
                   x.bytes()) {
    SY_ASSERT(first >= 0 && count >= 0 && first + count <= x.dim(2), "heads {}+{} of {}", first, count,
              x.shape().str());
    if (data) data += first * width * size_of(dtype);
  }
  // All heads of x: [B, S, N, width].
  template <class From>
  BasicHeads(BasicView<From> x) : BasicHeads(x, 0, x.dim(2)) {}
  BasicHeads(const HeadsLayout& layout, Byte* first) : HeadsLayout(layout), data(first) {}
  operator BasicHeads<const std::byte>() const { return {*this, data}; }

  Shape shape() const { return {sequences, positions, heads, width}; }
  Index elements() const { return sequences * positions * heads * width; }
  // Contiguous view from the first element to the last, including gaps between vectors.
  BasicView<Byte> span() const {
    const Index last =
        (sequences - 1) * sequence_stride + (positions - 1) * token_stride + (heads - 1) * head_stride + width;
    return {data, {elements() > 0 ? last : 0}, dtype};
  }
  // Elements [first, first + count) of each vector.
  BasicHeads columns(Index first, Index count) const {
    SY_ASSERT(first >= 0 && count >= 0 && first + count <= width, "columns {}+{} of {}", first, count, shape().str());
    BasicHeads slice = *this;
    slice.width = count;
    if (data) slice.data += first * size_of(dtype);
    return slice;
  }
  // Whether the vectors of the heads of one position are contiguous.
  bool is_contiguous() const { return heads <= 1 || head_stride == width; }
  // Sequences [begin, begin + count).
  BasicHeads slice_sequences(Index begin, Index count) const {
    SY_ASSERT(begin >= 0 && count >= 0 && begin + count <= sequences, "sequences {}+{} of {}", begin, count,
              shape().str());
    BasicHeads slice = *this;
    slice.sequences = count;
    if (data) slice.data += begin * sequence_stride * size_of(dtype);
    return slice;
  }
};

using Heads = BasicHeads<std::byte>;
using ConstHeads = BasicHeads<const std::byte>;

template <class Byte>
BasicHeads<Byte> heads_of(BasicView<Byte> x, Index first, Index count) {
  return {x, first, count};
}

// score = scale q . k, capped, + bias. The weight of a key is exp(score), divided by the sum over
// the query's keys. With sinks, exp(sink) is added to the sum, so that a head may attend to
// nothing.
struct AttentionDesc {
  float scale = 1.0f;    // of the scores, usually 1/sqrt(width of queries and keys)
  float softcap = 0.0f;  // cap * tanh(score / cap); 0 means no cap
  AttentionMask mask = {};
  // [H, n] f32 or empty; only if softcap is 0. The bias of the query at p and key j is
  // bias[h, bias_origin() - (p - j)], so that it has the order of the keys. If causal, n is at
  // least query_offset + queries. With query_offsets, n is at least the number of keys, as the host
  // does not know the offsets. If not causal, or if two_sided_bias, n is odd and its middle is the
  // bias of distance 0.
  ConstView bias = {};
  // True: `bias` is of distances to both sides, although the mask is causal. A visible prefix needs
  // it (AttentionMask::prefix_end).
  bool two_sided_bias = false;
  bool has_one_sided_bias() const { return mask.causal && !two_sided_bias; }
  // Index of the bias of distance 0 in a row of `bias`.
  Index bias_origin() const { return has_one_sided_bias() ? bias.dim(1) - 1 : bias.dim(1) / 2; }
  ConstView sinks = {};  // [H] f32 or empty
};

}  // namespace sy
