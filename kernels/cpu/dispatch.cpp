// Which assignments fit their expert, and the order of the rows that experts work on.
#include <bit>
#include <cstring>
#include <vector>

#include "kernels/cpu/cpu_backend.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/rows.h"

namespace sy::cpu {

namespace {

// Maps floats to unsigned integers in the same order. A NaN has a place among them too, so that sorting by it is safe.
std::uint32_t ordered_bits(float x) {
  const auto bits = std::bit_cast<std::uint32_t>(x + 0.0f);  // -0 becomes 0
  return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

// Both are about one segment: experts, weights, keep: [tokens * k].
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
  // The assignments of each expert as (falling weight, assignment) in one integer; the smallest are kept.
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

// An assignment costs 8 bytes, or 12 by weight and 16 for the lists.
void CpuBackend::do_capacity(const CapacityDesc& desc, ConstView experts, ConstView weights, Index segments,
                             Index num_experts, View keep) {
  const Index tokens = experts.dim(0) / segments, k = experts.dim(1), n = tokens * k;
  if (desc.capacity == 0 || desc.capacity >= tokens) {  // an expert is chosen at most once by a token
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

// This is a counting sort. Runs of assignments count their experts, the counts are summed in the order (owner, part,
// place, run), and each run then knows where its rows begin. The assignments are in token order already. One costs 16
// bytes, and 12 more for each of its rows.
void CpuBackend::do_sort_assignments(const ExpertSplit& split, ConstView experts, ConstView keep, View rows,
                                     View tokens, View slots, View counts, View kept) {
  constexpr Index grain = 4096;
  const Index n = experts.elements(), k = experts.dim(1), parts = split.parts, e = counts.dim(0) / parts;
  const Index local = e / split.owners, runs = ceil_div(n, grain);
  std::vector<std::int32_t> of_run(runs * e, 0), next(runs * e * parts);
  for_runs(n, grain, [&](Index begin, Index end) {
    std::int32_t* const mine = &of_run[begin / grain * e];
    for (Index a = begin; a < end; ++a)
      if (keep.i32()[a]) ++mine[experts.i32()[a]];
  });
  std::int32_t row = 0;
  for (Index owner = 0; owner < split.owners; ++owner)
    for (Index part = 0; part < parts; ++part)
      for (Index place = owner * local; place < (owner + 1) * local; ++place) {
        const Index x = split.order ? split.order.i32()[place] : place;
        const std::int32_t first = row;
        for (Index run = 0; run < runs; ++run) {
          next[(run * e + x) * parts + part] = row;
          row += of_run[run * e + x];
        }
        kept.i32()[x] = row - first;
        counts.i32()[owner * (parts - 1) * local + part * local + place] = row - first;
      }
  for_runs(n, grain, [&](Index begin, Index end) {
    std::int32_t* const mine = &next[begin / grain * e * parts];
    for (Index a = begin; a < end; ++a)
      for (Index part = 0; part < parts; ++part) {
        const std::int32_t to = keep.i32()[a] ? mine[experts.i32()[a] * parts + part]++ : -1;
        slots.i32()[a * parts + part] = to;
        if (to < 0) continue;
        rows.i32()[to] = static_cast<std::int32_t>(a);
        tokens.i32()[to] = static_cast<std::int32_t>(a / k);
      }
  });
  std::fill(rows.i32() + row, rows.i32() + n * parts, -1);
  std::fill(tokens.i32() + row, tokens.i32() + n * parts, -1);
}

void CpuBackend::do_order_arrivals(ConstView counts, Index first, View offsets, View order, View inverse) {
  const Index ranks = counts.dim(0), e = counts.dim(1), local = offsets.dim(0) - 1;
  std::vector<std::int32_t> next(local * ranks);  // the first row of each (expert, rank)
  std::int32_t row = 0;
  for (Index x = 0; x < local; ++x) {
    offsets.i32()[x] = row;
    for (Index r = 0; r < ranks; ++r) {
      next[x * ranks + r] = row;
      row += counts.i32()[r * e + first + x];
    }
  }
  offsets.i32()[local] = row;
  SY_ASSERT(row == order.elements(), "order_arrivals: {} rows, {} to order", row, order.elements());
  std::int32_t arrived = 0;
  for (Index r = 0; r < ranks; ++r)
    for (Index x = 0; x < local; ++x)
      for (std::int32_t i = 0; i < counts.i32()[r * e + first + x]; ++i, ++arrived) {
        const std::int32_t to = next[x * ranks + r] + i;
        order.i32()[to] = arrived;
        inverse.i32()[arrived] = to;
      }
}

// An element of y costs 8 bytes.
void CpuBackend::do_gather_rows(ConstView x, ConstView index, View y) {
  const Index d = y.dim(1);
  for_runs(y.dim(0), rows_per_run(d), [&](Index begin, Index end) {
    for (Index r = begin; r < end; ++r)
      if (index.i32()[r] >= 0) copy_elements(x, index.i32()[r] * d, d, y, r * d);
  });
}

// An element of y costs 4 bytes, 4 more where it accumulates, and 4 bytes and 1 FLOP for each slot.
void CpuBackend::do_combine_rows(ConstView x, ConstView slots, bool accumulate, View y) {
  const Index d = y.dim(1), k = slots.dim(1);
  for_runs(y.dim(0), rows_per_run(2 * d), [&](Index begin, Index end) {
    Floats rows(x, d);
    Results sums(y, d);
    for (Index t = begin; t < end; ++t) {
      float* const out = accumulate ? sums.update(t * d) : sums.begin(t * d);
      bool empty = !accumulate;
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
