// The cuda backend: one GPU, one stream. Shapes and meanings of all operations are in
// kernels/backend.h. Operands are checked and have elements. All operations run on the context's
// stream, in order, and never make the host wait.
#pragma once

#include "kernels/backend.h"
#include "kernels/cuda/context.h"
#include "kernels/cuda/side_streams.h"
#include "kernels/cuda/sizes.h"
#include "kernels/cuda/staging.h"

namespace sy::cuda {

class CudaBackend final : public Backend {
 public:
  explicit CudaBackend(int device);  // device: the current CUDA device

  Context& context() { return context_; }
  void publish_waits_to(std::shared_ptr<BlockState> state) override {
    context_.stream.publish_waits_to(std::move(state));
  }
  void set_wait_hook(std::function<void()> hook) { waiter_.hook = std::move(hook); }

  std::string_view name() const override { return "cuda"; }
  std::string describe() const override;
  std::string device_id() const override { return cuda::device_id(properties_); }
  bool on_host() const override { return false; }
  DeviceMemory allocate(Index bytes) override;
  Index free_bytes() const override;
  void synchronize() override;
  void graph_region(const std::string& name, const std::function<void()>& body) override;
  Index max_head_dim() const override;  // attention_forward.cu
  Index logits_chunk() const override { return cuda::logits_chunk; }

 protected:
  // cuda_backend.cpp
  void do_to_device(const void* host, View x) override;
  void do_to_host(ConstView x, void* host) override;
  void do_begin_read(ConstView x) override;
  void do_end_read(void* host, Index bytes) override;

  // elementwise.cu
  void do_fill(View x, float value) override;
  void do_copy(ConstView x, View y) override;
  void do_convert(ConstView x, View y) override;
  void do_add(ConstView x, View y) override;
  void do_scale(View x, float factor) override;
  void do_sum_squares(ConstView x, View out) override;

  // gemm.cu
  void do_gemm(const Gemm& desc, ConstView a, const Weight& b, ConstView addend, View c) override;
  void do_grouped_gemm(const GatheredRows& x, const Weight& w, const GroupOffsets& groups, View y) override;
  void do_grouped_gemm_dgrad(const GatheredRows& dy, const Weight& w, const GroupOffsets& groups, View dx) override;
  void do_grouped_gemm_wgrad(const GatheredRows& dy, const GatheredRows& x, const GroupOffsets& groups, View dw,
                             bool accumulate) override;

  // norms.cu
  void do_grouped_bias_forward(ConstView bias, ConstView row_scale, const GroupOffsets& groups, Index first,
                               View y) override;
  void do_grouped_bias_backward(ConstView dy, ConstView bias, ConstView row_scale, const GroupOffsets& groups,
                                Index first, View dbias, View drow_scale) override;
  void do_bias_forward(ConstView bias, View y) override;
  void do_bias_backward(ConstView dy, View dbias) override;
  void do_norm_forward(const NormDesc& desc, ConstView x, ConstView weight, ConstView bias, View y,
                       View moments) override;
  void do_norm_backward(const NormDesc& desc, ConstView dy, ConstView x, ConstView weight, ConstView moments, View dx,
                        View dweight, View dbias) override;

  // activations.cu
  void do_activation_forward(const FfnActivation& desc, ConstView h, ConstView row_scale, View y) override;
  void do_activation_backward(const FfnActivation& desc, ConstView dy, ConstView h, ConstView row_scale, View dh,
                              View drow_scale) override;

  // positions.cu
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

  // heads.cu, gemm.cu
  void do_broadcast_heads(ConstHeads x, Heads y) override;
  void do_reduce_heads(ConstHeads x, Heads y) override;
  void do_batched_head_gemm(GemmPass pass, ConstHeads x, ConstView w, Heads y) override;

