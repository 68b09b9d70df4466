// Attention with locality-sensitive hashing. A task has one head of one sequence, so no two tasks
// write the same memory. A chunk of queries meets the keys of its chunks in blocks. One online
// softmax spans all rounds. Keys have the width hd, and values vd. FLOPs of a pair of a query and a
// seen key:
//   forward    2 (hd + vd) for two products, and 24 for the softmax
//   backward   2 (3 hd + 2 vd) for five products, and 26
// Tiles (tile.h) compute all products. A token costs 2 hd for each column of the rotations.
#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

#include "kernels/cpu/attention.h"
#include "kernels/cpu/cpu_device.h"
#include "kernels/ops/lsh.h"

namespace sy::cpu {
namespace {

using namespace attention;

// The tokens of one head of a sequence in the order of attention. -1: no token.
class ChunkRing {
 public:
  // order, lengths: as of ops::LshAttentionForward. b, head: of the task
  ChunkRing(ConstHeads x, ConstView order, ConstView lengths, const LshDesc& desc, Index b, Index head)
      : before_(desc.before), after_(desc.after) {
    if (order) {
      entries_ = order.dim(2) * order.dim(3);
      order_ = order.i32() + (b * x.heads + head) * entries_;
      chunk_ = desc.chunk;
    } else {
      chunk_ = std::min(desc.chunk, std::max<Index>(x.positions, 1));
      entries_ = round_up(x.positions, chunk_);
      length_ = lengths ? lengths.i32()[b] : x.positions;
      if (x.positions <= desc.chunk) before_ = after_ = 0;
    }
  }
  Index chunks() const { return entries_ / chunk_; }
  // Sets the tokens of a chunk.
  void tokens(Index chunk, std::vector<std::int32_t>& to) const {
    to.clear();
    append(chunk, to);
  }
  // Sets the tokens whose keys the queries of a chunk see, without regard to positions.
  void seen(Index chunk, std::vector<std::int32_t>& to) const {
    to.clear();
    const Index n = chunks();
    for (Index step = -before_; step <= after_; ++step) append(((chunk + step) % n + n) % n, to);
  }

 private:
  void append(Index chunk, std::vector<std::int32_t>& to) const {
    for (Index i = chunk * chunk_; i < (chunk + 1) * chunk_; ++i) {
      const Index token = order_ ? order_[i] : i < length_ ? i : -1;
      if (token >= 0) to.push_back(static_cast<std::int32_t>(token));
    }
  }

  Index before_, after_, chunk_ = 1, entries_ = 0, length_ = 0;
  const std::int32_t* order_ = nullptr;
};

// Vectors and scores of one head of a sequence.
class LshHead {
 public:
  // with_gradients: reserves memory for those, too
  LshHead(ConstHeads x, ConstHeads v, const LshDesc& desc, Index b, Index head, bool with_gradients)
      : desc_(desc), S_(x.positions), hd_(x.width), vd_(v.width), sees_others(static_cast<std::size_t>(S_)) {
    thread_local Buffer buffer, tiles;
    const Index widest = std::max(hd_, vd_), widened = x.dtype == DType::bf16 ? S_ * (hd_ + vd_) : 0;
    float* next = buffer.reserve(S_ * (hd_ + 1 + vd_ + (with_gradients ? 2 * hd_ + vd_ + 1 : 0)) + widened);
    const auto take = [&](Index n) { return std::exchange(next, next + n); };
    keys = take(S_ * hd_);
    inverse = take(S_);
    sums = take(S_ * vd_);
    if (with_gradients) {
      dqueries = take(S_ * hd_);
      dkeys = take(S_ * hd_);
      dvalues = take(S_ * vd_);
      delta = take(S_);
    }
    float* const x_memory = take(widened > 0 ? S_ * hd_ : 0);
    queries = floats_of(x, b, head, {0, S_}, x_memory);
    values = floats_of(v, b, head, {0, S_}, next);
    // pack() writes beyond its size.
    const Index rows = round_up(query_block, tile_rows), columns = round_up(key_block, tile_cols);
    float* tile = tiles.reserve(4 * rows * round_up(widest, tile_cols) + 4 * columns * round_up(widest, tile_cols) +
                                2 * rows * key_block + columns * widest + 16 * simd_width);
    const auto take_tile = [&](Index n) { return std::exchange(tile, tile + n + simd_width); };
    q_left = take_tile(rows * widest);
    d_left = take_tile(rows * widest);
    q_right = take_tile(rows * round_up(widest, tile_cols));
    d_right = take_tile(rows * round_up(widest, tile_cols));
    k_right = take_tile(columns * widest);
    v_right = take_tile(columns * round_up(widest, tile_cols));
    k_rows_right = take_tile(columns * round_up(widest, tile_cols));
    weights = take_tile(rows * key_block);
    dscores = take_tile(rows * key_block);
    products = take_tile(columns * widest);
    for (Index i = 0; i < S_; ++i) {
      const float* const q = queries.at(i);
      float square = desc.epsilon;
#pragma omp simd reduction(+ : square)
      for (Index c = 0; c < hd_; ++c) square += q[c] * q[c];
      const float factor = inverse[i] = square > 0 ? 1 / std::sqrt(square) : 0.0f;
#pragma omp simd
      for (Index c = 0; c < hd_; ++c) keys[i * hd_ + c] = q[c] * factor;
    }
  }

