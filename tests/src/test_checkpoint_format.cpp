// The protocol's use of a file format: the calls that a CheckpointWriter gets.
#include <fstream>
#include <map>

#include "tests/src/checkpoint_fixture.h"

namespace sy {
namespace {

using namespace test;

// Everything that was written to one file.
struct Record {
  std::map<std::string, std::vector<float>> slices;
  std::map<std::string, Index> elements;
  std::map<std::string, std::vector<SliceMapping>> sharded;
  std::map<std::string, std::string> links;
  std::vector<std::string> order;  // names of slices, then "close" and "verify"
};
std::map<std::string, Record> records;  // by the file's name

class RecordingWriter final : public CheckpointWriter {
 public:
  explicit RecordingWriter(const fs::path& path) : record_(records[path.filename().string()]) {
    std::ofstream(path) << "tab";
  }
  void make_group(const std::string&) override {}
  void set(const std::string&, const std::string&, const Attribute&) override {}
  void write(const std::string&, const Shape&, DType, const void*) override {}
  void begin_slice(const std::string& name, Index elements) override {
    record_.order.push_back(name);
    record_.elements[name] = elements;
  }
  void append(std::span<const float> values) override {
    std::vector<float>& slice = record_.slices[record_.order.back()];
    slice.insert(slice.end(), values.begin(), values.end());
  }
  void write_sharded(const std::string& name, const Shape&, const std::vector<SliceMapping>& slices) override {
    record_.sharded[name] = slices;
  }
  void link_sharded(const std::string& name, const std::string& linked_index) override {
    record_.links[name] = linked_index;
  }
  void close() override { record_.order.push_back("close"); }
  void verify() const override { record_.order.push_back("verify"); }

 private:
  Record& record_;
};

constexpr CheckpointFormat recording_format = {
    .extension = ".record",
    .create = [](const fs::path& file) -> std::unique_ptr<CheckpointWriter> {
      return std::make_unique<RecordingWriter>(file);
    },
    .open = nullptr,
    .make_check = nullptr,
};

// Another format gets all values in host memory, and its mappings lead to each of them.
TEST(CheckpointFormat, GetsEveryValueAndItsMapping) {
  records.clear();
  const Folder folder;
  const Layout layout{4, 2, 2, 1};
  const std::unique_ptr<Device> device = make_cpu();
  for (int rank = 0; rank < layout.ranks; ++rank) {
    ParamStore store(*device, odd_specs(), layout, coord_of(layout, rank), true);
    fill(store);
    const WrittenFile shard =
        write_shard(recording_format, folder.path(), example_state(5), shard_contents(store), rank);
    EXPECT_EQ(shard.bytes, 3);
    EXPECT_EQ(to_hex(shard.sha256), to_hex(sha256("tab")));
  }
  write_index(recording_format, folder.path(), example_state(5), odd_specs(), layout);

  for (const char* file : {"index.record", "shard-00000.record", "shard-00003.record"}) {
    const std::vector<std::string>& order = records.at(file).order;
    ASSERT_GE(order.size(), 2u) << file;
    EXPECT_EQ(order[order.size() - 2], "close") << file;
    EXPECT_EQ(order.back(), "verify") << file;
  }
  for (const ParamSpec& spec : odd_specs())
    for (const TensorKind& kind : tensor_kinds(odd_specs())) {
      const std::string name = kind.prefix + spec.name;
      Index covered = 0;
      for (const SliceMapping& mapping : records.at("index.record").sharded.at(name)) {
        const Record& shard = records.at(mapping.file);
        const std::vector<float>& slice = shard.slices.at(name);
        ASSERT_EQ(std::ssize(slice), mapping.slice_elements) << name;
        ASSERT_EQ(shard.elements.at(name), mapping.slice_elements) << name;
        for (Index i = 0; i < mapping.range.size(); ++i, ++covered)
          ASSERT_EQ(slice[static_cast<std::size_t>(mapping.range.begin + i)],
                    expected_value(name, whole_index(spec.shape, mapping.box, i)))
              << name;
      }
      EXPECT_EQ(covered, spec.shape.elements()) << name;
    }
}

TEST(CheckpointFormat, KnowsTheNamesOfItsFiles) {
  const CheckpointFormat& format = written_format();
  for (const char* name : {"index.h5", "index-00001.h5", "index-123456.h5", "shard-00003.h5", "shard-1.h5"})
    EXPECT_TRUE(format.has_name(name)) << name;
  EXPECT_EQ(format.linked_index_name(12), "index-00012.h5");
  EXPECT_TRUE(format.is_linked_index(format.linked_index_name(100'000)));
  for (const char* name : {"index.h5", "index-.h5", "index-1a.h5", "shard-00001.h5", "a/index-00001.h5",
                           "./index-00001.h5", "index-00001.h5/", "index-00001.h5.old", "index--1.h5"})
    EXPECT_FALSE(format.is_linked_index(name)) << name;
  for (const char* name : {"", "index.h5.old", "index", "index-.h5", "index-00001", "aindex-1.h5", "shard-.h5",
                           "shard-1", "shard-1a.h5", "shard-1.h5x", "x.h5", "shard-1.record", "ashard-1.h5"})
    EXPECT_FALSE(format.has_name(name)) << name;
  EXPECT_EQ(&format_of(Manifest{1, {{"index.h5", 1, ""}}}), &format);
  EXPECT_EQ(&format_of(Manifest{1, {}}), &format);
}

}  // namespace
}  // namespace sy
