#include "src/model/embedding.h"

#include <cmath>

#include "dist/phase.h"
#include "kernels/ops/elementwise.h"
#include "kernels/ops/embedding.h"
#include "kernels/ops/heads.h"
#include "src/params/block_specs.h"

namespace sy {

Embedding::Embedding(const Config& config, ParamStore& store, Index positions, const std::string& prefix)
    : table_(store.get("embedding.weight")),
      first_row_(store.box("embedding.weight").begin[0]),
      scale_((config.model.scale_embedding ? std::sqrt(static_cast<float>(config.model.d_model)) : 1.0f) *
             static_cast<float>(config.model.embedding_scale)),
      positions_(store.find(prefix + "position.weight")),
      axial_{store.find(prefix + axial_position_name(0)), store.find(prefix + axial_position_name(1))},
      segments_(store.find(prefix + "segment.weight")) {
  const Config::Model& m = config.model;
  if (m.position == Position::sinusoidal) {
    sines_ = store.device().tensor({positions, m.d_model}, store.dtype());
    copy_rounded(store.device(), sinusoidal_positions(positions, m.d_model), sines_);
  }
  if (m.embedding_norm) norm_.emplace(norm_spec(config), store, prefix + "embedding_norm");
}

template <class Body>
void Embedding::for_axes(const ExecutionContext& context, const TokenStream& stream, View x, const Body& body) const {
  if (!axial_[0]) return;
  const Heads all = x.reshape({1, x.dim(0), 1, x.dim(1)});
  Index column = 0;
  for (const Index axis : {0, 1}) {
    const Index width = axial_[axis].weight.dim(1);
    const ConstView rows = stream.axial_rows.rows(axis, 1).reshape({stream.tokens()});
    body(axial_[axis], context.own_tokens(rows), all.columns(column, width));
    column += width;
  }
}

View Embedding::forward(const LayerContext& layer, Saved& s) const {
  const ScopedPhase phase(layer.context.mesh.rank_context(), "embedding");
  const ExecutionContext& context = layer.context;
  Device& b = context.device;
  const Arena::Scope scope(context.scratch);
  const Index D = table_.weight.dim(1);
  const View x = layer.save({layer.own_tokens(), D});
  const auto look_up = [&](ConstView ids, ConstView table, Index vocab_begin, View y) {
    run(b, ops::EmbeddingForward{.ids = ids, .table = table, .vocab_begin = vocab_begin, .y = y});
  };
  const auto add_rows = [&](ConstView ids, ConstView table) {
    const View rows = context.temp(x.shape());
    look_up(ids, table, 0, rows);
    run(b, ops::Add{.x = rows, .y = x});
  };
  if (context.mesh.tp->size() == 1) {
    look_up(layer.stream.ids, table_.weight, first_row_, x);
  } else {
    // A rank has rows of its share of the vocabulary alone. The sum over the ranks has every row.
    const View partial = context.temp({layer.stream.tokens(), D});
    look_up(layer.stream.ids, table_.weight, first_row_, partial);
    reduce_scatter_tokens(context, partial, x);
  }
  if (scale_ != 1) run(b, ops::Scale{.x = x, .factor = scale_});
  if (const ConstView positions = positions_ ? ConstView(positions_.weight) : ConstView(sines_))
    add_rows(context.own_tokens(layer.stream.positions), positions);
  if (axial_[0]) {
    const View vectors = context.temp(x.shape());
    for_axes(context, layer.stream, vectors, [&](const Param& table, ConstView rows, Heads columns) {
      const View found = context.temp({x.dim(0), columns.width});
      look_up(rows, table.weight, 0, found);
      run(b, ops::BroadcastHeads{.x = found.reshape({1, x.dim(0), 1, columns.width}), .y = columns});
    });
    run(b, ops::Add{.x = vectors, .y = x});
  }
  if (segments_) add_rows(context.own_tokens(layer.stream.segments), segments_.weight);
  if (!norm_) return x;
  s.sum = x;
  return norm_->forward(layer, x, s.moments);
}

void Embedding::backward(const LayerContext& layer, const Saved& s, View d) const {
  const ExecutionContext& context = layer.context;
  const TokenStream& stream = layer.stream;
  const ScopedPhase phase(context.mesh.rank_context(), "gradient of the embedding");
  if (!table_.grad) return;  // all parameters of the embedding are frozen
  Device& b = context.device;
  const Arena::Scope scope(context.scratch);
  if (norm_) {
    const View dsum = context.temp(d.shape());
    norm_->backward(layer, d, s.sum, s.moments, dsum);
    d = dsum;
  }
  if (positions_)
    run(b, ops::EmbeddingBackward{.ids = context.own_tokens(stream.positions), .dy = d, .dtable = positions_.grad});
  for_axes(context, stream, d, [&](const Param& table, ConstView rows, Heads columns) {
    const View gradient = context.temp({d.dim(0), columns.width});
    run(b, ops::BroadcastHeads{.x = columns, .y = gradient.reshape({1, d.dim(0), 1, columns.width})});
    run(b, ops::EmbeddingBackward{.ids = rows, .dy = gradient, .dtable = table.grad});
  });
  if (segments_)
    run(b, ops::EmbeddingBackward{.ids = context.own_tokens(stream.segments), .dy = d, .dtable = segments_.grad});
  if (scale_ != 1) run(b, ops::Scale{.x = d, .factor = scale_});
  run(b, ops::EmbeddingBackward{.ids = stream.ids,
                                .dy = gather_tokens(context, context.scratch, d),
                                .vocab_begin = first_row_,
                                .dtable = table_.grad});
}

std::vector<float> sinusoidal_positions(Index positions, Index d_model) {
  std::vector<float> table;
  for (Index p = 0; p < positions; ++p)
    for (Index i = 0; i < d_model; ++i) {
      const double exponent = static_cast<double>(i - i % 2) / static_cast<double>(d_model);
      const double angle = static_cast<double>(p) * std::pow(10000.0, -exponent);
      table.push_back(static_cast<float>(i % 2 == 0 ? std::sin(angle) : std::cos(angle)));
    }
  return table;
}

}  // namespace sy
