// The operations of the cuda backend by topic, as kernels/backend.h says them; operands are checked and not empty.
// Everything runs on context.stream, in order, and none of them makes the host wait.
#pragma once

#include "kernels/backend.h"
#include "kernels/cuda/context.h"

namespace sy::cuda {

// elementwise.cu
void fill(Context& context, View x, float value);
void convert(Context& context, ConstView x, View y);
void add(Context& context, ConstView x, View y);
void sum_squares(Context& context, ConstView x, View out);

// gemm.cu
void gemm(Context& context, const Gemm& desc, ConstView a, ConstView b, View c);
void grouped_gemm(Context& context, ConstView x, ConstView w, const Groups& groups, View y);
void grouped_gemm_input(Context& context, ConstView dy, ConstView w, const Groups& groups, View dx);
void grouped_gemm_weight(Context& context, ConstView dy, ConstView x, const Groups& groups, View dw);

// norms.cu
void norm_forward(Context& context, const NormDesc& desc, ConstView x, ConstView weight, ConstView bias, View y,
                  View stats);
void norm_backward(Context& context, const NormDesc& desc, ConstView dy, ConstView x, ConstView weight, ConstView stats,
                   View dx, View dweight, View dbias);

// activations.cu
void bias_forward(Context& context, ConstView bias, View y);
void bias_backward(Context& context, ConstView dy, View dbias);
void activation_forward(Context& context, const FfnActivation& desc, ConstView h, ConstView row_scale, View y);
void activation_backward(Context& context, const FfnActivation& desc, ConstView dy, ConstView h, ConstView row_scale,
                         View dh, View drow_scale);
void rope(Context& context, View x, Index heads, ConstView positions, ConstView table, bool inverse);

// qk_norm.cu
void qk_norm_forward(Context& context, const QkNorm& desc, ConstView x, ConstView weight, ConstView positions,
                     ConstView table, View y, View inverse);
void qk_norm_backward(Context& context, const QkNorm& desc, ConstView dy, ConstView x, ConstView weight,
                      ConstView inverse, ConstView positions, ConstView table, View dx, View dweight);

// attention_forward.cu, attention_backward.cu. A block takes at most attention_shared_bytes(hd): an A100 offers 163 KiB, and
// H100 and B200 more; the smallest cards of compute capability 8.0 or later 99 KiB, which are to serve for narrow heads.
constexpr Index widest_head = 256, narrow_head = 64;  // hd
constexpr Index attention_shared_bytes(Index hd) {
  return (hd > narrow_head ? 160 : 99) * 1024;
}
void attention_forward(Context& context, const AttentionDesc& desc, ConstHeads q, ConstHeads k, ConstHeads v, View out,
                       View lse);
void attention_backward(Context& context, const AttentionDesc& desc, ConstView dout, ConstHeads q, ConstHeads k,
                        ConstHeads v, ConstView out, ConstView lse, Heads dq, Heads dk, Heads dv);

// route.cu
void route_forward(Context& context, const RouteDesc& desc, ConstView logits, ConstView bias, View experts,
                   View weights, View counts, View probability, View z_squared);
void route_backward(Context& context, const RouteDesc& desc, ConstView logits, ConstView experts, ConstView dweights,
                    ConstView dprobability, float z_factor, View dlogits);
void balance(Context& context, const BalanceDesc& desc, ConstView counts, ConstView scope_counts, ConstView probability,
             ConstView kept, ConstView z_squared, View dprobability, View stats);

// dispatch.cu
void capacity(Context& context, const CapacityDesc& desc, ConstView experts, ConstView weights, Index groups,
              Index num_experts, View keep);
void sort_assignments(Context& context, const ExpertSplit& split, ConstView experts, ConstView keep, View rows,
                      View tokens, View slots, View counts);
void order_arrivals(Context& context, ConstView counts, Index first, View offsets, View order, View inverse);
void gather_rows(Context& context, ConstView x, ConstView index, View y);
void combine_rows(Context& context, ConstView x, ConstView slots, bool accumulate, View y);

// embedding.cu
void embedding_forward(Context& context, ConstView ids, ConstView table, Index vocab_begin, View y);
void embedding_backward(Context& context, ConstView ids, ConstView dy, Index vocab_begin, View dtable);

// loss.cu
void cross_entropy_forward(Context& context, const CrossEntropyDesc& desc, ConstView logits, ConstView targets,
                           View stats);
void cross_entropy_loss(Context& context, ConstView stats, ConstView targets, View lse, View loss);
void loss_sums(Context& context, ConstView losses, ConstView lse, ConstView targets, View sums);
void cross_entropy_backward(Context& context, const CrossEntropyDesc& desc, ConstView logits, ConstView targets,
                            ConstView lse, float factor, float z_factor, View dlogits);

// optimizer.cu
void clip_factor(Context& context, ConstView squares, float clip, View factor);
void adamw(Context& context, const AdamW& desc, ConstView factor, ConstView rates, ConstView g, View w, View m, View v,
           View rounded);

}  // namespace sy::cuda
