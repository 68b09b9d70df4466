#include <limits>

#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/rows.h"

namespace sy::cuda {

namespace {

constexpr float minus_infinity = -std::numeric_limits<float>::infinity();
constexpr int most_threads = 512;  // of a block, for a row of the vocabulary

// What a logit counts as.
struct Plain {
  __device__ float operator()(float x) const { return x; }
  __device__ float slope(float) const { return 1; }
};
struct Capped {
  float cap;
  __device__ float operator()(float x) const { return cap * tanhf(x / cap); }
  // At the capped value c.
  __device__ float slope(float c) const { return 1 - (c / cap) * (c / cap); }
};
template <class F>
void with_cap(float softcap, F f) {
  softcap > 0 ? f(Capped{softcap}) : f(Plain{});
}

// The largest number so far, and the sum of exp(number - largest).
struct Softmax {
  float largest = minus_infinity, sum = 0;

  // What the sum is multiplied by when the largest number becomes `now`. It is 0 as long as there is none.
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

// A block for each row of logits: [T, vocab] reads it once: each thread keeps the largest logit of its share and the sum
// of exponentials beside it, and in the end the threads' sums are brought to the largest of all. vocab may be 0.
template <class Cap, int N>
__global__ void row_stats(Cap cap, Index vocab_begin, Index vocab, In<float> logits, In<std::int32_t> targets,
                          Out<float> stats) {
  const Index row = blockIdx.x, start = row * vocab;
  Softmax mine;
  for_row<N>(vocab, [&](Index i) {
    const auto pack = load<N>(logits, start + i);
    float x[N];
    for (int e = 0; e < N; ++e) x[e] = cap(pack[e]);
    mine.add(x);
  });
  const float largest = block_max(mine.largest), sum = block_sum(mine.sum * mine.rescale(largest));
  if (threadIdx.x == 0) {
    const Index target = targets[row] - vocab_begin;
    stats[3 * row] = largest;
    stats[3 * row + 1] = sum;
    stats[3 * row + 2] = target >= 0 && target < vocab ? cap(logits[start + target]) : 0.0f;
  }
}

// stats: [parts, tokens, 3] of each token joined.
struct Join {
  Index parts, tokens;
  In<float> stats;
  In<std::int32_t> targets;
  Out<float> lse, loss;

  template <int N>
  __device__ void at(Index first) const {
    for (Index t = first; t < first + N; ++t) {
      float largest = minus_infinity, sum = 0, target = 0;
      for (Index p = 0; p < parts; ++p) largest = fmaxf(largest, stats[(p * tokens + t) * 3]);
      for (Index p = 0; p < parts; ++p) {
        const Index part = (p * tokens + t) * 3;
        sum += stats[part + 1] * expf(stats[part] - largest);  // 0 * exp(-inf) for a part without rows
        target += stats[part + 2];
      }
      const float z = largest + logf(sum);
      lse[t] = z;
      loss[t] = targets[t] < 0 ? 0.0f : z - target;
    }
  }
};

// One block: sums: [2] += the sum of losses: [T] and of lse^2 over the tokens with a target.
__global__ void sum_losses(Index tokens, In<float> losses, In<float> lse, In<std::int32_t> targets, Out<double> sums) {
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

// A block for each row. Logits is In<float>, or Out<float> where dlogits: [T, vocab] are the logits' memory: a thread
// has read a pack before it writes it.
template <class Cap, class T, int N, class Logits>
__global__ void row_gradient(Cap cap, Index vocab_begin, Index vocab, double z_loss, Logits logits,
                             In<std::int32_t> targets, In<float> lse, In<double> total, Out<T> dlogits) {
  const Index row = blockIdx.x, start = row * vocab, target = targets[row] - vocab_begin;
  const bool counted = targets[row] >= 0;
  const float factor = static_cast<float>(1 / total[0]), z_factor = static_cast<float>(z_loss / total[0]);
  const float z = lse[row], weight = factor + z_factor * 2 * z;
  for_row<N>(vocab, [&](Index i) {
    Pack<T, N> result;
    if (counted) {
      const auto pack = load<N>(logits, start + i);
      for (int e = 0; e < N; ++e) {
        const float c = cap(pack[e]), at_target = i + e == target ? factor : 0.0f;
        result[e] = from_float<T>((weight * expf(c - z) - at_target) * cap.slope(c));
      }
    } else {
      for (int e = 0; e < N; ++e) result[e] = from_float<T>(0);
    }
    store<N>(dlogits, start + i, result);
  });
}

}  // namespace

void CudaBackend::do_cross_entropy_forward(const CrossEntropyDesc& desc, ConstView logits, ConstView targets,
                                           View stats) {
  const Index vocab = logits.dim(1);
  with_packs<4>(vocab, {logits}, [&](auto packs) {
    with_cap(desc.softcap, [&](auto cap) {
      constexpr int N = packs;
      launch(context_, {.x = logits.dim(0), .threads = row_threads(blocks_of(vocab, N), most_threads)},
             row_stats<decltype(cap), N>, cap, desc.vocab_begin, vocab, in<float>(logits), in<std::int32_t>(targets),
             out<float>(stats));
    });
  });
}

void CudaBackend::do_cross_entropy_loss(ConstView stats, ConstView targets, View lse, View loss) {
  const Index tokens = lse.dim(0);
  for_elements(
      context_, tokens, {},
      Join{stats.dim(0), tokens, in<float>(stats), in<std::int32_t>(targets), out<float>(lse), out<float>(loss)});
}

void CudaBackend::do_loss_sums(ConstView losses, ConstView lse, ConstView targets, View sums) {
  const Index tokens = losses.dim(0);
  launch(context_, {.threads = row_threads(tokens, 1024)}, sum_losses, tokens, in<float>(losses), in<float>(lse),
         in<std::int32_t>(targets), out<double>(sums));
}

void CudaBackend::do_cross_entropy_backward(const CrossEntropyDesc& desc, ConstView logits, ConstView targets,
                                            ConstView lse, ConstView total, View dlogits) {
  const Index vocab = logits.dim(1);
  with_packs<4>(vocab, {logits, dlogits}, [&](auto packs) {
    with_cap(desc.softcap, [&](auto cap) {
      with_type(dlogits.dtype(), [&](auto zero) {
        using Cap = decltype(cap);
        using T = decltype(zero);
        constexpr int N = packs;
        const auto gradient = [&](auto kernel, auto x) {
          launch(context_, {.x = logits.dim(0), .threads = row_threads(blocks_of(vocab, N), most_threads)}, kernel, cap,
                 desc.vocab_begin, vocab, desc.z_loss, x, in<std::int32_t>(targets), in<float>(lse), in<double>(total),
                 out<T>(dlogits));
        };
        if constexpr (std::is_same_v<T, float>)
          if (logits.bytes() == dlogits.bytes())
            return gradient(row_gradient<Cap, T, N, Out<float>>, out<float>(dlogits));
        gradient(row_gradient<Cap, T, N, In<float>>, in<float>(logits));
      });
    });
  });
}

}  // namespace sy::cuda
