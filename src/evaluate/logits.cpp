#include "src/evaluate/logits.h"

namespace sy {

namespace {

// Returns the logits of one pass. source: ids of an encoder-decoder's encoder, otherwise empty.
// prefix: number of ids that are a visible prefix, or 0.
// Tensor-parallel ranks share the tokens of a batch evenly: each has a copy of the sequence.
std::vector<float> one_pass(Engine& engine, std::span<const std::int32_t> source, std::span<const std::int32_t> ids,
                            Index prefix = 0) {
  const Index copies = engine.mesh().layout.tp;
  std::vector<std::int32_t> sources, all,
      prefix_end(static_cast<std::size_t>(prefix > 0 ? copies * std::ssize(ids) : 0),
                 static_cast<std::int32_t>(prefix));
  for (Index i = 0; i < copies; ++i) {
    sources.insert(sources.end(), source.begin(), source.end());
    all.insert(all.end(), ids.begin(), ids.end());
  }
  std::vector<float> logits = engine.logits({.sequences = copies,
                                             .seq_len = std::ssize(ids),
                                             .ids = all,
                                             .targets = {},
                                             .encoder_length = std::ssize(source),
                                             .encoder_ids = sources,
                                             .prefix_end = prefix_end});
  logits.resize(static_cast<std::size_t>(std::ssize(ids) * engine.vocab()));
  return logits;
}

}  // namespace

std::vector<float> pair_logits(Engine& engine, std::span<const std::int32_t> source,
                               std::span<const std::int32_t> target) {
  if (!engine.config().has_visible_prefix()) return one_pass(engine, source, target);
  std::vector<std::int32_t> ids(source.begin(), source.end());
  ids.insert(ids.end(), target.begin(), target.end());
  return one_pass(engine, {}, ids, std::ssize(source));
}

std::vector<float> sequence_logits(Engine& engine, std::span<const std::int32_t> ids,
                                   const std::function<void(Index, Index)>& progress) {
  const Index positions = std::ssize(ids);
  const bool prefix = engine.config().has_visible_prefix();
  const bool has_cache = !prefix && engine.config().num_lsh_layers() == 0;
  if (!has_cache || engine.config().model.kind == ModelKind::encoder) {
    std::vector<float> logits = one_pass(engine, {}, ids, prefix ? positions : 0);
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
