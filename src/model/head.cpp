#include "src/model/head.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "dist/phase.h"
#include "dist/shard.h"
#include "kernels/ops/elementwise.h"
#include "kernels/ops/embedding.h"

namespace sy {

namespace {

// Logits [n, V] of a chunk of tokens, and memory for their gradients.
//
// f32 gradients overwrite the logits. bf16 gradients do so too if the vocabulary is large. They
// start half a row before the logits, and their rows have half as many bytes. Row r of the
// gradients thus ends where row r / 2 of the logits begins. Rows up to 2 r may be computed once the
// logits before row r are used: first 1 row, then 2, 4 and so on. For a small vocabulary that many
// operations would cost more than the memory is worth.
struct Logits {
  static constexpr Index large_vocabulary = 8192;

  Logits(const ExecutionContext& context, Index n, Index V, bool with_gradients)
      : in_place(context.dtype != DType::f32 && V >= large_vocabulary && with_gradients) {
    const Index before = in_place ? round_up(ceil_div(V, 2), Arena::alignment / size_of(DType::f32)) : 0;
    const View memory = context.scratch.f32({before + n * V});
    values = memory.rows(before, n * V).reshape({n, V});
    if (in_place)
      gradients = {memory.bytes(), {n, V}, context.dtype};
    else if (with_gradients)
      gradients = context.dtype == DType::f32 ? values : context.temp({n, V});
  }
  // Returns how many rows from `first` on may be computed at once, after all rows before it.
  Index max_gradient_rows(Index first) const {
    const Index rest = values.dim(0) - first;
    return in_place ? std::min(first + 1, rest) : rest;
  }

