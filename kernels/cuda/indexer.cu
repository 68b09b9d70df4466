// The lightning indexer of sparse attention: index scores, the keys that they select, the loss and
// its gradients. cuBLAS computes the products of queries and keys. The workspace holds those of
// some queries and a block of keys at a time. With H index heads of width w, each pair of a query
// and a key costs, whether it is selected or not:
//   scores      2 H w FLOPs and 8 H bytes
//   gradients   6 H w FLOPs and (8 + 3 c) H bytes; c: size of an element
#include <algorithm>
#include <cmath>

#include "kernels/cuda/attention.h"
#include "kernels/cuda/cuda_device.h"
#include "kernels/cuda/rows.h"
#include "kernels/cuda/scan.h"
#include "kernels/ops/elementwise.h"
#include "kernels/ops/gemm.h"
#include "kernels/ops/indexer.h"

namespace sy::cuda {

namespace {

using attention::AttentionProblem;
using attention::GeneralOperands;
using attention::ScoreScaling;
using attention::Span;

constexpr int row_block = 256;  // threads of a block that has one query

// ---- masks ----

// The mask of queries, as attention has it.
struct QueryMask {
  AttentionProblem problem;
  GeneralOperands general;
  In<std::int32_t> offsets;  // AttentionMask::query_offsets

  QueryMask(const AttentionDesc& desc, ConstHeads q, ConstHeads k)
      : problem(desc, q, k), general(desc), offsets(in<std::int32_t>(desc.mask.query_offsets)) {}

