#include "src/model/embedding.h"

#include "dist/activity.h"

namespace sy {

Embedding::Embedding(ParamStore& store)
    : table_(store.get("embedding.weight")), first_row_(store.box("embedding.weight").begin[0]) {}

void Embedding::forward(const Device& device, ConstView ids, View x) const {
  const Doing doing("embedding");
  if (device.mesh.tp->size() == 1) return device.backend.embedding_forward(ids, table_.weight, first_row_, x);
  // Each rank knows a part of the vocabulary: the sum over ranks has every row.
  const Arena::Scope scope(device.scratch);
  const View partial = device.temp({ids.dim(0), x.dim(1)});
  device.backend.embedding_forward(ids, table_.weight, first_row_, partial);
  device.mesh.tp->reduce_scatter(partial, x);
}

void Embedding::backward(const Device& device, ConstView ids, ConstView dx) const {
  const Doing doing("gradient of the embedding");
  const Arena::Scope scope(device.scratch);
  device.backend.embedding_backward(ids, gather_tokens(device, device.scratch, dx), first_row_, table_.grad);
}

}  // namespace sy
