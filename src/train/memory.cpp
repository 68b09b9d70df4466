#include "src/train/memory.h"

#include "src/model/engine.h"
#include "src/train/grad_sync.h"

namespace sy {

MemoryPlan plan_memory(const Config& config, Index vocab, const Layout& layout, int rank) {
  const Coord c = coord_of(layout, rank);
  const auto along = [](int size, int at) { return size == 1 ? make_comm_self() : make_comm_dry(size, at); };
  const std::unique_ptr<Comm> world = along(layout.ranks, rank);
  Mesh mesh{layout,
            c,
            rank,
            world.get(),
            along(layout.dp(), c.dp),
            along(layout.tp, c.tp),
            along(layout.edp(), c.edp),
            along(layout.ep * layout.etp, c.ep * layout.etp + c.etp)};
  Engine engine(config, vocab, make_dry(), std::move(mesh), true);

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
