// Capacity, dispatch layout and permutation of rows. The copies of rows are in permute.cu.
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
#include <algorithm>

#include "kernels/cuda/cuda_device.h"
#include "kernels/cuda/rows.h"
#include "kernels/cuda/scan.h"
#include "kernels/ops/capacity.h"
#include "kernels/ops/dispatch.h"
#include "kernels/ops/permute.h"

namespace sy::cuda {

namespace {

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
// of at most `alone` assignments has one block.
Blocks make_blocks(const Context& context, Index segments, Index tokens, Index choices, Index buckets, bool by_choice,
                   Index alone = 8 * block_length) {
  constexpr Index warp_length = 64, max_counts = Index{64} << 10;
  constexpr Index shared_ints = 48 * 1024 / sizeof(int);
  const Index n = tokens * choices;
  const Index most = std::min(context.multiprocessors / segments, max_counts / (segments * buckets));
  const Index wanted = n <= alone ? 1 : std::clamp<Index>(blocks_of(n, block_length), 1, std::max<Index>(1, most));
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
struct Span {
  Index segment, begin, end;
};
__device__ Span span_of_block(const Blocks& blocks) {
  const Index begin = blockIdx.x % blocks.per_segment * blocks.length;
  return {blockIdx.x / blocks.per_segment, begin, min(begin + blocks.length, blocks.tokens * blocks.choices)};
}
__device__ Span span_of_warp(const Blocks& blocks) {
  const Span all = span_of_block(blocks);
  const Index length = (blocks.length + blocks.warps - 1) / blocks.warps,
              begin = min(all.begin + threadIdx.x / warp_size * length, all.end);
  return {all.segment, begin, min(begin + length, all.end)};
}

// A warp calls visit(a, bucket, rank) in order for the assignments of its span. Index a counts
// within the segment. The rank is next[bucket] plus the number of earlier assignments of the bucket
// in the span. Assignments of a negative bucket are skipped. next: [buckets] of the warp.
template <class Bucket, class Visit>
__device__ void walk(const Blocks& blocks, const Bucket& bucket_of, int* next, Visit visit) {
  const int lane = threadIdx.x % warp_size;
  const Index n = blocks.tokens * blocks.choices;
  const Span span = span_of_warp(blocks);
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
  const Span span = span_of_block(blocks);
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
// all threads of a block call visit.begin(segment, starts).
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
Grid grid_of(const Blocks& blocks, Index ints) {
  return {.x = blocks.all(), .threads = blocks.warps * warp_size, .shared_bytes = ints * Index{sizeof(int)}};
}

// Returns the counts of the blocks: [all blocks, buckets]; empty if a segment has one block.
template <class Bucket>
View count(Context& context, Workspace& workspace, const Blocks& blocks, const Bucket& bucket_of) {
  if (blocks.per_segment == 1) return {};
  const View counts = workspace.take({blocks.all(), blocks.buckets}, DType::i32);
  launch(context, grid_of(blocks, blocks.buckets), count_blocks<Bucket>, blocks, bucket_of, out<std::int32_t>(counts));
  return counts;
}

template <class Bucket, class Visit>
void visit_all(Context& context, const Blocks& blocks, const Bucket& bucket_of, ConstView counts, const Visit& visit) {
  launch(context, grid_of(blocks, (2 + blocks.warps) * blocks.buckets + 1), visit_blocks<Bucket, Visit>, blocks,
         bucket_of, in<std::int32_t>(counts), visit);
}

// ---- capacity ----

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

// Maps floats to unsigned integers that rise as the floats fall. A NaN is in this order, too.
__device__ std::uint32_t falling(float x) {
  const std::uint32_t bits = __float_as_uint(x + 0.0f);  // -0 becomes 0
  return bits & 0x80000000u ? bits : ~(bits | 0x80000000u);
}

// A block accepts the `limit` largest weights of one expert of a segment; ties go to the first
// ones. It finds the key of the last accepted weight by radix selection, eight bits at a time, the
// highest first. An assignment costs 12 bytes. For each of four digits it reads 8 bytes again,
// mostly from a cache.
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
      const std::uint32_t key = falling(weights[list[i]]);
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
      n, [&](Index i) { return falling(weights[list[i]]) == last ? 1 : 0; },
      [&](Index i, int before) {
        const std::uint32_t key = falling(weights[list[i]]);
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
                  out<std::int32_t>(op.dispatch_mask));
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

// ---- dispatch layout ----

namespace {

// Physical expert of each assignment, or -1 if it is not dispatched. If dispatch_mask is empty, the
// `num_experts` experts from `first` on are dispatched.
struct PhysicalExpert {
  In<std::int32_t> experts, dispatch_mask, logical_to_physical;
  int first, num_experts;
  __device__ int operator()(Index i) const {
    const int expert = experts[i] - first;
    const bool dispatched = expert >= 0 && (dispatch_mask ? dispatch_mask[i] != 0 : expert < num_experts);
    return !dispatched ? -1 : logical_to_physical ? logical_to_physical[expert] : expert;
  }
};

// Writes the physical experts, [n], and counts the assignments of a block. A block has whole
// tokens. An assignment costs 12 bytes.
//   expert_counts: [all blocks, experts] of each physical expert
//   ep_counts: [all blocks, ep + 1] of each bucket of ByEpRank
__global__ void __launch_bounds__(1024)
    count_destinations(Blocks blocks, PhysicalExpert physical_expert, ByEpRank<Out<std::int32_t>> ep_rank_of,
                       Out<std::int32_t> expert_counts, Out<std::int32_t> ep_counts) {
  const int experts = physical_expert.num_experts, ep_buckets = blocks.buckets;
  int* const of_experts = reinterpret_cast<int*>(dynamic_shared());  // [experts]
  int* const of_ep_ranks = of_experts + experts;                     // [ep_buckets]
  for (int i = threadIdx.x; i < experts + ep_buckets; i += blockDim.x) of_experts[i] = 0;
  __syncthreads();
  add_counts(
      blocks,
      [&](Index i) {
        const int physical = physical_expert(i);
        ep_rank_of.physical_experts[i] = physical;
        return physical;
      },
      of_experts);
  __syncthreads();  // the physical experts of all choices of a token are written
  add_counts(blocks, ep_rank_of, of_ep_ranks);
  __syncthreads();
  for (int i = threadIdx.x; i < experts; i += blockDim.x)
    expert_counts[blockIdx.x * Index{experts} + i] = of_experts[i];
  for (int i = threadIdx.x; i < ep_buckets; i += blockDim.x)
    ep_counts[blockIdx.x * Index{ep_buckets} + i] = of_ep_ranks[i];
}

// Writes the tables of a layout, then the copies of a token for the ep rank that an assignment is
// the first to require. An assignment that requires no ep rank clears as many entries at the end of
// tokens, up to its length. A copy costs 8 bytes.
struct WriteCopies {
  ByEpRank<In<std::int32_t>> ep_rank_of;
  // max_ep_ranks: largest number of ep ranks of a token; size: length of tokens; blocks: of
  // expert_counts
  Index etp, max_ep_ranks, size, experts, blocks;
  In<std::int32_t> expert_counts, logical_to_physical;
  Out<std::int32_t> counts, tokens_per_expert, tokens, row_id_map;

  __device__ bool is_empty() const { return size == 0; }

  // The warps of the grid share the experts. starts: [ep + 2] = the tokens for all earlier ep ranks
  __device__ void begin(Index, const int* starts) const {
    const Index warps = blockDim.x / warp_size, local = ep_rank_of.local;
    const int lane = threadIdx.x % warp_size;
    for (Index e = blockIdx.x * warps + threadIdx.x / warp_size; e < experts; e += gridDim.x * warps) {
      const Index at = logical_to_physical ? logical_to_physical[e] : e;
      int sum = 0;
      for (Index block = lane; block < blocks; block += warp_size) sum += expert_counts[block * experts + at];
      sum = warp_sum(sum);
      if (lane == 0) tokens_per_expert[e] = sum;
      for (Index etp_rank = lane; etp_rank < etp; etp_rank += warp_size)
        counts[(at / local * etp + etp_rank) * (1 + local) + 1 + at % local] = sum;
    }
    if (blockIdx.x != 0) return;
    for (Index rank = threadIdx.x; rank < ep_rank_of.ep * etp; rank += blockDim.x)
      counts[rank * (1 + local)] = starts[rank / etp + 1] - starts[rank / etp];
  }

  __device__ void operator()(Index, Index a, int ep_rank, int rank, const int* starts) const {
    const Index token = a / ep_rank_of.k;
    const bool requires_copy = ep_rank < ep_rank_of.ep;
    for (Index etp_rank = 0; etp_rank < etp && !requires_copy; ++etp_rank) {
      const Index at = starts[ep_rank] * etp + rank * etp + etp_rank;
      if (at < size) tokens[at] = -1;
    }
    const bool last = a % ep_rank_of.k == ep_rank_of.k - 1;
    if (!requires_copy && !last) return;
    Index index = 0;  // number of ep ranks that the token's earlier choices require
    for (Index before = token * ep_rank_of.k; before < a; ++before) index += ep_rank_of(before) < ep_rank_of.ep;
    for (Index etp_rank = 0; etp_rank < etp && requires_copy; ++etp_rank) {
      const Index copy = starts[ep_rank] * etp + etp_rank * (starts[ep_rank + 1] - starts[ep_rank]) + rank;
      tokens[copy] = static_cast<std::int32_t>(token);
      row_id_map[(token * max_ep_ranks + index) * etp + etp_rank] = static_cast<std::int32_t>(copy);
    }
    for (Index i = (index + requires_copy) * etp; i < max_ep_ranks * etp && last; ++i)
      row_id_map[token * max_ep_ranks * etp + i] = -1;
  }
};

}  // namespace

void execute(CudaDevice& device, const ops::DispatchLayout& op) {
  Context& context = device.context();
  const ExpertPartition& partition = op.partition;
  const Index tokens = op.experts.dim(0), experts = op.tokens_per_expert.dim(0), ep = partition.ep;
  const int k = static_cast<int>(op.experts.dim(1)), num_experts = static_cast<int>(experts),
            local = static_cast<int>(experts / ep), num_ep_ranks = static_cast<int>(ep);
  const In<std::int32_t> logical_to_physical = in<std::int32_t>(partition.logical_to_physical);
  const Blocks blocks = make_blocks(context, 1, tokens, k, ep + 1, false, block_length);
  const Index num_copies = op.tokens ? op.tokens.elements() : 0;
  Workspace workspace(context);
  const View expert_counts = workspace.take({blocks.all(), experts}, DType::i32),
             ep_counts = workspace.take({blocks.all(), ep + 1}, DType::i32);
  launch(context, grid_of(blocks, experts + ep + 1), count_destinations, blocks,
         PhysicalExpert{in<std::int32_t>(op.experts), in<std::int32_t>(op.dispatch_mask), logical_to_physical,
                        static_cast<int>(partition.first_expert), num_experts},
         ByEpRank<Out<std::int32_t>>{out<std::int32_t>(op.physical_experts), k, local, num_ep_ranks},
         out<std::int32_t>(expert_counts), out<std::int32_t>(ep_counts));
  const ByEpRank<In<std::int32_t>> ep_rank{in<std::int32_t>(op.physical_experts), k, local, num_ep_ranks};
  visit_all(context, blocks, ep_rank, ep_counts,
            WriteCopies{ep_rank, partition.etp, partition.max_ep_ranks(k), num_copies, experts, blocks.all(),
                        in<std::int32_t>(expert_counts), logical_to_physical, out<std::int32_t>(op.counts),
                        out<std::int32_t>(op.tokens_per_expert), out<std::int32_t>(op.tokens),
                        out<std::int32_t>(op.row_id_map)});
}

// ---- permutation of rows ----

namespace {

// Writes the row of an assignment. An assignment of other experts clears an entry at the end of
// assignments and tokens, up to their length. A row costs 8 bytes, 4 more for `assignments`, and 8
// for its weight.
struct WriteRows {
  Index k, size;  // size: length of tokens
  int local;      // bucket of the assignments of other experts
  In<float> weights;
  Out<std::int32_t> assignments, tokens, row_id_map, offsets;
  Out<float> row_weights;
  __device__ static constexpr bool is_empty() { return false; }
  __device__ void begin(Index, const int* starts) const {
    if (blockIdx.x != 0) return;
    for (int i = threadIdx.x; i <= local; i += blockDim.x) offsets[i] = starts[i];
  }
  __device__ void operator()(Index, Index a, int bucket, int rank, const int* starts) const {
    const bool is_local = bucket < local;
    const Index row = static_cast<Index>(starts[bucket]) + rank;
    row_id_map[a] = is_local ? static_cast<std::int32_t>(row) : -1;
    if (row >= size) return;
    if (assignments) assignments[row] = is_local ? static_cast<std::int32_t>(a) : -1;
    tokens[row] = is_local ? static_cast<std::int32_t>(a / k) : -1;
    if (row_weights && is_local) row_weights[row] = weights[a];
  }
};

}  // namespace

void execute(CudaDevice& device, const ops::BuildPermutation& op) {
  Context& context = device.context();
  const Index k = op.physical_experts.dim(1);
  const int local = static_cast<int>(op.offsets.dim(0) - 1);
  const Blocks blocks = make_blocks(context, 1, op.physical_experts.dim(0), k, local + 1, false);
  const ByKey bucket{in<std::int32_t>(op.physical_experts), static_cast<int>(op.first_expert), local};
  Workspace workspace(context);
  visit_all(context, blocks, bucket, count(context, workspace, blocks, bucket),
            WriteRows{k, op.tokens.elements(), local, in<float>(op.weights), out<std::int32_t>(op.assignments),
                      out<std::int32_t>(op.tokens), out<std::int32_t>(op.row_id_map), out<std::int32_t>(op.offsets),
                      out<float>(op.row_weights)});
}

}  // namespace sy::cuda