  // Calls body(rows, columns) for each block of queries and of keys that they see.
  template <class Body>
  void for_blocks(const ChunkRing& ring, const Body& body) {
    thread_local std::vector<std::int32_t> rows, columns;
    for (Index chunk = 0; chunk < ring.chunks(); ++chunk) {
      ring.tokens(chunk, rows);
      ring.seen(chunk, columns);
      for (Index i = 0; i < std::ssize(rows); i += query_block)
        for (Index j = 0; j < std::ssize(columns); j += key_block)
          body(std::span(rows).subspan(i, std::min(query_block, std::ssize(rows) - i)),
               std::span(columns).subspan(j, std::min(key_block, std::ssize(columns) - j)));
    }
  }

  using Tokens = std::span<const std::int32_t>;

  // weights[i, j] = score of rows[i] and columns[j], or minus infinity if the query does not see
  // the key. The row stride is key_block. Columns up to a multiple of simd_width are written.
  void scores(Tokens rows, Tokens columns) {
    const Index m = std::ssize(rows), n = std::ssize(columns), cols = round_up(n, simd_width);
    pack_axes<tile_rows>(queries.data, Indexed{rows.data(), queries.stride}, Strided{1}, m, hd_, q_left);
    pack_axes<tile_cols>(keys, Indexed{columns.data(), hd_}, Strided{1}, n, hd_, k_right);
    multiply_rows(m, hd_, q_left, k_right, cols, weights);
    for (Index i = 0; i < m; ++i) {
      float* const row = weights + i * key_block;
      const std::int32_t query = rows[i], end = desc_.causal ? query : std::numeric_limits<std::int32_t>::max();
      bool any = false;
      for (Index j = 0; j < n; ++j) {
        const bool visible = columns[j] < end && columns[j] != query;
        row[j] = visible ? desc_.scale * row[j] : minus_infinity;
        any |= visible;
      }
      if (any) sees_others[query] = true;
      std::fill(row + n, row + cols, minus_infinity);
    }
  }
  // to[i, j] = sum over l of left[i, l] right[l, j] for m packed rows. The row stride is key_block.
  void multiply_rows(Index m, Index depth, const float* left, const float* right, Index cols, float* to) const {
    for (Index i = 0; i < m; i += tile_rows)
      multiply<1, tile_rows>(std::min<Index>(tile_rows, m - i), depth, left + i * depth, right, depth, cols,
                             to + i * key_block, key_block, false);
  }
  // to[tokens[i]] += the sum over l < depth of factors[i * row + l * column] times packed vector l.
  template <Index row, Index column>
  void add_products(Tokens tokens, Index depth, const float* factors, const float* right, Index width, float* to) {
    for (Index i = 0; i < std::ssize(tokens); i += tile_rows) {
      const Index count = std::min<Index>(tile_rows, std::ssize(tokens) - i);
      multiply<row, column>(count, depth, factors + i * row, right, depth, width, products, width, false);
      for (Index r = 0; r < count; ++r) add(products + r * width, width, to + tokens[i + r] * width);
    }
  }
  // The same for rows or columns of factors: [m, key_block].
  void add_rows(Tokens rows, Index n, const float* factors, const float* right, Index width, float* to) {
    add_products<key_block, 1>(rows, n, factors, right, width, to);
  }
  void add_columns(Tokens columns, Index m, const float* factors, const float* right, Index width, float* to) {
    add_products<1, key_block>(columns, m, factors, right, width, to);
  }
  static void add(const float* x, Index n, float* y) {
#pragma omp simd
    for (Index c = 0; c < n; ++c) y[c] += x[c];
  }

