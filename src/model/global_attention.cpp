#include "src/model/global_attention.h"

#include "kernels/ops/elementwise.h"

namespace sy {
namespace {

// Global tokens see all tokens.
CoreAttentionSpec without_pattern(const CoreAttentionSpec& local) {
  CoreAttentionSpec spec = local;
  spec.window = 0;
  spec.sparse = {};
  return spec;
}

}  // namespace

GlobalAttention::GlobalAttention(const AttentionSpec& spec, ParamStore& store, const std::string& prefix,
                                 Index positions)
    : global_tokens_(spec.sparse.global),
      heads_(store.get(prefix + "q.weight").weight.dim(0)),
      kv_heads_(store.get(prefix + "k.weight").weight.dim(0)),
      head_dim_(spec.key_width),
      core_attention_(without_pattern(spec), store, prefix, positions),
      q_(store, prefix + "q"),
      kv_(store, prefix + "k", 2) {
  SY_ASSERT(global_tokens_ > 0 && !spec.causal && !spec.rope && !spec.relative && !spec.sinks && !spec.qk_norm &&
                spec.clip_qkv == 0 && spec.value_width == spec.key_width,
            "global attention of {} tokens with an unsupported setting", global_tokens_);
}

template <class All, class Global, class F>
void GlobalAttention::for_global_rows(const LayerContext& layer, All all, Global global, const F& f) const {
  const Index S = layer.stream.seq_len, G = tokens(layer);
  for (Index b = 0; b < layer.stream.sequences; ++b) f(all.rows(b * S, G), global.rows(b * G, G));
}

ConstView GlobalAttention::global_rows(const LayerContext& layer, ConstView x) const {
  Device& device = layer.context.device;
  const View rows = layer.context.temp({layer.stream.sequences * tokens(layer), x.dim(1)});
  for_global_rows(layer, x, rows, [&](ConstView from, View to) { run(device, ops::Copy{.x = from, .y = to}); });
  return rows;
}

void GlobalAttention::forward(const LayerContext& layer, ConstView x, View out, Saved& s) const {
  const ExecutionContext& context = layer.context;
  const Arena::Scope scope(context.scratch);
  const Index B = layer.stream.sequences, S = layer.stream.seq_len, G = tokens(layer), row = heads_ * head_dim_;
  s.q = layer.save({B, G, heads_, head_dim_});
  s.kv = layer.save({B, S, 2 * kv_heads_, head_dim_});
  s.out = layer.save(s.q.shape());
  s.lse = layer.saved.f32({B, heads_, G});
  q_.forward(context, global_rows(layer, x), s.q);
  kv_.forward(context, x, s.kv);
  const auto [k, v] = split_heads(s.kv, kv_heads_, kv_heads_);
  core_attention_.forward(context, s.q, k, v, s.out, s.lse, {.key_lengths = layer.stream.lengths});
  for_global_rows(layer, out.reshape({B * S, row}), s.out.reshape({B * G, row}),
                  [&](View to, ConstView from) { run(context.device, ops::Copy{.x = from, .y = to}); });
}

GlobalAttention::Gradients GlobalAttention::backward(const LayerContext& layer, ConstView x, View dout,
                                                     const Saved& s) {
  const ExecutionContext& context = layer.context;
  const Index B = layer.stream.sequences, S = layer.stream.seq_len, G = tokens(layer), row = heads_ * head_dim_;
  const Gradients gradients{context.temp(s.q.shape()), context.temp(s.kv.shape())};
  const Arena::Scope scope(context.scratch);
  const View own = context.temp(s.out.shape());
  for_global_rows(layer, dout.reshape({B * S, row}), own.reshape({B * G, row}), [&](View from, View to) {
    run(context.device, ops::Copy{.x = from, .y = to});
    run(context.device, ops::Fill{.x = from, .value = 0});
  });
  const auto [k, v] = split_heads(s.kv, kv_heads_, kv_heads_);
  const auto [dk, dv] = split_heads(gradients.dkv, kv_heads_, kv_heads_);
  core_attention_.backward(context, own, s.q, k, v, s.out, s.lse, gradients.dq, dk, dv,
                           {.key_lengths = layer.stream.lengths});
  q_.backward_params(context, gradients.dq, global_rows(layer, x));
  kv_.backward_params(context, gradients.dkv, x);
  return gradients;
}

void GlobalAttention::add_input_gradient(const LayerContext& layer, const Gradients& gradients, View dx) const {
  const ExecutionContext& context = layer.context;
  const Arena::Scope scope(context.scratch);
  kv_.backward_input(context, gradients.dkv, dx, true);
  const View dx_global = context.temp({layer.stream.sequences * tokens(layer), dx.dim(1)});
  q_.backward_input(context, gradients.dq, dx_global);
  for_global_rows(layer, dx, dx_global,
                  [&](View to, ConstView from) { run(context.device, ops::Add{.x = from, .y = to}); });
}

}  // namespace sy
