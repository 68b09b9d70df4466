#include <sys/mman.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "kernels/dry/dry.h"

namespace sy {

namespace {

// Host code may read tensors of at most this size. Larger tensors are not written, because they
// would cost memory.
constexpr Index small_bytes = Index{1} << 20;

// The size of an allocation is stored in a page before it.
constexpr Index page = 4096;

void release(std::byte* memory) {
  Index size;
  std::memcpy(&size, memory - page, sizeof size);
  munmap(memory - page, static_cast<std::size_t>(size));
}

// Number of keys of [first, last] that a sparse pattern hides from a query.
Index hidden_keys(const SparsePattern& sparse, Index at, Index first, Index last) {
  const Index begin = std::max(first, sparse.global), near = std::min(sparse.near(at), last + 1);
  if (begin >= near) return 0;
  Index seen = 0;
  if (sparse.stride > 0) seen = (at - begin) / sparse.stride + 1 - (at - near + sparse.stride) / sparse.stride;
  const auto summaries = [&](Index end) {  // summary keys before key `end`
    return end / sparse.block * sparse.summary + std::max<Index>(0, end % sparse.block - sparse.block + sparse.summary);
  };
  if (sparse.block > 0) seen = summaries(near) - summaries(begin);
  return near - begin - seen;
}

// Number of pairs of a query and a key that it sees. Only a device knows documents and lengths, so
// each sequence counts as one document, and a cache as full.
double visible_pairs(const AttentionMask& mask, Index queries, Index keys) {
  double pairs = 0;
  const Index offset = mask.query_offsets ? keys - queries : mask.query_offset;
  for (Index i = 0; i < queries; ++i) {
    const Index at = offset + i, last = mask.causal ? std::min(at, keys - 1) : keys - 1;
    const Index first = mask.window > 0 ? std::max<Index>(0, at - mask.window + 1) : 0;
    if (mask.sparse && first <= last) pairs -= static_cast<double>(hidden_keys(mask.sparse, at, first, last));
    pairs += static_cast<double>(std::max<Index>(0, last - first + 1));
  }
  return pairs;
}

double number(Index x) {
  return static_cast<double>(x);
}

// sums[j]: the sum of the products of j different weights.
using ProductSums = std::vector<double>;

void add_weight(ProductSums& sums, double share) {
  const double p = std::clamp(share, 0.0, 1 - 1e-9);
  for (std::size_t j = sums.size() - 1; j > 0; --j) sums[j] += sums[j - 1] * p / (1 - p);
}

// Sums, over all choices, the product of the weights of the chosen groups and experts. A choice is
// `limit` groups, and k experts of these groups or of `common`. odds: [groups] weights of groups.
double sum_over_choices(const std::vector<ProductSums>& groups, const std::vector<double>& odds, Index limit,
                        const ProductSums& common) {
  const std::size_t sizes = common.size();
  std::vector<ProductSums> chosen(static_cast<std::size_t>(limit) + 1, ProductSums(sizes));
  chosen[0] = common;
  for (std::size_t g = 0; g < groups.size(); ++g)
    for (std::size_t n = chosen.size() - 1; n > 0; --n)
      for (std::size_t j = 0; j < sizes; ++j)
        for (std::size_t i = 0; i + j < sizes; ++i) chosen[n][i + j] += chosen[n - 1][j] * odds[g] * groups[g][i];
  return chosen.back().back();
}

// Weight of a group that tokens choose with this probability. It is the odds of the group, divided
// by the sum over choices of `size` of its experts. A fractional `size` interpolates that sum.
double group_odds(double probability, const ProductSums& experts, double size) {
  const double q = std::clamp(probability, 0.0, 1 - 1e-9);
  const std::size_t low = std::min(static_cast<std::size_t>(size), experts.size() - 1),
                    high = std::min(low + 1, experts.size() - 1);
  if (experts[low] <= 0) return 0;
  const double between = size - static_cast<double>(low), above = experts[high] > 0 ? experts[high] : experts[low];
  return q / (1 - q) / (std::pow(experts[low], 1 - between) * std::pow(above, between));
}

// dry_reach of many ranges of experts.
class Reach {
 public:
  Reach(std::span<const Index> tokens_per_expert, Index tokens, Index k, const DryGroups& groups)
      : groups_(groups),
        has_limit_(!groups.group_of.empty()),
        limit_(has_limit_ ? groups.limit : 1),
        empty_sums_(static_cast<std::size_t>(k) + 1),
        dropped_sums_(empty_sums_.size()) {
    const std::size_t number_of_groups = has_limit_ ? static_cast<std::size_t>(groups.groups) : 1;
    std::vector<double> chosen(number_of_groups);  // [groups] sum of the shares of its experts
    double dropped = number(k);
    for (const Index assignments : tokens_per_expert) shares_.push_back(number(assignments) / number(tokens));
    for (Index e = 0; e < std::ssize(tokens_per_expert); ++e) {
      dropped -= shares_[e];
      chosen[group_of(e)] += shares_[e];
    }
    // Mean number of a token's dispatched experts in a chosen group.
    const double experts_of_group = (number(k) - dropped) / number(limit_);
    if (experts_of_group <= 0) return;
    empty_sums_[0] = dropped_sums_[0] = 1;
    all_.assign(number_of_groups, empty_sums_);
    for (Index e = 0; e < std::ssize(tokens_per_expert); ++e) {
      const double of_all = chosen[group_of(e)] / experts_of_group;
      // The share among the tokens that choose the expert's group.
      if (has_limit_ && of_all > 0) shares_[e] /= std::min(1.0, of_all);
      add_weight(all_[group_of(e)], shares_[e]);
    }
    odds_.assign(number_of_groups, 1.0);
    for (std::size_t g = 0; g < number_of_groups && has_limit_; ++g)
      odds_[g] = group_odds(chosen[g] / experts_of_group, all_[g], experts_of_group);
    for (Index i = 0; i < k && dropped > 0; ++i) add_weight(dropped_sums_, dropped / number(k));
    total_ = sum_over_choices(all_, odds_, limit_, dropped_sums_);
  }

