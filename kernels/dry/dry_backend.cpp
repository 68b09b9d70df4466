#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <vector>

#include "kernels/dry/dry.h"

namespace sy {

namespace {

// Host code may read tensors of at most this size, and only they are written: larger ones would cost memory.
constexpr Index small_bytes = Index{1} << 20;

// The size of an allocation is kept in a page before it.
constexpr Index page = 4096;

void release(std::byte* memory) {
  Index size;
  std::memcpy(&size, memory - page, sizeof size);
  munmap(memory - page, static_cast<std::size_t>(size));
}

// How many of keys [first, last] a sparse pattern hides from a query.
Index hidden_keys(const Sparsity& sparse, Index at, Index first, Index last) {
  const Index begin = std::max(first, sparse.global), near = std::min(sparse.near(at), last + 1);
  if (begin >= near) return 0;
  Index seen = 0;
  if (sparse.stride > 0) seen = (at - begin) / sparse.stride + 1 - (at - near + sparse.stride) / sparse.stride;
  const auto summaries = [&](Index end) {  // before a key
    return end / sparse.block * sparse.summary + std::max<Index>(0, end % sparse.block - sparse.block + sparse.summary);
  };
  if (sparse.block > 0) seen = summaries(near) - summaries(begin);
  return near - begin - seen;
}

// How many pairs there are of a query and a key that it sees. It takes each sequence for one document, and a cache for full,
// as documents and lengths are known to a device alone.
double visible_pairs(const Visibility& see, Index queries, Index keys) {
  double pairs = 0;
  const Index offset = see.query_offsets ? keys - queries : see.query_offset;
  for (Index i = 0; i < queries; ++i) {
    const Index at = offset + i, last = see.causal ? std::min(at, keys - 1) : keys - 1;
    const Index first = see.window > 0 ? std::max<Index>(0, at - see.window + 1) : 0;
    if (see.sparse && first <= last) pairs -= static_cast<double>(hidden_keys(see.sparse, at, first, last));
    pairs += static_cast<double>(std::max<Index>(0, last - first + 1));
  }
  return pairs;
}

double number(Index x) {
  return static_cast<double>(x);
}

class DryBackend final : public Backend {
 public:
  DryCounts counts;

  explicit DryBackend(const Backend* stands_for) : stands_for_(stands_for) {}

  std::string_view name() const override { return "dry"; }
  std::string describe() const override { return "dry, computes nothing"; }

  Index free_bytes() const override { return std::numeric_limits<Index>::max(); }
  Index logits_at_once() const override {
    return stands_for_ ? stands_for_->logits_at_once() : Backend::logits_at_once();
  }
  Index prepared_bytes(const Shape& weight, DType dtype, WeightUse use) const override {
    return stands_for_ ? stands_for_->prepared_bytes(weight, dtype, use) : 0;
  }
  DeviceMemory allocate(Index bytes) override {
    const Index size = bytes + page;
    void* const memory = mmap(nullptr, static_cast<std::size_t>(size), PROT_READ | PROT_WRITE,
                              MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) no_memory("no address space for {} bytes", bytes);
    std::memcpy(memory, &size, sizeof size);
    return {static_cast<std::byte*>(memory) + page, release};
  }

 protected:
  void do_to_device(const void* host, View x) override {
    std::memcpy(x.bytes(), host, static_cast<std::size_t>(x.size_bytes()));
  }
  void do_to_host(ConstView x, void* host) override {
    std::memcpy(host, x.bytes(), static_cast<std::size_t>(x.size_bytes()));
  }
  void do_begin_read(ConstView x) override { read_.assign(x.bytes(), x.bytes() + x.size_bytes()); }
  void do_end_read(void* host, Index bytes) override {
    std::memcpy(host, read_.data(), static_cast<std::size_t>(bytes));
  }
  void do_fill(View x, float value) override {
    count(0, {x});
    write(x, value);
  }
  void do_copy(ConstView x, View y) override {
    count(0, {x, y});
    if (x.size_bytes() <= small_bytes) std::memcpy(y.bytes(), x.bytes(), static_cast<std::size_t>(x.size_bytes()));
  }
  void do_convert(ConstView x, View y) override { count(0, {x, y}); }
  void do_add(ConstView x, View y) override { count(0, {x, y, y}); }
  void do_scale(View x, float) override { count(0, {x, x}); }
  void do_sum_squares(ConstView x, View out) override { count(0, {x}); }

