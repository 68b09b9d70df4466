// The cpu backend: OpenMP threads over host memory. Each operation is in the file of its topic.
#include <omp.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <vector>

#include "kernels/cpu/activations.h"
#include "kernels/cpu/attention.h"
#include "kernels/cpu/embedding.h"
#include "kernels/cpu/gemm.h"
#include "kernels/cpu/loss.h"
#include "kernels/cpu/norms.h"
#include "kernels/cpu/optimizer.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/routing.h"

namespace sy {

namespace {

using cpu::Matrix;

std::size_t bytes_of(ConstView x) {
  return static_cast<std::size_t>(x.size_bytes());
}

// A row-major matrix with `columns` columns, and its transpose.
Matrix plain(const float* data, Index columns) {
  return {data, columns, 1};
}
Matrix transposed(const float* data, Index columns) {
  return {data, 1, columns};
}

class CpuBackend final : public Backend {
 public:
  std::string_view name() const override { return "cpu"; }
  std::string describe() const override { return fmt::format("cpu, {} threads", omp_get_max_threads()); }

  Index free_bytes() const override { return Index{sysconf(_SC_PHYS_PAGES)} * sysconf(_SC_PAGE_SIZE); }
  DeviceMemory allocate(Index bytes) override {
    // Whole huge pages for what is large: the kernel then needs far fewer translations.
    constexpr Index huge = Index{1} << 21;
    const Index alignment = bytes >= 2 * huge ? huge : 256;
    const Index pieces = std::max<Index>(1, (bytes + alignment - 1) / alignment);
    const auto size = static_cast<std::size_t>(pieces * alignment);
    void* const memory = std::aligned_alloc(static_cast<std::size_t>(alignment), size);
    if (!memory) fail("no memory for {} bytes: lower train.micro_batch or use more ranks", bytes);
    if (alignment == huge) madvise(memory, size, MADV_HUGEPAGE);  // a wish: nothing depends on it
    return {static_cast<std::byte*>(memory), [](std::byte* p) { std::free(p); }};
  }

 protected:
  void do_to_device(const void* host, View x) override { std::memcpy(x.bytes(), host, bytes_of(x)); }
  void do_to_host(ConstView x, void* host) override { std::memcpy(host, x.bytes(), bytes_of(x)); }
  void do_begin_read(ConstView x) override { read_.assign(x.bytes(), x.bytes() + x.size_bytes()); }
  void do_end_read(void* host, Index bytes) override {
    std::memcpy(host, read_.data(), static_cast<std::size_t>(bytes));
  }

  void do_fill(View x, float value) override {
    if (value == 0)
      cpu::for_runs(x.size_bytes(), 4 * cpu::run_elements, [&](Index begin, Index end) {
        std::memset(x.bytes() + begin, 0, static_cast<std::size_t>(end - begin));
      });
    else
      cpu::for_runs(x.elements(), cpu::run_elements,
                    [&](Index begin, Index end) { std::fill(x.f32() + begin, x.f32() + end, value); });
  }

  void do_copy(ConstView x, View y) override {
    cpu::for_runs(x.size_bytes(), 4 * cpu::run_elements, [&](Index begin, Index end) {
      std::memcpy(y.bytes() + begin, x.bytes() + begin, static_cast<std::size_t>(end - begin));
    });
  }

  void do_add(ConstView x, View y) override {
    cpu::for_runs(y.elements(), cpu::run_elements, [&](Index begin, Index end) {
      const float* const in = x.f32();
      float* const out = y.f32();
#pragma omp simd
      for (Index i = begin; i < end; ++i) out[i] += in[i];
    });
  }

  void do_convert(ConstView x, View y) override {
    const bool widen = x.dtype() == DType::bf16;
    for (Index i = 0; i < x.elements(); ++i)
      if (widen)
        y.f32()[i] = float_of_bf16(reinterpret_cast<const std::uint16_t*>(x.bytes())[i]);
      else
        reinterpret_cast<std::uint16_t*>(y.bytes())[i] = bf16_of_float(x.f32()[i]);
  }

  void do_sum_squares(ConstView x, View out) override {
    const Index n = x.elements(), grain = cpu::run_elements;
    std::vector<double> sums((n + grain - 1) / grain);
    cpu::for_runs(n, grain, [&](Index begin, Index end) {
      const float* const in = x.f32();
      double sum = 0;
#pragma omp simd reduction(+ : sum)
      for (Index i = begin; i < end; ++i) sum += static_cast<double>(in[i]) * static_cast<double>(in[i]);
      sums[begin / grain] = sum;
    });
    double total = 0;
    for (double sum : sums) total += sum;
    *out.as<double>() += total;
  }