  // Share of the tokens that have one of experts [first, first + n).
  double operator()(Index first, Index n) const {
    if (total_ <= 0) return 0;
    std::vector<ProductSums> others = all_;  // sums over the other experts
    std::vector<bool> touched(others.size());
    for (Index e = first; e < first + n; ++e) touched[group_of(e)] = true;
    for (std::size_t g = 0; g < others.size(); ++g)
      if (touched[g]) others[g] = empty_sums_;
    for (Index e = 0; e < std::ssize(shares_); ++e)
      if (touched[group_of(e)] && (e < first || e >= first + n)) add_weight(others[group_of(e)], shares_[e]);
    return 1 - sum_over_choices(others, odds_, limit_, dropped_sums_) / total_;
  }

 private:
  std::size_t group_of(Index e) const { return has_limit_ ? static_cast<std::size_t>(groups_.group_of[e]) : 0; }

  DryGroups groups_;
  bool has_limit_;
  Index limit_;
  ProductSums empty_sums_, dropped_sums_;  // sums for no experts; for dropped assignments
  std::vector<double> shares_;             // [E] share of its group's tokens that choose it
  std::vector<ProductSums> all_;           // [groups] sums for all experts of a group
  std::vector<double> odds_;               // [groups] weights of groups
  double total_ = 0;
};

class DryBackend final : public Backend {
 public:
  DryCounts counts;
  DryLoad load;
  Index planned_logits = 0;

  explicit DryBackend(const Backend* planned_backend) : planned_backend_(planned_backend) {}

  std::string_view name() const override { return "dry"; }
  std::string describe() const override { return "dry, computes nothing"; }

