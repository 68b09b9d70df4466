#include "src/evaluate/logits.h"

namespace sy {

namespace {

// Returns the logits of one pass. source: ids of an encoder-decoder's encoder, otherwise empty.
// Tensor-parallel ranks share the tokens of a batch evenly: each has a copy of the sequence.
std::vector<float> one_pass(Engine& engine, std::span<const std::int32_t> source, std::span<const std::int32_t> ids) {
  const Index copies = engine.mesh().layout.tp;
  std::vector<std::int32_t> sources, all;
  for (Index i = 0; i < copies; ++i) {
    sources.insert(sources.end(), source.begin(), source.end());
    all.insert(all.end(), ids.begin(), ids.end());
  }
  std::vector<float> logits = engine.logits({.sequences = copies,
                                             .seq_len = std::ssize(ids),
                                             .ids = all,
                                             .targets = {},
                                             .encoder_length = std::ssize(source),
                                             .encoder_ids = sources});
  logits.resize(static_cast<std::size_t>(std::ssize(ids) * engine.vocab()));
  return logits;
}

}  // namespace

std::vector<float> pair_logits(Engine& engine, std::span<const std::int32_t> source,
                               std::span<const std::int32_t> target) {
  return one_pass(engine, source, target);
}

std::vector<float> sequence_logits(Engine& engine, std::span<const std::int32_t> ids,
                                   const std::function<void(Index, Index)>& progress) {
  const Index positions = std::ssize(ids);
  if (engine.config().model.kind == ModelKind::encoder) {
    std::vector<float> logits = one_pass(engine, {}, ids);
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
