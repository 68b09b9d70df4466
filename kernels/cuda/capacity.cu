// Capacity: which assignments of an expert are accepted.
#include <algorithm>

#include "kernels/cuda/counting_sort.h"
#include "kernels/cuda/cuda_device.h"
#include "kernels/ops/capacity.h"

namespace sy::cuda {

namespace {

// Accepts assignments whose rank is below the limit.
struct AcceptFirst {
  Index segment_size;  // in assignments, here and below
  int limit;
  Out<std::int32_t> dispatch_mask;
  __device__ static constexpr bool is_empty() { return false; }
  __device__ void begin(Index, const int*) const {}
  __device__ void operator()(Index segment, Index a, int, int rank, const int*) const {
    dispatch_mask[segment * segment_size + a] = rank < limit;
  }
};

// Lists the assignments of each expert in their order. all_starts: [segments, experts + 1]; list:
// [segments, segment_size].
struct ListByExpert {
  Index segment_size, per_segment;  // per_segment: number of blocks
  int experts;
  Out<std::int32_t> all_starts, list;
  __device__ static constexpr bool is_empty() { return false; }
  __device__ void begin(Index segment, const int* starts) const {
    if (blockIdx.x % per_segment != 0) return;
    for (int i = threadIdx.x; i <= experts; i += blockDim.x) all_starts[segment * (experts + 1) + i] = starts[i];
  }
  __device__ void operator()(Index segment, Index a, int expert, int rank, const int* starts) const {
    list[segment * segment_size + starts[expert] + rank] = static_cast<std::int32_t>(a);
  }
};

// A block accepts the `limit` largest weights of one expert of a segment; ties go to the first
// ones. Keys rise as weights fall. It finds the key of the last accepted weight by radix selection,
// eight bits at a time, the highest first. An assignment costs 12 bytes. For each of four digits it
// reads 8 bytes again, mostly from a cache.
__global__ void __launch_bounds__(1024)
    accept_largest(int experts, Index segment_size, int limit, In<std::int32_t> starts, In<std::int32_t> lists,
                   In<float> all_weights, Out<std::int32_t> all_masks) {
  constexpr int digits = 256;
  __shared__ int histogram[digits];
  __shared__ int chosen, remaining;
  const Index segment = blockIdx.x / experts, start = segment * (experts + 1) + blockIdx.x % experts;
  const In<std::int32_t> list = lists + (segment * segment_size + starts[start]);
  const In<float> weights = all_weights + segment * segment_size;
  const Out<std::int32_t> dispatch_mask = all_masks + segment * segment_size;
  const Index n = starts[start + 1] - starts[start];
  if (n <= limit) {
    for (Index i = threadIdx.x; i < n; i += blockDim.x) dispatch_mask[list[i]] = 1;
    return;
  }

  std::uint32_t last = 0;  // the key of the last accepted weight, as far as it is known
  int equal = limit;       // number of accepted keys with this prefix
  for (int shift = 24; shift >= 0; shift -= 8) {
    for (int i = threadIdx.x; i < digits; i += blockDim.x) histogram[i] = 0;
    __syncthreads();
    for (Index i = threadIdx.x; i < n; i += blockDim.x) {
      const std::uint32_t key = ~ordered_bits(weights[list[i]]);
      if (shift == 24 || (key ^ last) >> (shift + 8) == 0) atomicAdd(&histogram[key >> shift & (digits - 1)], 1);
    }
    __syncthreads();
    const int count = threadIdx.x < digits ? histogram[threadIdx.x] : 0, before = block_scan(count).before;
    if (before < equal && equal <= before + count) {
      chosen = threadIdx.x;
      remaining = equal - before;
    }
    __syncthreads();
    last |= static_cast<std::uint32_t>(chosen) << shift;
    equal = remaining;
  }
  block_scan(
      n, [&](Index i) { return ~ordered_bits(weights[list[i]]) == last ? 1 : 0; },
      [&](Index i, int before) {
        const std::uint32_t key = ~ordered_bits(weights[list[i]]);
        dispatch_mask[list[i]] = key < last || (key == last && before < equal);
      });
}

__global__ void accept_all(Index n, Out<std::int32_t> dispatch_mask) {
  const Index i = static_cast<Index>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i < n) dispatch_mask[i] = 1;
}

void capacity_by_order(Context& context, const Blocks& blocks, Index limit, ConstView experts, View dispatch_mask) {
  Workspace workspace(context);
  const ByExpert expert{in<std::int32_t>(experts)};
  visit_all(context, blocks, expert, count(context, workspace, blocks, expert),
            AcceptFirst{blocks.tokens * blocks.choices, static_cast<int>(limit), out<std::int32_t>(dispatch_mask)});
}

void capacity_by_weight(Context& context, const Blocks& blocks, Index limit, ConstView experts, ConstView weights,
                        View dispatch_mask) {
  Workspace workspace(context);
  const Index n = blocks.tokens * blocks.choices;
  const ByExpert expert{in<std::int32_t>(experts)};
  const View counts = count(context, workspace, blocks, expert),
             starts = workspace.take({blocks.segments, blocks.buckets + 1}, DType::i32),
             list = workspace.take({blocks.segments, n}, DType::i32);
  visit_all(context, blocks, expert, counts,
            ListByExpert{n, blocks.per_segment, blocks.buckets, out<std::int32_t>(starts), out<std::int32_t>(list)});
  launch(context, {.x = blocks.segments * blocks.buckets, .threads = n / blocks.buckets > 4096 ? 1024 : 256},
         accept_largest, blocks.buckets, n, static_cast<int>(limit), in<std::int32_t>(starts), in<std::int32_t>(list),
         in<float>(weights), out<std::int32_t>(dispatch_mask));
}

}  // namespace

void execute(CudaDevice& device, const ops::ApplyCapacity& op) {
  Context& context = device.context();
  const auto [order, capacity] = op.desc;
  const Index segments = op.segments, tokens = op.experts.dim(0) / segments, k = op.experts.dim(1);
  if (capacity == 0 || capacity >= tokens)  // a token chooses an expert at most once
    return launch(context, {.x = blocks_of(tokens * segments * k, 256)}, accept_all, tokens * segments * k,
                  op.dispatch_mask);
  if (order != DropOrder::probability)
    return capacity_by_order(context,
                             make_blocks(context, segments, tokens, k, op.num_experts, order == DropOrder::choice),
                             capacity, op.experts, op.dispatch_mask);
  // Processes as many segments at once as fit the workspace. A segment of a single block takes a
  // list of its assignments and a table of experts. Segments of several blocks have few counts
  // (make_blocks).
  const Index bytes_per_segment = (tokens * k + op.num_experts + 1) * Index{sizeof(std::int32_t)};
  const Index batch = std::clamp<Index>(context.workspace_bytes / 2 / bytes_per_segment, 1, segments);
  for (Index g = 0; g < segments; g += batch) {
    const Index size = std::min(batch, segments - g), first = g * tokens;
    capacity_by_weight(context, make_blocks(context, size, tokens, k, op.num_experts, false), capacity,
                       op.experts.rows(first, size * tokens), op.weights.rows(first, size * tokens),
                       op.dispatch_mask.rows(first, size * tokens));
  }
}

}  // namespace sy::cuda