  Index free_bytes() const override { return std::numeric_limits<Index>::max(); }
  Index logits_chunk() const override {
    return planned_logits > 0 ? planned_logits
           : planned_backend_ ? planned_backend_->logits_chunk()
                              : Backend::logits_chunk();
  }
  bool supports_gathered_rows() const override {
    return planned_backend_ && planned_backend_->supports_gathered_rows();
  }
  Index packed_weight_bytes(const Shape& weight, DType dtype, GemmPass pass) const override {
    return planned_backend_ ? planned_backend_->packed_weight_bytes(weight, dtype, pass) : 0;
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
    count("fill", 0, {x});
    write(x, value);
  }
  void do_copy(ConstView x, View y) override {
    count("copy", 0, {x, y});
    if (x.size_bytes() <= small_bytes) std::memcpy(y.bytes(), x.bytes(), static_cast<std::size_t>(x.size_bytes()));
  }
  void do_convert(ConstView x, View y) override { count("convert", 0, {x, y}); }
  void do_add(ConstView x, View y) override { count("add", 0, {x, y, y}); }
  void do_scale(View x, float) override { count("scale", 0, {x, x}); }
  void do_sum_squares(ConstView x, View out) override { count("sum_squares", 0, {x}); }

  void do_pack_weight(ConstView weight, GemmPass, View packed) override { count("pack_weight", 0, {weight, packed}); }
  void do_gemm(const Gemm& desc, ConstView a, const Weight& b, ConstView addend, View c) override {
    count("gemm", 2 * number(a.elements()) * number(c.dim(1)),
          {a, read(b, desc.transpose_b ? b.packed_fprop : b.packed_dgrad), c, desc.accumulate ? c : addend}, {},
          std::min({c.dim(0), c.dim(1), a.dim(desc.transpose_a ? 0 : 1)}));
  }
  void do_grouped_gemm(const GatheredRows& x, const Weight& w, const GroupOffsets&, View y) override {
    count("grouped_gemm", 2 * number(y.elements()) * number(w.values.dim(2)),
          {x.values, read(w, w.packed_fprop), y, x.index}, {}, min_dimension(y.dim(0), w.values));
  }
  void do_grouped_gemm_dgrad(const GatheredRows& dy, const Weight& w, const GroupOffsets&, View dx) override {
    count("grouped_gemm_dgrad", 2 * number(dx.elements()) * number(w.values.dim(1)),
          {dy.values, read(w, w.packed_dgrad), dx, dy.index}, {}, min_dimension(dx.dim(0), w.values));
  }
  void do_grouped_gemm_wgrad(const GatheredRows& dy, const GatheredRows& x, const GroupOffsets&, View dw,
                             bool accumulate) override {
    count("grouped_gemm_wgrad", 2 * number(x.rows()) * number(dw.dim(1)) * number(dw.dim(2)),
          {dy.values, dy.index, x.values, x.index, dw, accumulate ? dw : View{}}, {}, min_dimension(x.rows(), dw));
  }
  void do_grouped_bias_forward(ConstView bias, ConstView, const GroupOffsets&, Index, View y) override {
    count("grouped_bias_forward", 0, {bias, y, y});
  }
  void do_grouped_bias_backward(ConstView dy, ConstView, ConstView, const GroupOffsets&, Index, View dbias,
                                View) override {
    count("grouped_bias_backward", 0, {dy, dbias, dbias});
  }
  void do_bias_forward(ConstView bias, View y) override { count("bias_forward", 0, {bias, y, y}); }
  void do_bias_backward(ConstView dy, View dbias) override { count("bias_backward", 0, {dy, dbias, dbias}); }

  void do_norm_forward(const NormDesc&, ConstView x, ConstView weight, ConstView, View y, View moments) override {
    count("norm_forward", 0, {x, weight, y, moments});
  }
  void do_norm_backward(const NormDesc&, ConstView dy, ConstView x, ConstView weight, ConstView moments, View dx,
                        View dweight, View) override {
    count("norm_backward", 0, {dy, x, weight, moments, dx, dx, dweight, dweight});
  }
  void do_activation_forward(const FfnActivation&, ConstView h, ConstView, View y) override {
    count("activation_forward", 0, {h, y});
  }
  void do_activation_backward(const FfnActivation&, ConstView dy, ConstView h, ConstView, View dh,
                              View drow_scale) override {
    count("activation_backward", 0, {dy, h, dh, drow_scale});
  }
  void do_rope(View x, Index heads, ConstView, ConstView, bool, RopePairs) override {
    count("rope", 0, {}, {}, 0, 2 * number(x.size_bytes()) * number(heads) / number(x.dim(1)));
  }

