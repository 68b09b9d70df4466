// Tensors that host and device, and host and file, exchange in several chunks.
#include "tests/src/checkpoint_fixture.h"

namespace sy {
namespace {

using namespace test;

// Two ranks write; one rank and three ranks read. Their ranges begin and end within a chunk.
TEST(Checkpoint, RestoresATensorOfManyChunks) {
  const std::vector<ParamSpec> specs = {{"small", {3}, {Axis::none}, {}, {}, false},
                                        {"large", {4099, 3001}, {Axis::none, Axis::none}, {}, {}, false}};
  ASSERT_GT(specs[1].shape.elements() / 2, chunk_elements);
  const Folder run;
  const fs::path dir = checkpoints_of(run.path()) / step_name(1);
  fs::create_directories(dir);
  const auto device = make_cpu();
  // Depends only on the name and index, and is quick to compute.
  const auto value = [](const std::string& name, Index i) {
    return static_cast<float>((i * 31 + static_cast<Index>(name.size() + name[1])) % 16777213);
  };
  const Layout writers{2};
  for (int rank = 0; rank < 2; ++rank) {
    ParamStore store(*device, specs, writers, coord_of(writers, rank), true);
    for_each_element(store, [&](const std::string& name, Index i, float* x) { *x = value(name, i); });
    write_shard(written_format(), dir, example_state(1), shard_contents(store), rank);
  }
  write_index(written_format(), dir, example_state(1), specs, writers);
  seal(dir, 1);
  for (const Layout& readers : {Layout{1}, Layout{3}})
    for (int rank = 0; rank < readers.ranks; ++rank) {
      ParamStore store(*device, specs, readers, coord_of(readers, rank), true);
      load_checkpoint(dir, store);
      Index wrong = 0;
      for_each_element(store, [&](const std::string& name, Index i, float* x) { wrong += *x != value(name, i); });
      EXPECT_EQ(wrong, 0) << "rank " << rank << " of " << readers.ranks;
    }
}

}  // namespace
}  // namespace sy
