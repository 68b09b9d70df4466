// Linked indexes: index-00001.h5 and so on hold the mappings of a checkpoint that has many.
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>
#include <set>

#include "dist/runtime.h"
#include "tests/src/checkpoint_fixture.h"
#include "tests/src/raw_hdf5.h"

namespace sy {
namespace {

using namespace test;

const Layout linked_writers{4, 2, 2, 1};
constexpr const char* linked_embedding = "/params/embedding.weight";  // in the first linked index

std::string linked_name(int number) {
  return written_format().linked_index_name(number);
}

// ---- the plan ----

void expect_plan(const std::vector<Index>& counts, int ranks, Index per_index) {
  SCOPED_TRACE(fmt::format("{} parameters, {} ranks, {} per index", counts.size(), ranks, per_index));
  const IndexPlan plan = plan_indexes(counts, ranks, per_index);
  const Index total = std::accumulate(counts.begin(), counts.end(), Index{0});
  const Index largest = counts.empty() ? 0 : *std::ranges::max_element(counts);
  ASSERT_FALSE(plan.params.empty());
  EXPECT_EQ(plan.params.front().begin, 0);
  EXPECT_EQ(plan.params.back().end, std::ssize(counts));
  for (std::size_t i = 1; i < plan.params.size(); ++i) EXPECT_EQ(plan.params[i].begin, plan.params[i - 1].end);
  if (total <= per_index || ranks <= 2) {
    EXPECT_EQ(plan.linked(), 0);
  }
  if (plan.linked() == 0) return;
  ASSERT_LT(plan.linked(), ranks);
  const Index least = std::max(per_index, ceil_div(total, ranks - 1));
  std::set<int> writers;
  for (int number = 1; number <= plan.linked(); ++number) {
    const Range params = plan.params_of(number);
    const Index mappings = std::accumulate(counts.begin() + params.begin, counts.begin() + params.end, Index{0});
    EXPECT_LT(mappings, least + largest);
    EXPECT_TRUE(mappings >= least || number == plan.linked()) << mappings;
    EXPECT_GT(mappings, 0);
    writers.insert(plan.writer(number));
  }
  EXPECT_EQ(std::ssize(writers), plan.linked());
  EXPECT_GT(*writers.begin(), 0);
  EXPECT_LT(*writers.rbegin(), ranks);
}

TEST(IndexPlan, DividesParametersAmongRanks) {
  std::mt19937 random(5);
  for (const int ranks : {1, 2, 3, 4, 7, 100, 16384})
    for (const Index per_index : {Index{1}, Index{10}, Index{1000}, default_mappings_per_index})
      for (const std::size_t params : {0u, 1u, 2u, 5u, 100u})
        for (const Index most : {0, 1, 30, 50'000}) {
          std::vector<Index> counts(params);
          for (Index& count : counts) count = std::uniform_int_distribution<Index>(0, most)(random);
          expect_plan(counts, ranks, per_index);
        }
}

TEST(IndexPlan, WritersAreSpreadOverTheRanks) {
  const IndexPlan plan = plan_indexes(std::vector<Index>(6, 100), 16, 200);
  ASSERT_EQ(plan.linked(), 3);
  EXPECT_EQ(plan.writer(1), 4);
  EXPECT_EQ(plan.writer(2), 8);
  EXPECT_EQ(plan.writer(3), 12);
  EXPECT_EQ(plan.params_of(2).begin, 2);
  EXPECT_EQ(plan.params_of(2).end, 4);
  EXPECT_EQ(plan_indexes(std::vector<Index>(6, 100), 16, 600).linked(), 0);
}

// ---- reading ----

TEST(LinkedIndex, HoldsTheTensorsOfOneIndex) {
  const Folder a, b;
  const fs::path whole = write_as(a.path(), linked_writers, 200), linked = write_linked(b.path(), linked_writers, 200);
  EXPECT_FALSE(fs::exists(whole / linked_name(1)));
  for (int number = 1; number <= 3; ++number) EXPECT_TRUE(fs::exists(linked / linked_name(number))) << number;
  EXPECT_EQ(joined(verify_checkpoint(linked)), "");
  EXPECT_EQ(joined(unlisted_files(linked)), "");
  EXPECT_EQ(refusal(linked), "");
  const CheckpointTensors first(whole), second(linked);
  ASSERT_EQ(first.list().size(), second.list().size());
  for (std::size_t i = 0; i < first.list().size(); ++i) {
    EXPECT_EQ(first.list()[i].name, second.list()[i].name);
    EXPECT_EQ(first.list()[i].shape, second.list()[i].shape);
  }
  for (const TensorDifference& d : diff_checkpoints(whole, linked)) EXPECT_TRUE(d.bitwise_equal) << d.name;
  const OpenCheckpoint one = open_checkpoint(whole), more = open_checkpoint(linked);
  for (const TensorInfo& tensor : first.list())
    for (const char* attribute : {"shape", "dimensions", "meaning"}) {
      ASSERT_EQ(one.reader->has(tensor.name, attribute), more.reader->has(tensor.name, attribute)) << tensor.name;
      if (one.reader->has(tensor.name, attribute)) {
        EXPECT_EQ(one.reader->get<std::string>(tensor.name, attribute),
                  more.reader->get<std::string>(tensor.name, attribute));
      }
    }
  EXPECT_EQ(one.reader->get<std::string>("/params", "meaning"), more.reader->get<std::string>("/params", "meaning"));
  EXPECT_EQ(read_state(linked).config, example_state(200).config);
  EXPECT_FALSE(more.reader->has("/params/none"));
  EXPECT_FALSE(more.reader->has("/params/none", "shape"));
}

TEST(LinkedIndex, IsReadByEveryLayout) {
  const std::unique_ptr<Device> device = make_cpu();
  const Layout layouts[] = {{1, 1, 1, 1}, {3, 1, 3, 1}, {4, 2, 2, 1}, {6, 1, 3, 2}, {6, 2, 1, 1}};
  for (const Layout& writer : layouts) {
    const Folder run;
    const fs::path dir = write_linked(run.path(), writer, 200);
    EXPECT_EQ(fs::exists(dir / linked_name(2)), writer.ranks > 2) << writer.str();
    for (const Layout& reader : layouts)
      for (int rank = 0; rank < reader.ranks; ++rank) {
        ParamStore store(*device, odd_specs(), reader, coord_of(reader, rank), true);
        load_checkpoint(dir, store);
        ASSERT_EQ(wrong_elements(store), 0) << writer.str() << " read by rank " << rank << " of " << reader.str();
      }
  }
}

// Any other tool reads each tensor through index.h5.
TEST(LinkedIndex, IsFollowedByTheHdf5Library) {
  const Folder run;
  const fs::path dir = write_linked(run.path(), linked_writers, 200);
  for (const ParamSpec& spec : odd_specs())
    for (const TensorKind& kind : tensor_kinds(odd_specs())) {
      const std::string name = kind.prefix + spec.name;
      const std::vector<float> values = raw_values(dir / index_name, name);
      ASSERT_EQ(std::ssize(values), spec.shape.elements());
      for (std::size_t i = 0; i < values.size(); ++i)
        ASSERT_EQ(values[i], expected_value(name, static_cast<Index>(i))) << name << " " << i;
    }
}

// A rank that has the head of a checkpoint opens none of its indexes.
TEST(LinkedIndex, IsReadByTheHeadOfACheckpoint) {
  const Folder run;
  const fs::path dir = write_linked(run.path(), linked_writers, 200);
  const std::unique_ptr<Comm> world = make_comm_self();
  const std::uint64_t before_head = file_activity().opened;
  const CheckpointFolder folder(*world, dir);
  EXPECT_EQ(file_activity().opened - before_head, 4u);
  for (int number = 1; number <= 3; ++number) fs::remove(dir / linked_name(number));
  fs::remove(dir / index_name);
  const std::uint64_t before = file_activity().opened;
  check_parameters(folder, odd_specs());
  EXPECT_EQ(file_activity().opened, before);
  const std::unique_ptr<Device> device = make_cpu();
  ParamStore store(*device, odd_specs(), Layout{}, coord_of(Layout{}, 0), true);
  load_checkpoint(folder, store);
  EXPECT_EQ(wrong_elements(store), 0);
}

TEST(LinkedIndex, IsOpenedWhenItsTensorsAreRead) {
  const Folder run;
  const fs::path dir = write_linked(run.path(), linked_writers, 200);
  const OpenCheckpoint checkpoint = open_checkpoint(dir);
  const std::uint64_t before = file_activity().opened;
  EXPECT_EQ(checkpoint.reader->tensors("/params").size(), odd_specs().size());
  EXPECT_TRUE(checkpoint.reader->has(linked_embedding));
  EXPECT_EQ(file_activity().opened, before);
  EXPECT_EQ(checkpoint.reader->tensor(linked_embedding).shape, (Shape{67, 29}));
  EXPECT_EQ(file_activity().opened, before + 1);
}

// ---- folders ----

TEST(LinkedIndex, DamageIsFound) {
  for (int number = 1; number <= 3; ++number) {
    const Folder run;
    write_linked(run.path(), linked_writers, 100);
    const fs::path dir = write_linked(run.path(), linked_writers, 200), file = dir / linked_name(number);
    const std::string content = read_file(file);
    std::string changed = content;
    changed[content.size() / 2] = static_cast<char>(changed[content.size() / 2] ^ 1);
    for (const std::string& damaged : {content.substr(0, content.size() - 1), changed}) {
      fs::remove(file);
      write_file(file, damaged);
      EXPECT_TRUE(has(joined(verify_checkpoint(dir)), file.string()));
      std::vector<std::string> warnings;
      EXPECT_EQ(resume_checkpoint(*make_comm_self(), run.path(), -1, &warnings).path().filename(), step_name(100));
      EXPECT_TRUE(has(joined(warnings), file.string())) << joined(warnings);
    }
    fs::resize_file(file, content.size() - 1);
    EXPECT_TRUE(has(refusal(dir), file.string() + " has ")) << refusal(dir);
    fs::remove(file);
    EXPECT_TRUE(has(joined(verify_checkpoint(dir)), file.string() + " is missing"));
    EXPECT_TRUE(has(refusal(dir), file.string() + " is missing")) << refusal(dir);
    EXPECT_THROW(CheckpointFolder(*make_comm_self(), dir), CollectiveError);
  }
}

TEST(LinkedIndex, MustBeInTheManifest) {
  const Folder run;
  const fs::path dir = write_linked(run.path(), linked_writers, 200);
  fs::rename(dir / linked_name(1), run.path() / "aside");
  seal(dir, 200);
  fs::rename(run.path() / "aside", dir / linked_name(1));
  const std::string problem = "needs index-00001.h5, which is not in its manifest";
  EXPECT_EQ(joined(verify_checkpoint(dir)), "");
  EXPECT_TRUE(has(joined(unlisted_files(dir)), problem)) << joined(unlisted_files(dir));
  EXPECT_TRUE(has(refusal(dir), problem)) << refusal(dir);
  const CheckpointFolder folder(*make_comm_self(), dir);
  EXPECT_TRUE(has(test::error_of([&] { check_parameters(folder, odd_specs()); }), problem));
}

TEST(LinkedIndex, IsDeletedWithItsCheckpoint) {
  const Folder run;
  write_linked(run.path(), linked_writers, 100);
  const fs::path checkpoints = checkpoints_of(run.path());
  fs::create_directories(checkpoints / "step-00000300.tmp");
  for (const char* name : {"index.h5", "index-00001.h5", "index-00002.h5", "shard-00000.h5"})
    write_file(checkpoints / "step-00000300.tmp" / name, "half");
  SingleRank trainer;
  EXPECT_EQ(joined(trainer.save(run.path(), 400, 1)), "");
  EXPECT_EQ(test::files_in(checkpoints), (std::vector<fs::path>{checkpoints / step_name(400)}));
}

// ---- forged links ----

void replace_by_link(hid_t file, const std::string& name, const std::string& target_file, const std::string& target) {
  H5Ldelete(file, name.c_str(), H5P_DEFAULT);
  done(H5Lcreate_external(target_file.c_str(), target.c_str(), file, name.c_str(), H5P_DEFAULT, H5P_DEFAULT));
}

// Lets a file link to the linked_embedding of another one.
std::function<void(const fs::path&)> link_in(const std::string& file, const std::string& target_file,
                                             const std::string& target = linked_embedding) {
  return with(file, [=](hid_t f) { replace_by_link(f, linked_embedding, target_file, target); });
}

constexpr const char* link_elsewhere = "a link to elsewhere";
const Forgery forged_links[] = {
    {"FileOutside", link_elsewhere, link_in(index_name, "../outside.h5")},
    {"IndexOutside", link_elsewhere, link_in(index_name, "../index-00001.h5")},
    {"AbsolutePath", link_elsewhere,
     [](const fs::path& dir) { link_in(index_name, (dir / "index-00001.h5").string())(dir); }},
    {"PathWithADot", link_elsewhere, link_in(index_name, "./index-00001.h5")},
    {"PathWithAFolder", link_elsewhere, link_in(index_name, "x/../index-00001.h5")},
    {"Shard", link_elsewhere, link_in(index_name, "shard-00000.h5")},
    {"TheIndex", link_elsewhere, link_in(index_name, "index.h5")},
    {"UnlistedIndex", "needs index-00009.h5, which is not in its manifest", link_in(index_name, "index-00009.h5")},
    {"AnotherTensor", link_elsewhere, link_in(index_name, "index-00001.h5", "/params/layers.0.norm.weight")},
    {"AnotherPath", link_elsewhere, link_in(index_name, "index-00001.h5", "/params/./embedding.weight")},
    {"TensorOfAnotherIndex", "holds no tensor /params/embedding.weight", link_in(index_name, "index-00002.h5")},
    {"SoftLinkInTheIndex", link_elsewhere,
     with(index_name,
          [](hid_t f) {
            H5Ldelete(f, linked_embedding, H5P_DEFAULT);
            done(H5Lcreate_soft("/params/layers.0.norm.weight", f, linked_embedding, H5P_DEFAULT, H5P_DEFAULT));
          })},
    {"SoftLinkInALinkedIndex", link_elsewhere,
     with("index-00001.h5",
          [](hid_t f) {
            H5Ldelete(f, linked_embedding, H5P_DEFAULT);
            done(H5Lcreate_soft("/params/layers.0.norm.weight", f, linked_embedding, H5P_DEFAULT, H5P_DEFAULT));
          })},
    {"CircleOfTwoFiles", link_elsewhere, link_in("index-00001.h5", "index.h5")},
    {"CircleOfOneFile", link_elsewhere, link_in("index-00001.h5", "index-00001.h5")},
    {"LinkToAThirdFile", link_elsewhere, link_in("index-00001.h5", "index-00002.h5")},
    {"GroupInPlaceOfATensor", "holds no tensor",
     with("index-00001.h5",
          [](hid_t f) {
            H5Ldelete(f, linked_embedding, H5P_DEFAULT);
            const Raw made(H5Gcreate2(f, linked_embedding, H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT), H5Gclose);
          })},
    {"LinkedGroup", "link",
     with(index_name, [](hid_t f) { replace_by_link(f, "/params", "index-00001.h5", "/params"); })},
    {"LinkedState", "holds no tensor /state",
     [](const fs::path& dir) {
       with(index_name, [](hid_t f) { replace_by_link(f, "/state", "index-00001.h5", "/state"); })(dir);
       with("index-00001.h5", [](hid_t f) {
         const Raw made(H5Gcreate2(f, "/state", H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT), H5Gclose);
       })(dir);
     }},
    {"ValuesInALinkedIndex", "has its values in a linked index",
     with("index-00001.h5",
          [](hid_t f) {
            const Raw plain(H5Pcreate(H5P_DATASET_CREATE), H5Pclose);
            raw_dataset(f, linked_embedding, {67, 29}, H5T_IEEE_F32LE, plain);
            const Raw made(H5Dopen2(f, linked_embedding, H5P_DEFAULT), H5Dclose);
            const std::vector<float> values(67 * 29, 1.0f);
            done(H5Dwrite(made, H5T_NATIVE_FLOAT, H5S_ALL, H5S_ALL, H5P_DEFAULT, values.data()));
          })},
    {"MappingToAFileOutside", "not in its manifest",
     with("index-00001.h5", [](hid_t f) { raw_virtual(f, linked_embedding, "../outside.h5", linked_embedding); })},
};

class ForgedLinks : public testing::TestWithParam<Forgery> {};

TEST_P(ForgedLinks, AreRejected) {
  const Folder run;
  const fs::path dir = write_linked(run.path(), linked_writers, 200);
  ASSERT_EQ(refusal(dir), "");
  // Files beside the checkpoint, which forgeries name. They hold the tensor.
  for (const char* name : {"outside.h5", "index-00001.h5"})
    fs::copy(dir / "index-00001.h5", checkpoints_of(run.path()) / name);
  GetParam().forge(dir);
  seal(dir, 200);
  ASSERT_EQ(verify_checkpoint(dir), std::vector<std::string>{});  // the digests are right
  const CheckpointFolder folder(*make_comm_self(), dir);
  const std::unique_ptr<Device> device = make_cpu();
  ParamStore store(*device, odd_specs(), Layout{}, coord_of(Layout{}, 0), true);
  for (const std::string& error : {refusal(dir), test::error_of([&] {
                                     read_state(folder);
                                     load_checkpoint(folder, store);
                                   })}) {
    EXPECT_TRUE(error.starts_with("2: ")) << error;
    EXPECT_TRUE(has(error, GetParam().says)) << error;
  }
}
INSTANTIATE_TEST_SUITE_P(All, ForgedLinks, testing::ValuesIn(forged_links),
                         [](const auto& test) { return test.param.name; });

// The check of global heaps covers linked indexes, too.
TEST(LinkedIndex, HasCheckedHeaps) {
  const Folder run;
  const fs::path dir = write_linked(run.path(), linked_writers, 200), file = dir / linked_name(2);
  std::string forged = read_file(file);
  const std::size_t heap = forged.find("GCOL");
  ASSERT_NE(heap, std::string::npos);
  forged.replace(heap + 16, 16, std::string(16, '\0'));
  fs::remove(file);
  write_file(file, forged);
  seal(dir, 200);
  EXPECT_TRUE(has(joined(verify_checkpoint(dir)), "index-00002.h5 is damaged: the global heap"))
      << joined(verify_checkpoint(dir));
}

}  // namespace
}  // namespace sy