  LshDesc desc_;
  Index S_, hd_, vd_;
  std::vector<char> sees_others;  // [S] whether scores() has found a key of another token
  HeadRows<const float> queries, values;
  float *keys, *inverse, *sums;  // [S, hd] of length 1; [S] factors of the queries; [S, vd] outputs
  float *dqueries = nullptr, *dkeys = nullptr, *dvalues = nullptr, *delta = nullptr;
  // "left" and "right" are operands of multiply().
  float *q_left, *d_left, *q_right, *d_right, *k_right, *v_right, *k_rows_right;
  float *weights, *dscores, *products;
};

// Writes the rows [S, width] of one head.
void write_rows(Heads y, Index b, Index head, const float* rows) {
  for (Index i = 0; i < y.positions; ++i) {
    if (y.dtype == DType::f32)
      std::copy_n(rows + i * y.width, y.width, rows_of<float>(y, b, head).at(i));
    else
      round(rows + i * y.width, y.width, rows_of<Bf16>(y, b, head).at(i));
  }
}

void attend(const ops::LshAttentionForward& op, Index b, Index head) {
  const Index S = op.x.positions, vd = op.v.width;
  const ChunkRing ring(op.x, op.order, op.lengths, op.desc, b, head);
  LshHead h(op.x, op.v, op.desc, b, head, false);
  std::vector<RowState> states(static_cast<std::size_t>(S));
  std::fill_n(h.sums, S * vd, 0.0f);
  h.for_blocks(ring, [&](LshHead::Tokens rows, LshHead::Tokens columns) {
    const Index n = std::ssize(columns), cols = round_up(n, simd_width);
    h.scores(rows, columns);
    pack_axes<tile_cols>(h.values.data, Strided{1}, Indexed{columns.data(), h.values.stride}, vd, n, h.v_right);
    for (Index i = 0; i < std::ssize(rows); ++i) {
      float* const row = h.weights + i * key_block;
      const float shrink = states[rows[i]].add(row, cols, *std::max_element(row, row + n));
      float* const sum = h.sums + rows[i] * vd;
#pragma omp simd
      for (Index c = 0; c < vd; ++c) sum[c] *= shrink;
    }
    h.add_rows(rows, n, h.weights, h.v_right, vd, h.sums);
  });
  for (Index i = 0; i < S; ++i) {
    const RowState& state = states[i];
    float* const sum = h.sums + i * vd;
    float& lse = op.lse.f32()[(b * op.x.heads + head) * S + i];
    if (!h.sees_others[i]) {
      std::copy_n(h.values.at(i), vd, sum);
      lse = 0;
      continue;
    }
    const float factor = 1 / state.total;
#pragma omp simd
    for (Index c = 0; c < vd; ++c) sum[c] *= factor;
    lse = state.largest + std::log(state.total);
  }
  write_rows(Heads(op.out), b, head, h.sums);
}

// Adds the gradients of the queries' keys of length 1 to those of the queries.
void add_key_gradients(LshHead& h) {
  for (Index i = 0; i < h.S_; ++i) {
    const float* const key = h.keys + i * h.hd_;
    const float *const dkey = h.dkeys + i * h.hd_, factor = h.inverse[i], along = dot(key, dkey, h.hd_);
    float* const to = h.dqueries + i * h.hd_;
#pragma omp simd
    for (Index c = 0; c < h.hd_; ++c) to[c] += factor * (dkey[c] - along * key[c]);
  }
}

void attend_backward(const ops::LshAttentionBackward& op, Index b, Index head) {
  const Index S = op.x.positions, hd = op.x.width, vd = op.v.width;
  const ChunkRing ring(op.x, op.order, op.lengths, op.desc, b, head);
  LshHead h(op.x, op.v, op.desc, b, head, true);
  std::vector<float> widened(op.x.dtype == DType::bf16 ? static_cast<std::size_t>(2 * S * vd) : 0);
  const auto dout = floats_of(ConstHeads(op.dout), b, head, {0, S}, widened.data());
  const auto out = floats_of(ConstHeads(op.out), b, head, {0, S}, widened.data() + widened.size() / 2);
  const float* const lse = op.lse.f32() + (b * op.x.heads + head) * S;
  std::fill_n(h.dqueries, S * hd, 0.0f);
  std::fill_n(h.dkeys, S * hd, 0.0f);
  std::fill_n(h.dvalues, S * vd, 0.0f);
  for (Index i = 0; i < S; ++i) h.delta[i] = dot(dout.at(i), out.at(i), vd);
  h.for_blocks(ring, [&](LshHead::Tokens rows, LshHead::Tokens columns) {
    const Index m = std::ssize(rows), n = std::ssize(columns), cols = round_up(n, simd_width);
    h.scores(rows, columns);
    pack_axes<tile_rows>(dout.data, Indexed{rows.data(), dout.stride}, Strided{1}, m, vd, h.d_left);
    pack_axes<tile_cols>(h.values.data, Indexed{columns.data(), h.values.stride}, Strided{1}, n, vd, h.v_right);
    h.multiply_rows(m, vd, h.d_left, h.v_right, cols, h.dscores);
    for (Index i = 0; i < m; ++i) {
      float *const weight = h.weights + i * key_block, *const dscore = h.dscores + i * key_block;
      const float sum = lse[rows[i]], delta = h.delta[rows[i]], scale = op.desc.scale;
      for (Index j = 0; j < cols; j += simd_width) {
        const Vector p = exp_(load(weight + j) - sum);
        store(dscore + j, p * (load(dscore + j) - delta) * scale);
        store(weight + j, p);
      }
    }
    pack_axes<tile_cols>(dout.data, Strided{1}, Indexed{rows.data(), dout.stride}, vd, m, h.d_right);
    h.add_columns(columns, m, h.weights, h.d_right, vd, h.dvalues);
    pack_axes<tile_cols>(h.queries.data, Strided{1}, Indexed{rows.data(), h.queries.stride}, hd, m, h.q_right);
    h.add_columns(columns, m, h.dscores, h.q_right, hd, h.dkeys);
    pack_axes<tile_cols>(h.keys, Strided{1}, Indexed{columns.data(), hd}, hd, n, h.k_rows_right);
    h.add_rows(rows, n, h.dscores, h.k_rows_right, hd, h.dqueries);
  });
  for (Index i = 0; i < S; ++i)
    if (!h.sees_others[i]) LshHead::add(dout.at(i), vd, h.dvalues + i * vd);
  add_key_gradients(h);
  write_rows(op.dx, b, head, h.dqueries);
  write_rows(op.dv, b, head, h.dvalues);
}

// Sorts the tokens of one head. x: [S, hd] of the head. Positions from `length` on are absent.
void sort_head(const ops::LshSort& op, Index b, Index head) {
  const Index S = op.x.positions, hd = op.x.width, rounds = op.order.dim(2), P = op.order.dim(3),
              half = op.rotations.dim(3), all = rounds * half;
  const Index length = op.lengths ? op.lengths.i32()[b] : S;
  std::vector<float> widened(op.x.dtype == DType::bf16 ? static_cast<std::size_t>(S * hd) : 0);
  const auto x = floats_of(op.x, b, head, {0, S}, widened.data());
  const float* const rotations = op.rotations.f32() + head * hd * all;
  Index num_buckets = 1;
  for (const Index factor : op.factors) num_buckets *= factor;
  std::vector<std::int32_t> buckets(static_cast<std::size_t>(rounds * length));
  std::vector<float> rotated(static_cast<std::size_t>(all));
  for (Index i = 0; i < length; ++i) {
    float* const to = rotated.data();
    std::fill(rotated.begin(), rotated.end(), 0.0f);
    for (Index c = 0; c < hd; ++c) {
      const float *const row = rotations + c * all, value = x.at(i)[c];
#pragma omp simd
      for (Index j = 0; j < all; ++j) to[j] += value * row[j];
    }
    for (Index r = 0; r < rounds; ++r) {
      Index bucket = 0, unit = 1;
      const float* from = to + r * half;
      for (const Index factor : op.factors) {
        const Index n = factor / 2;
        const Index high = std::max_element(from, from + n) - from, low = std::min_element(from, from + n) - from;
        bucket += unit * (from[high] >= -from[low] ? high : n + low);
        unit *= factor;
        from += n;
      }
      buckets[r * length + i] = static_cast<std::int32_t>(bucket);
    }
  }
  std::int32_t* const order = op.order.i32() + (b * op.x.heads + head) * rounds * P;
  std::vector<Index> begin(static_cast<std::size_t>(num_buckets + 1));
  for (Index r = 0; r < rounds; ++r) {
    const std::int32_t* const of_round = buckets.data() + r * length;
    std::fill(begin.begin(), begin.end(), 0);
    for (Index i = 0; i < length; ++i) ++begin[of_round[i] + 1];
    std::partial_sum(begin.begin(), begin.end(), begin.begin());
    for (Index i = 0; i < length; ++i) order[r * P + begin[of_round[i]]++] = static_cast<std::int32_t>(i);
    std::fill(order + r * P + length, order + (r + 1) * P, -1);
  }
}

// Calls body(b, head) for each head of each sequence.
template <class Body>
void for_heads(ConstHeads x, const Body& body) {
#pragma omp parallel for schedule(dynamic)
  for (Index task = 0; task < x.sequences * x.heads; ++task) body(task / x.heads, task % x.heads);
}

}  // namespace

void execute(CpuDevice&, const ops::LshSort& op) {
  for_heads(op.x, [&](Index b, Index head) { sort_head(op, b, head); });
}

void execute(CpuDevice&, const ops::LshAttentionForward& op) {
  for_heads(op.x, [&](Index b, Index head) { attend(op, b, head); });
}

void execute(CpuDevice&, const ops::LshAttentionBackward& op) {
  for_heads(op.x, [&](Index b, Index head) { attend_backward(op, b, head); });
}

}  // namespace sy::cpu
