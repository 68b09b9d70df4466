// Gradients of attention's parameters: position biases and sinks. They use P, lse and D of
// attention_backward.cu, and iterate over pairs of vectors in global memory.
#include "kernels/cuda/attention.h"
#include "kernels/cuda/cuda_device.h"
#include "kernels/ops/attention.h"

namespace sy::cuda {

namespace {

using namespace attention;

// The vector of one position in one head.
template <class P>
__device__ P vector_of(const HeadsOf<P>& x, int b, int head, int position) {
  const HeadRows<P> rows = x.rows(b, head);
  return rows.x + position * rows.stride;
}

// dbias: [H, n] += the sums of dS / scale by head and distance. A block takes one distance in one
// head, and its threads share the pairs of that distance. The kernels of
// attention_backward.cu could not sum by distance in a fixed order, because each of their blocks
// holds terms of many distances. A pair costs 2 hd +
// 3 vd FLOPs, and reads its vectors, from caches at best.
template <class T>
__global__ void bias_gradient(const AttentionProblem z, const ScoreScaling scores, const InHeads<T> dout,
                              const InHeads<T> q, const InHeads<T> k, const InHeads<T> v, const InHeads<T> out,
                              const GeneralOperands special, In<float> lse, Out<float> dbias) {
  const int later = z.sees_later_keys() ? z.Sk - 1 : 0;  // keys that may be after a query
  const int distance = static_cast<int>(blockIdx.x) - later, head = static_cast<int>(blockIdx.y);
  const int kv_head = head / z.heads_per_kv();
  float sum = 0;
  for (int i = static_cast<int>(threadIdx.x); i < z.B * z.Sq; i += static_cast<int>(blockDim.x)) {
    const int b = i / z.Sq, query = i % z.Sq, key = z.query_offset + query - distance;
    const GeneralOperands mask_operands = special.of(b, z);
    if (key < 0 || !z.sees(mask_operands, query, key) || !z.allows(mask_operands, query, key)) continue;
    const auto query_vector = vector_of(q, b, head, query), key_vector = vector_of(k, b, kv_head, key);
    // slope: derivative of the loss with respect to the score, divided by its weight.
    float product = 0, slope = 0;
    for (Index c = 0; c < q.width; ++c) product += to_float(query_vector[c]) * to_float(key_vector[c]);
    const auto d = vector_of(dout, b, head, query), value = vector_of(v, b, kv_head, key),
               mean = vector_of(out, b, head, query);
    for (Index c = 0; c < v.width; ++c) slope += to_float(d[c]) * (to_float(value[c]) - to_float(mean[c]));
    const float score = scores.outer * (product + z.bias(mask_operands, scores, head, query, key));
    sum += slope * exp2_approx(score - log2_e * lse[(Index{b} * z.H + head) * z.Sq + query]);
  }
  sum = block_sum(sum);
  if (threadIdx.x == 0) dbias[Index{head} * z.biases + z.bias_origin - distance] += sum;
}

// dsinks: [H] += the sums of -exp(sink - lse) D. A block takes a head. An element of out costs 2w
// bytes and 2 FLOPs.
template <class T>
__global__ void sink_gradient(const AttentionProblem z, const InHeads<T> dout, const InHeads<T> out,
                              const GeneralOperands special, In<float> lse, Out<float> dsinks) {
  const int head = static_cast<int>(blockIdx.x);
  const float sink = special.sinks[head];
  float sum = 0;
  for (int i = static_cast<int>(threadIdx.x); i < z.B * z.Sq; i += static_cast<int>(blockDim.x)) {
    const int b = i / z.Sq, query = i % z.Sq;
    const auto x = vector_of(dout, b, head, query), y = vector_of(out, b, head, query);
    float delta = 0;
    for (Index c = 0; c < out.width; ++c) delta += to_float(x[c]) * to_float(y[c]);
    sum += delta * exp2_approx(log2_e * (sink - lse[(Index{b} * z.H + head) * z.Sq + query]));
  }
  sum = block_sum(sum);
  if (threadIdx.x == 0) dsinks[head] -= sum;
}

}  // namespace

void execute(CudaDevice& device, const ops::AttentionBackwardLearned& op) {
  with_type(op.q.dtype, [&]<class T>(T) {
    const AttentionProblem z(op.desc, op.q, op.k);
    const GeneralOperands special(op.desc);
    const auto dout = ConstHeads(op.dout), out = ConstHeads(op.out);
    const auto lse = in<float>(op.lse);
    if (op.dbias)
      launch(device.context(),
             {.x = Index{z.query_offset} + z.Sq + (z.sees_later_keys() ? z.Sk - 1 : 0), .y = z.H, .threads = 128},
             bias_gradient<T>, z, ScoreScaling(op.desc), dout, op.q, op.k, op.v, out, special, lse, op.dbias);
    if (op.dsinks) launch(device.context(), {.x = z.H}, sink_gradient<T>, z, dout, out, special, lse, op.dsinks);
  });
}

}  // namespace sy::cuda
