// The cpu backend: OpenMP threads over host memory, in f32 and bf16. Shapes and meanings of all
// operations are in kernels/backend.h.
#pragma once

#include <vector>

#include "kernels/backend.h"

namespace sy::cpu {

class CpuBackend final : public Backend {
 public:
  // isa: name of the instruction set that this file is compiled for
  explicit CpuBackend(std::string_view isa) : isa_(isa) {}
  std::string_view name() const override { return "cpu"; }
  std::string describe() const override;
  DeviceMemory allocate(Index bytes) override;
  Index free_bytes() const override;
  // products.cpp
  Index prepared_bytes(const Shape& weight, DType dtype, WeightUse use) const override;
  bool reads_by_index() const override { return true; }

 protected:
  // cpu_backend.cpp
  void do_to_device(const void* host, View x) override;
  void do_to_host(ConstView x, void* host) override;
  void do_begin_read(ConstView x) override;
  void do_end_read(void* host, Index bytes) override;

  // elementwise.cpp
  void do_fill(View x, float value) override;
  void do_copy(ConstView x, View y) override;
  void do_convert(ConstView x, View y) override;
  void do_add(ConstView x, View y) override;
  void do_scale(View x, float factor) override;
  void do_sum_squares(ConstView x, View out) override;

  // products.cpp
  void do_prepare(ConstView weight, WeightUse use, View prepared) override;
  void do_gemm(const Gemm& desc, ConstView a, const Weight& b, ConstView from, View c) override;
  void do_grouped_gemm(const RowsOf& x, const Weight& w, const ExpertRows& rows, View y) override;
  void do_grouped_gemm_input(const RowsOf& dy, const Weight& w, const ExpertRows& rows, View dx) override;
  void do_grouped_gemm_weight(const RowsOf& dy, const RowsOf& x, const ExpertRows& rows, View dw,
                              bool accumulate) override;
  void do_ffn_forward(const FfnActivation& desc, const RowsOf& x, const Weight& w, ConstView bias,
                      const ExpertRows& rows, ConstView row_scale, View h, View y) override;
  void do_ffn_backward(const FfnActivation& desc, const RowsOf& dout, const Weight& w, const ExpertRows& rows,
                       ConstView h, ConstView row_scale, View dh, View drow_scale, View y) override;

  // norms.cpp
  void do_grouped_bias_forward(ConstView bias, ConstView row_scale, const ExpertRows& rows, Index first,
                               View y) override;
  void do_grouped_bias_backward(ConstView dy, ConstView bias, ConstView row_scale, const ExpertRows& rows, Index first,
                                View dbias, View drow_scale) override;
  void do_bias_forward(ConstView bias, View y) override;
  void do_bias_backward(ConstView dy, View dbias) override;
  void do_norm_forward(const NormDesc& desc, ConstView x, ConstView weight, ConstView bias, View y,
                       View moments) override;
  void do_norm_backward(const NormDesc& desc, ConstView dy, ConstView x, ConstView weight, ConstView moments, View dx,
                        View dweight, View dbias) override;

  // activations.cpp
  void do_activation_forward(const FfnActivation& desc, ConstView h, ConstView row_scale, View y) override;
  void do_activation_backward(const FfnActivation& desc, ConstView dy, ConstView h, ConstView row_scale, View dh,
                              View drow_scale) override;

  // positions.cpp
  void do_rope(View x, Index heads, ConstView positions, ConstView table, bool inverse, RopePairs pairs) override;
  void do_qk_norm_forward(const QkNorm& desc, ConstView x, ConstView weight, ConstView positions, ConstView table,
                          View y, View inverse) override;
  void do_qk_norm_backward(const QkNorm& desc, ConstView dy, ConstView x, ConstView weight, ConstView inverse,
                           ConstView positions, ConstView table, View dx, View dweight) override;
  void do_whole_qk_norm_sums(const WholeQkNorm& desc, ConstView x, ConstView y, View sums) override;
  void do_whole_qk_norm_forward(const WholeQkNorm& desc, ConstView x, ConstView weight, ConstView squares,
                                View y) override;
  void do_whole_qk_norm_backward(const WholeQkNorm& desc, ConstView dy, ConstView x, ConstView weight,
                                 ConstView squares, ConstView products, View dx, View dweight) override;

