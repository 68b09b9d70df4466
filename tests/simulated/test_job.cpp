// A job of 16,384 ranks, of which a few run here one after the other: start, steps, save and resume
// of `switchyard train`. Each sees peers that do what it does itself. Files, calls, messages and
// bytes of a rank have fixed bounds.
#include <gtest/gtest.h>

#include <bit>

#include "src/cli/options.h"
#include "src/config/layout.h"
#include "src/data/dataset.h"
#include "src/io/checkpoint_formats.h"
#include "src/io/checkpoint_internal.h"
#include "src/io/manifest.h"
#include "src/params/store.h"
#include "src/system/digest.h"
#include "src/system/files.h"
#include "tests/simulated/file_counts.h"
#include "tests/simulated/simulated_comm.h"
#include "tests/src/temp_folder.h"

namespace sy {
namespace {

namespace fs = std::filesystem;
using namespace test;

constexpr Index vocab = 61;
constexpr const char* model = R"([model]
layers = 2
d_model = 16
heads = 2
seq_len = 8
[moe]
experts = 16
top_k = 2
d_ff = 8
aux_loss = 0.01
[parallel]
tp = 2
ep = 8
[train]
micro_batch = 1
[data]
path = data
[run]
backend = cpu
checkpoint_every = 2
check_every = 1
memory_check = digest
)";

// A call of a rank, and what it counted.
struct Counted {
  FileCounts files;
  std::map<int, GroupCounts> groups;
  DigestCounts digests;  // of files of a checkpoint that the rank verifies
};

// The folder of a job, and its ranks.
class Job {
 public:
  explicit Job(int ranks) : layout_{ranks, 2, 8, 1} {
    job_.ranks = ranks;
    job_.gathered = [this](std::string_view mine) { return gathered(mine); };
    DatasetDescription description;
    description.tokenizer = "none";
    description.vocab = vocab;
    const fs::path data = folder_.path() / "data";
    fs::create_directories(data);
    IndexedWriter writer(data / "web.train", vocab);
    for (int document = 0; document < 50; ++document) {
      std::vector<std::int32_t> ids;
      for (int i = 0; i < 100; ++i) ids.push_back((i * i + document * 7) % vocab);
      writer.add(ids);
    }
    writer.finish();
    description.domains.push_back({"web", 50, 50 * 100, 0, 0});
    folder_.write("data/dataset.ini", to_ini(description));
    folder_.write("config.ini", model + fmt::format("dir = {}\n", run().string()));
  }

  fs::path run() const { return folder_.path() / "run"; }
  fs::path checkpoint(Index step) const { return checkpoints_of(run()) / step_name(step); }

  Counted train(int rank, Index steps, bool resume) {
    const std::unique_ptr<Comm> world = make_simulated_world(job_, rank);
    text_ = folder_.path().string();
    count_files(text_.c_str());
    digest_counts() = {};
    CommandLine line{
        *world,
        {(folder_.path() / "config.ini").string(), "--quiet", "--data.path=" + (folder_.path() / "data").string(),
         fmt::format("--train.global_batch={}", layout_.dp()), fmt::format("--train.steps={}", steps),
         fmt::format("--run.resume={}", resume)}};
    EXPECT_EQ(train_command(line), 0);
    return {file_counts(), job_.counts, digest_counts()};
  }

  // Moves the shard of another rank into a checkpoint of which rank 0 has written its own files.
  // Lets the manifest describe it.
  void add_shard(Index step, int rank, const fs::path& shard) {
    const fs::path dir = checkpoint(step);
    Manifest manifest = read_manifest(dir);
    const std::string name = checkpoint_formats().front()->shard_name(rank);
    fs::rename(shard, dir / name);
    for (Manifest::File& file : manifest.files)
      if (file.name == name)
        file = {name, static_cast<Index>(fs::file_size(dir / name)), to_hex(sha256_file(dir / name))};
    fs::remove(dir / manifest_name);
    write_file(dir / manifest_name, to_text(manifest));
  }

 private:
  // Mappings of all ranks, or digests of shards: those of rank 0 stand for all of them.
  std::vector<std::string> gathered(std::string_view mine) const {
    std::vector<std::string> all(static_cast<std::size_t>(layout_.ranks), std::string(mine));
    if (mine.size() == sizeof(WrittenFile)) return all;
    const std::vector<ParamSpec> specs = param_specs(parse_config(model, "the model"), vocab);
    for (int rank = 1; rank < layout_.ranks; ++rank) {
      const FlatLayout flat = flat_layout(specs, layout_, coord_of(layout_, rank));
      all[static_cast<std::size_t>(rank)] = encode_mappings({specs, layout_, flat, {}, {}}, rank);
    }
    return all;
  }