  void do_qk_norm_forward(const QkNorm&, ConstView x, ConstView, ConstView, ConstView, View y, View inverse) override {
    count("qk_norm_forward", 0, {x, y, inverse});
  }
  void do_qk_norm_backward(const QkNorm&, ConstView dy, ConstView x, ConstView, ConstView inverse, ConstView, ConstView,
                           View dx, View) override {
    count("qk_norm_backward", 0, {dy, x, inverse, dx});
  }
  void do_whole_qk_norm_sums(const WholeQkNorm& desc, ConstView x, ConstView, View sums) override {
    count("whole_qk_norm_sums", 0, {sums}, {}, 0,
          2 * number(x.size_bytes()) * number(desc.queries + desc.keys) / number(x.dim(1)));
  }
  void do_whole_qk_norm_forward(const WholeQkNorm&, ConstView x, ConstView, ConstView squares, View y) override {
    count("whole_qk_norm_forward", 0, {x, squares, y});
  }
  void do_whole_qk_norm_backward(const WholeQkNorm&, ConstView dy, ConstView x, ConstView, ConstView squares,
                                 ConstView products, View dx, View) override {
    count("whole_qk_norm_backward", 0, {dy, x, squares, products, dx});
  }

  // Each visible pair of a query and a key takes part in two products in forward. In backward these
  // are five, because the scores are computed again.
  void do_attention_forward(const AttentionDesc& desc, ConstHeads q, ConstHeads k, ConstHeads v, View out,
                            View lse) override {
    count("attention_forward", attention_flops(desc, q, k, 1, v, 1), {out, lse}, {q, k, v}, q.width);
  }
  void do_attention_backward(const AttentionDesc& desc, ConstView dout, ConstHeads q, ConstHeads k, ConstHeads v,
                             ConstView out, ConstView lse, Heads dq, Heads dk, Heads dv) override {
    count("attention_backward", attention_flops(desc, q, k, 3, v, 2), {dout, out, lse}, {q, k, v, dq, dk, dv}, q.width);
  }
  void do_attention_backward_learned(const AttentionDesc& desc, ConstView dout, ConstHeads q, ConstHeads k,
                                     ConstHeads v, ConstView out, ConstView lse, View dbias, View dsinks) override {
    const std::initializer_list<ConstView> moved = {dout, out, lse, dbias, dbias, dsinks, dsinks};
    if (dbias)
      count("attention_backward_learned", attention_flops(desc, q, k, 1, v, 1), moved, {q, k, v}, q.width);
    else
      count("attention_backward_learned", 0, moved);
  }
  void do_kv_cache_append(ConstHeads x, ConstView offsets, Heads) override {
    count("kv_cache_append", 0, {offsets}, {x, x});
  }
  void do_broadcast_heads(ConstHeads x, Heads y) override { count("broadcast_heads", 0, {}, {x, y}); }
  void do_reduce_heads(ConstHeads x, Heads y) override { count("reduce_heads", 0, {}, {x, y}); }
  void do_batched_head_gemm(GemmPass, ConstHeads x, ConstView w, Heads y) override {
    count("batched_head_gemm", 2 * number(x.sequences * x.positions) * number(w.elements()), {w}, {x, y},
          std::min({x.sequences * x.positions, w.dim(1), w.dim(2)}));
  }
  void do_draw(const Draw&, ConstView index, View x) override { count("draw", 0, {index, x}); }
  void do_jitter(const Draw&, ConstView index, ConstView x, bool accumulate, View y) override {
    count("jitter", 0, {index, x, y, accumulate ? y : View()});
  }
  void do_noisy_gating_forward(const Draw&, ConstView index, ConstView stddev, View x) override {
    count("noisy_gating_forward", 0, {index, stddev, x, x});
  }
  void do_noisy_gating_backward(const Draw&, ConstView index, ConstView dx, ConstView stddev, View dstddev) override {
    count("noisy_gating_backward", 0, {index, dx, stddev, dstddev});
  }
  void do_route_forward(const RouteDesc& desc, ConstView logits, ConstView, ConstView noise, View experts, View weights,
                        View routed, View probability, View z_squared) override {
    count("route_forward", 0, {logits, noise, experts, weights, routed, probability});
    groups_ = desc.groups;
    topk_groups_ = desc.topk_groups;
    write(z_squared, 0);
  }
  void do_route_backward(const RouteDesc&, ConstView logits, ConstView experts, ConstView weights, ConstView dweights,
                         ConstView, float, View dlogits) override {
    count("route_backward", 0, {logits, experts, weights, dweights, dlogits});
  }
  void do_apply_capacity(const CapacityDesc&, ConstView experts, ConstView weights, Index, Index,
                         View dispatch_mask) override {
    count("apply_capacity", 0, {experts, weights, dispatch_mask});
  }
  void do_dispatch_layout(const ExpertPartition& partition, ConstView experts, ConstView dispatch_mask,
                          View physical_experts, View tokens, View row_id_map, View layout_counts,
                          View tokens_per_expert) override {
    count("dispatch_layout", 0, {experts, dispatch_mask, physical_experts, tokens, row_id_map});
    const Index n = experts.elements(), t = experts.dim(0), all = tokens_per_expert.elements(),
                each = all / partition.ep;
    std::vector<Index> logical_load(static_cast<std::size_t>(all)), physical_load(logical_load.size());
    for (Index e = 0; e < all; ++e) logical_load[e] = n / all + (e < n % all);
    // Without a mask, the assignments are those of the latest router
    if (!dispatch_mask && partition.first_expert + all <= std::ssize(physical_load_))
      std::copy_n(physical_load_.begin() + partition.first_expert, all, logical_load.begin());
    else if (load)
      load(n, logical_load);
    for (Index e = 0; e < all; ++e)
      physical_load[partition.logical_to_physical ? partition.logical_to_physical.i32()[e] : e] = logical_load[e];
    if (dispatch_mask) {
      physical_load_ = physical_load;
      group_of_.clear();
      if (topk_groups_ < groups_) group_of_.resize(physical_load.size());
      for (Index e = 0; e < std::ssize(group_of_); ++e)
        group_of_[partition.logical_to_physical ? partition.logical_to_physical.i32()[e] : e] = e * groups_ / all;
    }
    // A group limit applies only to a partition of all experts. The hop within a node gets tokens
    // that have already chosen their groups.
    DryGroups groups;
    if (partition.first_expert == 0 && std::ssize(group_of_) == all) groups = {group_of_, groups_, topk_groups_};
    for (Index e = 0; e < all; ++e) tokens_per_expert.i32()[e] = static_cast<std::int32_t>(logical_load[e]);
    for (Index e = 0; e < all; ++e)
      layout_counts.i32()[partition.ranks() + e] = static_cast<std::int32_t>(physical_load[e]);
    const Reach reach(physical_load, t, experts.dim(1), groups);
    for (Index rank = 0; rank < partition.ranks(); ++rank)
      layout_counts.i32()[rank] =
          static_cast<std::int32_t>(std::llround(number(t) * reach(rank / partition.etp * each, each)));
  }
  void do_build_permutation(ConstView physical_experts, Index, View assignments, View tokens, View row_id_map,
                            View) override {
    count("build_permutation", 0, {physical_experts, assignments, tokens, row_id_map});
  }
  void do_load_balancing_loss(const LoadBalancingDesc&, ConstView routed, ConstView scope_counts, ConstView probability,
                              ConstView, ConstView, View dprobability, View sums) override {
    count("load_balancing_loss", 0, {routed, scope_counts, probability, dprobability, sums});
  }
  void do_permute(ConstView, ConstView index, View y) override { count("permute", 0, {index, y, y}); }
  void do_unpermute(ConstView x, ConstView row_id_map, ConstView addend, View y) override {
    count("unpermute", 0, {x, row_id_map, y, addend});
  }