  void do_prepare(ConstView weight, WeightUse, View prepared) override { count(0, {weight, prepared}); }
  void do_gemm(const Gemm& desc, ConstView a, const Weight& b, View c) override {
    count(2 * number(a.elements()) * number(c.dim(1)),
          {a, read(b, desc.transpose_b ? b.output : b.input), c, desc.accumulate ? c : View()});
  }
  void do_grouped_gemm(ConstView x, const Weight& w, const ExpertRows&, View y) override {
    count(2 * number(x.elements()) * number(w.values.dim(1)), {x, read(w, w.output), y});
  }
  void do_grouped_gemm_input(ConstView dy, const Weight& w, const ExpertRows&, View dx) override {
    count(2 * number(dx.elements()) * number(w.values.dim(1)), {dy, read(w, w.input), dx});
  }
  void do_grouped_gemm_weight(ConstView dy, ConstView x, const ExpertRows&, View dw) override {
    count(2 * number(x.elements()) * number(dw.dim(1)), {dy, x, dw, dw});
  }
  void do_grouped_bias_forward(ConstView bias, ConstView, const ExpertRows&, Index, View y) override {
    count(0, {bias, y, y});
  }
  void do_grouped_bias_backward(ConstView dy, ConstView, ConstView, const ExpertRows&, Index, View dbias,
                                View) override {
    count(0, {dy, dbias, dbias});
  }
  void do_bias_forward(ConstView bias, View y) override { count(0, {bias, y, y}); }
  void do_bias_backward(ConstView dy, View dbias) override { count(0, {dy, dbias, dbias}); }

  void do_norm_forward(const NormDesc&, ConstView x, ConstView weight, ConstView, View y, View moments) override {
    count(0, {x, weight, y, moments});
  }
  void do_norm_backward(const NormDesc&, ConstView dy, ConstView x, ConstView weight, ConstView moments, View dx,
                        View dweight, View) override {
    count(0, {dy, x, weight, moments, dx, dx, dweight, dweight});
  }
  void do_activation_forward(const FfnActivation&, ConstView h, ConstView, View y) override { count(0, {h, y}); }
  void do_activation_backward(const FfnActivation&, ConstView dy, ConstView h, ConstView, View dh,
                              View drow_scale) override {
    count(0, {dy, h, dh, drow_scale});
  }
  void do_rope(View x, Index heads, ConstView, ConstView, bool, RopePairs) override {
    counts.bytes += 2 * number(x.size_bytes()) * number(heads) / number(x.dim(1));
  }

  void do_qk_norm_forward(const QkNorm&, ConstView x, ConstView, ConstView, ConstView, View y, View inverse) override {
    count(0, {x, y, inverse});
  }
  void do_qk_norm_backward(const QkNorm&, ConstView dy, ConstView x, ConstView, ConstView inverse, ConstView, ConstView,
                           View dx, View) override {
    count(0, {dy, x, inverse, dx});
  }
  void do_whole_qk_norm_sums(const WholeQkNorm& desc, ConstView x, ConstView, View sums) override {
    counts.bytes += 2 * number(x.size_bytes()) * number(desc.queries + desc.keys) / number(x.dim(1));
    count(0, {sums});
  }
  void do_whole_qk_norm_forward(const WholeQkNorm&, ConstView x, ConstView, ConstView squares, View y) override {
    count(0, {x, squares, y});
  }
  void do_whole_qk_norm_backward(const WholeQkNorm&, ConstView dy, ConstView x, ConstView, ConstView squares,
                                 ConstView products, View dx, View) override {
    count(0, {dy, x, squares, products, dx});
  }

