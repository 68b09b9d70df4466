// Capacity, dispatch layout, permutation of rows, permute and unpermute.
#include <bit>
#include <cstring>
#include <utility>
#include <vector>

#include "kernels/cpu/cpu_backend.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/rows.h"

namespace sy::cpu {

namespace {

// Maps floats to unsigned integers in the same order. A NaN is in this order, too, so that sorting
// is safe.
std::uint32_t ordered_bits(float x) {
  const auto bits = std::bit_cast<std::uint32_t>(x + 0.0f);  // -0 becomes 0
  return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

// Both functions process one segment: experts, weights, keep: [tokens * k].
void keep_first(const std::int32_t* experts, Index tokens, Index k, bool by_choice, std::int32_t limit,
                std::vector<std::int32_t>& taken, std::int32_t* keep) {
  const auto offer = [&](Index a) { keep[a] = taken[experts[a]]++ < limit; };
  if (by_choice) {
    for (Index j = 0; j < k; ++j)
      for (Index t = 0; t < tokens; ++t) offer(t * k + j);
  } else {
    for (Index a = 0; a < tokens * k; ++a) offer(a);
  }
}

void keep_largest(const std::int32_t* experts, const float* weights, Index n, Index num_experts, Index limit,
                  std::int32_t* keep) {
  // The assignments of each expert as (falling weight, assignment) in one integer; the smallest are
  // accepted.
  std::vector<std::vector<std::uint64_t>> candidates(num_experts);
  for (Index a = 0; a < n; ++a)
    candidates[experts[a]].push_back(static_cast<std::uint64_t>(~ordered_bits(weights[a])) << 32 |
                                     static_cast<std::uint64_t>(a));
  std::fill_n(keep, n, 1);
  for (auto& mine : candidates) {
    if (static_cast<Index>(mine.size()) <= limit) continue;
    std::nth_element(mine.begin(), mine.begin() + limit, mine.end());
    for (auto i = mine.begin() + limit; i != mine.end(); ++i) keep[*i & 0xffffffffu] = 0;
  }
}

}  // namespace

// An assignment costs 8 bytes. By weight it costs 12, and 16 for the lists.
void CpuBackend::do_capacity(const CapacityDesc& desc, ConstView experts, ConstView weights, Index segments,
                             Index num_experts, View keep) {
  const Index tokens = experts.dim(0) / segments, k = experts.dim(1), n = tokens * k;
  if (desc.capacity == 0 || desc.capacity >= tokens) {  // a token chooses an expert at most once
    std::fill_n(keep.i32(), segments * n, 1);
    return;
  }
  for_runs(segments, std::max<Index>(1, run_elements / 4 / n), [&](Index begin, Index end) {
    std::vector<std::int32_t> taken(num_experts);
    for (Index g = begin; g < end; ++g) {
      const std::int32_t* const chosen = experts.i32() + g * n;
      std::int32_t* const kept = keep.i32() + g * n;
      if (desc.order == DropOrder::probability) {
        keep_largest(chosen, weights.f32() + g * n, n, num_experts, desc.capacity, kept);
      } else {
        std::fill(taken.begin(), taken.end(), 0);
        keep_first(chosen, tokens, k, desc.order == DropOrder::choice, static_cast<std::int32_t>(desc.capacity), taken,
                   kept);
      }
    }
  });
}

// do_plan_sends and do_sort_assignments are counting sorts. Chunks of tokens count their buckets.
// The counts are summed in the order of (bucket, chunk), which gives each chunk its first index in
// each bucket. Within a chunk, tokens are in order already.
constexpr Index run_assignments = 4096;

// The buckets are owners. An assignment costs 16 bytes, and a copy 8.
void CpuBackend::do_plan_sends(const ExpertSplit& split, ConstView experts, ConstView keep, View places, View tokens,
                               View slots, View counts, View kept) {
  const Index t_all = experts.dim(0), k = experts.dim(1), e = kept.dim(0), owners = split.owners, parts = split.parts;
  const Index local = e / owners, most = split.most_owners(k);
  const Index grain = std::max<Index>(1, run_assignments / k), runs = ceil_div(t_all, grain);
  // Calls visit(t, owner) for each owner that a token goes to, in the order of the choices that
  // first require it.
  const auto for_owners = [&](Index begin, Index end, const auto& visit) {
    std::vector<Index> latest(owners, -1);  // the latest token for each owner
    for (Index t = begin; t < end; ++t)
      for (Index a = t * k; a < (t + 1) * k; ++a) {
        const std::int32_t place = places.i32()[a];
        if (place < 0 || latest[place / local] == t) continue;
        latest[place / local] = t;
        visit(t, place / local);
      }
  };

  std::vector<std::int32_t> of_run(runs * owners, 0), placed(runs * e, 0), next(runs * owners * parts);
  for_runs(t_all, grain, [&](Index begin, Index end) {
    for (Index a = begin * k; a < end * k; ++a) {
      const auto expert = experts.i32()[a] - static_cast<std::int32_t>(split.first),
                 place = split.places ? split.places.i32()[expert] : expert;
      const bool is_kept = keep ? keep.i32()[a] != 0 : place >= 0 && place < e;
      places.i32()[a] = is_kept ? place : -1;
      if (is_kept) ++placed[begin / grain * e + place];
    }
    for_owners(begin, end, [&](Index, Index owner) { ++of_run[begin / grain * owners + owner]; });
  });
  std::int32_t copy = 0;
  for (Index owner = 0; owner < owners; ++owner)
    for (Index part = 0; part < parts; ++part) {
      const std::int32_t first = copy;
      for (Index run = 0; run < runs; ++run) {
        next[(run * owners + owner) * parts + part] = copy;
        copy += of_run[run * owners + owner];
      }
      counts.i32()[owner * parts + part] = copy - first;
    }
  for (Index expert = 0; expert < e; ++expert) {
    const Index place = split.places ? split.places.i32()[expert] : expert;
    std::int32_t sum = 0;
    for (Index run = 0; run < runs; ++run) sum += placed[run * e + place];
    kept.i32()[expert] = counts.i32()[split.ranks() + place] = sum;
  }
  if (!tokens) return;
  for_runs(t_all, grain, [&](Index begin, Index end) {
    std::int32_t* const mine = &next[begin / grain * owners * parts];
    std::fill(slots.i32() + begin * most * parts, slots.i32() + end * most * parts, -1);
    Index at = 0, token = -1;
    for_owners(begin, end, [&](Index t, Index owner) {
      if (t != token) at = t * most * parts;
      token = t;
      for (Index part = 0; part < parts; ++part) {
        const std::int32_t to = mine[owner * parts + part]++;
        tokens.i32()[to] = static_cast<std::int32_t>(t);
        slots.i32()[at++] = to;
      }
    });
  });
  std::fill(tokens.i32() + copy, tokens.i32() + tokens.elements(), -1);
}

// The buckets are physical experts. An assignment costs 12 bytes, and a row 8.
void CpuBackend::do_sort_assignments(ConstView places, Index first, View rows, View tokens, View slots, View offsets) {
  const Index n = places.elements(), k = places.dim(1), local = offsets.dim(0) - 1;
  const Index runs = ceil_div(n, run_assignments);
  std::vector<std::int32_t> of_run(runs * local, 0);
  const auto is_here = [&](Index place) { return place >= first && place < first + local; };
  for_runs(n, run_assignments, [&](Index begin, Index end) {
    std::int32_t* const mine = &of_run[begin / run_assignments * local];
    for (Index a = begin; a < end; ++a)
      if (is_here(places.i32()[a])) ++mine[places.i32()[a] - first];
  });
  std::int32_t row = 0;
  for (Index place = 0; place < local; ++place) {
    offsets.i32()[place] = row;
    for (Index run = 0; run < runs; ++run) row += std::exchange(of_run[run * local + place], row);
  }
  offsets.i32()[local] = row;
  SY_ASSERT(row <= rows.dim(0), "sort_assignments: {} rows, and room for {}", row, rows.dim(0));
  for_runs(n, run_assignments, [&](Index begin, Index end) {
    std::int32_t* const next = &of_run[begin / run_assignments * local];
    for (Index a = begin; a < end; ++a) {
      const Index place = places.i32()[a];
      const std::int32_t to = is_here(place) ? next[place - first]++ : -1;
      slots.i32()[a] = to;
      if (to < 0) continue;
      rows.i32()[to] = static_cast<std::int32_t>(a);
      tokens.i32()[to] = static_cast<std::int32_t>(a / k);
    }
  });
  std::fill(rows.i32() + row, rows.i32() + rows.elements(), -1);
  std::fill(tokens.i32() + row, tokens.i32() + tokens.elements(), -1);
}

// An element of y costs 8 bytes.
void CpuBackend::do_gather_rows(ConstView x, ConstView index, View y) {
  const Index d = y.dim(1);
  for_runs(y.dim(0), rows_per_run(d), [&](Index begin, Index end) {
    for (Index r = begin; r < end; ++r)
      if (index.i32()[r] >= 0) copy_elements(x, index.i32()[r] * d, d, y, r * d);
  });
}

// An element of y costs 4 bytes, 4 more for `from`, and 4 bytes and 1 FLOP for each slot.
void CpuBackend::do_combine_rows(ConstView x, ConstView slots, ConstView from, View y) {
  const Index d = y.dim(1), k = slots.dim(1);
  for_runs(y.dim(0), rows_per_run(2 * d), [&](Index begin, Index end) {
    Floats rows(x, d), before(from, d);
    Results sums(y, d);
    for (Index t = begin; t < end; ++t) {
      float* const out = sums.begin(t * d);
      bool empty = !from;
      if (const float* const in = before.at(t * d); in && in != out)
        std::memcpy(out, in, static_cast<std::size_t>(d) * sizeof(float));
      for (Index j = 0; j < k; ++j) {
        const Index slot = slots.i32()[t * k + j];
        if (slot < 0) continue;
        const float* const in = rows.at(slot * d);
        if (empty)
          std::memcpy(out, in, static_cast<std::size_t>(d) * sizeof(float));
        else
#pragma omp simd
          for (Index i = 0; i < d; ++i) out[i] += in[i];
        empty = false;
      }
      if (empty) std::fill_n(out, d, 0.0f);
    }
  });
}

}  // namespace sy::cpu
