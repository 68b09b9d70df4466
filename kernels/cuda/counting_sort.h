// Counting sort of assignments of tokens to experts.
//
// All rankings of assignments are one counting sort. The assignments of a segment are divided among
// blocks (Blocks), and those of a block among its warps.
//   * Each block counts the buckets of its assignments: experts, physical experts, or ep ranks.
//   * Each block sums the counts of earlier blocks. Its warps visit their assignments, and know how
//     many assignments of each bucket come before them.
//
// So a ranking takes two launches, or one if a segment has one block. The ranks equal those of a
// sequential loop. To count an assignment costs 4 bytes. To visit it costs 4 bytes and the bytes
// written.
#pragma once

#include <algorithm>

#include "kernels/cuda/context.h"
#include "kernels/cuda/rows.h"
#include "kernels/cuda/scan.h"

namespace sy::cuda {

// Segments of tokens * choices assignments, ordered by (token, choice) or by (choice, token). A
// segment has `per_segment` blocks of `length` assignments, a multiple of the choices.
struct Blocks {
  Index segments, tokens, choices;
  int buckets, warps;  // warps of a block
  bool by_choice;
  Index per_segment, length;

  Index all() const { return segments * per_segment; }
};

constexpr Index block_length = 2048;  // assignments

// Each block reads the counts of all blocks of its segment, so their number is limited. A segment
// of at most one_block_limit assignments has one block.
inline Blocks make_blocks(const Context& context, Index segments, Index tokens, Index choices, Index buckets,
                          bool by_choice, Index one_block_limit = 8 * block_length) {
  constexpr Index warp_length = 64, max_counts = Index{64} << 10;
  constexpr Index shared_ints = 48 * 1024 / sizeof(int);
  const Index n = tokens * choices;
  const Index most = std::min(context.multiprocessors / segments, max_counts / (segments * buckets));
  const Index wanted =
      n <= one_block_limit ? 1 : std::clamp<Index>(blocks_of(n, block_length), 1, std::max<Index>(1, most));
  const Index length = blocks_of(tokens, wanted) * choices;
  const Index warps = std::clamp<Index>(std::min(blocks_of(length, warp_length), shared_ints / buckets - 3), 1, 32);
  return {
      segments, tokens, choices, static_cast<int>(buckets), static_cast<int>(warps), by_choice, blocks_of(n, length),
      length};
}

// Bucket of assignment i of all segments, by expert or physical expert. There are `num_local`
// buckets from `first` on, and one bucket after them for all other keys.
struct ByKey {
  In<std::int32_t> keys;
  int first, num_local;
  __device__ int operator()(Index i) const {
    return static_cast<int>(min(static_cast<unsigned>(keys[i] - first), static_cast<unsigned>(num_local)));
  }
};

// Bucket of assignment i of all segments, by expert. Padding, whose experts are -1, has none.
struct ByExpert {
  In<std::int32_t> experts;
  __device__ int operator()(Index i) const { return experts[i]; }
};

// Bucket by the ep rank of the physical expert, if the assignment is the first of its token for
// this ep rank; otherwise one bucket after the ep ranks. Experts: an In or Out of i32.
template <class Experts>
struct ByEpRank {
  Experts physical_experts;
  int k, local, ep;  // local: number of physical experts of an ep rank
  __device__ int operator()(Index i) const {
    if (physical_experts[i] < 0) return ep;
    const int ep_rank = physical_experts[i] / local;
    for (Index before = i - i % k; before < i; ++before)
      if (physical_experts[before] >= 0 && physical_experts[before] / local == ep_rank) return ep;
    return ep_rank;
  }
};

// A range of assignments of a segment.
struct AssignmentRange {
  Index segment, begin, end;
};
__device__ inline AssignmentRange span_of_block(const Blocks& blocks) {
  const Index begin = blockIdx.x % blocks.per_segment * blocks.length;
  return {blockIdx.x / blocks.per_segment, begin, min(begin + blocks.length, blocks.tokens * blocks.choices)};
}
__device__ inline AssignmentRange span_of_warp(const Blocks& blocks) {
  const AssignmentRange all = span_of_block(blocks);
  const Index length = (blocks.length + blocks.warps - 1) / blocks.warps,
              begin = min(all.begin + threadIdx.x / warp_size * length, all.end);
  return {all.segment, begin, min(begin + length, all.end)};
}

// A warp calls visit(a, bucket, rank) in order for the assignments of its span. Index a counts
// within the segment. The rank is next[bucket] plus the number of earlier assignments of the bucket
// in the span. Assignments of a negative bucket are skipped. next: [buckets] of the warp, to which
// the numbers of visited assignments are added.
template <class Bucket, class Visit>
__device__ void walk(const Blocks& blocks, const Bucket& bucket_of, int* next, Visit visit) {
  const int lane = threadIdx.x % warp_size;
  const Index n = blocks.tokens * blocks.choices;
  const AssignmentRange span = span_of_warp(blocks);
  for (Index first = span.begin; first < span.end; first += warp_size) {
    const Index i = first + lane;
    const Index a = blocks.by_choice ? i % blocks.tokens * blocks.choices + i / blocks.tokens : i;
    const int bucket = i < span.end ? bucket_of(span.segment * n + a) : -1;
    const unsigned peers = __match_any_sync(0xffffffffu, bucket);
    const int before = __popc(peers & ((1u << lane) - 1)), rank = bucket < 0 ? 0 : next[bucket] + before;
    __syncwarp();
    if (bucket >= 0 && before == 0) next[bucket] += __popc(peers);
    __syncwarp();
    if (bucket >= 0) visit(a, bucket, rank);
  }
}

// A block adds its assignments to counts: [buckets].
template <class Bucket>
__device__ void add_counts(const Blocks& blocks, const Bucket& bucket_of, int* counts) {
  const Index n = blocks.tokens * blocks.choices;
  const AssignmentRange span = span_of_block(blocks);
  for (Index first = span.begin; first < span.end; first += blockDim.x) {
    const Index i = first + threadIdx.x;
    const Index a = blocks.by_choice ? i % blocks.tokens * blocks.choices + i / blocks.tokens : i;
    const int bucket = i < span.end ? bucket_of(span.segment * n + a) : -1;
    const unsigned peers = __match_any_sync(0xffffffffu, bucket);
    const bool first_of_peers = (peers & ((1u << threadIdx.x % warp_size) - 1)) == 0;
    if (bucket >= 0 && first_of_peers) atomicAdd(&counts[bucket], __popc(peers));
  }
}

// counts: [all blocks, buckets] = the number of assignments of each bucket in a block.
template <class Bucket>
__global__ void __launch_bounds__(1024) count_blocks(Blocks blocks, Bucket bucket_of, Out<std::int32_t> counts) {
  int* const sums = reinterpret_cast<int*>(dynamic_shared());  // [buckets]
  for (int i = threadIdx.x; i < blocks.buckets; i += blockDim.x) sums[i] = 0;
  __syncthreads();
  add_counts(blocks, bucket_of, sums);
  __syncthreads();
  for (int i = threadIdx.x; i < blocks.buckets; i += blockDim.x)
    counts[blockIdx.x * Index{blocks.buckets} + i] = sums[i];
}

// Calls visit(segment, a, bucket, rank, starts) for all assignments, as `walk` does. Before that,
// all threads of a block call visit.begin(segment, starts). If visit.is_empty() is then true,
// nothing is visited.
//   starts: [buckets + 1] in shared memory, the sum of the segment's counts before each bucket
//   counts: as count_blocks writes them; not read if a segment has one block
template <class Bucket, class Visit>
__global__ void __launch_bounds__(1024)
    visit_blocks(Blocks blocks, Bucket bucket_of, In<std::int32_t> counts, Visit visit) {
  int* const starts = reinterpret_cast<int*>(dynamic_shared());
  int* const before = starts + blocks.buckets + 1;  // [buckets] counts of earlier blocks
  int* const next = before + blocks.buckets;        // [warps, buckets]
  int* const next_of_warp = next + threadIdx.x / warp_size * blocks.buckets;
  const Index segment = blockIdx.x / blocks.per_segment, number = blockIdx.x % blocks.per_segment;
  for (int i = threadIdx.x; i < (2 + blocks.warps) * blocks.buckets + 1; i += blockDim.x) starts[i] = 0;
  __syncthreads();
  const Index num_counts = blocks.per_segment > 1 ? blocks.per_segment * blocks.buckets : 0;
  for (Index i = threadIdx.x; i < num_counts; i += blockDim.x) {
    const int count = counts[segment * num_counts + i];
    atomicAdd(&starts[i % blocks.buckets], count);
    if (i / blocks.buckets < number) atomicAdd(&before[i % blocks.buckets], count);
  }
  walk(blocks, bucket_of, next_of_warp, [](Index, int, int) {});
  __syncthreads();
  for (int bucket = threadIdx.x; bucket < blocks.buckets; bucket += blockDim.x) {
    int sum = before[bucket];
    for (int warp = 0; warp < blocks.warps; ++warp) {
      int& of_warp = next[warp * blocks.buckets + bucket];
      const int count = of_warp;
      of_warp = sum;
      sum += count;
    }
    if (num_counts == 0) starts[bucket] = sum;
  }
  __syncthreads();
  const int total = block_scan(
      blocks.buckets, [&](Index i) { return starts[i]; }, [&](Index i, int sum) { starts[i] = sum; });
  if (threadIdx.x == 0) starts[blocks.buckets] = total;
  __syncthreads();
  visit.begin(segment, starts);
  if (visit.is_empty()) return;
  walk(blocks, bucket_of, next_of_warp,
       [&](Index a, int bucket, int rank) { visit(segment, a, bucket, rank, starts); });
}

// Grid of count_blocks, with `ints` of shared memory.
inline Grid grid_of(const Blocks& blocks, Index ints) {
  return {.x = blocks.all(), .threads = blocks.warps * warp_size, .shared_bytes = ints * Index{sizeof(int)}};
}

// Returns the counts of the blocks: [all blocks, buckets]; empty if a segment has one block.
template <class Bucket>
View count(Context& context, Workspace& workspace, const Blocks& blocks, const Bucket& bucket_of) {
  if (blocks.per_segment == 1) return {};
  const View counts = workspace.take({blocks.all(), blocks.buckets}, DType::i32);
  launch(context, grid_of(blocks, blocks.buckets), count_blocks<Bucket>, blocks, bucket_of, counts);
  return counts;
}

template <class Bucket, class Visit>
void visit_all(Context& context, const Blocks& blocks, const Bucket& bucket_of, ConstView counts, const Visit& visit) {
  launch(context, grid_of(blocks, (2 + blocks.warps) * blocks.buckets + 1), visit_blocks<Bucket, Visit>, blocks,
         bucket_of, counts, visit);
}

}  // namespace sy::cuda