  // attention_forward.cu, attention_backward.cu
  void do_kv_cache_append(ConstHeads x, ConstView offsets, Heads y) override;
  void do_attention_forward(const AttentionDesc& desc, ConstHeads q, ConstHeads k, ConstHeads v, View out,
                            View lse) override;
  void do_attention_backward(const AttentionDesc& desc, ConstView dout, ConstHeads q, ConstHeads k, ConstHeads v,
                             ConstView out, ConstView lse, Heads dq, Heads dk, Heads dv) override;
  void do_attention_backward_learned(const AttentionDesc& desc, ConstView dout, ConstHeads q, ConstHeads k,
                                     ConstHeads v, ConstView out, ConstView lse, View dbias, View dsinks) override;

  // route.cu
  void do_draw(const Draw& desc, ConstView index, View x) override;
  void do_jitter(const Draw& desc, ConstView index, ConstView x, bool accumulate, View y) override;
  void do_noisy_gating_forward(const Draw& desc, ConstView index, ConstView stddev, View x) override;
  void do_noisy_gating_backward(const Draw& desc, ConstView index, ConstView dx, ConstView stddev,
                                View dstddev) override;
  void do_route_forward(const RouteDesc& desc, ConstView logits, ConstView bias, ConstView noise, View experts,
                        View weights, View counts, View probability, View z_squared) override;
  void do_route_backward(const RouteDesc& desc, ConstView logits, ConstView experts, ConstView weights,
                         ConstView dweights, ConstView dprobability, float z_factor, View dlogits) override;
  void do_load_balancing_loss(const LoadBalancingDesc& desc, ConstView counts, ConstView scope_counts,
                              ConstView probability, ConstView tokens_per_expert, ConstView z_squared,
                              View dprobability, View sums) override;

  // dispatch.cu
  void do_apply_capacity(const CapacityDesc& desc, ConstView experts, ConstView weights, Index segments,
                         Index num_experts, View dispatch_mask) override;
  void do_dispatch_layout(const ExpertPartition& partition, ConstView experts, ConstView dispatch_mask,
                          View physical_experts, View tokens, View row_id_map, View counts,
                          View tokens_per_expert) override;
  void do_build_permutation(ConstView physical_experts, Index first_expert, View assignments, View tokens,
                            View row_id_map, View offsets) override;
  void do_permute(ConstView x, ConstView index, View y) override;
  void do_unpermute(ConstView x, ConstView row_id_map, ConstView addend, View y) override;

  // embedding.cu
  void do_embedding_forward(ConstView ids, ConstView table, Index vocab_begin, View y) override;
  void do_embedding_backward(ConstView ids, ConstView dy, Index vocab_begin, View dtable) override;

  // loss.cu
  void do_cross_entropy_forward(const CrossEntropyDesc& desc, ConstView logits, ConstView targets,
                                View partial) override;
  void do_cross_entropy_loss(ConstView partials, ConstView targets, View lse, View loss) override;
  void do_loss_sums(ConstView losses, ConstView lse, ConstView targets, View sums) override;
  void do_cross_entropy_backward(const CrossEntropyDesc& desc, ConstView logits, ConstView targets, ConstView lse,
                                 ConstView total, View dlogits) override;

  // optimizer.cu
  void do_clip_coefficient(ConstView squares, float clip, View coefficient) override;
  void do_adamw(const AdamW& desc, ConstView coefficient, ConstView step_scalars, ConstView g, View w, View m, View v,
                View rounded) override;

 private:
  // Members are destroyed in reverse order. Freeing device memory waits for the stream, so the
  // stream is destroyed last.
  Owned<cudaStream_t> stream_;
  DeviceMemory workspace_, cublas_workspace_;
  Owned<cublasHandle_t> cublas_;
  SideStreams side_streams_;
  Context context_;
  Waiter waiter_;
  Staging staging_;
  DeviceMemory read_;  // pinned buffer of begin_read
  Owned<cudaEvent_t> read_done_, all_done_;
  const bool graphs_;
  cudaDeviceProp properties_;
};

}  // namespace sy::cuda
