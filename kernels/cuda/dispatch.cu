// Capacity, dispatch layout, permutation of rows, and the copies of permute and unpermute.
//
// All rankings of assignments are one counting sort. The assignments of a segment are divided into
// chunks (Runs), one for each warp.
//   * Each warp counts the buckets of its chunk: experts, physical experts, or owners.
//   * The counts are summed over the chunks.
//   * Each warp visits its chunk again, and knows how many assignments of each bucket come before
//     it.
//
// The ranks equal those of a sequential loop. To count an assignment costs 4 bytes. To visit it
// costs 4 bytes and the bytes written.
#include <algorithm>

#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/rows.h"
#include "kernels/cuda/scan.h"

namespace sy::cuda {

namespace {

// Segments of tokens * choices assignments, in chunks of `length`, ordered by (token, choice) or by
// (choice, token).
struct Runs {
  Index segments, tokens, choices;
  int buckets;
  bool by_choice;
  Index per_segment, length;

  Index all() const { return segments * per_segment; }
};

Runs make_runs(const Context& context, Index segments, Index tokens, Index choices, Index buckets, bool by_choice) {
  constexpr Index warps_each = 16, least_length = 128, most_counts = Index{4} << 20;
  const Index n = tokens * choices, most_runs = warps_each * context.multiprocessors;
  const Index most = std::min(most_runs / segments, most_counts / (segments * buckets));
  const Index wanted = std::clamp<Index>(blocks_of(n, least_length), 1, std::max<Index>(1, most));
  const Index length = blocks_of(blocks_of(n, wanted), warp_size) * warp_size;
  return {segments, tokens, choices, static_cast<int>(buckets), by_choice, blocks_of(n, length), length};
}

// Bucket of assignment i of all segments, by expert or physical expert. There are `here` buckets
// from `first` on, and one bucket after them for all other keys.
struct ByKey {
  In<std::int32_t> keys;
  int first, here;
  __device__ int operator()(Index i) const {
    return static_cast<int>(min(static_cast<unsigned>(keys[i] - first), static_cast<unsigned>(here)));
  }
};

// Bucket by owner of the physical expert, if the assignment is the first of its token for this
// owner; otherwise one bucket after the owners.
struct ByOwner {
  In<std::int32_t> places;
  int k, local, owners;  // local: number of physical experts of an owner
  __device__ int operator()(Index i) const {
    if (places[i] < 0) return owners;
    const int owner = places[i] / local;
    for (Index before = i - i % k; before < i; ++before)
      if (places[before] >= 0 && places[before] / local == owner) return owners;
    return owner;
  }
};

// A warp calls visit(segment, a, bucket, rank) in order for the assignments of its chunk. Index a
// counts within the segment. The rank is next[bucket] plus the number of earlier assignments of the
// bucket in the chunk. next: [buckets] of the warp.
template <class Bucket, class Visit>
__device__ void walk(const Runs& runs, Index run, Bucket bucket_of, int* next, Visit visit) {
  const int lane = threadIdx.x % warp_size;
  const Index n = runs.tokens * runs.choices, segment = run / runs.per_segment;
  const Index begin = run % runs.per_segment * runs.length, end = min(begin + runs.length, n);
  for (Index first = begin; first < end; first += warp_size) {
    const Index i = first + lane;
    const Index a = runs.by_choice ? i % runs.tokens * runs.choices + i / runs.tokens : i;
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

// counts: [all runs, buckets] = the number of assignments of each bucket in a chunk.
template <class Bucket>
__global__ void count_runs(Runs runs, Bucket bucket_of, Out<std::int32_t> counts) {
  const int lane = threadIdx.x % warp_size;
  int* const next = reinterpret_cast<int*>(dynamic_shared()) + threadIdx.x / warp_size * runs.buckets;
  const Index run = warp_of_grid();
  if (run >= runs.segments * runs.per_segment) return;
  for (int i = lane; i < runs.buckets; i += warp_size) next[i] = 0;
  __syncwarp();
  walk(runs, run, bucket_of, next, [](Index, Index, int, int) {});
  for (int i = lane; i < runs.buckets; i += warp_size) counts[run * runs.buckets + i] = next[i];
}

// A block takes one segment and bucket. A count costs 8 bytes.
//   counts: [all runs, buckets] becomes the sum of the counts of the segment's earlier chunks
//   totals: [segments, buckets] = the sum over all of its chunks
__global__ void scan_runs(Runs runs, Out<std::int32_t> counts, Out<std::int32_t> totals) {
  const Index segment = blockIdx.x / runs.buckets, first = segment * runs.per_segment * runs.buckets;
  const Index bucket = blockIdx.x % runs.buckets;
  const auto at = [&](Index run) { return first + run * runs.buckets + bucket; };
  const int total = block_scan(
      runs.per_segment, [&](Index i) { return counts[at(i)]; }, [&](Index i, int before) { counts[at(i)] = before; });
  if (threadIdx.x == 0) totals[blockIdx.x] = total;
}

// Visits all chunks and calls Visit::operator() as `walk` does. before: [all runs, buckets], the
// assignments before each chunk; empty means zeros.
template <class Bucket, class Visit>
__global__ void visit_runs(Runs runs, Bucket bucket_of, In<std::int32_t> before, Visit visit) {
  const int lane = threadIdx.x % warp_size;
  int* const next = reinterpret_cast<int*>(dynamic_shared()) + threadIdx.x / warp_size * runs.buckets;
  const Index run = warp_of_grid();
  if (run >= runs.segments * runs.per_segment) return;
  for (int i = lane; i < runs.buckets; i += warp_size) next[i] = before ? before[run * runs.buckets + i] : 0;
  __syncwarp();
  walk(runs, run, bucket_of, next, visit);
}

// Grid of count_runs and visit_runs.
Grid run_grid(const Runs& runs) {
  constexpr Index usual_shared = 48 * 1024;
  const Index of_warp = runs.buckets * Index{sizeof(int)}, warps = std::clamp<Index>(usual_shared / of_warp, 1, 4);
  return {.x = blocks_of(runs.all(), warps),
          .threads = static_cast<int>(warps) * warp_size,
          .shared_bytes = warps * of_warp};
}

struct Counted {
  View before, totals;  // [all runs, buckets], [segments, buckets], as scan_runs writes them
};

template <class Bucket>
Counted count(Context& context, Workspace& workspace, const Runs& runs, const Bucket& bucket_of) {
  const Counted counted{workspace.take({runs.all(), runs.buckets}, DType::i32),
                        workspace.take({runs.segments, runs.buckets}, DType::i32)};
  launch(context, run_grid(runs), count_runs<Bucket>, runs, bucket_of, out<std::int32_t>(counted.before));
  launch(context, {.x = runs.segments * runs.buckets}, scan_runs, runs, out<std::int32_t>(counted.before),
         out<std::int32_t>(counted.totals));
  return counted;
}

template <class Bucket, class Visit>
void visit_all(Context& context, const Runs& runs, const Bucket& bucket_of, ConstView before, const Visit& visit) {
  launch(context, run_grid(runs), visit_runs<Bucket, Visit>, runs, bucket_of, in<std::int32_t>(before), visit);
}

// ---- capacity ----

// Accepts assignments whose rank is below the limit.
struct KeepFirst {
  Index segment_size;  // in assignments, here and below
  int limit;
  Out<std::int32_t> keep;
  __device__ void operator()(Index segment, Index a, int, int rank) const {
    keep[segment * segment_size + a] = rank < limit;
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
    keep_largest(int experts, Index segment_size, int limit, In<std::int32_t> starts, In<std::int32_t> lists,
                 In<float> all_weights, Out<std::int32_t> all_keep) {
  constexpr int digits = 256;
  __shared__ int histogram[digits];
  __shared__ int chosen, left;
  const Index segment = blockIdx.x / experts, start = segment * (experts + 1) + blockIdx.x % experts;
  const In<std::int32_t> list = lists + (segment * segment_size + starts[start]);
  const In<float> weights = all_weights + segment * segment_size;
  const Out<std::int32_t> keep = all_keep + segment * segment_size;
  const Index n = starts[start + 1] - starts[start];
  if (n <= limit) {
    for (Index i = threadIdx.x; i < n; i += blockDim.x) keep[list[i]] = 1;
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
      left = equal - before;
    }
    __syncthreads();
    last |= static_cast<std::uint32_t>(chosen) << shift;
    equal = left;
  }
  block_scan(
      n, [&](Index i) { return falling(weights[list[i]]) == last ? 1 : 0; },
      [&](Index i, int before) {
        const std::uint32_t key = falling(weights[list[i]]);
        keep[list[i]] = key < last || (key == last && before < equal);
      });
}

__global__ void keep_all(Index n, Out<std::int32_t> keep) {
  const Index i = static_cast<Index>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i < n) keep[i] = 1;
}

void capacity_by_order(Context& context, const Runs& runs, Index limit, ConstView experts, View keep) {
  Workspace workspace(context);
  const ByKey expert{in<std::int32_t>(experts), 0, runs.buckets};
  const View before = runs.per_segment > 1 ? count(context, workspace, runs, expert).before : View();
  visit_all(context, runs, expert, before,
            KeepFirst{runs.tokens * runs.choices, static_cast<int>(limit), out<std::int32_t>(keep)});
}

void capacity_by_weight(Context& context, const Runs& runs, Index limit, ConstView experts, ConstView weights,
                        View keep) {
  Workspace workspace(context);
  const Index n = runs.tokens * runs.choices;
  const ByKey expert{in<std::int32_t>(experts), 0, runs.buckets};
  const Counted counted = count(context, workspace, runs, expert);
  const View starts = workspace.take({runs.segments, runs.buckets + 1}, DType::i32),
             list = workspace.take({runs.segments, n}, DType::i32);
  launch(context, {.x = runs.segments}, sum_totals, runs.buckets, in<std::int32_t>(counted.totals),
         out<std::int32_t>(starts));
  visit_all(context, runs, expert, counted.before,
            ListByExpert{n, runs.buckets, in<std::int32_t>(starts), out<std::int32_t>(list)});
  launch(context, {.x = runs.segments * runs.buckets, .threads = n / runs.buckets > 4096 ? 1024 : 256}, keep_largest,
         runs.buckets, n, static_cast<int>(limit), in<std::int32_t>(starts), in<std::int32_t>(list), in<float>(weights),
         out<std::int32_t>(keep));
}

}  // namespace

void CudaBackend::do_capacity(const CapacityDesc& desc, ConstView experts, ConstView weights, Index segments,
                              Index num_experts, View keep) {
  const Index tokens = experts.dim(0) / segments, k = experts.dim(1);
  if (desc.capacity == 0 || desc.capacity >= tokens)  // a token chooses an expert at most once
    return launch(context_, {.x = blocks_of(tokens * segments * k, 256)}, keep_all, tokens * segments * k,
                  out<std::int32_t>(keep));
  if (desc.order != DropOrder::probability)
    return capacity_by_order(context_,
                             make_runs(context_, segments, tokens, k, num_experts, desc.order == DropOrder::choice),
                             desc.capacity, experts, keep);
  // Processes as many segments at once as fit the workspace. A segment of a single chunk takes a
  // list of its assignments and three tables of experts. A segment of several chunks is processed
  // alone and may take more.
  const Index of_segment = (tokens * k + 3 * (num_experts + 1)) * Index{sizeof(std::int32_t)};
  const Index at_once = std::clamp<Index>(context_.workspace_bytes / 2 / of_segment, 1, segments);
  for (Index g = 0; g < segments; g += at_once) {
    const Index now = std::min(at_once, segments - g), first = g * tokens;
    capacity_by_weight(context_, make_runs(context_, now, tokens, k, num_experts, false), desc.capacity,
                       experts.rows(first, now * tokens), weights.rows(first, now * tokens),
                       keep.rows(first, now * tokens));
  }
}

// ---- dispatch layout ----

namespace {

// places: [n] physical expert of each assignment, or -1 if it is not dispatched. If keep is empty,
// the `here` experts from `first` on are dispatched.
__global__ void place(Index n, In<std::int32_t> experts, In<std::int32_t> keep, In<std::int32_t> place_of, int first,
                      int here, Out<std::int32_t> places) {
  const Index i = static_cast<Index>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i >= n) return;
  const int expert = experts[i] - first;
  const bool kept = keep ? keep[i] != 0 : expert >= 0 && expert < here;
  places[i] = !kept ? -1 : place_of ? place_of[expert] : expert;
}

// One block sums the counts of the assignments. owned and placed have a last element for all other
// assignments.
//   owned: [owners + 1] tokens for each owner
//   placed: [experts + 1] assignments of each physical expert
//   starts: [owners + 1] = the tokens for all earlier owners
__global__ void __launch_bounds__(1024)
    sum_sends(Index owners, Index parts, Index experts, In<std::int32_t> owned, In<std::int32_t> placed,
              In<std::int32_t> place_of, Out<std::int32_t> starts, Out<std::int32_t> counts, Out<std::int32_t> kept) {
  const int sum = block_scan(
      owners, [&](Index i) { return owned[i]; },
      [&](Index i, int before) {
        starts[i] = before;
        for (Index part = 0; part < parts; ++part) counts[i * parts + part] = owned[i];
      });
  if (threadIdx.x == 0) starts[owners] = sum;
  for (Index e = threadIdx.x; e < experts; e += blockDim.x) {
    const Index at = place_of ? place_of[e] : e;
    kept[e] = counts[owners * parts + at] = placed[at];
  }
}

// Writes the copies of a token for the owner that an assignment is the first to require. An
// assignment that requires no owner clears as many entries at the end of tokens, up to its length.
// A copy costs 8 bytes.
struct PlaceCopies {
  ByOwner owner_of;
  Index parts, most, room;  // most: largest number of owners of a token; room: length of tokens
  In<std::int32_t> starts;
  Out<std::int32_t> tokens, slots;
  __device__ void operator()(Index, Index a, int owner, int rank) const {
    const Index token = a / owner_of.k;
    const bool calls = owner < owner_of.owners;
    for (Index part = 0; part < parts && !calls; ++part) {
      const Index at = starts[owner] * parts + rank * parts + part;
      if (at < room) tokens[at] = -1;
    }
    const bool last = a % owner_of.k == owner_of.k - 1;
    if (!calls && !last) return;
    Index nth = 0;  // number of owners that the token's earlier choices require
    for (Index before = token * owner_of.k; before < a; ++before) nth += owner_of(before) < owner_of.owners;
    for (Index part = 0; part < parts && calls; ++part) {
      const Index copy = starts[owner] * parts + part * (starts[owner + 1] - starts[owner]) + rank;
      tokens[copy] = static_cast<std::int32_t>(token);
      slots[(token * most + nth) * parts + part] = static_cast<std::int32_t>(copy);
    }
    for (Index i = (nth + calls) * parts; i < most * parts && last; ++i) slots[token * most * parts + i] = -1;
  }
};

}  // namespace

void CudaBackend::do_plan_sends(const ExpertSplit& split, ConstView experts, ConstView keep, View places, View tokens,
                                View slots, View counts, View kept) {
  const Index n = experts.elements(), k = experts.dim(1), num_experts = kept.dim(0), owners = split.owners;
  launch(context_, {.x = blocks_of(n, 256)}, place, n, in<std::int32_t>(experts), in<std::int32_t>(keep),
         in<std::int32_t>(split.places), static_cast<int>(split.first), static_cast<int>(num_experts),
         out<std::int32_t>(places));
  const Runs of_places = make_runs(context_, 1, experts.dim(0), k, num_experts + 1, false),
             of_owners = make_runs(context_, 1, experts.dim(0), k, owners + 1, false);
  const ByOwner owner{in<std::int32_t>(places), static_cast<int>(k), static_cast<int>(num_experts / owners),
                      static_cast<int>(owners)};
  Workspace workspace(context_);
  const Counted placed =
      count(context_, workspace, of_places, ByKey{in<std::int32_t>(places), 0, static_cast<int>(num_experts)});
  const Counted owned = count(context_, workspace, of_owners, owner);
  const View starts = workspace.take({owners + 1}, DType::i32);
  launch(context_, {.threads = 1024}, sum_sends, owners, split.parts, num_experts, in<std::int32_t>(owned.totals),
         in<std::int32_t>(placed.totals), in<std::int32_t>(split.places), out<std::int32_t>(starts),
         out<std::int32_t>(counts), out<std::int32_t>(kept));
  if (!tokens) return;
  visit_all(context_, of_owners, owner, owned.before,
            PlaceCopies{owner, split.parts, split.most_owners(k), tokens.elements(), in<std::int32_t>(starts),
                        out<std::int32_t>(tokens), out<std::int32_t>(slots)});
}

// ---- permutation of rows ----

namespace {

// Writes the row of an assignment. An assignment of other experts clears an entry at the end of
// rows and tokens, up to their length. A row costs 12 bytes.
struct PlaceRows {
  Index k, room;  // room: the length of rows
  int here;       // bucket of the assignments of other experts
  In<std::int32_t> offsets;
  Out<std::int32_t> rows, tokens, slots;
  __device__ void operator()(Index, Index a, int bucket, int rank) const {
    const bool mine = bucket < here;
    const Index row = static_cast<Index>(offsets[bucket]) + rank;
    slots[a] = mine ? static_cast<std::int32_t>(row) : -1;
    if (row >= room) return;
    rows[row] = mine ? static_cast<std::int32_t>(a) : -1;
    tokens[row] = mine ? static_cast<std::int32_t>(a / k) : -1;
  }
};

}  // namespace

void CudaBackend::do_sort_assignments(ConstView places, Index first, View rows, View tokens, View slots, View offsets) {
  const Index k = places.dim(1);
  const int here = static_cast<int>(offsets.dim(0) - 1);
  const Runs runs = make_runs(context_, 1, places.dim(0), k, here + 1, false);
  const ByKey bucket{in<std::int32_t>(places), static_cast<int>(first), here};
  Workspace workspace(context_);
  const Counted counted = count(context_, workspace, runs, bucket);
  launch(context_, {.x = 1}, sum_totals, here, in<std::int32_t>(counted.totals), out<std::int32_t>(offsets));
  visit_all(context_, runs, bucket, counted.before,
            PlaceRows{k, rows.elements(), here, in<std::int32_t>(offsets), out<std::int32_t>(rows),
                      out<std::int32_t>(tokens), out<std::int32_t>(slots)});
}

// ---- permute and unpermute ----

namespace {

// Division of rows of `packs` packs of N elements among threads: `lanes` threads of a block take a
// row.
struct RowLanes {
  Index rows, packs;
  int lanes;