  void do_embedding_forward(ConstView ids, ConstView, Index, View y) override {
    count("embedding_forward", 0, {ids, y, y});
  }
  void do_embedding_backward(ConstView ids, ConstView dy, Index, View) override {
    count("embedding_backward", 0, {ids, dy, dy, dy});
  }
  void do_cross_entropy_forward(const CrossEntropyDesc&, ConstView logits, ConstView targets, View partial) override {
    count("cross_entropy_forward", 0, {logits, targets, partial});
  }
  void do_cross_entropy_loss(ConstView partials, ConstView targets, View lse, View loss) override {
    count("cross_entropy_loss", 0, {partials, targets, lse, loss});
    write(loss, 0);
  }
  void do_loss_sums(ConstView losses, ConstView lse, ConstView targets, View) override {
    count("loss_sums", 0, {losses, lse, targets});
  }
  void do_cross_entropy_backward(const CrossEntropyDesc&, ConstView logits, ConstView targets, ConstView lse,
                                 ConstView total, View dlogits) override {
    count("cross_entropy_backward", 0, {targets, lse, total, logits, dlogits});
  }
  void do_clip_coefficient(ConstView, float, View) override {}
  void do_adamw(const AdamW&, ConstView, ConstView, ConstView g, View w, View m, View v, View rounded) override {
    count("adamw", 0, {g, w, w, m, m, v, v, rounded});
  }

