// Tensors that host and device, and host and file, exchange in several chunks.
#include <limits>

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

// Host memory is copied and checked in chunks that a cache holds.
TEST(Checkpoint, CopiesAndChecksEveryChunk) {
  const std::vector<ParamSpec> specs = {{"small", {3}, {Axis::none}, {}, {}, false},
                                        {"large", {401, 509}, {Axis::none, Axis::none}, {}, {}, false}};
  const auto device = make_cpu();
  const Layout layout;
  ParamStore store(*device, specs, layout, {}, true);
  for_each_element(store, [](const std::string& name, Index i, float* x) {
    *x = static_cast<float>(i + static_cast<Index>(name.size()));
  });
  const ShardContents contents = shard_contents(store);
  const Index chunk = contents.copied_at_once, n = specs[1].shape.elements();
  ASSERT_GT(n, 3 * chunk);
  std::vector<float> copy(static_cast<std::size_t>(shard_elements(contents, 0)));
  ASSERT_EQ(std::ssize(copy), 3 * (n + 3));  // weights, and two state tensors
  EXPECT_EQ(copy_shard(contents, 0, copy.data()), "");
  // The writer reads the copy in its own chunks.
  std::vector<float> values(static_cast<std::size_t>(n));
  Index wrong = 0, ranges = 0;
  const ShardContents copied = copied_contents(contents, copy.data());
  for (const TensorKind& kind : contents.kinds)
    for (const OwnedRange& range : shard_ranges(contents.flat, layout, {})) {
      const auto size = static_cast<std::size_t>(range.flat.size());
      std::vector<float> expected(size);
      contents.read(kind, range, 0, expected);
      copied.read(kind, range, 0, {values.data(), size});
      wrong += !std::equal(expected.begin(), expected.end(), values.begin());
      ++ranges;
    }
  EXPECT_EQ(wrong, 0);
  EXPECT_EQ(ranges, 6);
  for (const Index bad : {Index{0}, chunk - 1, chunk, 2 * chunk + 5, n - 1}) {
    const auto set = [&](float to) {
      for_each_element(store, [&](const std::string& name, Index i, float* x) {
        if (name == "/params/large" && i == bad) *x = to;
      });
    };
    set(std::numeric_limits<float>::infinity());
    EXPECT_EQ(copy_shard(contents, 0, copy.data()), "/params/large") << bad;
    EXPECT_EQ(copy_shard(contents, 0, nullptr), "/params/large") << bad;
    set(1);
  }
  EXPECT_EQ(copy_shard(contents, 0, nullptr), "");
}

}  // namespace
}  // namespace sy