  // Keys that the mask shows query `token` of the B * Sq, apart from a list of selected ones.
  __device__ Span visible(Index token) const {
    const int b = static_cast<int>(token / problem.Sq), query = static_cast<int>(token % problem.Sq);
    AttentionProblem z = problem;
    if (offsets != nullptr) z.query_offset = offsets[b];
    const Span seen = z.keys(general.of(b, z), query);
    return {seen.begin, max(seen.begin, min(seen.end, z.Sk))};
  }
};

QueryMask mask_of(const IndexScores& s) {
  return {AttentionDesc{.mask = s.mask}, s.query_sizes(), s.key_sizes()};
}

// The key of a column of a query; -1 if the column has none. list: of the query, or nullptr if the
// columns are all keys.
__device__ int key_of(In<std::int32_t> list, Span seen, Index column) {
  if (list != nullptr) return list[column];
  return column >= seen.begin && column < seen.end ? static_cast<int>(column) : -1;
}

// ---- scores ----

// Queries and keys whose products the workspace holds at once.
struct Block {
  Index rows, keys;
};
// other_bytes: memory of the workspace that a row needs apart from products; product_bytes: memory
// of a product
Block block_of(const Context& context, const IndexScores& s, Index other_bytes, Index product_bytes) {
  constexpr Index most_keys = 8192;
  const Index H = s.q.dim(1), Sk = s.k.dim(1), bytes = context.workspace_bytes / 2;
  const Index keys = std::clamp<Index>(bytes / (H * product_bytes), 1, std::max<Index>(1, std::min(Sk, most_keys)));
  return {std::clamp<Index>(bytes / (H * keys * product_bytes + other_bytes), 1, std::max<Index>(1, s.q.dim(0))), keys};
}

// products: [rows, H, keys] = q k^T of consecutive queries, q: [rows, H, w], and keys, k: [keys, w]
void multiply_keys(CudaDevice& device, ConstView q, ConstView k, View products) {
  const Index rows = q.dim(0) * q.dim(1), keys = k.dim(0);
  execute(
      device,
      ops::Gemm{.a = q.reshape({rows, q.dim(2)}), .b = k, .transpose_b = true, .c = products.reshape({rows, keys})});
}

// x, or 0 if it is negative. NaN stays.
__device__ float relu(float x) {
  return x < 0 ? 0.0f : x;
}

// A thread computes the score of a query and a key. to: [rows, row] of the block of keys
template <class T>
__global__ void score_kernel(Index H, Index keys, float scale, In<float> products, In<T> weights, Index row,
                             Out<float> to) {
  const Index r = blockIdx.x, j = Index{blockIdx.y} * blockDim.x + threadIdx.x;
  if (j >= keys) return;
  float sum = 0;
  for (Index h = 0; h < H; ++h) sum += to_float(weights[r * H + h]) * relu(scale * products[(r * H + h) * keys + j]);
  to[r * row + j] = sum;
}

// Calls f(t, rows, scores) for consecutive queries [t, t + rows), which are of one sequence.
// scores: [rows, Sk] f32, of all keys
template <class F>
void for_scores(CudaDevice& device, Workspace& workspace, const IndexScores& s, F f) {
  Context& context = device.context();
  const Index queries = s.q.dim(0), H = s.q.dim(1), w = s.q.dim(2), Sk = s.k.dim(1);
  const Block block = block_of(context, s, Sk * size_of(DType::f32), size_of(DType::f32));
  const View products = workspace.take({block.rows * H * block.keys}, DType::f32),
             scores = workspace.take({block.rows * Sk}, DType::f32);
  for (Index t = 0; t < queries;) {
    const Index b = (s.first + t) / s.queries;
    const Index rows = std::min({block.rows, queries - t, (b + 1) * s.queries - s.first - t});
    const ConstView k = s.k.rows(b, 1).reshape({Sk, w});
    for (Index key = 0; key < Sk; key += block.keys) {
      const Index keys = std::min(block.keys, Sk - key);
      const View some = products.rows(0, rows * H * keys);
      multiply_keys(device, s.q.rows(t, rows), k.rows(key, keys), some.reshape({rows, H, keys}));
      with_type(s.q.dtype(), [&]<class T>(T) {
        launch(context, {.x = rows, .y = blocks_of(keys, Grid{}.threads)}, score_kernel<T>, H, keys, s.scale, some,
               s.weights.rows(t, rows), Sk, scores.rows(key, scores.dim(0) - key));
      });
    }
    f(t, rows, scores.rows(0, rows * Sk).reshape({rows, Sk}));
    t += rows;
  }
}

// ---- selection ----

// Scores in their order, as integers: NaN like minus infinity.
__device__ unsigned rank_of(float score) {
  return ordered_bits(score != score ? -INFINITY : score);
}

// A block takes a query. It finds the rank of the n-th key bit by bit. Then it writes the keys of
// larger ranks and the last ones of this rank.
__global__ void select_kernel(const QueryMask mask, Index first, Index n, In<float> scores,
                              Out<std::int32_t> selected) {
  const Index r = blockIdx.x;
  const Span seen = mask.visible(first + r);
  const int count = seen.end - seen.begin, most = static_cast<int>(n);
  const auto score = scores + (r * mask.problem.Sk + seen.begin);
  const auto list = selected + r * n;
  if (count <= most) {
    for (int l = static_cast<int>(threadIdx.x); l < most; l += row_block) list[l] = l < count ? seen.begin + l : -1;
    return;
  }
  const auto number_of = [&](auto holds) {
    int number = 0;
    for (int j = static_cast<int>(threadIdx.x); j < count; j += row_block) number += holds(rank_of(score[j]));
    return block_sum(number);
  };
  unsigned bound = 0;  // the largest rank that n keys reach
  for (unsigned bit = 1u << 31; bit > 0; bit >>= 1)
    if (number_of([=](unsigned rank) { return rank >= (bound | bit); }) >= most) bound |= bit;
  const int above = number_of([=](unsigned rank) { return rank > bound; });
  const int equal = number_of([=](unsigned rank) { return rank == bound; });
  const int skipped = equal - (most - above);  // keys of this rank that are too early
  int above_before = 0, equal_before = 0;
  for (int begin = 0; begin < count; begin += row_block) {
    const int j = begin + static_cast<int>(threadIdx.x);
    const unsigned rank = j < count ? rank_of(score[j]) : 0;
    const bool is_above = j < count && rank > bound, is_equal = j < count && rank == bound;
    const Scanned larger = block_scan(is_above ? 1 : 0), same = block_scan(is_equal ? 1 : 0);
    const int equals = equal_before + same.before;
    if (is_above || (is_equal && equals >= skipped))
      list[above_before + larger.before + max(0, equals - skipped)] = seen.begin + j;
    above_before += larger.total;
    equal_before += same.total;
  }
}

// ---- attention weights ----

// A block takes a query, and a warp one of its columns at a time.
template <class T>
__global__ void key_sums_kernel(const QueryMask mask, const ScoreScaling scaling, Index n,
                                const attention::InHeads<T> q, const attention::InHeads<T> k, In<float> lse,
                                Out<float> sums) {
  const AttentionProblem& z = mask.problem;
  const Index token = blockIdx.x;
  const int b = static_cast<int>(token / z.Sq), query = static_cast<int>(token % z.Sq);
  const Span seen = mask.visible(token);
  const auto list = z.num_selected > 0 ? mask.general.selected + token * n : nullptr;
  const int warp = static_cast<int>(threadIdx.x) / warp_size, lane = static_cast<int>(threadIdx.x) % warp_size;
  for (Index column = warp; column < n; column += row_block / warp_size) {
    const int key = key_of(list, seen, column);
    float sum = 0;
    for (int head = 0; key >= 0 && head < z.H; ++head) {
      const auto queries = q.rows(b, head), keys = k.rows(b, head / z.heads_per_kv());
      const auto x = queries.x + query * queries.stride, y = keys.x + key * keys.stride;
      float product = 0;
      for (int c = lane; c < queries.width; c += warp_size) product += to_float(x[c]) * to_float(y[c]);
      product = warp_sum(product);
      if (scaling.capped) product = tanhf(scaling.inner * product);
      sum += exp2f(scaling.outer * product - attention::log2_e * lse[(Index{b} * z.H + head) * z.Sq + query]);
    }
    if (lane == 0) sums[token * n + column] = sum;
  }
}

// ---- loss ----

// A block takes a query, and a thread some of its columns. dscores: [rows, n], at first attention
// weights; selected: [rows, n], or nullptr
__global__ void loss_kernel(const QueryMask mask, Index first, Index n, In<float> scores, In<std::int32_t> selected,
                            float factor, Out<float> dscores, Out<double> losses) {
  const Index r = blockIdx.x;
  const Span seen = mask.visible(first + r);
  const auto score = scores + r * mask.problem.Sk;
  const auto list = selected != nullptr ? selected + r * n : nullptr;
  const auto each = [&](auto f) {
    for (Index column = threadIdx.x; column < n; column += row_block)
      if (const int key = key_of(list, seen, column); key >= 0) f(r * n + column, score[key]);
  };
  float largest = -INFINITY;
  double total = 0, sum = 0, loss = 0;
  each([&](Index at, float x) {
    total += static_cast<double>(dscores[at]);
    largest = fmaxf(largest, x);
  });
  total = block_sum(total);
  largest = block_max(largest);
  each([&](Index, float x) { sum += exp(static_cast<double>(x) - static_cast<double>(largest)); });
  sum = block_sum(sum);
  const double lse = static_cast<double>(largest) + log(sum);
  for (Index column = threadIdx.x; column < n; column += row_block) {
    const int key = key_of(list, seen, column);
    const Index at = r * n + column;
    float gradient = 0;
    if (key >= 0 && total > 0) {
      const double p = static_cast<double>(dscores[at]) / total, log_softmax = static_cast<double>(score[key]) - lse;
      if (p > 0) loss += p * (log(p) - log_softmax);
      gradient = static_cast<float>(static_cast<double>(factor) * (exp(log_softmax) - p));
    }
    dscores[at] = gradient;
  }
  loss = block_sum(loss);
  if (threadIdx.x == 0) losses[r] = loss;
}

// ---- gradients ----

// A block takes a query. dense: [rows, keys] gradients of its scores of keys [key, key + keys); 0
// where it has no column. dscores, selected: [rows, n]; selected may be nullptr.
__global__ void spread_kernel(const QueryMask mask, Index first, Index n, In<std::int32_t> selected, In<float> dscores,
                              Index key, Index keys, Out<float> dense) {
  const Index r = blockIdx.x;
  const Span seen = mask.visible(first + r);
  for (Index j = threadIdx.x; j < keys; j += row_block)
    dense[r * keys + j] = selected == nullptr && key_of(nullptr, seen, key + j) >= 0 ? dscores[r * n + key + j] : 0.0f;
  if (selected == nullptr) return;
  __syncthreads();
  for (Index l = threadIdx.x; l < n; l += row_block) {
    const Index at = selected[r * n + l];
    if (at >= key && at < key + keys) dense[r * keys + at - key] = dscores[r * n + l];
  }
}

// A block takes a head of a query. dproducts: [rows, H, keys] gradients of the products. dweights:
// [rows, H], added to if `accumulate`
template <class T>
__global__ void head_kernel(Index H, Index keys, float scale, In<float> products, In<float> dense, In<T> weights,
                            bool accumulate, Out<T> dproducts, Out<T> dweights) {
  const Index head = blockIdx.x, r = head / H;
  const float factor = to_float(weights[head]) * scale;
  float sum = 0;
  for (Index j = threadIdx.x; j < keys; j += row_block) {
    const float x = products[head * keys + j], dscore = dense[r * keys + j];
    sum += dscore * relu(scale * x);
    dproducts[head * keys + j] = from_float<T>(x > 0 ? factor * dscore : 0.0f);
  }
  sum = block_sum(sum);
  if (threadIdx.x == 0) dweights[head] = from_float<T>(accumulate ? to_float(dweights[head]) + sum : sum);
}

}  // namespace

void execute(CudaDevice& device, const ops::TopkKeys& op) {
  Workspace workspace(device.context());
  const QueryMask mask = mask_of(op.scores);
  for_scores(device, workspace, op.scores, [&](Index t, Index rows, ConstView scores) {
    launch(device.context(), {.x = rows, .threads = row_block}, select_kernel, mask, op.scores.first + t,
           op.selected.dim(1), scores, op.selected.rows(t, rows));
  });
}

void execute(CudaDevice& device, const ops::AttentionKeySums& op) {
  with_type(op.q.dtype, [&]<class T>(T) {
    launch(device.context(), {.x = op.sums.dim(0), .threads = row_block}, key_sums_kernel<T>,
           QueryMask(op.desc, op.q, op.k), ScoreScaling(op.desc), op.sums.dim(1), op.q, op.k, op.lse, op.sums);
  });
}

void execute(CudaDevice& device, const ops::IndexerLoss& op) {
  Context& context = device.context();
  const Index n = op.dscores.dim(1);
  Workspace workspace(context);
  const View losses = workspace.take({op.dscores.dim(0)}, DType::f64);
  const QueryMask mask = mask_of(op.scores);
  if (op.attention.bytes() != op.dscores.bytes()) execute(device, ops::Copy{.x = op.attention, .y = op.dscores});
  for_scores(device, workspace, op.scores, [&](Index t, Index rows, ConstView scores) {
    launch(context, {.x = rows, .threads = row_block}, loss_kernel, mask, op.scores.first + t, n, scores,
           op.selected ? op.selected.rows(t, rows) : ConstView(), op.factor, op.dscores.rows(t, rows),
           losses.rows(t, rows));
  });
  launch(context, {.threads = row_block}, add_sum<double, double>, losses.dim(0), losses, op.loss);
}

void execute(CudaDevice& device, const ops::IndexerBackward& op) {
  Context& context = device.context();
  const IndexScores& s = op.scores;
  const Index queries = s.q.dim(0), H = s.q.dim(1), w = s.q.dim(2), Sk = s.k.dim(1), n = op.dscores.dim(1);
  const DType type = s.q.dtype();
  const Block block = block_of(context, s, 0, size_of(DType::f32) * 2 + size_of(type));
  Workspace workspace(context);
  const View all_products = workspace.take({block.rows * H * block.keys}, DType::f32),
             all_dproducts = workspace.take({block.rows * H * block.keys}, type),
             dense = workspace.take({block.rows * block.keys}, DType::f32),
             dkeys = workspace.take({block.keys, w}, DType::f32);
  const QueryMask mask = mask_of(s);
  for (Index b = 0; b < s.k.dim(0); ++b) {
    const ConstView k = s.k.rows(b, 1).reshape({Sk, w});
    const Index begin = std::max<Index>(0, b * s.queries - s.first);
    const Index end = std::min(queries, (b + 1) * s.queries - s.first);
    for (Index key = 0; key < Sk; key += block.keys) {
      const Index keys = std::min(block.keys, Sk - key);
      const View of_keys = op.dk.rows(b, 1).reshape({Sk, w}).rows(key, keys);
      const View dk = type == DType::f32 ? of_keys : dkeys.rows(0, keys);  // sums are in f32
      execute(device, ops::Fill{.x = dk, .value = 0});
      for (Index t = begin; t < end; t += block.rows) {
        const Index rows = std::min(block.rows, end - t), pairs = rows * H * keys;
        const View products = all_products.rows(0, pairs), dproducts = all_dproducts.rows(0, pairs);
        const ConstView q = s.q.rows(t, rows);
        multiply_keys(device, q, k.rows(key, keys), products.reshape({rows, H, keys}));
        launch(context, {.x = rows, .threads = row_block}, spread_kernel, mask, s.first + t, n,
               op.selected ? op.selected.rows(t, rows) : ConstView(), op.dscores.rows(t, rows), key, keys, dense);
        with_type(type, [&]<class T>(T) {
          launch(context, {.x = rows * H, .threads = row_block}, head_kernel<T>, H, keys, s.scale, products, dense,
                 s.weights.rows(t, rows), key > 0, out<T>(dproducts), out<T>(op.dweights.rows(t, rows)));
        });
        const ConstView gradients = dproducts.reshape({rows * H, keys});
        execute(device, ops::Gemm{.a = gradients,
                                  .b = k.rows(key, keys),
                                  .accumulate = key > 0,
                                  .c = op.dq.rows(t, rows).reshape({rows * H, w})});
        execute(
            device,
            ops::Gemm{.a = gradients, .b = q.reshape({rows * H, w}), .transpose_a = true, .accumulate = true, .c = dk});
      }
      if (type != DType::f32) execute(device, ops::Convert{.x = dk, .y = of_keys});
    }
  }
}

}  // namespace sy::cuda