  bool in_place;
  View values, gradients;
};

}  // namespace

Head::Head(const Config& config, ParamStore& store, Param weight, Index first_row)
    : weight_(weight),
      largest_shard_(block_range(store.spec("embedding.weight").shape[0], store.mesh_layout().tp, 0).size()),
      desc_{first_row, static_cast<float>(config.model.output_softcap), config.train.z_loss},
      scale_(static_cast<float>(config.model.logit_scale / config.model.width_ratio())),
      linear_(store, weight, config.model.output_width(), store.find("output.bias")) {}

void Head::loss(const ExecutionContext& context, const Batch& batch, ConstView x, View dx, View sums) {
  const ScopedPhase phase(context.mesh.rank_context(), "output and loss");
  // A chunk has at most logits_chunk() logits, but enough rows for an efficient GEMM. All ranks
  // have the same chunks, although their shards of the vocabulary may differ.
  const TargetRows& only = batch.target_rows;
  const ConstView all_targets = only ? only.targets : batch.targets;
  const Index V = weight_.weight.dim(0), D = x.dim(1), T = all_targets.dim(0), P = context.mesh.tp->size();
  const Index chunk = std::clamp<Index>(context.device.logits_chunk() / largest_shard_, 64, 4096);
  const Arena::Scope scope(context.scratch);
  Device& b = context.device;
  x = gather_tokens(context, context.scratch, x);
  const View dx_full = dx && P > 1 ? context.temp(x.shape()) : dx;
  const View dx_rows = dx && only ? context.temp({T, D}) : dx_full;
  if (only) {
    const View rows = context.temp({T, D});
    run(b, ops::EmbeddingForward{.ids = only.tokens, .table = x, .y = rows});
    x = rows;
  }
  const View losses = context.scratch.f32({T}), lse = context.scratch.f32({T});

  for (Index at = 0; at < T; at += chunk) {
    const Arena::Scope chunk_scope(context.scratch);
    const Index n = std::min(chunk, T - at);
    const Logits memory(context, n, V, dx.present());
    const View logits = memory.values, dlogits = memory.gradients;
    const View partials = context.scratch.f32({P, n, 3});
    const ConstView x_chunk = x.rows(at, n), targets = all_targets.rows(at, n);
    const View local = partials.rows(context.mesh.coord.tp, 1);
    local_logits(context, x_chunk, logits);
    run(b, ops::CrossEntropyForward{
               .logits = logits, .targets = targets, .desc = desc_, .partial = local.reshape({n, 3})});
    if (P > 1) context.mesh.tp->all_gather(local, partials);
    run(b, ops::CrossEntropyLoss{
               .partials = partials, .targets = targets, .lse = lse.rows(at, n), .loss = losses.rows(at, n)});
    if (!dx) continue;
    for (Index first = 0, rows; first < n; first += rows) {
      rows = memory.max_gradient_rows(first);
      run(b, ops::CrossEntropyBackward{.logits = logits.rows(first, rows),
                                       .targets = targets.rows(first, rows),
                                       .lse = lse.rows(at + first, rows),
                                       .total = batch.step.targets,
                                       .desc = desc_,
                                       .dlogits = dlogits.rows(first, rows)});
    }
    if (scale_ != 1) run(b, ops::Scale{.x = dlogits, .factor = scale_});
    linear_.backward_input(context, dlogits, dx_rows.rows(at, n).reshape({n, D}));
    linear_.backward_weight(context, dlogits, x_chunk);
    linear_.backward_bias(context, dlogits);
  }
  if (dx && only) run(b, ops::EmbeddingForward{.ids = only.rows, .table = dx_rows, .y = dx_full});
  if (dx && P > 1) reduce_scatter_tokens(context, dx_full, dx);
  if (!sums) return;
  // values: [T]. Returns those of the rank's own tokens.
  const auto own = [&](View values) {
    if (!only) return context.own_tokens(values);
    const View all = context.scratch.f32(only.rows.shape());
    run(b, ops::EmbeddingForward{
               .ids = only.rows, .table = values.reshape({T, 1}), .y = all.reshape({only.rows.dim(0), 1})});
    return context.own_tokens(all);
  };
  run(b, ops::LossSums{
             .losses = own(losses), .lse = own(lse), .targets = context.own_tokens(batch.targets), .sums = sums});
}

// logits = scale * (x W^T + bias): the scale multiplies the bias, too.
void Head::local_logits(const ExecutionContext& context, ConstView x, View logits) const {
  linear_.forward(context, x, logits);
  if (scale_ != 1) run(context.device, ops::Scale{.x = logits, .factor = scale_});
}

std::vector<float> Head::logits(const ExecutionContext& context, ConstView x, Index vocab) const {
  const ScopedPhase phase(context.mesh.rank_context(), "output");
  const int ranks = context.mesh.layout.tp;
  const Index n = x.dim(0), max_columns = block_range(vocab, ranks, 0).size(), local_columns = weight_.weight.dim(0);
  const Arena::Scope scope(context.scratch);
  const View gathered = context.scratch.f32({ranks, n * max_columns});
  const View shard = gathered.rows(context.mesh.coord.tp, 1).reshape({n * max_columns});
  local_logits(context, x, shard.rows(0, n * local_columns).reshape({n, local_columns}));
  // This rank's range may be shorter than the first.
  run(context.device, ops::Fill{.x = shard.rows(n * local_columns, n * (max_columns - local_columns)), .value = 0});
  if (ranks > 1) context.mesh.tp->all_gather(shard, gathered);
  std::vector<float> logits(static_cast<std::size_t>(gathered.elements()));
  context.device.to_host(gathered, logits.data());
  if (ranks > 1) {
    const std::vector<float> from = std::exchange(logits, std::vector<float>(static_cast<std::size_t>(n * vocab)));
    for (int rank = 0; rank < ranks; ++rank) {
      const Range range = block_range(vocab, ranks, rank);
      for (Index i = 0; i < n; ++i)
        std::copy_n(from.begin() + rank * n * max_columns + i * range.size(), range.size(),
                    logits.begin() + i * vocab + range.begin);
    }
  }
  if (desc_.softcap > 0)
    for (float& logit : logits) logit = desc_.softcap * std::tanh(logit / desc_.softcap);
  return logits;
}

}  // namespace sy