 private:
  // size: see DryCall. more: bytes besides those of the named operands.
  void count(std::string_view op, double flops, std::initializer_list<ConstView> moved,
             std::initializer_list<ConstHeads> heads = {}, Index size = 0, double more = 0) {
    DryCall call{op, size, flops, more};
    for (ConstView v : moved)
      if (v) call.bytes += number(v.size_bytes());
    for (ConstHeads x : heads) call.bytes += number(x.elements() * size_of(x.dtype));
    counts.flops += call.flops;
    counts.bytes += call.bytes;
    ++counts.calls[call];
  }
  // GEMM size of a grouped GEMM: the least of the rows of an expert, if all have as many, and of
  // its matrix dimensions.
  static Index min_dimension(Index rows, ConstView matrices) {
    return std::min({ceil_div(rows, matrices.dim(0)), matrices.dim(1), matrices.dim(2)});
  }
  // Operand that a GEMM reads of a weight: the packed form if there is one, otherwise the values.
  static ConstView read(const Weight& weight, ConstView form) { return form ? form : weight.values; }

  const Backend* planned_backend_;
  // Dispatched assignments of each physical expert, from the latest router.
  std::vector<Index> physical_load_;
  Index groups_ = 1, topk_groups_ = 1;  // of the latest router
  std::vector<Index> group_of_;         // [E] group of each physical expert; empty without a limit
  std::vector<std::byte> read_;

  // Writes a tensor if it is small, otherwise does nothing.
  static void write(View x, float value) {
    if (x.size_bytes() > small_bytes) return;
    if (value == 0)
      std::memset(x.bytes(), 0, static_cast<std::size_t>(x.size_bytes()));
    else
      std::fill_n(x.f32(), x.elements(), value);
  }
  // of_keys: number of products with the width of queries and keys. of_values: those with the width
  // of values.
  static double attention_flops(const AttentionDesc& desc, ConstHeads q, ConstHeads k, double of_keys, ConstHeads v,
                                double of_values) {
    return 2 * (of_keys * number(q.width) + of_values * number(v.width)) * number(q.sequences) * number(q.heads) *
           visible_pairs(desc.mask, q.positions, k.positions);
  }
};

}  // namespace

double dry_reach(std::span<const Index> tokens_per_expert, Index tokens, Index k, Index first, Index n,
                 const DryGroups& groups) {
  return Reach(tokens_per_expert, tokens, k, groups)(first, n);
}

std::unique_ptr<Backend> make_dry(const Backend* planned_backend) {
  return std::make_unique<DryBackend>(planned_backend);
}

namespace {
DryBackend& as_dry(Backend& backend) {
  auto* const dry = dynamic_cast<DryBackend*>(&backend);
  SY_ASSERT(dry, "the {} backend counts nothing", backend.name());
  return *dry;
}
}  // namespace

DryCounts& dry_counts(Backend& backend) {
  return as_dry(backend).counts;
}

void set_dry_logits(Backend& backend, Index logits) {
  as_dry(backend).planned_logits = logits;
}

void set_dry_load(Backend& backend, DryLoad load) {
  as_dry(backend).load = std::move(load);
}

}  // namespace sy