  TempFolder folder_;
  std::string text_;
  Layout layout_;
  SimulatedJob job_;
};

// Trains two steps, saves, and resumes for two more on some ranks of a job.
struct Ran {
  std::map<int, Counted> started, resumed;  // by rank
};
Ran run_job(int ranks, const std::vector<int>& others) {
  Job job(ranks);
  Ran ran;
  ran.started[0] = job.train(0, 2, false);
  for (const int rank : others) {
    // The folder in which rank 0 has written its files has its final name already.
    const fs::path unfinished = unfinished_path(checkpoints_of(job.run()), 2, 1);
    fs::create_directories(unfinished);
    ran.started[rank] = job.train(rank, 2, false);
    job.add_shard(2, rank, unfinished / checkpoint_formats().front()->shard_name(rank));
    fs::remove(unfinished);
  }
  ran.resumed[0] = job.train(0, 4, true);
  for (const int rank : others) {
    fs::create_directories(unfinished_path(checkpoints_of(job.run()), 4, 1));
    ran.resumed[rank] = job.train(rank, 4, true);
  }
  return ran;
}

// Bounds of a call of `train`: start, two steps and a save.
struct Bounds {
  Index opens, statuses;  // of files below the job's folder
  Index calls, bytes;     // of collectives of a group
  DigestCounts digests;   // of the index, and of shards that the rank reads
};
constexpr Index max_bytes = Index{40} << 20;
constexpr int first_of_machine = 8;  // a rank with values of its own, so that it reads its shard
constexpr Bounds of_rank_0{60, 100, 120, max_bytes, {2, 1 << 20}},
    of_first_of_machine{20, 40, 120, max_bytes, {1, 64 << 10}}, of_other{9, 10, 120, max_bytes, {0, 0}};
const Bounds& bounds_of(int rank) {
  return rank == 0 ? of_rank_0 : rank == first_of_machine ? of_first_of_machine : of_other;
}

void expect_within(const Bounds& bounds, int ranks, const Counted& counted) {
  EXPECT_LE(counted.files.opens, bounds.opens);
  EXPECT_LE(counted.files.statuses, bounds.statuses);
  EXPECT_LE(counted.digests.files, bounds.digests.files);
  EXPECT_LE(counted.digests.bytes, bounds.digests.bytes);
  EXPECT_TRUE(counted.groups.contains(ranks));
  for (const auto& [size, group] : counted.groups) {
    SCOPED_TRACE(fmt::format("group of {} ranks", size));
    const int depth = std::bit_width(static_cast<unsigned>(size - 1));
    EXPECT_LE(group.calls, bounds.calls);
    EXPECT_LE(group.messages, (size > 16 ? 2 * depth : size - 1) * group.calls);
    EXPECT_LE(group.bytes, bounds.bytes);
  }
}

// A rank of 16,384 opens as many files as one of 1,024, and has messages for the additional levels
// of a tree only. The model is small: large sums would go directly to all ranks of a group.
TEST(SimulatedJob, HasBoundsThatHoldForManyRanks) {
  constexpr int small = 1024, large = 16384;
  const Ran of_small = run_job(small, {first_of_machine, small / 2 + 3, small - 1}),
            of_large = run_job(large, {first_of_machine, large / 2 + 3, large - 1});
  for (const auto phase : {&Ran::started, &Ran::resumed}) {
    const std::map<int, Counted>&few = of_small.*phase, &many = of_large.*phase;
    for (auto a = few.begin(), b = many.begin(); a != few.end(); ++a, ++b) {
      SCOPED_TRACE(fmt::format("rank {}, {}", b->first, phase == &Ran::started ? "start" : "resume"));
      const Bounds& bounds = bounds_of(b->first);
      expect_within(bounds, small, a->second);
      expect_within(bounds, large, b->second);
      EXPECT_EQ(a->second.files.opens, b->second.files.opens);
      EXPECT_EQ(a->second.files.statuses, b->second.files.statuses);
      EXPECT_EQ(a->second.digests.files, b->second.digests.files);
      if (phase == &Ran::resumed) {
        EXPECT_EQ(b->second.digests.files, bounds.digests.files);
      }
      EXPECT_EQ(a->second.groups.at(small).calls, b->second.groups.at(large).calls);
      // Groups that do not grow have the same calls.
      EXPECT_EQ(a->second.groups.at(2).calls, b->second.groups.at(2).calls);
      EXPECT_EQ(a->second.groups.at(8).calls, b->second.groups.at(8).calls);
    }
  }
}

}  // namespace
}  // namespace sy
