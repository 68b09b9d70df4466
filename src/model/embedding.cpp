#include "src/model/embedding.h"

namespace sy {

Embedding::Embedding(const ParamStore& store)
    : table_(store.get("embedding.weight")), first_row_(store.box("embedding.weight").begin[0]) {}

void Embedding::forward(const Context& ctx, ConstView ids, View x) const {
  if (ctx.mesh.tp->size() == 1) return ctx.backend.embedding_forward(ids, table_.weight, first_row_, x);
  // Each rank knows a part of the vocabulary: the sum over ranks has every row.
  const Arena::Scope scope(ctx.scratch);
  const View partial = ctx.temp({ctx.full_tokens(), x.dim(1)});
  ctx.backend.embedding_forward(ids, table_.weight, first_row_, partial);
  ctx.mesh.tp->reduce_scatter(partial, x);
}

void Embedding::backward(const Context& ctx, ConstView ids, ConstView dx) const {
  const Arena::Scope scope(ctx.scratch);
  ctx.backend.embedding_backward(ids, gather_tokens(ctx, ctx.scratch, dx), first_row_, table_.grad);
}

}  // namespace sy
