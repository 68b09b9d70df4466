#include "src/evaluate/logits.h"

namespace sy {

std::vector<float> sequence_logits(Engine& engine, std::span<const std::int32_t> ids,
                                   const std::function<void(Index, Index)>& progress) {
  const Index positions = std::ssize(ids);
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
