// A job of 16,384 ranks, of which a few run here one after the other: start, steps, save and resume
// of `switchyard train`. Each sees peers that do what it does itself. Files, calls, messages and
// bytes of a rank have fixed bounds.
#include <gtest/gtest.h>

#include <algorithm>
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
  explicit Job(int ranks) : layout_{ranks, 2, 8, 1}, counts_(specs_.size()) {
    job_.ranks = ranks;
    job_.gathered = [this](std::string_view mine, int root) { return gathered(mine, root); };
    job_.summed = [this](View x) { sum(x); };
    compute_mappings();
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
  const IndexPlan& plan() const { return plan_; }
  // Returns the bytes of all mappings.
  Index mapping_bytes() const {
    Index bytes = 0;
    for (const std::vector<std::string>& texts : mappings_)
      for (const std::string& text : texts) bytes += std::ssize(text);
    return bytes;
  }

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
    const Counted counted{file_counts(), job_.counts, digest_counts()};
    if (rank == 0)
      for (int number = 1; number <= plan_.linked(); ++number)
        fs::copy_file(linked_index(linked_.path(), number), linked_index(checkpoint(steps), number));
    return counted;
  }

  // Compares the linked indexes that another rank has written with those of the checkpoint, and
  // deletes them.
  void check_linked_indexes(Index step, const fs::path& unfinished) const {
    for (int number = 1; number <= plan_.linked(); ++number)
      if (const fs::path written = linked_index(unfinished, number); fs::exists(written)) {
        EXPECT_EQ(read_file(written), read_file(linked_index(checkpoint(step), number)));
        fs::remove(written);
      }
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
  static fs::path linked_index(const fs::path& folder, int number) {
    return folder / checkpoint_formats().front()->linked_index_name(number);
  }

  // Computes the mappings of all ranks, and writes the linked indexes.
  void compute_mappings() {
    const auto for_ranks = [&](auto f) {
      for (int rank = 0; rank < layout_.ranks; ++rank) {
        const FlatLayout flat = flat_layout(specs_, layout_, coord_of(layout_, rank));
        f(ShardContents{specs_, layout_, flat, kinds_, {}}, rank);
      }
    };
    for_ranks([&](const ShardContents& contents, int rank) {
      const std::vector<Index> own = count_mappings(contents, rank);
      if (rank == 0) counts_of_rank_0_ = own;
      for (std::size_t i = 0; i < own.size(); ++i) counts_[i] += own[i];
    });
    plan_ = plan_indexes(counts_, layout_.ranks, first_mappings_per_index);
    mappings_.resize(plan_.params.size());
    for_ranks([&](const ShardContents& contents, int rank) {
      const std::vector<std::string> own = encode_mappings(contents, rank, plan_);
      for (std::size_t i = 0; i < own.size(); ++i) mappings_[i].push_back(own[i]);
    });
    for (int number = 1; number <= plan_.linked(); ++number)
      written_.push_back(write_linked_index(*checkpoint_formats().front(), linked_.path(), specs_, kinds_, plan_,
                                            number, mappings_[static_cast<std::size_t>(number - 1)]));
  }

  // Sums the numbers of mappings.
  void sum(View x) const {
    if (x.dtype() != DType::i64 || x.elements() != std::ssize(counts_)) return;
    if (std::equal(counts_of_rank_0_.begin(), counts_of_rank_0_.end(), x.i64())) std::ranges::copy(counts_, x.i64());
  }

  // Mappings of all ranks, or digests of files: that of the shard of rank 0 stands for all shards.
  std::vector<std::string> gathered(std::string_view mine, int root) const {
    std::vector<std::string> all(static_cast<std::size_t>(layout_.ranks), std::string(mine));
    if (root == 0 && mine.size() == sizeof(WrittenFile)) {
      for (int number = 1; number <= plan_.linked(); ++number)
        all[static_cast<std::size_t>(plan_.writer(number))].append(
            reinterpret_cast<const char*>(&written_[static_cast<std::size_t>(number - 1)]), sizeof(WrittenFile));
      return all;
    }
    if (root == 0) return mappings_.front();
    for (int number = 1; number <= plan_.linked(); ++number)
      if (plan_.writer(number) == root) return mappings_[static_cast<std::size_t>(number - 1)];
    ADD_FAILURE() << "rank " << root << " writes no index";
    return all;
  }

  TempFolder folder_, linked_;
  std::string text_;
  const std::vector<ParamSpec> specs_ = param_specs(parse_config(model, "the model"), vocab);
  const std::vector<TensorKind> kinds_ = tensor_kinds(specs_);
  Layout layout_;
  SimulatedJob job_;
  std::vector<Index> counts_, counts_of_rank_0_;  // of mappings
  IndexPlan plan_;
  std::vector<std::vector<std::string>> mappings_;  // of each index, by rank
  std::vector<WrittenFile> written_;                // linked indexes
};

