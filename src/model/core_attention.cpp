#include "src/model/core_attention.h"

#include "kernels/ops/attention.h"
#include "kernels/ops/elementwise.h"
#include "kernels/ops/qk_clip.h"

namespace sy {

CoreAttention::CoreAttention(const CoreAttentionSpec& spec, ParamStore& store, const std::string& prefix,
                             Index positions)
    : sinks_(store.find(prefix + "sinks")) {
  SY_ASSERT(!spec.sparse || spec.window == 0, "a pattern, which counts from the first token, and a window of {}",
            spec.window);  // a cache would discard the first token
  desc_.scale = spec.scale;
  desc_.mask = spec.mask();
  desc_.softcap = spec.softcap;
  const Box& q = store.box(prefix + "q.weight");
  if (const auto& heads = store.spec(prefix + "q.weight").qk_heads)
    logits_ = {heads->first + q.begin[0], heads->first + q.begin[0] + q.size[0]};
  if (!spec.relative) return;
  desc_.two_sided_bias = spec.causal && spec.visible_prefix;
  relative_.emplace(*spec.relative, spec.causal && !spec.visible_prefix, positions, spec.heads,
                    Range{q.begin[0], q.begin[0] + q.size[0]}, store, prefix);
}

void CoreAttention::forward(const ExecutionContext& context, ConstHeads q, ConstHeads k, ConstHeads v, View out,
                            View lse, const AttentionMask& by_sequence, View max_logits) const {
  const Arena::Scope scope(context.scratch);
  const AttentionDesc desc = attention_desc(context, by_sequence);
  const View largest = max_logits ? context.scratch.f32(lse.shape()) : View{};
  run(context.device,
      ops::AttentionForward{.q = q, .k = k, .v = v, .desc = desc, .out = out, .lse = lse, .largest = largest});
  if (largest)
    run(context.device,
        ops::MaxLogits{.largest = largest, .max_logits = max_logits.rows(logits_.begin, logits_.size())});
}

void CoreAttention::backward(const ExecutionContext& context, ConstView dout, ConstHeads q, ConstHeads k, ConstHeads v,
                             ConstView out, ConstView lse, Heads dq, Heads dk, Heads dv,
                             const AttentionMask& by_sequence) const {
  const Arena::Scope scope(context.scratch);
  const AttentionDesc desc = attention_desc(context, by_sequence);
  run(context.device,
      ops::AttentionBackward{
          .dout = dout, .q = q, .k = k, .v = v, .out = out, .lse = lse, .desc = desc, .dq = dq, .dk = dk, .dv = dv});
  const bool learned = relative_ && relative_->learned();
  if (!sinks_ && !learned) return;
  View dbias;
  if (learned) {
    dbias = context.scratch.f32(desc.bias.shape());
    run(context.device, ops::Fill{.x = dbias, .value = 0});
  }
  run(context.device, ops::AttentionBackwardLearned{.dout = dout,
                                                    .q = q,
                                                    .k = k,
                                                    .v = v,
                                                    .out = out,
                                                    .lse = lse,
                                                    .desc = desc,
                                                    .dbias = dbias,
                                                    .dsinks = sinks_.grad});
  if (dbias) relative_->backward(context, dbias);
}

AttentionDesc CoreAttention::attention_desc(const ExecutionContext& context, const AttentionMask& by_sequence) const {
  AttentionDesc desc = desc_;
  desc.mask.query_offsets = by_sequence.query_offsets;
  desc.mask.document_start = by_sequence.document_start;
  desc.mask.selected = by_sequence.selected;
  desc.mask.prefix_end = by_sequence.prefix_end;
  if (!desc.mask.causal) desc.mask.key_lengths = by_sequence.key_lengths;
  if (relative_) desc.bias = relative_->bias();
  if (sinks_) desc.sinks = as_f32(context, sinks_.weight);
  return desc;
}

}  // namespace sy
