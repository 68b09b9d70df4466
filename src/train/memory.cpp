#include "src/train/memory.h"

#include "src/model/engine.h"
#include "src/train/grad_sync.h"

namespace sy {

MemoryPlan plan_memory(const Config& config, Index vocab, const Layout& layout, int rank) {
  const std::unique_ptr<Comm> world = make_comm_dry(layout.ranks, rank);
  Engine engine(config, vocab, make_dry(), make_mesh(*world, layout), true);

  const Index tokens = config.train.micro_batch * config.model.seq_len;
  const std::vector<std::int32_t> ids(tokens, 0);
  std::vector<RouterStats> stats = engine.make_stats();
  engine.train({config.train.micro_batch, config.model.seq_len, ids, ids, tokens, 1, 1}, stats);
  GradSync(engine.mesh(), engine.store(), engine.scratch()).step(config.train, config.train.lr, 1);

  const FlatLayout& flat = engine.store().layout();
  return {flat.weight_bytes(), flat.weight_bytes(), flat.optimizer_bytes(),
          engine.saved().peak() + engine.scratch().peak()};
}

}  // namespace sy