// Trains two steps, saves, and resumes for two more on some ranks of a job.
struct Ran {
  std::map<int, Counted> started, resumed;  // by rank
  std::vector<Counted> writer;              // of a linked index: start and resume
  int linked_indexes = 0;
  Index mapping_bytes = 0;  // of all ranks
};
Ran run_job(int ranks, std::vector<int> others) {
  Job job(ranks);
  Ran ran;
  ran.linked_indexes = job.plan().linked();
  ran.mapping_bytes = job.mapping_bytes();
  if (ran.linked_indexes > 0) others.push_back(job.plan().writer(1));
  ran.started[0] = job.train(0, 2, false);
  for (const int rank : others) {
    // The folder in which rank 0 has written its files has its final name already.
    const fs::path unfinished = unfinished_path(checkpoints_of(job.run()), 2, 1);
    fs::create_directories(unfinished);
    ran.started[rank] = job.train(rank, 2, false);
    job.add_shard(2, rank, unfinished / checkpoint_formats().front()->shard_name(rank));
    job.check_linked_indexes(2, unfinished);
    fs::remove(unfinished);
  }
  ran.resumed[0] = job.train(0, 4, true);
  for (const int rank : others) {
    const fs::path unfinished = unfinished_path(checkpoints_of(job.run()), 4, 1);
    fs::create_directories(unfinished);
    ran.resumed[rank] = job.train(rank, 4, true);
    job.check_linked_indexes(4, unfinished);
  }
  if (ran.linked_indexes > 0)
    for (std::map<int, Counted>* phase : {&ran.started, &ran.resumed})
      ran.writer.push_back(phase->extract(others.back()).mapped());
  return ran;
}

// Bounds of a call of `train`: start, two steps and a save.
struct Bounds {
  Index opens, statuses;  // of files below the job's folder
  Index calls, bytes;     // of collectives of a group
  DigestCounts digests;   // of the indexes, and of shards that the rank reads
};
constexpr Index max_bytes = Index{40} << 20;
constexpr Bounds of_rank_0{60, 100, 120, max_bytes, {2, 1 << 20}},
    of_first_of_machine{20, 40, 120, max_bytes, {1, 64 << 10}}, of_other{9, 10, 120, max_bytes, {0, 0}},
    of_writer{20, 32, 120, max_bytes, {1, 64 << 10}};
constexpr int first_of_machine = 8;  // a rank with values of its own, so that it reads its shard
Bounds bounds_of(int rank, int linked_indexes) {
  if (rank != 0) return rank == first_of_machine ? of_first_of_machine : of_other;
  Bounds bounds = of_rank_0;
  bounds.opens += linked_indexes;
  bounds.statuses += 2 * linked_indexes;
  bounds.digests.files += static_cast<std::uint64_t>(linked_indexes);
  return bounds;
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
  first_mappings_per_index = 200;  // the model is small
  const Ran of_small = run_job(small, {first_of_machine, small / 2 + 3, small - 1}),
            of_large = run_job(large, {first_of_machine, large / 2 + 3, large - 1});
  ASSERT_GT(of_large.linked_indexes, 2);
  ASSERT_EQ(of_small.linked_indexes, of_large.linked_indexes);
  for (const auto phase : {&Ran::started, &Ran::resumed}) {
    const std::map<int, Counted>&few = of_small.*phase, &many = of_large.*phase;
    for (auto a = few.begin(), b = many.begin(); a != few.end(); ++a, ++b) {
      SCOPED_TRACE(fmt::format("rank {}, {}", b->first, phase == &Ran::started ? "start" : "resume"));
      const Bounds bounds = bounds_of(b->first, of_large.linked_indexes);
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
      // Rank 0 gets the digests of files, and other ranks nothing.
      EXPECT_LE(b->second.groups.at(large).gathered, b->first == 0 ? large * 64 : 0);
    }
  }
  // A rank gets the mappings of the linked index that it writes.
  constexpr Index most_mapping_bytes = Index{10} << 10;
  EXPECT_GT(of_large.mapping_bytes, 2 * most_mapping_bytes);
  ASSERT_EQ(of_large.writer.size(), 2u);
  for (const Counted& counted : of_large.writer) {
    expect_within(of_writer, large, counted);
    EXPECT_GT(counted.groups.at(large).gathered, 0);
    EXPECT_LE(counted.groups.at(large).gathered, most_mapping_bytes);
  }
}

}  // namespace
}  // namespace sy
