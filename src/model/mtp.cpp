#include "src/model/mtp.h"

#include "kernels/ops/elementwise.h"

namespace sy {

MtpModule::MtpModule(const Config& config, const BlockSpec& block, Index layer, const SublayerContext& context)
    : hidden_norm_(norm_spec(config), context.store, mtp_prefix(layer) + "hidden_norm"),
      embedding_norm_(norm_spec(config), context.store, mtp_prefix(layer) + "embedding_norm"),
      head_norm_(final_norm_spec(config), context.store, mtp_prefix(layer) + "head_norm"),
      hidden_projection_(context.store, mtp_prefix(layer) + "hidden_projection"),
      embedding_projection_(context.store, mtp_prefix(layer) + "embedding_projection"),
      block_(block, layer, context) {}

View MtpModule::forward(const LayerContext& layer, const Embedding& embedding, ConstView hidden, Saved& s) const {
  const ExecutionContext& context = layer.context;
  s.hidden = hidden;
  // The embedding's batch norm has other moments here than in the main pass, whose tokens alone
  // count for its running averages.
  LayerContext of_embedding = layer;
  if (const View moments = layer.batch_norm.moments)
    of_embedding.batch_norm = {.moments = layer.saved.f32(moments.shape()), .averages = {}};
  s.embedded = embedding.forward(of_embedding, s.embedding);
  s.hidden_moments = hidden_norm_.make_moments(layer, hidden.dim(0));
  s.embedding_moments = embedding_norm_.make_moments(layer, hidden.dim(0));
  const View x = layer.save(hidden.shape()), y = layer.save(hidden.shape());
  {
    const Arena::Scope scope(context.scratch);
    const View normed = context.temp(hidden.shape());  // cheaper to recompute than to save
    hidden_norm_.forward(layer, hidden, normed, s.hidden_moments);
    hidden_projection_.forward(context, normed, x);
    embedding_norm_.forward(layer, s.embedded, normed, s.embedding_moments);
    embedding_projection_.forward(context, normed, x, true);
  }
  block_.forward(layer, x, y, s.block);
  return s.output = head_norm_.forward(layer, y, s.moments);
}

void MtpModule::backward(const LayerContext& layer, const Embedding& embedding, Head& head, Saved& s, View d,
                         View sums) {
  const ExecutionContext& context = layer.context;
  const Arena::Scope scope(context.scratch);
  const View normed = context.temp(d.shape()), dnormed = context.temp(d.shape());
  head.loss(context, layer.batch, s.output, dnormed, sums);
  run(context.device, ops::Add{.x = d, .y = dnormed});
  head_norm_.backward(layer, dnormed, s.block.y, s.moments, d);
  block_.backward(layer, d, s.block);

  // The head comes before the embedding: if both share a weight, the head's first product
  // overwrites the gradient.
  const View dembedded = context.temp(d.shape());
  embedding_norm_.forward(layer, s.embedded, normed, s.embedding_moments);
  embedding_projection_.backward_weight(context, d, normed);
  embedding_projection_.backward_input(context, d, dnormed);
  embedding_norm_.backward(layer, dnormed, s.embedded, s.embedding_moments, dembedded);
  embedding.backward(layer, s.embedding, dembedded);

  hidden_norm_.forward(layer, s.hidden, normed, s.hidden_moments);
  hidden_projection_.backward_weight(context, d, normed);
  hidden_projection_.backward_input(context, d, dnormed);
  hidden_norm_.backward(layer, dnormed, s.hidden, s.hidden_moments, d);
}

}  // namespace sy
