#include "src/evaluate/logits.h"

namespace sy {

std::vector<float> sequence_logits(Engine& engine, std::span<const std::int32_t> ids,
                                   const std::function<void(Index, Index)>& progress) {
  const Index positions = std::ssize(ids);
  if (engine.config().model.kind == ModelKind::encoder) {
    // Tensor-parallel ranks share the tokens of a batch evenly: each has a copy of the sequence.
    const Index copies = engine.mesh().layout.tp;
    std::vector<std::int32_t> all;
    for (Index i = 0; i < copies; ++i) all.insert(all.end(), ids.begin(), ids.end());
    std::vector<float> logits = engine.logits({.sequences = copies, .seq_len = positions, .ids = all, .targets = {}});
    logits.resize(static_cast<std::size_t>(positions * engine.vocab()));
    progress(positions, positions);
    return logits;
  }
  std::vector<float> logits;
  logits.reserve(static_cast<std::size_t>(positions * engine.vocab()));
  Cache cache = engine.make_cache(1, positions, 1);
  for (Index p = 0; p < positions; ++p) {
    const std::vector<float> row =
        engine.decode(cache, 0, 1, ids.subspan(static_cast<std::size_t>(p), 1), true, positions);
    logits.insert(logits.end(), row.begin(), row.end());
    progress(p + 1, positions);
  }
  return logits;
}

}  // namespace sy
