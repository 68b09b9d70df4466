// Opening of the data set and the expert map of a training on several ranks. The tests run on one
// machine.
#include <gtest/gtest.h>

#include "dist/errors.h"
#include "src/config/layout.h"
#include "src/data/dataset.h"
#include "src/data/tokenizer.h"
#include "tests/mpi_world.h"
#include "tests/src/two_domains.h"

namespace sy::test {
namespace {

namespace fs = std::filesystem;

// A folder of rank 0 that all ranks read. Rank 0 removes it after all ranks have finished.
struct FolderOfRankZero {
  TempFolder own;
  fs::path path = broadcast_text(world(), own.path().string(), 0);
  ~FolderOfRankZero() { world().barrier(); }
};

Config config_of_data(const fs::path& data, const std::vector<std::string>& settings = {}) {
  std::vector<std::string> all = {"--data.path=" + data.string(), "--model.seq_len=8", "--model.layers=2"};
  all.insert(all.end(), settings.begin(), settings.end());
  return parse_config("[moe]\nexperts = 4\n", "a test", all);
}

std::string error_on_all_ranks(const std::function<void()>& code) {
  try {
    code();
  } catch (const CollectiveError& e) {
    EXPECT_EQ(e.exit_code(), 2);
    return e.what();
  }
  ADD_FAILURE() << "no error";
  return "";
}

TEST(MpiTrainingData, IsThatOfRankZero) {
  const FolderOfRankZero folder;
  if (world().rank() == 0) make_dataset(folder.own);
  world().barrier();
  const Config config = config_of_data(folder.path);
  const Dataset dataset = open_training_data(world(), config), own(folder.path);
  EXPECT_EQ(dataset.digest(), own.digest());
  EXPECT_EQ(to_ini(dataset.description()), to_ini(own.description()));
  const SampleStream samples = training_samples(dataset, config), own_samples = training_samples(own, config);
  for (Index i = 0; i < 300; i += 37) {
    std::vector<std::int32_t> ids(8), targets(8), own_ids(8), own_targets(8);
    EXPECT_EQ(samples.read(i, {ids, targets, {}}), own_samples.read(i, {own_ids, own_targets, {}}));
    EXPECT_EQ(ids, own_ids);
    EXPECT_EQ(targets, own_targets);
  }
}

TEST(MpiTrainingData, HasTheTokenizersNumbersOfRankZero) {
  const FolderOfRankZero folder;
  if (world().rank() == 0) {
    make_dataset(folder.own);
    folder.own.write("dataset.ini", "[dataset]\ntokenizer = bytes\ndomains = domain0, domain1\n");
  }
  world().barrier();
  const std::vector<std::string> masked = {"--model.kind=encoder", "--train.objective=masked",
                                           "--train.mask_whole_words=true", "--train.validate_every=1"};
  const Dataset dataset = open_training_data(world(), config_of_data(folder.path, masked));
  const auto no_call = [](const Tokenizer&) -> std::vector<Index> { bad_input("the tokenizer is opened again"); };
  EXPECT_EQ(dataset.tokenizer_numbers("mask_token", no_call), std::vector<Index>{-1});
  EXPECT_EQ(dataset.tokenizer_numbers("letter_edges", no_call).size(), 257u);
  const std::vector<Index>& bytes = dataset.tokenizer_numbers("text_bytes", no_call);
  EXPECT_EQ(bytes, dataset.tokenizer_numbers("again", [](const Tokenizer& tokenizer) {
    std::vector<Index> all;
    for (std::int32_t id = 0; id < tokenizer.vocab(); ++id) all.push_back(tokenizer.text_bytes(id));
    return all;
  }));
}

// Each rank has a folder of its own, and the last rank has other data in it.
TEST(MpiTrainingData, OfAnotherFolderIsComparedWithThatOfRankZero) {
  const TempFolder folder;
  make_dataset(folder);
  const Config config = config_of_data(folder.path());
  const Dataset same = open_training_data(world(), config);
  EXPECT_EQ(same.dir(), folder.path());
  if (world().size() == 1) return;
  if (world().rank() == world().size() - 1)
    folder.write("dataset.ini", "[dataset]\ntokenizer = none\nvocab = 38\ndomains = domain0, domain1\n");
  const std::string error = error_on_all_ranks([&] { open_training_data(world(), config); });
  EXPECT_TRUE(has(error, fmt::format("rank {} on ", world().size() - 1))) << error;
  EXPECT_TRUE(has(error, "has the data's vocabulary = 38, rank 0 has 37")) << error;
}

TEST(MpiTrainingData, HasOneErrorOnAllRanks) {
  const FolderOfRankZero folder;
  EXPECT_TRUE(has(error_on_all_ranks([&] { open_training_data(world(), config_of_data(folder.path)); }),
                  "is no data set (it has no dataset.ini)"));
  if (world().rank() == 0) {
    make_dataset(folder.own);
    fs::resize_file(folder.path / "domain1.valid.bin", 7);
  }
  world().barrier();
  EXPECT_TRUE(has(error_on_all_ranks([&] { open_training_data(world(), config_of_data(folder.path)); }),
                  "domain1.valid.bin has 7 bytes"));
}

TEST(MpiTrainingData, HasTheExpertMapOfRankZero) {
  const FolderOfRankZero folder;
  const auto text = [](const char* order) {
    return fmt::format("{{\"layers\":[{{\"layer\":0,\"order\":[{}]}},{{\"layer\":1,\"order\":[0,1,2,3]}}]}}", order);
  };
  if (world().rank() == 0) folder.own.write("map.json", text("3,1,2,0"));
  world().barrier();
  const Config config = config_of_data("data", {"--moe.expert_map=" + (folder.path / "map.json").string()});
  EXPECT_EQ(read_expert_map(world(), config), (std::vector<std::vector<Index>>{{3, 1, 2, 0}, {0, 1, 2, 3}}));
  EXPECT_TRUE(read_expert_map(world(), config_of_data("data")).empty());
  // The last rank has another file.
  const TempFolder own;
  const bool last = world().rank() == world().size() - 1;
  const fs::path file = own.write("map.json", text(last ? "0,1,3,2" : "3,1,2,0"));
  if (world().size() > 1) {
    const std::string error = error_on_all_ranks(
        [&] { read_expert_map(world(), config_of_data("data", {"--moe.expert_map=" + file.string()})); });
    EXPECT_TRUE(has(error, "has the order of moe.expert_map = 0 1 3 2; 0 1 2 3, rank 0 has 3 1 2 0; 0 1 2 3")) << error;
  }
  if (world().rank() == 0) folder.own.write("map.json", text("3,1,2,2"));
  world().barrier();
  EXPECT_TRUE(has(error_on_all_ranks([&] { read_expert_map(world(), config); }), "layer 0 has expert 2 twice"));
}

}  // namespace
}  // namespace sy::test
