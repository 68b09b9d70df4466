// The lightning indexer of sparse attention: index scores, the keys that they select, the loss and
// its gradients. Each query gathers its keys in blocks, so that lists and ranges of keys cost the
// same. With H index heads of width w, a pair of a query and a key costs these FLOPs:
//   scores      2 H w for the products, and 3 H
//   gradients   8 H w for four products, and 8 H
// Tiles (tile.h) compute all products. A block of keys stays in the caches.
#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <span>
#include <vector>

#include "kernels/cpu/attention.h"
#include "kernels/cpu/cpu_device.h"
#include "kernels/ops/indexer.h"

namespace sy::cpu {
namespace {

using namespace attention;

// Number of queries that a thread computes at a time, and of keys whose gradients it sums.
constexpr Index queries_per_task = 8, keys_per_task = 64;

// The mask of index scores as that of attention.
AttentionProblem mask_of(const IndexScores& s) {
  return {AttentionDesc{.mask = s.mask}, s.query_sizes(), s.key_sizes(), s.key_sizes()};
}

// Columns of a query: the keys that it sees, and the first of them in its row.
struct Columns {
  std::vector<std::int32_t> keys;
  Index first = 0;
  Index size() const { return std::ssize(keys); }
};

// Computes index scores and their gradients, one query at a time.
class Indexer {
 public:
  // selected: [T, n] i32, or empty
  explicit Indexer(const IndexScores& scores, ConstView selected = {})
      : s_(scores),
        mask_(mask_of(scores)),
        selected_(selected),
        H_(scores.q.dim(1)),
        w_(scores.q.dim(2)),
        query_(scores.q, H_ * w_),
        weights_(scores.weights, H_) {
    const Index rows = round_up(H_, tile_rows), columns = round_up(w_, tile_cols);
    thread_local Buffer buffer;
    // pack() writes beyond its size.
    float* next = buffer.reserve(rows * w_ + key_block * (w_ + columns + 2 * rows) + columns * H_ + 4 * simd_width);
    q_left_ = next;
    k_right_ = q_left_ + rows * w_ + simd_width;
    k_rows_right_ = k_right_ + key_block * w_ + simd_width;
    q_right_ = k_rows_right_ + key_block * columns + simd_width;
    products_ = q_right_ + columns * H_ + simd_width;
    dproducts_ = products_ + key_block * rows;
  }

  Index sequence_of(Index t) const { return (s_.first + t) / s_.queries; }
  // Keys that the mask shows query t.
  Range visible(Index t) const {
    const Index b = sequence_of(t);
    return mask_.of_sequence(b).keys(b, (s_.first + t) % s_.queries);
  }
  // Sets the columns of query t whose keys are in the range.
  void set_columns(Index t, Range keys, Columns& columns) const {
    columns.keys.clear();
    if (!selected_) {
      const Range seen = visible(t);
      columns.first = std::max(seen.begin, keys.begin);
      columns.keys.resize(static_cast<std::size_t>(std::max<Index>(0, std::min(seen.end, keys.end) - columns.first)));
      std::iota(columns.keys.begin(), columns.keys.end(), static_cast<std::int32_t>(columns.first));
      return;
    }
    const Index n = selected_.dim(1);
    const std::span row(selected_.i32() + t * n, static_cast<std::size_t>(n));
    const auto from = selected_from(row, keys.begin);
    columns.first = n - std::ssize(from);
    for (const std::int32_t key : from) {
      if (key < 0 || key >= keys.end) break;
      columns.keys.push_back(key);
    }
  }