  // heads.cpp
  void do_copy_heads(ConstHeads x, Heads y) override;
  void do_sum_heads(ConstHeads x, Heads y) override;
  void do_heads_gemm(WeightUse use, ConstHeads x, ConstView w, Heads y) override;

  // attention.cpp
  void do_append_heads(ConstHeads x, ConstView offsets, Heads y) override;
  void do_attention_forward(const AttentionDesc& desc, ConstHeads q, ConstHeads k, ConstHeads v, View out,
                            View lse) override;
  void do_attention_backward(const AttentionDesc& desc, ConstView dout, ConstHeads q, ConstHeads k, ConstHeads v,
                             ConstView out, ConstView lse, Heads dq, Heads dk, Heads dv) override;
  void do_attention_backward_learned(const AttentionDesc& desc, ConstView dout, ConstHeads q, ConstHeads k,
                                     ConstHeads v, ConstView out, ConstView lse, View dbias, View dsinks) override;

  // route.cpp
  void do_draw(const Draw& desc, ConstView index, View x) override;
  void do_jitter(const Draw& desc, ConstView index, ConstView x, bool accumulate, View y) override;
  void do_sized_noise_forward(const Draw& desc, ConstView index, ConstView size, View x) override;
  void do_sized_noise_backward(const Draw& desc, ConstView index, ConstView dx, ConstView size, View dsize) override;
  void do_route_forward(const RouteDesc& desc, ConstView logits, ConstView bias, ConstView noise, View experts,
                        View weights, View counts, View probability, View z_squared) override;
  void do_route_backward(const RouteDesc& desc, ConstView logits, ConstView experts, ConstView weights,
                         ConstView dweights, ConstView dprobability, float z_factor, View dlogits) override;
  void do_balance(const BalanceDesc& desc, ConstView counts, ConstView scope_counts, ConstView probability,
                  ConstView kept, ConstView z_squared, View dprobability, View sums) override;

  // dispatch.cpp
  void do_capacity(const CapacityDesc& desc, ConstView experts, ConstView weights, Index segments, Index num_experts,
                   View keep) override;
  void do_plan_sends(const ExpertSplit& split, ConstView experts, ConstView keep, View places, View tokens, View slots,
                     View counts, View kept) override;
  void do_sort_assignments(ConstView places, Index first, View rows, View tokens, View slots, View offsets) override;
  void do_gather_rows(ConstView x, ConstView index, View y) override;
  void do_combine_rows(ConstView x, ConstView slots, ConstView from, View y) override;

  // embedding.cpp
  void do_embedding_forward(ConstView ids, ConstView table, Index vocab_begin, View y) override;
  void do_embedding_backward(ConstView ids, ConstView dy, Index vocab_begin, View dtable) override;

  // loss.cpp
  void do_cross_entropy_forward(const CrossEntropyDesc& desc, ConstView logits, ConstView targets,
                                View partial) override;
  void do_cross_entropy_loss(ConstView partials, ConstView targets, View lse, View loss) override;
  void do_loss_sums(ConstView losses, ConstView lse, ConstView targets, View sums) override;
  void do_cross_entropy_backward(const CrossEntropyDesc& desc, ConstView logits, ConstView targets, ConstView lse,
                                 ConstView total, View dlogits) override;

  // optimizer.cpp
  void do_clip_factor(ConstView squares, float clip, View factor) override;
  void do_adamw(const AdamW& desc, ConstView factor, ConstView rates, ConstView g, View w, View m, View v,
                View rounded) override;

 private:
  std::string_view isa_;
  std::vector<std::byte> read_;  // content of x at begin_read
};

}  // namespace sy::cpu