  // Each pair of a query and a key that it sees takes part in two products, and backward in five, as the scores are
  // computed again.
  void do_attention_forward(const AttentionDesc& desc, ConstHeads q, ConstHeads k, ConstHeads v, View out,
                            View lse) override {
    count(attention_flops(desc, q, k, 1, v, 1), {out, lse});
    for (ConstHeads x : {q, k, v}) count_heads(x);
  }
  void do_attention_backward(const AttentionDesc& desc, ConstView dout, ConstHeads q, ConstHeads k, ConstHeads v,
                             ConstView out, ConstView lse, Heads dq, Heads dk, Heads dv) override {
    count(attention_flops(desc, q, k, 3, v, 2), {dout, out, lse});
    for (ConstHeads x : {q, k, v, ConstHeads(dq), ConstHeads(dk), ConstHeads(dv)}) count_heads(x);
  }
  void do_attention_backward_learned(const AttentionDesc& desc, ConstView dout, ConstHeads q, ConstHeads k,
                                     ConstHeads v, ConstView out, ConstView lse, View dbias, View dsinks) override {
    count(dbias ? attention_flops(desc, q, k, 1, v, 1) : 0, {dout, out, lse, dbias, dbias, dsinks, dsinks});
    if (!dbias) return;
    for (ConstHeads x : {q, k, v}) count_heads(x);
  }
  void do_append_heads(ConstHeads x, ConstView offsets, Heads) override {
    count(0, {offsets});
    for (int side = 0; side < 2; ++side) count_heads(x);
  }
  void do_copy_heads(ConstHeads x, Heads y) override {
    for (ConstHeads side : {x, ConstHeads(y)}) count_heads(side);
  }
  void do_sum_heads(ConstHeads x, Heads y) override {
    for (ConstHeads side : {x, ConstHeads(y)}) count_heads(side);
  }
  void do_heads_gemm(WeightUse, ConstHeads x, ConstView w, Heads y) override {
    count(2 * number(x.sequences * x.positions) * number(w.elements()), {w});
    for (ConstHeads side : {x, ConstHeads(y)}) count_heads(side);
  }
  void do_draw(const Draw&, ConstView index, View x) override { count(0, {index, x}); }
  void do_jitter(const Draw&, ConstView index, ConstView x, bool accumulate, View y) override {
    count(0, {index, x, y});
    if (accumulate) count(0, {y});
  }
  void do_sized_noise_forward(const Draw&, ConstView index, ConstView size, View x) override {
    count(0, {index, size, x, x});
  }
  void do_sized_noise_backward(const Draw&, ConstView index, ConstView dx, ConstView size, View dsize) override {
    count(0, {index, dx, size, dsize});
  }
  void do_route_forward(const RouteDesc& desc, ConstView logits, ConstView, ConstView noise, View experts, View weights,
                        View routed, View probability, View z_squared) override {
    count(0, {logits, noise, experts, weights, routed, probability});
    const Index e = logits.dim(1), of_segment = routed.dim(0) > 0 ? experts.elements() / routed.dim(0) : 1;
    std::fill_n(routed.i32(), routed.elements(), 0);
    for (Index a = 0; a < experts.elements(); ++a) {
      experts.i32()[a] = static_cast<std::int32_t>(a % e);
      weights.f32()[a] = 1.0f / static_cast<float>(desc.top_k);
      ++routed.i32()[a / of_segment * e + a % e];
    }
    std::fill_n(probability.f32(), probability.elements(),
                static_cast<float>(number(of_segment) / desc.top_k / number(e)));
    write(z_squared, 0);
  }
  void do_route_backward(const RouteDesc&, ConstView logits, ConstView experts, ConstView weights, ConstView dweights,
                         ConstView, float, View dlogits) override {
    count(0, {logits, experts, weights, dweights, dlogits});
  }
  void do_capacity(const CapacityDesc&, ConstView experts, ConstView weights, Index, Index, View keep) override {
    count(0, {experts, weights, keep});
    std::fill_n(keep.i32(), keep.elements(), 1);
  }
  void do_sort_assignments(const ExpertSplit& split, ConstView experts, ConstView keep, View rows, View tokens,
                           View slots, View counted) override {
    count(0, {experts, keep, rows, tokens, slots});
    cpu_->sort_assignments(split, experts, keep, rows, tokens, slots, counted);
  }
  void do_balance(const BalanceDesc&, ConstView routed, ConstView scope_counts, ConstView probability, ConstView,
                  ConstView, View dprobability, View sums) override {
    count(0, {routed, scope_counts, probability, dprobability, sums});
  }
  void do_order_arrivals(ConstView sent, Index first, View offsets, View order, View inverse) override {
    count(0, {order, inverse});
    cpu_->order_arrivals(sent, first, offsets, order, inverse);
  }
  void do_gather_rows(ConstView, ConstView index, View y) override { count(0, {index, y, y}); }
  void do_combine_rows(ConstView x, ConstView slots, bool accumulate, View y) override {
    count(0, {x, slots, y, accumulate ? y : View()});
  }

