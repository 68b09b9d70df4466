// Cross-entropy over a vocabulary that may be sharded over ranks.
#include <limits>

#include "kernels/cuda/cuda_device.h"
#include "kernels/cuda/rows.h"
#include "kernels/ops/cross_entropy.h"

namespace sy::cuda {

namespace {

constexpr float minus_infinity = -std::numeric_limits<float>::infinity();
constexpr int max_threads = 512;  // per row of logits

// Transforms of a logit: the identity, or the soft cap.
struct Plain {
  __device__ float operator()(float x) const { return x; }
  __device__ float slope(float) const { return 1; }
};
struct Capped {
  float cap;
  __device__ float operator()(float x) const { return cap * tanhf(x / cap); }
  // Derivative of the cap if the capped value is c.
  __device__ float slope(float c) const { return 1 - (c / cap) * (c / cap); }
};
template <class F>
void with_cap(float softcap, F f) {
  softcap > 0 ? f(Capped{softcap}) : f(Plain{});
}

// Largest of the numbers added so far, and the sum of exp(number - largest).
struct ExpSum {
  float largest = minus_infinity, sum = 0;

  // Factor of the sum when the largest number becomes `now`; 0 before the first number.
  __device__ float rescale(float now) const { return largest == minus_infinity ? 0.0f : expf(largest - now); }
  template <int N>
  __device__ void add(const float (&x)[N]) {
    float now = largest;
    for (int e = 0; e < N; ++e) now = fmaxf(now, x[e]);
    if (now > largest) {
      sum *= rescale(now);
      largest = now;
    }
    for (int e = 0; e < N; ++e) sum += x[e] == minus_infinity ? 0.0f : expf(x[e] - largest);
  }
};

// A block reads a row of logits: [T, vocab] once. Each thread holds the largest logit of its share
// and the matching sum of exponentials. At the end, the threads' sums are rescaled to the largest
// of all. vocab may be 0. A logit costs 4 bytes and 3 FLOPs, 6 with a cap.
template <class Cap, int N>
__global__ void __launch_bounds__(max_threads)
    sum_row(Cap cap, Index vocab_begin, Index vocab, In<float> logits, In<std::int32_t> targets, Out<float> partial) {
  const Index row = blockIdx.x, start = row * vocab;
  ExpSum mine;
  for_row<N>(vocab, [&](Index i) {
    const auto pack = load<N>(logits, start + i);
    float x[N];
    for (int e = 0; e < N; ++e) x[e] = cap(pack[e]);
    mine.add(x);
  });
  const float largest = block_max(mine.largest), sum = block_sum(mine.sum * mine.rescale(largest));
  if (threadIdx.x == 0) {
    const Index target = targets[row] - vocab_begin;
    partial[3 * row] = largest;
    partial[3 * row + 1] = sum;
    partial[3 * row + 2] = target >= 0 && target < vocab ? cap(logits[start + target]) : 0.0f;
  }
}

// Combines partials: [shards, tokens, 3] of each token. A token costs 12 bytes per vocabulary shard
// and 12 more.
struct CombineShards {
  Index shards, tokens;
  In<float> partials;
  In<std::int32_t> targets;
  Out<float> lse, loss;