  // First element of a pack, in either operand. The compiler must see that it is a multiple of N,
  // for vector stores.
  template <int N>
  __device__ Index at(Index row, Index pack) const {
    return (row * packs + pack) * N;
  }
};

constexpr int gather_threads = 256;  // per block

RowLanes lanes_of(Index rows, Index packs) {
  int lanes = 1;
  while (lanes < packs && lanes < gather_threads) lanes *= 2;
  return {rows, packs, lanes};
}
Grid row_grid(const RowLanes& rows) {
  return {.x = blocks_of(rows.rows, gather_threads / rows.lanes), .threads = gather_threads};
}

// Calls visit(row, pack) for the packs of the grid's rows.
template <class Visit>
__device__ void for_packs(const RowLanes& rows, Visit visit) {
  const Index row = static_cast<Index>(blockIdx.x) * (gather_threads / rows.lanes) + threadIdx.x / rows.lanes;
  if (row >= rows.rows) return;
  for (Index pack = threadIdx.x % rows.lanes; pack < rows.packs; pack += rows.lanes) visit(row, pack);
}

// An element of y costs 2w bytes.
template <class T, int N>
__global__ void gather(RowLanes rows, In<T> x, In<std::int32_t> index, Out<T> y) {
  for_packs(rows, [&](Index row, Index pack) {
    const Index from = index[row];
    if (from >= 0) store<N>(y, rows.at<N>(row, pack), load<N>(x, rows.at<N>(from, pack)));
  });
}

// An element of y costs w bytes, w more for `from` or accumulation into y, and w bytes and 1 FLOP
// for each slot.
template <class T, int N>
__global__ void combine(RowLanes rows, In<T> x, Index k, In<std::int32_t> slots, In<T> from, bool accumulate,
                        Out<T> y) {
  for_packs(rows, [&](Index row, Index pack) {
    const Index to = rows.at<N>(row, pack);
    float sums[N] = {};
    if (from || accumulate) {
      const auto before = accumulate ? load<N>(y, to) : load<N>(from, to);
      for (int n = 0; n < N; ++n) sums[n] = to_float(before[n]);
    }
    for (Index j = 0; j < k; ++j) {
      const Index slot = slots[row * k + j];
      if (slot < 0) continue;
      const auto part = load<N>(x, rows.at<N>(slot, pack));
      for (int n = 0; n < N; ++n) sums[n] += to_float(part[n]);
    }
    Pack<T, N> sum;
    for (int n = 0; n < N; ++n) sum[n] = from_float<T>(sums[n]);
    store<N>(y, to, sum);
  });
}

}  // namespace

void CudaBackend::do_gather_rows(ConstView x, ConstView index, View y) {
  with_type_and_packs(y.dim(1), {y, x}, [&](auto type, auto n) {
    using T = decltype(type);
    const RowLanes rows = lanes_of(y.dim(0), y.dim(1) / n);
    launch(context_, row_grid(rows), gather<T, n>, rows, in<T>(x), in<std::int32_t>(index), out<T>(y));
  });
}

void CudaBackend::do_combine_rows(ConstView x, ConstView slots, ConstView from, View y) {
  const bool accumulate = from && from.bytes() == y.bytes();
  if (accumulate) from = {};
  with_type_and_packs(y.dim(1), {y, x, from ? from : y}, [&](auto type, auto n) {
    using T = decltype(type);
    const RowLanes rows = lanes_of(y.dim(0), y.dim(1) / n);
    launch(context_, row_grid(rows), combine<T, n>, rows, in<T>(x), slots.dim(1), in<std::int32_t>(slots), in<T>(from),
           accumulate, out<T>(y));
  });
}

}  // namespace sy::cuda