  void do_embedding_forward(ConstView ids, ConstView, Index, View y) override { count(0, {ids, y, y}); }
  void do_embedding_backward(ConstView ids, ConstView dy, Index, View) override { count(0, {ids, dy, dy, dy}); }
  void do_cross_entropy_forward(const CrossEntropyDesc&, ConstView logits, ConstView targets, View partial) override {
    count(0, {logits, targets, partial});
  }
  void do_cross_entropy_loss(ConstView partials, ConstView targets, View lse, View loss) override {
    count(0, {partials, targets, lse, loss});
    write(loss, 0);
  }
  void do_loss_sums(ConstView losses, ConstView lse, ConstView targets, View) override {
    count(0, {losses, lse, targets});
  }
  void do_cross_entropy_backward(const CrossEntropyDesc&, ConstView logits, ConstView targets, ConstView lse,
                                 ConstView total, View dlogits) override {
    count(0, {targets, lse, total, logits, dlogits});
  }
  void do_clip_factor(ConstView, float, View) override {}
  void do_adamw(const AdamW&, ConstView, ConstView, ConstView g, View w, View m, View v, View rounded) override {
    count(0, {g, w, w, m, m, v, v, rounded});
  }

 private:
  void count(double flops, std::initializer_list<ConstView> moved) {
    counts.flops += flops;
    for (ConstView v : moved)
      if (v) counts.bytes += number(v.size_bytes());
  }
  // What a product reads of a weight: the prepared form, where there is one.
  static ConstView read(const Weight& weight, ConstView form) { return form ? form : weight.values; }

  const Backend* stands_for_;
  std::vector<std::byte> read_;
  const std::unique_ptr<Backend> cpu_ = make_cpu();  // orders rows, as what host code reads is real

  // Writes small tensors only.
  static void write(View x, float value) {
    if (x.size_bytes() > small_bytes) return;
    if (value == 0)
      std::memset(x.bytes(), 0, static_cast<std::size_t>(x.size_bytes()));
    else
      std::fill_n(x.f32(), x.elements(), value);
  }
  void count_heads(ConstHeads x) { counts.bytes += number(x.elements() * size_of(x.dtype)); }
  // of_keys products have the width of queries and keys, of_values products that of values.
  static double attention_flops(const AttentionDesc& desc, ConstHeads q, ConstHeads k, double of_keys, ConstHeads v,
                                double of_values) {
    return 2 * (of_keys * number(q.width) + of_values * number(v.width)) * number(q.sequences) * number(q.heads) *
           visible_pairs(desc.visible, q.positions, k.positions);
  }
};

}  // namespace

std::unique_ptr<Backend> make_dry(const Backend* stands_for) {
  return std::make_unique<DryBackend>(stands_for);
}

DryCounts& dry_counts(Backend& backend) {
  auto* const dry = dynamic_cast<DryBackend*>(&backend);
  SY_ASSERT(dry, "the {} backend counts nothing", backend.name());
  return dry->counts;
}

}  // namespace sy