  void do_gemm(const Gemm& desc, ConstView a, ConstView b, View c) override {
    const Index q = a.dim(desc.transpose_a ? 0 : 1);
    cpu::gemm(c.dim(0), c.dim(1), q, (desc.transpose_a ? transposed : plain)(a.f32(), a.dim(1)),
              (desc.transpose_b ? transposed : plain)(b.f32(), b.dim(1)), c.f32(), c.dim(1), desc.accumulate);
  }

  void do_grouped_gemm(ConstView x, ConstView w, const Groups& groups, View y) override {
    const Index n = w.dim(1), q = w.dim(2);
    for_groups(groups, [&](Index e, Index row, Index rows) {
      const Matrix a = plain(x.f32() + row * q, q), b = transposed(w.f32() + e * n * q, q);
      return cpu::Problem{rows, n, q, a, b, y.f32() + row * n, n, false};
    });
  }

  void do_grouped_gemm_input(ConstView dy, ConstView w, const Groups& groups, View dx) override {
    const Index n = w.dim(1), q = w.dim(2);
    for_groups(groups, [&](Index e, Index row, Index rows) {
      const Matrix a = plain(dy.f32() + row * n, n), b = plain(w.f32() + e * n * q, q);
      return cpu::Problem{rows, q, n, a, b, dx.f32() + row * q, q, false};
    });
  }

  void do_grouped_gemm_weight(ConstView dy, ConstView x, const Groups& groups, View dw) override {
    const Index n = dw.dim(1), q = dw.dim(2);
    for_groups(groups, [&](Index e, Index row, Index rows) {
      const Matrix a = transposed(dy.f32() + row * n, n), b = plain(x.f32() + row * q, q);
      return cpu::Problem{n, q, rows, a, b, dw.f32() + e * n * q, q, true};
    });
  }

  void do_bias_forward(ConstView bias, View y) override {
    cpu::bias_forward(bias, y);
  }
  void do_bias_backward(ConstView dy, View dbias) override {
    cpu::bias_backward(dy, dbias);
  }

  void do_norm_forward(const NormDesc& desc, ConstView x, ConstView weight, ConstView bias, View y,
                       View stats) override {
    cpu::norm_forward(desc, x, weight, bias, y, stats);
  }
  void do_norm_backward(const NormDesc& desc, ConstView dy, ConstView x, ConstView weight, ConstView stats, View dx,
                        View dweight, View dbias) override {
    cpu::norm_backward(desc, dy, x, weight, stats, dx, dweight, dbias);
  }

  void do_activation_forward(const FfnActivation& desc, ConstView h, ConstView row_scale, View y) override {
    cpu::activation_forward(desc, h, row_scale, y);
  }
  void do_activation_backward(const FfnActivation& desc, ConstView dy, ConstView h, ConstView row_scale, View dh,
                              View drow_scale) override {
    cpu::activation_backward(desc, dy, h, row_scale, dh, drow_scale);
  }

  void do_rope(View x, Index heads, ConstView positions, ConstView table, bool inverse) override {
    cpu::rope(x, heads, positions, table, inverse);
  }

  void do_qk_norm_forward(const QkNorm& desc, ConstView x, ConstView weight, ConstView positions, ConstView table,
                          View y, View inverse) override {
    cpu::qk_norm_forward(desc, x, weight, y, inverse);
    if (table) rope(y, desc.q_heads + desc.k_heads, positions, table, false);
  }
  void do_qk_norm_backward(const QkNorm& desc, ConstView dy, ConstView x, ConstView weight, ConstView inverse,
                           ConstView positions, ConstView table, View dx, View dweight) override {
    copy(dy, dx);
    if (table) rope(dx, desc.q_heads + desc.k_heads, positions, table, true);
    cpu::qk_norm_backward(desc, x, weight, inverse, dx, dweight);
  }

  void do_attention_forward(const AttentionDesc& desc, ConstHeads q, ConstHeads k, ConstHeads v, View out,
                            View lse) override {
    cpu::attention_forward(desc, q, k, v, out, lse);
  }
  void do_attention_backward(const AttentionDesc& desc, ConstView dout, ConstHeads q, ConstHeads k, ConstHeads v,
                             ConstView out, ConstView lse, Heads dq, Heads dk, Heads dv) override {
    cpu::attention_backward(desc, dout, q, k, v, out, lse, dq, dk, dv);
  }

