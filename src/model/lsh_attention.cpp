#include "src/model/lsh_attention.h"

#include "kernels/philox.h"

namespace sy {

LshAttention::LshAttention(const LshAttentionSpec& spec, const SublayerContext& context, const std::string& prefix)
    : spec_(spec),
      index_(context.counts.lsh++),
      heads_(context.store.get(prefix + "q.weight").weight.dim(0)),
      head_dim_(spec.key_width),
      qv_(context.store, prefix + "q", 2),
      out_(context.store, prefix + "out") {
  SY_ASSERT(spec.value_width == spec.key_width, "values of {} for keys of {}", spec.value_width, spec.key_width);
  if (spec.factors.empty()) return;
  rotations_ = context.store.device().tensor({heads_, head_dim_, spec.rounds, spec.rotation_columns()});
  const std::vector<float> host = lsh_rotations(spec, prefix, context.store.box(prefix + "q.weight").begin[0], heads_);
  context.store.device().to_device(host.data(), rotations_);
}

void LshAttention::recompute(const LayerContext& layer, ConstView x, Saved& s) const {
  if (layer.recompute == Recompute::norms) s.x = gather_tokens(layer.context, layer.inputs(), x);
}

void LshAttention::attend(const LayerContext& layer, ConstView x, Saved& s) const {
  const ExecutionContext& context = layer.context;
  const TokenStream& stream = layer.stream;
  const Index B = stream.sequences, S = stream.seq_len;
  SY_ASSERT(!stream.document_start && !stream.prefix_end, "hashing of sequences with documents or prefixes");
  s.x = gather_tokens(context, layer.inputs(), x);
  s.qv = layer.save({B, S, 2 * heads_, head_dim_});
  s.out = layer.save({B, S, heads_, head_dim_});
  s.lse = layer.saved.f32({B, heads_, S});
  qv_.forward(context, s.x, s.qv);
  s.order = sorted(layer, s.qv);
  const auto [q, v] = split_heads(s.qv, heads_, heads_);
  run(context.device,
      ops::LshAttentionForward{
          .x = q, .v = v, .order = s.order, .lengths = stream.lengths, .desc = spec_.desc, .out = s.out, .lse = s.lse});
}

ConstView LshAttention::sorted(const LayerContext& layer, ConstView qv) const {
  const TokenStream& stream = layer.stream;
  const Shape shape = spec_.order_shape(stream.sequences, stream.seq_len, heads_);
  if (shape.size() == 0) return {};
  View order;
  if (layer.lsh_orders) {
    order = layer.lsh_orders->at(static_cast<std::size_t>(index_));
    if (layer.decisions.replay) return order;
  } else {
    order = layer.saved.i32(shape);
  }
  run(layer.context.device, ops::LshSort{.x = heads_of(qv, 0, heads_),
                                         .rotations = rotations_,
                                         .factors = spec_.factors,
                                         .lengths = stream.lengths,
                                         .order = order});
  return order;
}

void LshAttention::backward(const LayerContext& layer, ConstView dy, const Saved& s, View dx) {
  const ExecutionContext& context = layer.context;
  const Arena::Scope scope(context.scratch);
  const View dout = out_.backward_sum(context, dy, s.out);
  const View dqv = context.temp(s.qv.shape());
  const auto [q, v] = split_heads(s.qv, heads_, heads_);
  const auto [dq, dv] = split_heads(dqv, heads_, heads_);
  run(context.device, ops::LshAttentionBackward{.dout = dout,
                                                .x = q,
                                                .v = v,
                                                .out = s.out,
                                                .lse = s.lse,
                                                .order = s.order,
                                                .lengths = layer.stream.lengths,
                                                .desc = spec_.desc,
                                                .dx = dq,
                                                .dv = dv});
  qv_.backward_params(context, dqv, s.x);
  qv_.backward_input_sum(context, dqv, dx);
}

std::vector<float> lsh_rotations(const LshAttentionSpec& spec, const std::string& prefix, Index first, Index count) {
  const Index of_head = spec.key_width * spec.rounds * spec.rotation_columns();
  if (!spec.rotations.empty()) {
    SY_ASSERT(std::ssize(spec.rotations) == spec.heads * of_head, "{} rotations of {} heads of {}",
              spec.rotations.size(), spec.heads, of_head);
    return {spec.rotations.begin() + first * of_head, spec.rotations.begin() + (first + count) * of_head};
  }
  std::vector<float> rotations(static_cast<std::size_t>(count * of_head));
  const RandomStream stream(spec.seed, prefix + "lsh");
  for (std::size_t i = 0; i < rotations.size(); ++i)
    rotations[i] = static_cast<float>(stream.normal(static_cast<std::uint64_t>(first * of_head) + i));
  return rotations;
}

}  // namespace sy
