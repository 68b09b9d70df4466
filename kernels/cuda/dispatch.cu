// Capacity, dispatch layout and permutation of rows. The copies of rows are in permute.cu.
//
// All rankings of assignments are one counting sort. The assignments of a segment are divided into
// chunks (Chunks), one for each warp.
//   * Each warp counts the buckets of its chunk: experts, physical experts, or ep ranks.
//   * The counts are summed over the chunks.
//   * Each warp visits its chunk again, and knows how many assignments of each bucket come before
//     it.
//
// The ranks equal those of a sequential loop. To count an assignment costs 4 bytes. To visit it
// costs 4 bytes and the bytes written.
#include <algorithm>

#include "kernels/cuda/cuda_device.h"
#include "kernels/cuda/rows.h"
#include "kernels/cuda/scan.h"
#include "kernels/ops/capacity.h"
#include "kernels/ops/dispatch.h"
#include "kernels/ops/permute.h"

namespace sy::cuda {

namespace {

// Segments of tokens * choices assignments, in chunks of `length`, ordered by (token, choice) or by
// (choice, token).
struct Chunks {
  Index segments, tokens, choices;
  int buckets;
  bool by_choice;
  Index per_segment, length;

  Index all() const { return segments * per_segment; }
};

Chunks make_chunks(const Context& context, Index segments, Index tokens, Index choices, Index buckets, bool by_choice) {
  constexpr Index warps_per_multiprocessor = 16, min_length = 128, max_counts = Index{4} << 20;
  const Index n = tokens * choices, max_chunks = warps_per_multiprocessor * context.multiprocessors;
  const Index most = std::min(max_chunks / segments, max_counts / (segments * buckets));
  const Index wanted = std::clamp<Index>(blocks_of(n, min_length), 1, std::max<Index>(1, most));
  const Index length = blocks_of(blocks_of(n, wanted), warp_size) * warp_size;
  return {segments, tokens, choices, static_cast<int>(buckets), by_choice, blocks_of(n, length), length};
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
// this ep rank; otherwise one bucket after the ep ranks.
struct ByEpRank {
  In<std::int32_t> physical_experts;
  int k, local, ep;  // local: number of physical experts of an ep rank
  __device__ int operator()(Index i) const {
    if (physical_experts[i] < 0) return ep;
    const int ep_rank = physical_experts[i] / local;
    for (Index before = i - i % k; before < i; ++before)
      if (physical_experts[before] >= 0 && physical_experts[before] / local == ep_rank) return ep;
    return ep_rank;
  }
};

// A warp calls visit(segment, a, bucket, rank) in order for the assignments of its chunk. Index a
// counts within the segment. The rank is next[bucket] plus the number of earlier assignments of the
// bucket in the chunk. Assignments of a negative bucket are skipped. next: [buckets] of the warp.
template <class Bucket, class Visit>
__device__ void walk(const Chunks& chunks, Index chunk, Bucket bucket_of, int* next, Visit visit) {
  const int lane = threadIdx.x % warp_size;
  const Index n = chunks.tokens * chunks.choices, segment = chunk / chunks.per_segment;
  const Index begin = chunk % chunks.per_segment * chunks.length, end = min(begin + chunks.length, n);
  for (Index first = begin; first < end; first += warp_size) {
    const Index i = first + lane;
    const Index a = chunks.by_choice ? i % chunks.tokens * chunks.choices + i / chunks.tokens : i;
    const int bucket = i < end ? bucket_of(segment * n + a) : -1;
    const unsigned peers = __match_any_sync(0xffffffffu, bucket);
    const int before = __popc(peers & ((1u << lane) - 1)), rank = bucket < 0 ? 0 : next[bucket] + before;
    __syncwarp();
    if (bucket >= 0 && before == 0) next[bucket] += __popc(peers);
    __syncwarp();
    if (bucket >= 0) visit(segment, a, bucket, rank);
  }
}

__device__ Index warp_of_grid() {
  return (static_cast<Index>(blockIdx.x) * blockDim.x + threadIdx.x) / warp_size;
}

// counts: [all chunks, buckets] = the number of assignments of each bucket in a chunk.
template <class Bucket>
__global__ void count_chunks(Chunks chunks, Bucket bucket_of, Out<std::int32_t> counts) {
  const int lane = threadIdx.x % warp_size;
  int* const next = reinterpret_cast<int*>(dynamic_shared()) + threadIdx.x / warp_size * chunks.buckets;
  const Index chunk = warp_of_grid();
  if (chunk >= chunks.segments * chunks.per_segment) return;
  for (int i = lane; i < chunks.buckets; i += warp_size) next[i] = 0;
  __syncwarp();
  walk(chunks, chunk, bucket_of, next, [](Index, Index, int, int) {});
  for (int i = lane; i < chunks.buckets; i += warp_size) counts[chunk * chunks.buckets + i] = next[i];
}

// A block takes one segment and bucket. A count costs 8 bytes.
//   counts: [all chunks, buckets] becomes the sum of the counts of the segment's earlier chunks
//   totals: [segments, buckets] = the sum over all of its chunks
__global__ void scan_chunks(Chunks chunks, Out<std::int32_t> counts, Out<std::int32_t> totals) {
  const Index segment = blockIdx.x / chunks.buckets, first = segment * chunks.per_segment * chunks.buckets;
  const Index bucket = blockIdx.x % chunks.buckets;
  const auto at = [&](Index chunk) { return first + chunk * chunks.buckets + bucket; };
  const int total = block_scan(
      chunks.per_segment, [&](Index i) { return counts[at(i)]; }, [&](Index i, int before) { counts[at(i)] = before; });
  if (threadIdx.x == 0) totals[blockIdx.x] = total;
}

// Visits all chunks and calls Visit::operator() as `walk` does. before: [all chunks, buckets], the
// assignments before each chunk; empty means zeros.
template <class Bucket, class Visit>
__global__ void visit_chunks(Chunks chunks, Bucket bucket_of, In<std::int32_t> before, Visit visit) {
  const int lane = threadIdx.x % warp_size;
  int* const next = reinterpret_cast<int*>(dynamic_shared()) + threadIdx.x / warp_size * chunks.buckets;
  const Index chunk = warp_of_grid();
  if (chunk >= chunks.segments * chunks.per_segment) return;
  for (int i = lane; i < chunks.buckets; i += warp_size) next[i] = before ? before[chunk * chunks.buckets + i] : 0;
  __syncwarp();
  walk(chunks, chunk, bucket_of, next, visit);
}

// Grid of count_chunks and visit_chunks.
Grid chunk_grid(const Chunks& chunks) {
  constexpr Index max_shared = 48 * 1024;
  const Index bytes_per_warp = chunks.buckets * Index{sizeof(int)},
              warps = std::clamp<Index>(max_shared / bytes_per_warp, 1, 4);
  return {.x = blocks_of(chunks.all(), warps),
          .threads = static_cast<int>(warps) * warp_size,
          .shared_bytes = warps * bytes_per_warp};
}

struct BucketCounts {
  View before, totals;  // [all chunks, buckets], [segments, buckets], as scan_chunks writes them
};

template <class Bucket>
BucketCounts count(Context& context, Workspace& workspace, const Chunks& chunks, const Bucket& bucket_of) {
  const BucketCounts bucket_counts{workspace.take({chunks.all(), chunks.buckets}, DType::i32),
                                   workspace.take({chunks.segments, chunks.buckets}, DType::i32)};
  launch(context, chunk_grid(chunks), count_chunks<Bucket>, chunks, bucket_of, out<std::int32_t>(bucket_counts.before));
  launch(context, {.x = chunks.segments * chunks.buckets}, scan_chunks, chunks, out<std::int32_t>(bucket_counts.before),
         out<std::int32_t>(bucket_counts.totals));
  return bucket_counts;
}

template <class Bucket, class Visit>
void visit_all(Context& context, const Chunks& chunks, const Bucket& bucket_of, ConstView before, const Visit& visit) {
  launch(context, chunk_grid(chunks), visit_chunks<Bucket, Visit>, chunks, bucket_of, in<std::int32_t>(before), visit);
}

// ---- capacity ----

// Accepts assignments whose rank is below the limit.
struct AcceptFirst {
  Index segment_size;  // in assignments, here and below
  int limit;
  Out<std::int32_t> dispatch_mask;
  __device__ void operator()(Index segment, Index a, int, int rank) const {
    dispatch_mask[segment * segment_size + a] = rank < limit;
  }
};

// Lists the assignments of each expert in their order. starts: [segments, experts + 1]; list:
// [segments, segment_size].
struct ListByExpert {
  Index segment_size;
  int experts;
  In<std::int32_t> starts;
  Out<std::int32_t> list;
  __device__ void operator()(Index segment, Index a, int expert, int rank) const {
    list[segment * segment_size + starts[segment * (experts + 1) + expert] + rank] = static_cast<std::int32_t>(a);
  }
};

// A block takes a segment. starts: [segments, experts + 1] = the sum of totals: [segments, experts]
// before each expert.
__global__ void sum_totals(int experts, In<std::int32_t> totals, Out<std::int32_t> starts) {
  const Index first = blockIdx.x * static_cast<Index>(experts + 1), of = blockIdx.x * static_cast<Index>(experts);
  const int sum = block_scan(
      experts, [&](Index i) { return totals[of + i]; }, [&](Index i, int before) { starts[first + i] = before; });
  if (threadIdx.x == 0) starts[first + experts] = sum;
}

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

void capacity_by_order(Context& context, const Chunks& chunks, Index limit, ConstView experts, View dispatch_mask) {
  Workspace workspace(context);
  const ByExpert expert{in<std::int32_t>(experts)};
  const View before = chunks.per_segment > 1 ? count(context, workspace, chunks, expert).before : View();
  visit_all(context, chunks, expert, before,
            AcceptFirst{chunks.tokens * chunks.choices, static_cast<int>(limit), out<std::int32_t>(dispatch_mask)});
}

void capacity_by_weight(Context& context, const Chunks& chunks, Index limit, ConstView experts, ConstView weights,
                        View dispatch_mask) {
  Workspace workspace(context);
  const Index n = chunks.tokens * chunks.choices;
  const ByExpert expert{in<std::int32_t>(experts)};
  const BucketCounts bucket_counts = count(context, workspace, chunks, expert);
  const View starts = workspace.take({chunks.segments, chunks.buckets + 1}, DType::i32),
             list = workspace.take({chunks.segments, n}, DType::i32);
  launch(context, {.x = chunks.segments}, sum_totals, chunks.buckets, in<std::int32_t>(bucket_counts.totals),
         out<std::int32_t>(starts));
  visit_all(context, chunks, expert, bucket_counts.before,
            ListByExpert{n, chunks.buckets, in<std::int32_t>(starts), out<std::int32_t>(list)});
  launch(context, {.x = chunks.segments * chunks.buckets, .threads = n / chunks.buckets > 4096 ? 1024 : 256},
         accept_largest, chunks.buckets, n, static_cast<int>(limit), in<std::int32_t>(starts), in<std::int32_t>(list),
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
                             make_chunks(context, segments, tokens, k, op.num_experts, order == DropOrder::choice),
                             capacity, op.experts, op.dispatch_mask);
  // Processes as many segments at once as fit the workspace. A segment of a single chunk takes a
  // list of its assignments and three tables of experts. A segment of several chunks is processed
  // alone and may take more.
  const Index bytes_per_segment = (tokens * k + 3 * (op.num_experts + 1)) * Index{sizeof(std::int32_t)};
  const Index batch = std::clamp<Index>(context.workspace_bytes / 2 / bytes_per_segment, 1, segments);
  for (Index g = 0; g < segments; g += batch) {
    const Index size = std::min(batch, segments - g), first = g * tokens;
    capacity_by_weight(context, make_chunks(context, size, tokens, k, op.num_experts, false), capacity,
                       op.experts.rows(first, size * tokens), op.weights.rows(first, size * tokens),
                       op.dispatch_mask.rows(first, size * tokens));
  }
}

// ---- dispatch layout ----

namespace {

// physical_experts: [n] of each assignment, or -1 if it is not dispatched. If dispatch_mask is
// empty, the `num_experts` experts from `first` on are dispatched.
__global__ void map_to_physical(Index n, In<std::int32_t> experts, In<std::int32_t> dispatch_mask,
                                In<std::int32_t> logical_to_physical, int first, int num_experts,
                                Out<std::int32_t> physical_experts) {
  const Index i = static_cast<Index>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i >= n) return;
  const int expert = experts[i] - first;
  const bool dispatched = expert >= 0 && (dispatch_mask ? dispatch_mask[i] != 0 : expert < num_experts);
  physical_experts[i] = !dispatched ? -1 : logical_to_physical ? logical_to_physical[expert] : expert;
}

// One block sums the counts of the assignments. ep_tokens and assigned have a last element for all
// other assignments.
//   ep_tokens: [ep + 1] tokens for each ep rank
//   assigned: [experts + 1] assignments of each physical expert
//   starts: [ep + 1] = the tokens for all earlier ep ranks
__global__ void __launch_bounds__(1024)
    sum_counts(Index ep, Index etp, Index experts, In<std::int32_t> ep_tokens, In<std::int32_t> assigned,
               In<std::int32_t> logical_to_physical, Out<std::int32_t> starts, Out<std::int32_t> counts,
               Out<std::int32_t> tokens_per_expert) {
  const Index local = experts / ep;
  const int sum = block_scan(
      ep, [&](Index i) { return ep_tokens[i]; },
      [&](Index i, int before) {
        starts[i] = before;
        for (Index etp_rank = 0; etp_rank < etp; ++etp_rank) counts[(i * etp + etp_rank) * (1 + local)] = ep_tokens[i];
      });
  if (threadIdx.x == 0) starts[ep] = sum;
  for (Index e = threadIdx.x; e < experts; e += blockDim.x) {
    const Index at = logical_to_physical ? logical_to_physical[e] : e;
    tokens_per_expert[e] = assigned[at];
    for (Index etp_rank = 0; etp_rank < etp; ++etp_rank)
      counts[(at / local * etp + etp_rank) * (1 + local) + 1 + at % local] = assigned[at];
  }
}

// Writes the copies of a token for the ep rank that an assignment is the first to require. An
// assignment that requires no ep rank clears as many entries at the end of tokens, up to its
// length. A copy costs 8 bytes.
struct WriteCopies {
  ByEpRank ep_rank_of;
  // max_ep_ranks: largest number of ep ranks of a token; size: length of tokens
  Index etp, max_ep_ranks, size;
  In<std::int32_t> starts;
  Out<std::int32_t> tokens, row_id_map;
  __device__ void operator()(Index, Index a, int ep_rank, int rank) const {
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
  const Index n = op.experts.elements(), tokens = op.experts.dim(0), k = op.experts.dim(1),
              num_experts = op.tokens_per_expert.dim(0), ep = partition.ep;
  const In<std::int32_t> logical_to_physical = in<std::int32_t>(partition.logical_to_physical),
                         physical_experts = in<std::int32_t>(op.physical_experts);
  launch(context, {.x = blocks_of(n, 256)}, map_to_physical, n, in<std::int32_t>(op.experts),
         in<std::int32_t>(op.dispatch_mask), logical_to_physical, static_cast<int>(partition.first_expert),
         static_cast<int>(num_experts), out<std::int32_t>(op.physical_experts));
  const Chunks expert_chunks = make_chunks(context, 1, tokens, k, num_experts + 1, false),
               ep_chunks = make_chunks(context, 1, tokens, k, ep + 1, false);
  const ByEpRank ep_rank{physical_experts, static_cast<int>(k), static_cast<int>(num_experts / ep),
                         static_cast<int>(ep)};
  Workspace workspace(context);
  const BucketCounts assigned =
      count(context, workspace, expert_chunks, ByKey{physical_experts, 0, static_cast<int>(num_experts)});
  const BucketCounts ep_tokens = count(context, workspace, ep_chunks, ep_rank);
  const View starts = workspace.take({ep + 1}, DType::i32);
  launch(context, {.threads = 1024}, sum_counts, ep, partition.etp, num_experts, in<std::int32_t>(ep_tokens.totals),
         in<std::int32_t>(assigned.totals), logical_to_physical, out<std::int32_t>(starts),
         out<std::int32_t>(op.counts), out<std::int32_t>(op.tokens_per_expert));
  if (!op.tokens) return;
  visit_all(context, ep_chunks, ep_rank, ep_tokens.before,
            WriteCopies{ep_rank, partition.etp, partition.max_ep_ranks(k), op.tokens.elements(),
                        in<std::int32_t>(starts), out<std::int32_t>(op.tokens), out<std::int32_t>(op.row_id_map)});
}

// ---- permutation of rows ----

namespace {

// Writes the row of an assignment. An assignment of other experts clears an entry at the end of
// assignments and tokens, up to their length. A row costs 12 bytes.
struct WriteRows {
  Index k, size;  // size: length of assignments and tokens
  int local;      // bucket of the assignments of other experts
  In<std::int32_t> offsets;
  Out<std::int32_t> assignments, tokens, row_id_map;
  __device__ void operator()(Index, Index a, int bucket, int rank) const {
    const bool is_local = bucket < local;
    const Index row = static_cast<Index>(offsets[bucket]) + rank;
    row_id_map[a] = is_local ? static_cast<std::int32_t>(row) : -1;
    if (row >= size) return;
    assignments[row] = is_local ? static_cast<std::int32_t>(a) : -1;
    tokens[row] = is_local ? static_cast<std::int32_t>(a / k) : -1;
  }
};

}  // namespace

void execute(CudaDevice& device, const ops::BuildPermutation& op) {
  Context& context = device.context();
  const Index k = op.physical_experts.dim(1);
  const int local = static_cast<int>(op.offsets.dim(0) - 1);
  const Chunks chunks = make_chunks(context, 1, op.physical_experts.dim(0), k, local + 1, false);
  const ByKey bucket{in<std::int32_t>(op.physical_experts), static_cast<int>(op.first_expert), local};
  Workspace workspace(context);
  const BucketCounts bucket_counts = count(context, workspace, chunks, bucket);
  launch(context, {.x = 1}, sum_totals, local, in<std::int32_t>(bucket_counts.totals), out<std::int32_t>(op.offsets));
  visit_all(
      context, chunks, bucket, bucket_counts.before,
      WriteRows{k, op.assignments.elements(), local, in<std::int32_t>(op.offsets), out<std::int32_t>(op.assignments),
                out<std::int32_t>(op.tokens), out<std::int32_t>(op.row_id_map)});
}

}  // namespace sy::cuda