  // Begins query t.
  void set_query(Index t) {
    b_ = sequence_of(t);
    q_ = query_.at(t * H_ * w_);
    weight_ = weights_.at(t * H_);
    pack<tile_rows>(q_, w_, 1, H_, w_, q_left_);
  }
  // scores[i] of keys[i], i < n
  void scores(const std::int32_t* keys, Index n, float* scores) {
    std::fill_n(scores, n, 0.0f);
    for (Index begin = 0; begin < n; begin += key_block) {
      const Index count = std::min(key_block, n - begin);
      multiply_keys(keys + begin, count);
      for (Index h = 0; h < H_; ++h) {
        const float* const product = products_ + h * key_block;
        const float weight = weight_[h], scale = s_.scale;
        float* const to = scores + begin;
#pragma omp simd
        for (Index i = 0; i < count; ++i) to[i] += weight * std::max(scale * product[i], 0.0f);
      }
    }
  }
  // dq: [H, w], dweights: [H] = gradients through the scores of n keys, whose gradients are
  // dscores.
  void backward_query(const std::int32_t* keys, Index n, const float* dscores, float* dq, float* dweights) {
    std::fill_n(dq, H_ * w_, 0.0f);
    std::fill_n(dweights, H_, 0.0f);
    for (Index begin = 0; begin < n; begin += key_block) {
      const Index count = std::min(key_block, n - begin);
      multiply_keys(keys + begin, count);
      for (Index h = 0; h < H_; ++h) {
        const float* const product = products_ + h * key_block;
        const float *const from = dscores + begin, scale = s_.scale;
        float sum = 0;
#pragma omp simd reduction(+ : sum)
        for (Index i = 0; i < count; ++i) sum += from[i] * std::max(scale * product[i], 0.0f);
        dweights[h] += sum;
      }
      set_dproducts(dscores + begin, count);
      with_keys([&](const auto* k) {
        pack_axes<tile_cols>(k, Strided{1}, Indexed{keys + begin, w_}, w_, count, k_rows_right_);
      });
      for (Index h = 0; h < H_; h += tile_rows)
        multiply<key_block, 1>(std::min<Index>(tile_rows, H_ - h), count, dproducts_ + h * key_block, k_rows_right_,
                               count, w_, dq + h * w_, w_, true);
    }
  }
  // dk: [.., w] += the gradient with respect to up to key_block keys; that of key 0 is at dk.
  void backward_keys(const std::int32_t* keys, Index n, const float* dscores, float* dk) {
    multiply_keys(keys, n);
    set_dproducts(dscores, n);
    pack<tile_cols>(q_, 1, w_, w_, H_, q_right_);
    float* const rows = k_rows_right_;  // [tile_rows, w]
    for (Index i = 0; i < n; i += tile_rows) {
      const Index count = std::min<Index>(tile_rows, n - i);
      multiply<1, key_block>(count, H_, dproducts_ + i, q_right_, H_, w_, rows, w_, false);
      for (Index r = 0; r < count; ++r) {
        float* const to = dk + keys[i + r] * w_;
#pragma omp simd
        for (Index c = 0; c < w_; ++c) to[c] += rows[r * w_ + c];
      }
    }
  }

 private:
  // Calls body(k) with the first key of the query's sequence, of the type of the operand.
  template <class Body>
  void with_keys(const Body& body) const {
    const Index offset = b_ * s_.k.dim(1) * w_;
    if (s_.k.dtype() == DType::bf16)
      body(s_.k.as<Bf16>() + offset);
    else
      body(s_.k.f32() + offset);
  }
  // products_[h, i] = q[h] . k[keys[i]], i < n
  void multiply_keys(const std::int32_t* keys, Index n) {
    with_keys([&](const auto* k) { pack_axes<tile_cols>(k, Indexed{keys, w_}, Strided{1}, n, w_, k_right_); });
    for (Index h = 0; h < H_; h += tile_rows)
      multiply<1, tile_rows>(std::min<Index>(tile_rows, H_ - h), w_, q_left_ + h * w_, k_right_, w_,
                             round_up(n, simd_width), products_ + h * key_block, key_block, false);
  }
  // dproducts_[h, i] = gradient with respect to products_[h, i]
  void set_dproducts(const float* dscores, Index n) {
    for (Index h = 0; h < H_; ++h) {
      const float* const product = products_ + h * key_block;
      float* const to = dproducts_ + h * key_block;
      const float factor = weight_[h] * s_.scale;
#pragma omp simd
      for (Index i = 0; i < n; ++i) to[i] = product[i] > 0 ? factor * dscores[i] : 0.0f;
    }
  }

