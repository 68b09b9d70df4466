#include "src/model/scores.h"

namespace sy {

Scores::Scores(const AttentionSpec& spec, ParamStore& store, const std::string& prefix, Index positions)
    : sinks_(store.find(prefix + "sinks")) {
  SY_ASSERT(!spec.sparse || spec.window == 0, "a pattern, which counts from the first token, and a window of {}",
            spec.window);  // a cache would discard the first token
  desc_.scale = spec.scale;
  desc_.visible.window = spec.window;
  desc_.visible.sparse = spec.sparse;
  desc_.softcap = spec.softcap;
  if (!spec.relative) return;
  const Box& q = store.box(prefix + "q.weight");
  relative_.emplace(*spec.relative, positions, spec.heads, Range{q.begin[0], q.begin[0] + q.size[0]}, store, prefix);
}

void Scores::forward(const Device& device, ConstHeads q, ConstHeads k, ConstHeads v, View out, View lse,
                     ConstView query_offsets) const {
  const Arena::Scope scope(device.scratch);
  AttentionDesc desc = described(device);
  desc.visible.query_offsets = query_offsets;
  device.backend.attention_forward(desc, q, k, v, out, lse);
}

void Scores::backward(const Device& device, ConstView dout, ConstHeads q, ConstHeads k, ConstHeads v, ConstView out,
                      ConstView lse, Heads dq, Heads dk, Heads dv) const {
  const Arena::Scope scope(device.scratch);
  const AttentionDesc desc = described(device);
  device.backend.attention_backward(desc, dout, q, k, v, out, lse, dq, dk, dv);
  const bool learned = relative_ && relative_->learned();
  if (!sinks_ && !learned) return;
  View dbias;
  if (learned) {
    dbias = device.scratch.f32(desc.bias.shape());
    device.backend.fill(dbias, 0);
  }
  device.backend.attention_backward_learned(desc, dout, q, k, v, out, lse, dbias, sinks_.grad);
  if (dbias) relative_->backward(device, dbias);
}

AttentionDesc Scores::described(const Device& device) const {
  AttentionDesc desc = desc_;
  if (relative_) desc.bias = relative_->bias();
  if (sinks_) desc.sinks = as_f32(device, sinks_.weight);
  return desc;
}

}  // namespace sy
