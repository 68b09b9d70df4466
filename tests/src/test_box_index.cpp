// Finding the slices that a read needs: BoxIndex, and the work of a reader with mappings.
#include "src/io/format/box_index.h"

#include <hdf5.h>

#include <cstring>
#include <random>
#include <set>

#include "src/io/hdf5/hdf5_checkpoint.h"
#include "tests/src/checkpoint_fixture.h"

namespace sy {
namespace {

using namespace test;

// The reference: a loop over all elements of both boxes would be slow, so it is over coordinates.
std::set<std::size_t> boxes_with_common_element(const std::vector<Box>& boxes, const Box& box) {
  std::set<std::size_t> found;
  for (std::size_t i = 0; i < boxes.size(); ++i) {
    bool common = true;
    for (int d = 0; d < box.size.size(); ++d) {
      bool coordinate = false;
      for (Index at = box.begin[d]; at < box.begin[d] + box.size[d]; ++at)
        coordinate |= at >= boxes[i].begin[d] && at < boxes[i].begin[d] + boxes[i].size[d];
      common &= coordinate;
    }
    if (common) found.insert(i);
  }
  return found;
}

// Returns the boxes of `blocks` row-major ranges of a tensor: they do not overlap and cover it.
std::vector<Box> boxes_of_blocks(const Shape& shape, int blocks) {
  std::vector<Box> boxes;
  for (int i = 0; i < blocks; ++i)
    if (const Range range = block_range(shape.elements(), blocks, i); range.size() > 0)
      for (const Box& box : boxes_of_range(shape, range)) boxes.push_back(box);
  return boxes;
}

Box random_box(const Shape& shape, std::mt19937& random) {
  Box box;
  for (const Index n : shape) {
    const Index a = std::uniform_int_distribution<Index>(0, n - 1)(random);
    box.begin.push_back(a);
    box.size.push_back(std::uniform_int_distribution<Index>(1, n - a)(random));
  }
  return box;
}

// Returns what find() finds, and tests that it finds no box twice.
std::set<std::size_t> found_by(const BoxIndex& index, const Box& box) {
  std::set<std::size_t> found;
  index.find(box, [&](std::size_t i) { EXPECT_TRUE(found.insert(i).second) << i; });
  return found;
}

TEST(BoxIndex, FindsTheBoxesOfAScan) {
  std::mt19937 random(7);
  for (const Shape& shape : {Shape{}, Shape{1}, Shape{97}, Shape{13, 7}, Shape{1, 31}, Shape{5, 1, 9}, Shape{3, 5, 7},
                             Shape{2, 3, 5, 7}, Shape{1, 1, 1, 11}})
    for (const int blocks : {1, 2, 3, 4, 5, 8, 9, 17, 64, 211}) {
      std::vector<Box> boxes = boxes_of_blocks(shape, blocks);
      std::ranges::shuffle(boxes, random);
      const BoxIndex index(boxes);
      for (int n = 0; n < 25; ++n) {
        const Box box = random_box(shape, random);
        ASSERT_EQ(found_by(index, box), boxes_with_common_element(boxes, box))
            << shape.str() << " in " << blocks << ": " << box.begin.str() << "+" << box.size.str();
      }
    }
}

// A forged index may have any boxes.
TEST(BoxIndex, FindsBoxesThatOverlapOneAnother) {
  std::mt19937 random(11);
  const Shape shape{9, 5, 7};
  for (const std::size_t count : {0u, 1u, 4u, 5u, 33u, 100u}) {
    std::vector<Box> boxes;
    while (boxes.size() < count) boxes.push_back(random_box(shape, random));
    const BoxIndex index(boxes);
    for (int n = 0; n < 50; ++n) {
      const Box box = random_box(shape, random);
      ASSERT_EQ(found_by(index, box), boxes_with_common_element(boxes, box)) << count;
    }
  }
}

// The boxes of a tensor of experts differ first in the expert, then in the row.
TEST(BoxIndex, ComparesFewOfManyBoxes) {
  for (const Shape& shape : {Shape{1 << 16}, Shape{1, 1 << 16}, Shape{256, 4096, 3}, Shape{2, 1 << 14, 5}}) {
    const std::vector<Box> boxes = boxes_of_blocks(shape, 1 << 14);
    const BoxIndex index(boxes);
    for (std::size_t i = 0; i < boxes.size(); i += 977) {
      Index found = 0;
      EXPECT_LE(index.find(boxes[i], [&](std::size_t) { ++found; }), 100) << shape.str();
      EXPECT_EQ(found, 1);
    }
  }
}

// Ranks of a job of 1,024 read their values. Mappings of tensors of which a rank reads nothing stay
// encoded, those of the others are decoded once, and few are compared with each box.
TEST(CheckpointMappings, ARankReadsFewOfThem) {
  const std::vector<ParamSpec> specs = {{"a", {37, 7}, {Axis::none, Axis::none}, {}, {}, false},
                                        {"b", {1, 13009, 5}, {Axis::none, Axis::none, Axis::none}, {}, {}, false},
                                        {"c", {11, 13, 3}, {Axis::none, Axis::none, Axis::none}, {}, {}, false}};
  const Layout layout{1024};
  const std::vector<int> readers = {0, 2, 400};
  const Folder run;
  const fs::path dir = checkpoints_of(run.path()) / step_name(1);
  fs::create_directories(dir);
  const std::unique_ptr<Device> device = make_cpu();
  for (const int rank : readers) {
    ParamStore store(*device, specs, layout, coord_of(layout, rank), true);
    fill(store);
    write_shard(written_format(), dir, example_state(1), shard_contents(store), rank);
  }
  write_index(written_format(), dir, example_state(1), specs, layout);
  seal(dir, 1);

  MappingCounts& counts = mapping_counts();
  bool large = false;
  for (const int rank : readers) {
    SCOPED_TRACE(rank);
    ParamStore store(*device, specs, layout, coord_of(layout, rank), true);
    std::set<std::string> owned;
    for (const GroupLayout& group : store.layout().groups)
      for (const OwnedRange& range : owned_ranges(group)) owned.insert(range.slice->spec->name);
    ASSERT_GT(owned.size(), 0u);
    ASSERT_LT(owned.size(), specs.size());
    large |= owned.contains("b");
    counts.decoded = counts.compared = 0;
    check_parameters(dir, specs);
    EXPECT_EQ(counts.decoded, 0u);
    load_checkpoint(dir, store, Load::all, WeightRanges::owned);
    constexpr std::uint64_t kinds = 3, boxes = 5;  // a range of 3 dimensions has 5 boxes
    EXPECT_GT(counts.decoded, kinds * (owned.contains("b") ? 1000u : 1u));
    EXPECT_LE(counts.decoded, kinds * boxes * 1024u * owned.size());
    EXPECT_GT(counts.compared, 0u);
    EXPECT_LE(counts.compared, kinds * boxes * 100u * owned.size());
    Index wrong = 0;
    for_each_element(store, [&](const std::string& name, Index i, float* x) {
      wrong += name.starts_with("/optimizer/") && *x != expected_value(name, i);
    });
    EXPECT_EQ(wrong, 0);
  }
  EXPECT_TRUE(large);
}

// An older index has no attribute with the shape of a tensor. A wrong one is found.
TEST(CheckpointMappings, ShapeIsThatOfTheDataset) {
  const Folder run;
  const fs::path dir = write_as(run.path(), Layout{2}, 1);
  const std::string name = "/params/layers.0.attention.q.weight";
  const auto set_shape = [&](const char* text) {
    const hid_t file = H5Fopen((dir / index_name).c_str(), H5F_ACC_RDWR, H5P_DEFAULT);
    EXPECT_GE(H5Adelete_by_name(file, name.c_str(), "shape", H5P_DEFAULT), 0);
    if (text) {
      const hid_t type = H5Tcopy(H5T_C_S1), space = H5Screate(H5S_SCALAR);
      H5Tset_size(type, std::strlen(text));
      const hid_t id =
          H5Acreate_by_name(file, name.c_str(), "shape", type, space, H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT);
      H5Awrite(id, type, text);
      H5Aclose(id);
      H5Sclose(space);
      H5Tclose(type);
    }
    H5Fclose(file);
    seal(dir, 1);
  };
  const auto read = [&] {
    std::vector<float> values(6 * 3 * 29);
    open_checkpoint(dir).reader->read(name, full_box({6, 3, 29}), values.data());
    return values[5];
  };
  const auto shape = [&] { return open_checkpoint(dir).reader->tensor(name).shape.str(); };
  const float expected = read();
  EXPECT_EQ(expected, expected_value(name, 5));
  EXPECT_EQ(shape(), "[6, 3, 29]");
  for (const char* wrong : {"7 3 29", "6 3", "6 3 29 1"}) {
    set_shape(wrong);
    EXPECT_TRUE(has(error_of(read), "has another shape or type")) << wrong << ": " << error_of(read);
  }
  for (const char* damaged : {"6 3 x", "6  3 29", "-6 3 29", "6 3 29 1 1", "9223372036854775807 8", "6 3 29 "}) {
    set_shape(damaged);
    EXPECT_TRUE(has(error_of([&] { shape(); }), "damaged")) << damaged << ": " << error_of([&] { shape(); });
  }
  set_shape(nullptr);
  EXPECT_EQ(shape(), "[6, 3, 29]");
  EXPECT_EQ(read(), expected);
}

}  // namespace
}  // namespace sy
