// Tensors that host and device, and host and file, exchange in several chunks.
#include <bit>
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
  const Index chunk = contents.copy_chunk_elements, n = specs[1].shape.elements();
  ASSERT_GT(n, 3 * chunk);
  std::vector<float> copy(static_cast<std::size_t>(shard_elements(contents, 0)));
  ASSERT_EQ(std::ssize(copy), 3 * (n + 3));  // weights, and two state tensors
  const ShardCopy shard = copy_shard(contents, 0, copy.data());
  EXPECT_EQ(shard.not_finite, "");
  // The writer reads the copy in its own chunks.
  std::vector<float> values(static_cast<std::size_t>(n));
  Index wrong = 0, ranges = 0;
  const ShardContents copied = copied_contents(contents, copy.data(), shard.sum);
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
    EXPECT_EQ(copy_shard(contents, 0, copy.data()).not_finite, "/params/large") << bad;
    EXPECT_EQ(copy_shard(contents, 0, nullptr).not_finite, "/params/large") << bad;
    set(1);
  }
  EXPECT_EQ(copy_shard(contents, 0, nullptr).not_finite, "");
}

// A bit of the copy changes after the copy was made. No file with the changed value is complete.
TEST(Checkpoint, RefusesACopyThatHasChangedInMemory) {
  const std::vector<ParamSpec> specs = {{"small", {3}, {Axis::none}, {}, {}, false},
                                        {"large", {1051, 4001}, {Axis::none, Axis::none}, {}, {}, false}};
  const auto device = make_cpu();
  ParamStore store(*device, specs, Layout{}, {}, true);
  for_each_element(store, [](const std::string&, Index i, float* x) { *x = static_cast<float>(i) - 1000; });
  const ShardContents contents = shard_contents(store);
  const Index elements = shard_elements(contents, 0);
  ASSERT_GT(elements / 3, chunk_elements);
  std::vector<float> copy(static_cast<std::size_t>(elements));
  const ValueSum sum = copy_shard(contents, 0, copy.data()).sum;
  const auto write = [&] {
    const Folder folder;
    write_shard(written_format(), folder.path(), example_state(1), copied_contents(contents, copy.data(), sum), 0);
  };
  const auto flip = [&](Index i, int bit) {
    float& x = copy[static_cast<std::size_t>(i)];
    x = std::bit_cast<float>(std::bit_cast<std::uint32_t>(x) ^ (1u << bit));
  };
  EXPECT_NO_THROW(write());
  for (const auto& [i, bit] : {std::pair(Index{0}, 0), {chunk_elements + 4, 31}, {elements - 1, 22}}) {
    flip(i, bit);
    const std::string message = MESSAGE_OF(Failure, write());
    EXPECT_NE(message.find("has changed in the memory of rank 0 while it was written"), message.npos)
        << i << ": " << message;
    flip(i, bit);
  }
  flip(7, 31);  // two changes of sign bits
  flip(1027, 31);
  EXPECT_NE(MESSAGE_OF(Failure, write()), "");
}

// Every bit counts at every position, also in a last block that is not full.
TEST(ValueSum, ChangesWithEachBit) {
  std::vector<float> values(ValueSum::block * 2 + 5, 1.5f);
  const auto sum = [&](std::size_t first) {
    ValueSum s;
    s.add(std::span(values).first(first));
    s.add(std::span(values).subspan(first));
    return s;
  };
  const ValueSum expected = sum(0);
  EXPECT_EQ(sum(ValueSum::block), expected);
  for (std::size_t i = 0; i < values.size(); ++i)
    for (int bit = 0; bit < 32; ++bit) {
      const float before = values[i];
      values[i] = std::bit_cast<float>(std::bit_cast<std::uint32_t>(before) ^ (1u << bit));
      EXPECT_NE(sum(0), expected) << i << ", bit " << bit;
      values[i] = before;
    }
}

}  // namespace
}  // namespace sy
