// QK-clip.
#include "kernels/cuda/cuda_device.h"
#include "kernels/cuda/rows.h"
#include "kernels/formulas/qk_clip.h"
#include "kernels/ops/qk_clip.h"

namespace sy::cuda {

namespace {

// A block takes a head. An element costs 4 bytes.
__global__ void max_logits_kernel(Index sequences, Index heads, Index positions, In<float> largest,
                                  Out<float> max_logits) {
  const Index head = blockIdx.x;
  float most = max_logits[head];
  for (Index i = threadIdx.x; i < sequences * positions; i += blockDim.x)
    most = fmaxf(most, largest[(i / positions * heads + head) * positions + i % positions]);
  most = block_max(most);
  if (threadIdx.x == 0) max_logits[head] = most;
}

// An element of a head that is clipped costs 8 bytes, 10 with rounded.
struct Clip {
  Index heads, kv_heads, head_elements, shared, offset;
  float threshold;
  bool keys;
  In<float> coefficient, max_logits;
  Out<float> w;
  Out<bf16> rounded;  // may be nullptr

  template <int N>
  __device__ void at(Index i) const {
    if (coefficient[0] != coefficient[0]) return;
    const Index head = (offset + i) / head_elements;
    const float factor = formulas::qk_clip_factor(max_logits, heads, kv_heads, threshold, keys, head,
                                                  (offset + i) % head_elements < shared);
    if (factor == 1) return;
    w[i] *= factor;
    if (rounded) rounded[i] = from_float<bf16>(w[i]);
  }
};

}  // namespace

void execute(CudaDevice& device, const ops::MaxLogits& op) {
  launch(device.context(), {.x = op.largest.dim(1)}, max_logits_kernel, op.largest.dim(0), op.largest.dim(1),
         op.largest.dim(2), op.largest, op.max_logits);
}

// Heads may begin at any element, so a thread takes one element at a time.
void execute(CudaDevice& device, const ops::QkClip& op) {
  launch(device.context(), {.x = blocks_of(op.w.elements(), Grid{}.threads)}, elements_kernel<1, Clip>, op.w.elements(),
         Clip{op.max_logits.dim(0), op.kv_heads, op.head_elements, op.shared, op.offset, op.threshold, op.keys,
              in<float>(op.coefficient), in<float>(op.max_logits), out<float>(op.w), out<bf16>(op.rounded)});
}

}  // namespace sy::cuda
