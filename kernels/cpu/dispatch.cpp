// Capacity, dispatch layout, permutation of rows, permute and unpermute, rows of messages.
#include <cstring>
#include <utility>
#include <vector>

#include "kernels/cpu/cpu_device.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/rows.h"
#include "kernels/ops/capacity.h"
#include "kernels/ops/dispatch.h"
#include "kernels/ops/permute.h"

namespace sy::cpu {

namespace {

// Both functions process one segment: experts, weights, dispatch_mask: [tokens * k].
void accept_first(const std::int32_t* experts, Index tokens, Index k, bool by_choice, std::int32_t limit,
                  std::vector<std::int32_t>& accepted, std::int32_t* dispatch_mask) {
  const auto offer = [&](Index a) {
    if (experts[a] >= 0) dispatch_mask[a] = accepted[experts[a]]++ < limit;
  };
  if (by_choice) {
    for (Index j = 0; j < k; ++j)
      for (Index t = 0; t < tokens; ++t) offer(t * k + j);
  } else {
    for (Index a = 0; a < tokens * k; ++a) offer(a);
  }
}

void accept_largest(const std::int32_t* experts, const float* weights, Index n, Index num_experts, Index limit,
                    std::int32_t* dispatch_mask) {
  // The assignments of each expert as (falling weight, assignment) in one integer; the smallest are
  // accepted.
  std::vector<std::vector<std::uint64_t>> candidates(num_experts);
  for (Index a = 0; a < n; ++a)
    if (experts[a] >= 0)
      candidates[experts[a]].push_back(static_cast<std::uint64_t>(~ordered_bits(weights[a])) << 32 |
                                       static_cast<std::uint64_t>(a));
  std::fill_n(dispatch_mask, n, 1);
  for (auto& of_expert : candidates) {
    if (static_cast<Index>(of_expert.size()) <= limit) continue;
    std::nth_element(of_expert.begin(), of_expert.begin() + limit, of_expert.end());
    for (auto i = of_expert.begin() + limit; i != of_expert.end(); ++i) dispatch_mask[*i & 0xffffffffu] = 0;
  }
}

}  // namespace

// An assignment costs 8 bytes. By weight it costs 12, and 16 for the lists.
void execute(CpuDevice&, const ops::ApplyCapacity& op) {
  const Index tokens = op.experts.dim(0) / op.segments, k = op.experts.dim(1), n = tokens * k;
  // A token chooses an expert at most once.
  if (op.desc.capacity == 0 || op.desc.capacity >= tokens) {
    std::fill_n(op.dispatch_mask.i32(), op.segments * n, 1);
    return;
  }
  for_chunks(op.segments, std::max<Index>(1, chunk_elements / 4 / n), [&](Index begin, Index end) {
    std::vector<std::int32_t> accepted(op.num_experts);
    for (Index g = begin; g < end; ++g) {
      const std::int32_t* const chosen = op.experts.i32() + g * n;
      std::int32_t* const mask = op.dispatch_mask.i32() + g * n;
      if (op.desc.order == DropOrder::probability) {
        accept_largest(chosen, op.weights.f32() + g * n, n, op.num_experts, op.desc.capacity, mask);
      } else {
        std::fill(accepted.begin(), accepted.end(), 0);
        accept_first(chosen, tokens, k, op.desc.order == DropOrder::choice, static_cast<std::int32_t>(op.desc.capacity),
                     accepted, mask);
      }
    }
  });
}

// DispatchLayout and BuildPermutation are counting sorts. Chunks of tokens count their
// buckets. The counts are summed in the order of (bucket, chunk), which gives each chunk its first
// index in each bucket. Within a chunk, tokens are in order already.
constexpr Index assignments_per_chunk = 4096;

// The buckets are ep ranks. An assignment costs 16 bytes, and a copy 8.
void execute(CpuDevice&, const ops::DispatchLayout& op) {
  const ExpertPartition partition = op.partition;
  const ConstView experts = op.experts, dispatch_mask = op.dispatch_mask;
  const View physical_experts = op.physical_experts, tokens = op.tokens, row_id_map = op.row_id_map, counts = op.counts;
  const Index t_all = experts.dim(0), k = experts.dim(1), e = op.tokens_per_expert.dim(0), ep = partition.ep,
              etp = partition.etp;
  const Index local = e / ep, most = partition.max_ep_ranks(k);
  const Index grain = std::max<Index>(1, assignments_per_chunk / k), chunks = ceil_div(t_all, grain);
  // Calls visit(t, ep_rank) for each ep rank that a token goes to, in the order of the choices that
  // first require it.
  const auto for_ep_ranks = [&](Index begin, Index end, const auto& visit) {
    std::vector<Index> latest(ep, -1);  // the latest token for each ep rank
    for (Index t = begin; t < end; ++t)
      for (Index a = t * k; a < (t + 1) * k; ++a) {
        const std::int32_t physical = physical_experts.i32()[a];
        if (physical < 0 || latest[physical / local] == t) continue;
        latest[physical / local] = t;
        visit(t, physical / local);
      }
  };

  std::vector<std::int32_t> chunk_copies(chunks * ep, 0), chunk_assignments(chunks * e, 0), next(chunks * ep * etp);
  for_chunks(t_all, grain, [&](Index begin, Index end) {
    for (Index a = begin * k; a < end * k; ++a) {
      const auto expert = experts.i32()[a] - static_cast<std::int32_t>(partition.first_expert);
      const bool is_dispatched = expert >= 0 && (dispatch_mask ? dispatch_mask.i32()[a] != 0 : expert < e);
      const auto physical =
          is_dispatched && partition.logical_to_physical ? partition.logical_to_physical.i32()[expert] : expert;
      physical_experts.i32()[a] = is_dispatched ? physical : -1;
      if (is_dispatched) ++chunk_assignments[begin / grain * e + physical];
    }
    for_ep_ranks(begin, end, [&](Index, Index ep_rank) { ++chunk_copies[begin / grain * ep + ep_rank]; });
  });
  std::int32_t copy = 0;
  for (Index ep_rank = 0; ep_rank < ep; ++ep_rank)
    for (Index etp_rank = 0; etp_rank < etp; ++etp_rank) {
      const std::int32_t first = copy;
      for (Index chunk = 0; chunk < chunks; ++chunk) {
        next[(chunk * ep + ep_rank) * etp + etp_rank] = copy;
        copy += chunk_copies[chunk * ep + ep_rank];
      }
      counts.i32()[(ep_rank * etp + etp_rank) * (1 + local)] = copy - first;
    }
  for (Index expert = 0; expert < e; ++expert) {
    const Index physical = partition.logical_to_physical ? partition.logical_to_physical.i32()[expert] : expert;
    std::int32_t sum = 0;
    for (Index chunk = 0; chunk < chunks; ++chunk) sum += chunk_assignments[chunk * e + physical];
    op.tokens_per_expert.i32()[expert] = sum;
    for (Index etp_rank = 0; etp_rank < etp; ++etp_rank)
      counts.i32()[(physical / local * etp + etp_rank) * (1 + local) + 1 + physical % local] = sum;
  }
  if (!tokens) return;
  for_chunks(t_all, grain, [&](Index begin, Index end) {
    std::int32_t* const next_copy = &next[begin / grain * ep * etp];
    std::fill(row_id_map.i32() + begin * most * etp, row_id_map.i32() + end * most * etp, -1);
    Index at = 0, token = -1;
    for_ep_ranks(begin, end, [&](Index t, Index ep_rank) {
      if (t != token) at = t * most * etp;
      token = t;
      for (Index etp_rank = 0; etp_rank < etp; ++etp_rank) {
        const std::int32_t to = next_copy[ep_rank * etp + etp_rank]++;
        tokens.i32()[to] = static_cast<std::int32_t>(t);
        row_id_map.i32()[at++] = to;
      }
    });
  });
  std::fill(tokens.i32() + copy, tokens.i32() + tokens.elements(), -1);
}

// The buckets are physical experts. An assignment costs 12 bytes. A row costs 4, 4 more for
// `assignments`, and 8 for its weight.
void execute(CpuDevice&, const ops::BuildPermutation& op) {
  const ConstView physical_experts = op.physical_experts;
  const View assignments = op.assignments, tokens = op.tokens, row_id_map = op.row_id_map, offsets = op.offsets;
  const Index first_expert = op.first_expert;
  const Index n = physical_experts.elements(), k = physical_experts.dim(1), local = offsets.dim(0) - 1;
  const Index chunks = ceil_div(n, assignments_per_chunk);
  std::vector<std::int32_t> chunk_rows(chunks * local, 0);
  const auto is_local = [&](Index expert) { return expert >= first_expert && expert < first_expert + local; };
  for_chunks(n, assignments_per_chunk, [&](Index begin, Index end) {
    std::int32_t* const counts = &chunk_rows[begin / assignments_per_chunk * local];
    for (Index a = begin; a < end; ++a)
      if (is_local(physical_experts.i32()[a])) ++counts[physical_experts.i32()[a] - first_expert];
  });
  std::int32_t row = 0;
  for (Index expert = 0; expert < local; ++expert) {
    offsets.i32()[expert] = row;
    for (Index chunk = 0; chunk < chunks; ++chunk) row += std::exchange(chunk_rows[chunk * local + expert], row);
  }
  offsets.i32()[local] = row;
  SY_ASSERT(row <= tokens.dim(0), "{}: {} rows, but at most {} fit", op.name, row, tokens.dim(0));
  for_chunks(n, assignments_per_chunk, [&](Index begin, Index end) {
    std::int32_t* const next = &chunk_rows[begin / assignments_per_chunk * local];
    for (Index a = begin; a < end; ++a) {
      const Index expert = physical_experts.i32()[a];
      const std::int32_t to = is_local(expert) ? next[expert - first_expert]++ : -1;
      row_id_map.i32()[a] = to;
      if (to < 0) continue;
      if (assignments) assignments.i32()[to] = static_cast<std::int32_t>(a);
      tokens.i32()[to] = static_cast<std::int32_t>(a / k);
      if (op.weights) op.row_weights.f32()[to] = op.weights.f32()[a];
    }
  });
  if (assignments) std::fill(assignments.i32() + row, assignments.i32() + assignments.elements(), -1);
  std::fill(tokens.i32() + row, tokens.i32() + tokens.elements(), -1);
}

// An element of y costs 8 bytes.
void execute(CpuDevice&, const ops::Permute& op) {
  const Index d = op.y.dim(1), columns = op.x.dim(1);
  const std::int32_t* const index = op.index.i32();
  for_chunks(op.y.dim(0), rows_per_chunk(d), [&](Index begin, Index end) {
    for (Index r = begin; r < end; ++r)
      if (index[r] >= 0) copy_elements(op.x, index[r] * columns + op.first_column, d, op.y, r * d);
  });
}

// An element of y costs 8 bytes.
void execute(CpuDevice&, const ops::PackTokens& op) {
  const TokenRow row{op.physical_experts.dim(1), op.x.dim(1), op.x.dtype()};
  const Index k = row.k, columns = row.columns();
  for_chunks(op.y.dim(0), rows_per_chunk(columns), [&](Index begin, Index end) {
    for (Index r = begin; r < end; ++r) {
      const Index token = op.index.i32()[r];
      if (token < 0) continue;
      clear_elements(op.y, r * columns, row.first_value());
      const View metadata{op.y.bytes() + r * columns * size_of(op.y.dtype()), {2 * k}, DType::i32};
      copy_elements(op.physical_experts, token * k, k, metadata, 0);
      copy_elements(op.weights, token * k, k, metadata, k);
      copy_elements(op.x, token * row.width, row.width, op.y, r * columns + row.first_value());
      const Index end_of_values = row.first_value() + row.width;
      clear_elements(op.y, r * columns + end_of_values, columns - end_of_values);
    }
  });
}

// An element of the results costs 8 bytes.
void execute(CpuDevice&, const ops::UnpackTokens& op) {
  const Index k = op.physical_experts.dim(1);
  for_chunks(op.x.dim(0), rows_per_chunk(4 * k), [&](Index begin, Index end) {
    for (Index r = begin; r < end; ++r) {
      const ConstView metadata{op.x.bytes() + r * op.x.dim(1) * size_of(op.x.dtype()), {2 * k}, DType::i32};
      copy_elements(metadata, 0, k, op.physical_experts, r * k);
      if (op.weights) copy_elements(metadata, k, k, op.weights, r * k);
    }
  });
}

// An element of y costs 4 bytes, 4 more for `addend`, and 4 bytes and 1 FLOP for each summed row.
void execute(CpuDevice&, const ops::Unpermute& op) {
  const Index d = op.y.dim(1), k = op.row_id_map.dim(1);
  for_chunks(op.y.dim(0), rows_per_chunk(2 * d), [&](Index begin, Index end) {
    Floats rows(op.x, d), addends(op.addend, d);
    Results sums(op.y, d);
    for (Index t = begin; t < end; ++t) {
      float* const out = sums.begin(t * d);
      bool empty = !op.addend;
      if (const float* const in = addends.at(t * d); in && in != out)
        std::memcpy(out, in, static_cast<std::size_t>(d) * sizeof(float));
      for (Index j = 0; j < k; ++j) {
        const Index row = op.row_id_map.i32()[t * k + j];
        if (row < 0) continue;
        const float* const in = rows.at(row * d);
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