  void do_route_forward(const RouteDesc& desc, ConstView logits, ConstView bias, View experts, View weights,
                        View counts, View probability, View z_squared) override {
    cpu::route_forward(desc, logits, bias, experts, weights, counts, probability, z_squared);
  }
  void do_route_backward(const RouteDesc& desc, ConstView logits, ConstView experts, ConstView weights,
                         ConstView dweights, ConstView dprobability, float z_factor, View dlogits) override {
    cpu::route_backward(desc, logits, experts, dweights, dprobability, z_factor, dlogits);
  }
  void do_capacity(const CapacityDesc& desc, ConstView experts, ConstView weights, Index groups, Index num_experts,
                   View keep) override {
    cpu::capacity(desc, experts, weights, groups, num_experts, keep);
  }
  void do_sort_assignments(const ExpertSplit& split, ConstView experts, ConstView keep, View rows, View tokens,
                           View slots, View counts) override {
    cpu::sort_assignments(split, experts, keep, rows, tokens, slots, counts);
  }
  void do_balance(const BalanceDesc& desc, ConstView counts, ConstView scope_counts, ConstView probability,
                  ConstView kept, ConstView z_squared, View dprobability, View stats) override {
    cpu::balance(desc, counts, scope_counts, probability, kept, z_squared, dprobability, stats);
  }
  void do_order_arrivals(ConstView counts, Index first, View offsets, View order, View inverse) override {
    cpu::order_arrivals(counts, first, offsets, order, inverse);
  }
  void do_gather_rows(ConstView x, ConstView index, View y) override {
    cpu::gather_rows(x, index, y);
  }
  void do_combine_rows(ConstView x, ConstView slots, bool accumulate, View y) override {
    cpu::combine_rows(x, slots, accumulate, y);
  }

  void do_embedding_forward(ConstView ids, ConstView table, Index vocab_begin, View y) override {
    cpu::embedding_forward(ids, table, vocab_begin, y);
  }
  void do_embedding_backward(ConstView ids, ConstView dy, Index vocab_begin, View dtable) override {
    cpu::embedding_backward(ids, dy, vocab_begin, dtable);
  }
  void do_cross_entropy_forward(const CrossEntropyDesc& desc, ConstView logits, ConstView targets,
                                View stats) override {
    cpu::cross_entropy_forward(desc, logits, targets, stats);
  }
  void do_cross_entropy_loss(ConstView stats, ConstView targets, View lse, View loss) override {
    cpu::cross_entropy_loss(stats, targets, lse, loss);
  }
  void do_loss_sums(ConstView losses, ConstView lse, ConstView targets, View sums) override {
    cpu::loss_sums(losses, lse, targets, sums);
  }
  void do_cross_entropy_backward(const CrossEntropyDesc& desc, ConstView logits, ConstView targets, ConstView lse,
                                 float factor, float z_factor, View dlogits) override {
    cpu::cross_entropy_backward(desc, logits, targets, lse, factor, z_factor, dlogits);
  }

  void do_clip_factor(ConstView squares, float clip, View factor) override {
    cpu::clip_factor(squares, clip, factor);
  }
  void do_adamw(const AdamW& desc, ConstView factor, ConstView rates, ConstView g, View w, View m, View v,
                View rounded) override {
    SY_ASSERT(!rounded, "the cpu backend computes in f32");
    cpu::adamw(desc, factor, rates, g, w, m, v);
  }

 private:
  // One product for each group that owns rows.
  template <class Make>
  void for_groups(const Groups& groups, const Make& make) {
    problems_.clear();
    const std::int32_t* const begin = groups.host;
    for (Index e = 0; e + 1 < groups.offsets.dim(0); ++e)
      if (begin[e] < begin[e + 1]) problems_.push_back(make(e, begin[e], begin[e + 1] - begin[e]));
    cpu::gemm_batch(problems_);
  }

  std::vector<cpu::Problem> problems_;  // kept for its memory
  std::vector<std::byte> read_;
};

}  // namespace

std::unique_ptr<Backend> make_cpu() {
  return std::make_unique<CpuBackend>();
}

}  // namespace sy