  template <int N>
  __device__ void at(Index first) const {
    for (Index t = first; t < first + N; ++t) {
      float largest = minus_infinity, sum = 0, target = 0;
      for (Index p = 0; p < shards; ++p) largest = fmaxf(largest, partials[(p * tokens + t) * 3]);
      for (Index p = 0; p < shards; ++p) {
        const Index index = (p * tokens + t) * 3;
        // 0 * exp(-inf) for a shard without rows
        sum += partials[index + 1] * expf(partials[index] - largest);
        target += partials[index + 2];
      }
      const float z = largest + logf(sum);
      lse[t] = z;
      loss[t] = targets[t] < 0 ? 0.0f : z - target;
    }
  }
};

// One block sums losses: [T] and lse^2 over the tokens with a target. sums: [2] += both. A token
// costs 12 bytes and 3 FLOPs.
__global__ void __launch_bounds__(1024)
    sum_losses(Index tokens, In<float> losses, In<float> lse, In<std::int32_t> targets, Out<double> sums) {
  double loss = 0, squares = 0;
  for_row<1>(tokens, [&](Index t) {
    if (targets[t] < 0) return;  // its loss is 0
    loss += losses[t];
    squares += static_cast<double>(lse[t]) * lse[t];
  });
  loss = block_sum(loss);
  squares = block_sum(squares);
  if (threadIdx.x == 0) {
    sums[0] += loss;
    sums[1] += squares;
  }
}

// A block takes a row. Logits is In<float>, or Out<float> if dlogits: [T, vocab] shares the memory
// of the logits. A thread reads a pack before it writes it. A logit costs 4 + w bytes and 4 FLOPs,
// 11 with a cap.
template <class Cap, class T, int N, class Logits>
__global__ void __launch_bounds__(max_threads)
    row_gradient(Cap cap, Index vocab_begin, Index vocab, double z_loss, Logits logits, In<std::int32_t> targets,
                 In<float> lse, In<double> total, Out<T> dlogits) {
  const Index row = blockIdx.x, start = row * vocab, target = targets[row] - vocab_begin;
  const bool counted = targets[row] >= 0;
  const float factor = static_cast<float>(1 / total[0]), z_factor = static_cast<float>(z_loss / total[0]);
  const float z = lse[row], weight = factor + z_factor * 2 * z;
  for_row<N>(vocab, [&](Index i) {
    if (!counted) return store<N>(dlogits, start + i, pack_of<T, N>([](int) { return 0.0f; }));
    const auto pack = load<N>(logits, start + i);
    store<N>(dlogits, start + i, pack_of<T, N>([&](int e) {
               const float c = cap(pack[e]), at_target = i + e == target ? factor : 0.0f;
               return (weight * expf(c - z) - at_target) * cap.slope(c);
             }));
  });
}

}  // namespace

void execute(CudaDevice& device, const ops::CrossEntropyForward& op) {
  const Index rows = op.logits.dim(0), vocab = op.logits.dim(1);
  with_packs<4>(vocab, {op.logits}, [&]<int N>(PackSize<N>) {
    with_cap(op.desc.softcap, [&]<class Cap>(Cap cap) {
      launch(device.context(), {.x = rows, .threads = row_threads(blocks_of(vocab, N), max_threads)}, sum_row<Cap, N>,
             cap, op.desc.vocab_begin, vocab, op.logits, op.targets, op.partial);
    });
  });
}

void execute(CudaDevice& device, const ops::CrossEntropyLoss& op) {
  const Index tokens = op.lse.dim(0);
  for_elements(device.context(), tokens, {},
               CombineShards{op.partials.dim(0), tokens, in<float>(op.partials), in<std::int32_t>(op.targets),
                             out<float>(op.lse), out<float>(op.loss)});
}

void execute(CudaDevice& device, const ops::LossSums& op) {
  const Index tokens = op.losses.dim(0);
  launch(device.context(), {.threads = row_threads(tokens, 1024)}, sum_losses, tokens, op.losses, op.lse, op.targets,
         op.sums);
}

void execute(CudaDevice& device, const ops::CrossEntropyBackward& op) {
  const Index rows = op.logits.dim(0), vocab = op.logits.dim(1);
  with_packs<4>(vocab, {op.logits, op.dlogits}, [&]<int N>(PackSize<N>) {
    with_cap(op.desc.softcap, [&]<class Cap>(Cap cap) {
      with_type(op.dlogits.dtype(), [&]<class T>(T) {
        const auto gradient = [&](auto kernel, auto x) {
          launch(device.context(), {.x = rows, .threads = row_threads(blocks_of(vocab, N), max_threads)}, kernel, cap,
                 op.desc.vocab_begin, vocab, op.desc.z_loss, x, op.targets, op.lse, op.total, op.dlogits);
        };
        if constexpr (std::is_same_v<T, float>)
          if (op.logits.bytes() == op.dlogits.bytes())
            return gradient(row_gradient<Cap, T, N, Out<float>>, out<float>(op.dlogits));
        gradient(row_gradient<Cap, T, N, In<float>>, in<float>(op.logits));
      });
    });
  });
}

}  // namespace sy::cuda
