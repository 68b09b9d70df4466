// Dispatch layout and permutation of rows. The copies of rows are in permute.cu.
#include "kernels/cuda/counting_sort.h"
#include "kernels/cuda/cuda_device.h"
#include "kernels/ops/dispatch.h"
#include "kernels/ops/permute.h"

namespace sy::cuda {

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
         ByEpRank<Out<std::int32_t>>{out<std::int32_t>(op.physical_experts), k, local, num_ep_ranks}, expert_counts,
         ep_counts);
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
