#include "src/evaluate/logits.h"

namespace sy {

namespace {

// Tensor-parallel ranks share the tokens of a batch evenly: each has a copy of the sequence.
std::vector<std::int32_t> copies_of(std::span<const std::int32_t> ids, Index copies) {
  std::vector<std::int32_t> all;
  for (Index i = 0; i < copies; ++i) all.insert(all.end(), ids.begin(), ids.end());
  return all;
}

}  // namespace

std::vector<float> pair_logits(Engine& engine, std::span<const std::int32_t> source,
                               std::span<const std::int32_t> target) {
  const Index copies = engine.mesh().layout.tp;
  const std::vector<std::int32_t> sources = copies_of(source, copies), targets = copies_of(target, copies);
  std::vector<float> logits = engine.logits({.sequences = copies,
                                             .seq_len = std::ssize(target),
                                             .ids = targets,
                                             .targets = {},
                                             .encoder_length = std::ssize(source),
                                             .encoder_ids = sources});
  logits.resize(static_cast<std::size_t>(std::ssize(target) * engine.vocab()));
  return logits;
}

std::vector<float> sequence_logits(Engine& engine, std::span<const std::int32_t> ids,
                                   const std::function<void(Index, Index)>& progress) {
  const Index positions = std::ssize(ids);
  if (engine.config().model.kind == ModelKind::encoder) {
    const Index copies = engine.mesh().layout.tp;
    const std::vector<std::int32_t> all = copies_of(ids, copies);
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