  const IndexScores& s_;
  const AttentionProblem mask_;
  ConstView selected_;
  Index H_, w_, b_ = 0;
  Floats query_, weights_;
  const float *q_ = nullptr, *weight_ = nullptr;  // [H, w], [H] of the query
  // "left" and "right" are operands of multiply().
  float *q_left_, *k_right_;        // [H, w], [w, keys] of Q K^T
  float *k_rows_right_, *q_right_;  // [keys, w] of dP K, [H, w] of dP^T Q
  float *products_, *dproducts_;    // [H, key_block]: P, dP
};

constexpr Range all_keys{0, std::numeric_limits<std::int32_t>::max()};

// Calls body(indexer, t) for each query.
template <class Body>
void for_queries(const IndexScores& scores, ConstView selected, const Body& body) {
  const Index T = scores.q.dim(0), tasks = ceil_div(T, queries_per_task);
#pragma omp parallel for schedule(dynamic)
  for (Index task = 0; task < tasks; ++task) {
    Indexer indexer(scores, selected);
    for (Index t = task * queries_per_task; t < std::min(T, (task + 1) * queries_per_task); ++t) body(indexer, t);
  }
}

// Writes the loss of a query and its gradient with respect to n scores. Returns the loss.
// attention: [n], may be dscores
double query_loss(const std::vector<float>& scores, const float* attention, double factor, float* dscores) {
  double total = 0, largest = -std::numeric_limits<double>::infinity(), sum = 0, loss = 0;
  for (std::size_t i = 0; i < scores.size(); ++i) {
    total += static_cast<double>(attention[i]);
    largest = std::max(largest, static_cast<double>(scores[i]));
  }
  for (const float score : scores) sum += std::exp(static_cast<double>(score) - largest);
  const double lse = largest + std::log(sum);
  for (std::size_t i = 0; i < scores.size(); ++i) {
    const double p = total > 0 ? static_cast<double>(attention[i]) / total : 0;
    const double log_softmax = static_cast<double>(scores[i]) - lse;
    if (p > 0) loss += p * (std::log(p) - log_softmax);
    dscores[i] = total > 0 ? static_cast<float>(factor * (std::exp(log_softmax) - p)) : 0.0f;
  }
  return loss;
}

// Sums of the attention weights of a block of queries over all heads.
void sum_weights(const AttentionProblem& z, Index b, Range queries, const ops::AttentionKeySums& op) {
  thread_local Buffer buffer;
  const Index hd = z.hd, n = op.sums.dim(1);
  const Index widened_size = z.is_bf16 ? key_block * hd : 0;
  float* const q_left = buffer.reserve(query_block * hd + key_block * (hd + tile_rows) + 2 * simd_width + widened_size);
  float* const k_right = q_left + query_block * hd + simd_width;
  float* const scores = k_right + key_block * hd + simd_width;  // [tile_rows, key_block]
  float* const widened = scores + key_block * tile_rows;
  const auto row_of = [&](Index i) { return op.sums.f32() + (b * z.Sq + i) * n; };
  std::fill_n(row_of(queries.begin), queries.size() * n, 0.0f);
  for_blocks(z.keys(b, queries), key_block, z.Sk, [&](Range keys) {
    for (Index head = 0; head < z.H; ++head) {
      if (head % z.heads_per_kv() == 0) {
        const HeadRows<const float> k = floats_of(op.k, b, head / z.heads_per_kv(), keys, widened);
        pack<tile_cols>(k.at(keys.begin), k.stride, 1, keys.size(), hd, k_right);
      }
      const HeadRows<const float> q = floats_of(op.q, b, head, queries, widened);
      pack<tile_rows>(q.at(queries.begin), q.stride, 1, queries.size(), hd, q_left);
      for (Index i = queries.begin; i < queries.end; i += tile_rows) {
        const Range strip{i, std::min(i + tile_rows, queries.end)}, strip_keys = z.keys(b, strip);
        if (strip_keys.end <= keys.begin || strip_keys.begin >= keys.end) continue;
        const Index cols = round_up(std::min(strip_keys.end, keys.end) - keys.begin, simd_width);
        multiply<1, tile_rows>(strip.size(), hd, q_left + (i - queries.begin) * hd, k_right, hd, cols, scores,
                               key_block, false);
        for (Index r = 0; r < strip.size(); ++r) {
          float* const row = scores + r * key_block;
          const Range seen = z.keys(b, i + r);
          row_scores(z, b, head, i + r, seen, keys.begin, cols, row);
          const float lse = op.lse.f32()[z.lse_offset(b, head) + i + r];
          const Range columns{std::max(seen.begin, keys.begin), std::min(seen.end, keys.end)};
          float* const to = row_of(i + r);
          if (!z.selected) {
            for (Index j = columns.begin; j < columns.end; ++j) to[j] += exp_(row[j - keys.begin] - lse);
            continue;
          }
          const auto list = z.selected_keys(b, i + r, keys.begin);
          float* const first = to + n - std::ssize(list);
          for (std::size_t l = 0; l < list.size() && list[l] >= 0 && list[l] < columns.end; ++l)
            first[l] += exp_(row[list[l] - keys.begin] - lse);
        }
      }
    }
  });
}

}  // namespace

void execute(CpuDevice&, const ops::TopkKeys& op) {
  const Index n = op.selected.dim(1);
  for_queries(op.scores, {}, [&](Indexer& indexer, Index t) {
    thread_local Columns columns;
    thread_local std::vector<float> scores;
    thread_local std::vector<std::int32_t> order;
    std::int32_t* const selected = op.selected.i32() + t * n;
    indexer.set_columns(t, all_keys, columns);
    const Index seen = columns.size(), count = std::min(n, seen);
    std::fill(selected + count, selected + n, -1);
    if (seen <= n) {
      std::copy_n(columns.keys.begin(), count, selected);
      return;
    }
    scores.resize(static_cast<std::size_t>(seen));
    indexer.set_query(t);
    indexer.scores(columns.keys.data(), seen, scores.data());
    for (float& score : scores)
      if (std::isnan(score)) score = minus_infinity;
    order.resize(scores.size());
    std::iota(order.begin(), order.end(), 0);
    const auto comes_first = [&](std::int32_t i, std::int32_t j) {
      return scores[i] > scores[j] || (scores[i] == scores[j] && i > j);
    };
    std::nth_element(order.begin(), order.begin() + count, order.end(), comes_first);
    std::sort(order.begin(), order.begin() + count);
    for (Index i = 0; i < count; ++i) selected[i] = columns.keys[order[i]];
  });
}

void execute(CpuDevice&, const ops::AttentionKeySums& op) {
  const AttentionProblem z(op.desc, op.q, op.k, op.k);
  const Index blocks = ceil_div(z.Sq, query_block);
#pragma omp parallel for schedule(dynamic)
  for (Index task = 0; task < z.B * blocks; ++task) {
    const Index begin = task % blocks * query_block;
    sum_weights(z, task / blocks, {begin, std::min(begin + query_block, z.Sq)}, op);
  }
}

void execute(CpuDevice&, const ops::IndexerLoss& op) {
  const Index n = op.dscores.dim(1);
  std::vector<double> losses(static_cast<std::size_t>(op.dscores.dim(0)));
  for_queries(op.scores, op.selected, [&](Indexer& indexer, Index t) {
    thread_local Columns columns;
    thread_local std::vector<float> scores;
    indexer.set_columns(t, all_keys, columns);
    const Index count = columns.size();
    scores.resize(static_cast<std::size_t>(count));
    indexer.set_query(t);
    indexer.scores(columns.keys.data(), count, scores.data());
    float* const row = op.dscores.f32() + t * n;
    losses[t] = query_loss(scores, op.attention.f32() + t * n + columns.first, static_cast<double>(op.factor),
                           row + columns.first);
    std::fill_n(row, columns.first, 0.0f);
    std::fill(row + columns.first + count, row + n, 0.0f);
  });
  *op.loss.as<double>() = std::accumulate(losses.begin(), losses.end(), *op.loss.as<double>());
}

void execute(CpuDevice&, const ops::IndexerBackward& op) {
  const IndexScores& s = op.scores;
  const Index T = s.q.dim(0), H = s.q.dim(1), w = s.q.dim(2), B = s.k.dim(0), Sk = s.k.dim(1), n = op.dscores.dim(1);
  for_queries(s, op.selected, [&](Indexer& indexer, Index t) {
    thread_local Columns columns;
    indexer.set_columns(t, all_keys, columns);
    indexer.set_query(t);
    Results dq(op.dq, H * w), dweights(op.dweights, H);
    indexer.backward_query(columns.keys.data(), columns.size(), op.dscores.f32() + t * n + columns.first,
                           dq.begin(t * H * w), dweights.begin(t * H));
  });
  // A task has some keys of one sequence, and adds the gradients through its queries in order.
  const Index blocks = ceil_div(Sk, keys_per_task);
#pragma omp parallel for schedule(dynamic)
  for (Index task = 0; task < B * blocks; ++task) {
    thread_local Columns columns;
    const Index b = task / blocks, begin = task % blocks * keys_per_task;
    const Range keys{begin, std::min(begin + keys_per_task, Sk)};
    Indexer indexer(s, op.selected);
    Results dk(op.dk, keys.size() * w);
    float* const to = dk.begin((b * Sk + keys.begin) * w);
    std::fill_n(to, keys.size() * w, 0.0f);
    const Index last = std::min(T, (b + 1) * s.queries - s.first);
    for (Index t = std::max<Index>(0, b * s.queries - s.first); t < last; ++t) {
      indexer.set_columns(t, keys, columns);
      if (columns.size() == 0) continue;
      indexer.set_query(t);
      indexer.backward_keys(columns.keys.data(), columns.size(), op.dscores.f32() + t * n + columns.first,
                            to - keys.begin * w);
    }
  }
}

}  // namespace sy::cpu
