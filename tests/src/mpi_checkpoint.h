// Ranks that save and load checkpoints in a folder that they share.
#pragma once

#include <memory>
#include <vector>

#include "tests/mpi_world.h"
#include "tests/src/checkpoint_fixture.h"

namespace sy::test {

// A folder that all ranks share. Rank 0 removes it after all ranks have finished.
struct SharedFolder {
  std::unique_ptr<Folder> owner;
  fs::path path;
  SharedFolder() {
    char name[256] = {};
    if (world().rank() == 0) {
      owner = std::make_unique<Folder>();
      owner->path().string().copy(name, sizeof name - 1);
    }
    world().broadcast(view_of(reinterpret_cast<std::uint8_t*>(name), {sizeof name}), 0);
    path = name;
  }
  ~SharedFolder() { world().barrier(); }
};

inline std::vector<Layout> checkpoint_layouts(int ranks) {
  std::vector<Layout> layouts;
  for (int tp : {1, 2, 4})
    for (int ep : {1, 2, 4})
      for (int etp : {1, 2})
        if (ranks % tp == 0 && ranks % (ep * etp) == 0) layouts.push_back({ranks, tp, ep, etp});
  return layouts;
}

// One rank of a training.
struct CheckpointRank {
  Layout layout;
  std::unique_ptr<Device> device = make_cpu();
  ParamStore store{*device, odd_specs(), layout, coord_of(layout, world().rank()), true};
  explicit CheckpointRank(const Layout& l) : layout(l) {}
  void save(const fs::path& run, Index step, Index keep = 0) {
    save_checkpoint(world(), run, example_state(step), store, {.keep = keep});
  }
};

}  // namespace sy::test
