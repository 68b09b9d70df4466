// Real ranks save and load: every layout of this number of ranks, and a fault on each rank.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <fstream>
#include <limits>
#include <new>
#include <set>
#include <thread>

#include "dist/runtime.h"
#include "src/io/checkpoint_saver.h"
#include "tests/mpi_world.h"
#include "tests/src/mpi_checkpoint.h"

namespace sy {
namespace {

using namespace test;

// Rank 0 alone opens the index, whatever a rank then reads of the training state.
TEST(MpiCheckpoint, HasItsIndexFromRankZero) {
  const SharedFolder run;
  CheckpointRank rank(checkpoint_layouts(world().size()).front());
  fill(rank.store);
  rank.save(run.path, 7);
  const std::uint64_t before = file_activity().opened;
  const CheckpointFolder folder = resolve_checkpoint(world(), run.path, nullptr);
  EXPECT_EQ(read_state(folder).step, 7);
  check_parameters(folder, odd_specs());
  EXPECT_EQ(file_activity().opened - before, world().rank() == 0 ? 1 : 0);
  load_checkpoint(folder, rank.store, Load::all, WeightRanges::owned);
  world().barrier();
}

TEST(MpiCheckpoint, ReadsEveryLayoutOnEveryOther) {
  const std::vector<Layout> layouts = checkpoint_layouts(world().size());
  for (const Layout& writer : layouts) {
    const SharedFolder run;
    CheckpointRank rank(writer);
    fill(rank.store);
    rank.save(run.path, 7);
    const fs::path dir = resolve_checkpoint(world(), run.path, nullptr).path();
    EXPECT_EQ(dir, checkpoints_of(run.path) / step_name(7));
    for (const Layout& reader : layouts) {
      CheckpointRank other(reader);
      load_checkpoint(dir, other.store);
      EXPECT_EQ(wrong_elements(other.store), 0) << writer.str() << " read by " << reader.str();
    }
    // One process reads it, too. It is byte for byte the checkpoint that one process would write.
    ParamStore alone(*rank.device, odd_specs(), Layout{}, coord_of(Layout{}, 0), true);
    load_checkpoint(dir, alone);
    EXPECT_EQ(wrong_elements(alone), 0);
    if (world().rank() == 0) {
      const Folder simulated;
      const fs::path expected = write_as(simulated.path(), writer, 7);
      for (int r = 0; r < writer.ranks; ++r)
        EXPECT_EQ(read_file(dir / shard_name(r)), read_file(expected / shard_name(r))) << r;
    }
    world().barrier();
  }
}

TEST(MpiCheckpoint, SaveFailsOnAllRanksIfOneFails) {
  CheckpointRank rank({world().size(), 1, world().size(), 1});
  fill(rank.store);
  for (int faulty = 0; faulty < world().size(); ++faulty)
    for (const char* point : {"create", "write /params/embedding.weight", "close", "sync"}) {
      const SharedFolder run;
      rank.save(run.path, 1);
      std::string error;
      {
        const FaultScope fault([&](std::string_view what, const fs::path& path) {
          if (what == point && path.filename() == shard_name(faulty))
            fail("injected on rank {}: {}", world().rank(), what);
        });
        error = error_of([&] { rank.save(run.path, 2, 1); });
      }
      // A rank whose ranges do not include the embedding does not write it, and cannot fail.
      const bool met = world().max(error.empty() ? 0 : 1) == 1;
      EXPECT_EQ(error, met ? fmt::format("1: injected on rank {}: {}", faulty, point) : "");
      EXPECT_TRUE(met || std::string_view(point).starts_with("write "));
      const fs::path newest = resolve_checkpoint(world(), run.path, nullptr).path();
      EXPECT_EQ(newest.filename(), step_name(met ? 1 : 2));
      EXPECT_FALSE(fs::exists(newest.parent_path() / "step-00000002.tmp"));
      world().barrier();  // the next save may make that folder
      load_checkpoint(newest, rank.store);
      EXPECT_EQ(wrong_elements(rank.store), 0);
      rank.save(run.path, 2, 1);
      EXPECT_EQ(resolve_checkpoint(world(), run.path, nullptr).path().filename(), step_name(2));
    }
}

TEST(MpiCheckpoint, RejectsANonFiniteValueOfOneRank) {
  CheckpointRank rank({world().size(), 1, world().size(), 1});
  for (const char* tensor :
       {"/params/layers.0.moe.experts.down.weight", "/optimizer/v/layers.0.moe.experts.down.weight"}) {
    const SharedFolder run;
    fill(rank.store);
    rank.save(run.path, 1);
    for_each_element(rank.store, [&](const std::string& name, Index i, float* x) {
      // In the last expert.
      if (name == tensor && i == 6 * 29 * 7 - 1) *x = std::numeric_limits<float>::quiet_NaN();
    });
    const std::string error = error_of([&] { rank.save(run.path, 2, 1); });
    EXPECT_TRUE(error.starts_with(fmt::format("1: {} holds values that are not finite at step 2", tensor)))
        << world().rank() << ": " << error;
    EXPECT_EQ(resume_checkpoint(world(), run.path, -1, nullptr).path().filename(), step_name(1));
    EXPECT_EQ(resume_checkpoint(world(), run.path, 1, nullptr).path().filename(), step_name(1));
    EXPECT_TRUE(
        error_of([&] { resume_checkpoint(world(), run.path, 2, nullptr); }).starts_with("2: run.resume_step = 2"));
  }
}

// ---- asynchronous saves (CheckpointSaver) ----

// Calls poll() until the checkpoint is committed, as a training does between steps.
SavedCheckpoint poll_to_the_end(CheckpointSaver& saver, const Retention& retention = {}) {
  for (;;) {
    if (const auto saved = saver.poll([&](const TrainState&) { return retention; })) return *saved;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

// The values change as soon as start() returns. The files are those of a synchronous save.
TEST(MpiCheckpoint, AsynchronousSavesWriteTheSameFiles) {
  for (const Layout& layout : {checkpoint_layouts(world().size()).front(), checkpoint_layouts(world().size()).back()}) {
    const SharedFolder run, expected;
    CheckpointRank rank(layout);
    fill(rank.store);
    rank.save(expected.path, 3);
    CheckpointSaver saver(world(), run.path, true);
    for (const Index step : {3, 4}) {
      saver.start(example_state(step), rank.store);
      EXPECT_TRUE(saver.in_progress());
      for_each_element(rank.store, [](const std::string&, Index, float* x) { *x = -1; });
      const SavedCheckpoint saved =
          step == 3 ? poll_to_the_end(saver) : saver.finish([](const TrainState&) { return Retention{}; });
      EXPECT_FALSE(saver.in_progress());
      EXPECT_EQ(saved.step, step);
      EXPECT_EQ(joined(saved.warnings), "");
      fill(rank.store);
    }
    rank.save(expected.path, 4);
    if (world().rank() == 0)
      for (const Index step : {3, 4}) {
        const fs::path a = checkpoints_of(run.path) / step_name(step),
                       b = checkpoints_of(expected.path) / step_name(step);
        ASSERT_EQ(files_in(a).size(), static_cast<std::size_t>(world().size() + 2));
        ASSERT_EQ(files_in(b).size(), files_in(a).size());
        for (const fs::path& file : files_in(a))
          EXPECT_EQ(read_file(file), read_file(b / file.filename())) << layout.str() << " " << file;
      }
    world().barrier();
  }
}

// The writer of one rank fails, or the commit of rank 0. All ranks learn it between steps.
TEST(MpiCheckpoint, FailureOfAWriterReachesAllRanks) {
  CheckpointRank rank({world().size(), 1, world().size(), 1});
  fill(rank.store);
  for (int faulty = 0; faulty < world().size(); ++faulty)
    for (const std::string& file : {shard_name(faulty), std::string(manifest_name)}) {
      if (file == manifest_name && faulty != 0) continue;
      const SharedFolder run;
      rank.save(run.path, 1);
      CheckpointSaver saver(world(), run.path, true);
      {
        const FaultScope fault([&](std::string_view what, const fs::path& path) {
          if (path.filename() == file && what != "create") fail("injected: {}", what);
        });
        saver.start(example_state(2), rank.store);
        const std::string error = error_of([&] { poll_to_the_end(saver, {.keep = 1}); });
        EXPECT_TRUE(error.starts_with("1: injected: ")) << file << ": " << error;
      }
      EXPECT_FALSE(saver.in_progress());
      EXPECT_EQ(resolve_checkpoint(world(), run.path, nullptr).path().filename(), step_name(1));
      EXPECT_FALSE(fs::exists(checkpoints_of(run.path) / "step-00000002.tmp"));
      world().barrier();
      saver.start(example_state(2), rank.store);
      poll_to_the_end(saver, {.keep = 1});
      EXPECT_EQ(resolve_checkpoint(world(), run.path, nullptr).path().filename(), step_name(2));
      EXPECT_FALSE(fs::exists(checkpoints_of(run.path) / step_name(1)));
    }
}

// A writer that is slow on one rank holds up the commit, and nothing else.
TEST(MpiCheckpoint, PollDoesNotWaitForASlowWriter) {
  const SharedFolder run;
  CheckpointRank rank({world().size(), 1, world().size(), 1});
  fill(rank.store);
  rank.save(run.path, 1);
  const int slow = world().size() - 1;
  std::atomic<bool> open = false;
  const FaultScope fault([&](std::string_view what, const fs::path& path) {
    while (what == "close" && path.filename() == shard_name(slow) && !open)
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
  });
  CheckpointSaver saver(world(), run.path, true);
  saver.start(example_state(2), rank.store);
  for (int step = 0; step < 20; ++step) EXPECT_FALSE(saver.poll([](const TrainState&) { return Retention{}; }));
  EXPECT_EQ(resolve_checkpoint(world(), run.path, nullptr).path().filename(), step_name(1));
  world().barrier();
  open = true;
  EXPECT_EQ(poll_to_the_end(saver).step, 2);
  EXPECT_EQ(resolve_checkpoint(world(), run.path, nullptr).path().filename(), step_name(2));
  world().barrier();
}

// An object that is destroyed while its thread writes leaves what a killed process leaves.
TEST(MpiCheckpoint, DestroyedSaverCommitsNothing) {
  const SharedFolder run;
  CheckpointRank rank({world().size(), 1, 1, 1});
  fill(rank.store);
  rank.save(run.path, 1);
  {
    CheckpointSaver saver(world(), run.path, true);
    saver.start(example_state(2), rank.store);
  }
  world().barrier();
  EXPECT_EQ(resolve_checkpoint(world(), run.path, nullptr).path().filename(), step_name(1));
  EXPECT_FALSE(fs::exists(checkpoints_of(run.path) / step_name(2)));
  world().barrier();
  rank.save(run.path, 3);
  EXPECT_FALSE(fs::exists(checkpoints_of(run.path) / "step-00000002.tmp"));
}

TEST(MpiCheckpoint, CopyFindsANonFiniteValueOfOneRank) {
  CheckpointRank rank({world().size(), 1, world().size(), 1});
  for (const float value : {std::numeric_limits<float>::quiet_NaN(), -std::numeric_limits<float>::infinity()}) {
    const SharedFolder run;
    fill(rank.store);
    for_each_element(rank.store, [&](const std::string& name, Index i, float* x) {
      if (name == "/optimizer/v/layers.0.moe.experts.down.weight" && i == 6 * 29 * 7 - 1) *x = value;
    });
    CheckpointSaver saver(world(), run.path, true);
    const std::string error = error_of([&] { saver.start(example_state(2), rank.store); });
    EXPECT_TRUE(error.starts_with("1: /optimizer/v/layers.0.moe.experts.down.weight holds values that are not finite"))
        << error;
    EXPECT_FALSE(saver.in_progress());
    EXPECT_FALSE(fs::exists(checkpoints_of(run.path)));
  }
}

// ---- the verification of a resume ----

// Flips a bit near the end of a file.
void damage(const fs::path& file) {
  std::fstream stream(file, std::ios::in | std::ios::out | std::ios::binary);
  stream.seekg(-3, std::ios::end);
  const auto byte = static_cast<char>(stream.peek() ^ 1);
  stream.seekp(-3, std::ios::end);
  stream.put(byte);
}

// Does the same on one rank. Collective.
void damage_on(int rank, const fs::path& file) {
  world().barrier();
  if (world().rank() == rank) damage(file);
  world().barrier();
}

NeededShards needed_by(const ParamStore& store) {
  return shards_to_load(store, Load::all, WeightRanges::owned);
}

// Number of files that a resume has digested on this rank.
struct Resumed {
  CheckpointFolder folder = fs::path();
  std::vector<std::string> warnings;
  Index digested = 0;
  Resumed(const fs::path& run, const NeededShards& needed, Index step = -1) {
    const std::uint64_t before = digest_counts().files;
    folder = resume_checkpoint(world(), run, step, &warnings, needed);
    digested = static_cast<Index>(digest_counts().files - before);
  }
  std::string name() const { return folder.path().filename(); }
};

// Some rank reads each file, under the layout that wrote it and under another.
TEST(MpiCheckpoint, ResumeFindsDamageInAnyFile) {
  const std::vector<Layout> layouts = checkpoint_layouts(world().size());
  CheckpointRank rank(layouts.front());
  fill(rank.store);
  std::vector<std::string> files = {index_name, manifest_name};
  for (int r = 0; r < world().size(); ++r) files.push_back(shard_name(r));
  for (const Layout& reader : {layouts.front(), layouts.back()})
    for (const std::string& file : files) {
      SCOPED_TRACE(file + " read by " + reader.str());
      const CheckpointRank resumed(reader);
      const SharedFolder run;
      rank.save(run.path, 1);
      rank.save(run.path, 2);
      const fs::path damaged = checkpoints_of(run.path) / step_name(2) / file;
      damage_on(0, damaged);
      const Resumed result(run.path, needed_by(resumed.store));
      EXPECT_EQ(result.name(), step_name(1));
      EXPECT_EQ(resume_checkpoint(world(), run.path, -1, nullptr).path().filename(), step_name(1));
      EXPECT_EQ(resolve_checkpoint(world(), run.path, nullptr).path().filename(), step_name(1));
      EXPECT_EQ(result.warnings.size(), world().rank() == 0 ? 1u : 0u) << joined(result.warnings);
      if (world().rank() == 0) {
        EXPECT_TRUE(has(joined(result.warnings), damaged.string())) << joined(result.warnings);
      }
      const std::string error = error_of([&] { Resumed(run.path, needed_by(resumed.store), 2); });
      EXPECT_TRUE(error.starts_with("2: run.resume_step = 2")) << error;
      world().barrier();
    }
}

// A rank digests no shard that it does not load. A machine digests each of its shards once.
TEST(MpiCheckpoint, ResumeDigestsTheShardsThatAreLoaded) {
  const std::vector<Layout> layouts = checkpoint_layouts(world().size());
  for (const Layout& writer : {layouts.front(), layouts.back()})
    for (const Layout& reader : layouts) {
      SCOPED_TRACE(writer.str() + " read by " + reader.str());
      const SharedFolder run;
      CheckpointRank rank(writer), resumed(reader);
      fill(rank.store);
      rank.save(run.path, 1);
      const Resumed result(run.path, needed_by(resumed.store));
      const std::uint64_t before = file_activity().opened;
      load_checkpoint(result.folder, resumed.store, Load::all, WeightRanges::owned);
      const auto opened = static_cast<Index>(file_activity().opened - before);
      EXPECT_LE(result.digested, opened + (world().rank() == 0 ? 1 : 0));
      EXPECT_EQ(world().sum(static_cast<double>(result.digested)), world().size() + 1);
    }
}

// Copies of a run, one of each rank, at the same relative path: ranks that see other bytes.
struct OwnCopies {
  Folder folder;
  fs::path before = fs::current_path();
  explicit OwnCopies(const fs::path& run) {
    world().barrier();
    fs::copy(run, folder.path() / "run", fs::copy_options::recursive);
    fs::current_path(folder.path());
  }
  ~OwnCopies() { fs::current_path(before); }
};

// All ranks fall back if one of them sees damage. A rank does not see damage in what it does not
// read.
TEST(MpiCheckpoint, EachRankVerifiesTheBytesThatItReads) {
  const int size = world().size();
  const SharedFolder run;
  CheckpointRank rank({size, 1, 1, 1}), loaded({size, 1, 1, 1});
  fill(rank.store);
  rank.save(run.path, 1);
  rank.save(run.path, 2);
  for (int faulty = 0; faulty < size; ++faulty)
    for (const bool reads : {true, false}) {
      SCOPED_TRACE(fmt::format("rank {}, {}", faulty, reads ? "its shard" : "the next shard"));
      if (!reads && size == 1) continue;
      const OwnCopies copies(run.path);
      // In the layout that wrote it, a rank reads its own shard.
      const fs::path step = checkpoints_of("run") / step_name(2);
      damage_on(faulty, step / shard_name(reads ? faulty : (faulty + 1) % size));
      const Resumed result("run", needed_by(rank.store));
      EXPECT_EQ(result.name(), step_name(reads ? 1 : 2));
      EXPECT_EQ(result.digested, (reads ? 2 : 1) * (world().rank() == 0 ? 2 : 1));
      EXPECT_EQ(result.warnings.size(), reads && world().rank() == 0 ? 1u : 0u) << joined(result.warnings);
      load_checkpoint(result.folder, loaded.store, Load::all, WeightRanges::owned);
    }
}

// All ranks read one shard. A rank verifies it for others that have the same path to it alone.
TEST(MpiCheckpoint, RanksWithOwnCopiesVerifyTheSameShard) {
  const int size = world().size();
  const SharedFolder run;
  if (world().rank() == 0)
    for (const Index step : {1, 2}) write_as(run.path, Layout{}, step);
  world().barrier();
  const CheckpointRank rank({size, 1, 1, 1});
  const Resumed shared(run.path, needed_by(rank.store));
  EXPECT_EQ(shared.name(), step_name(2));
  EXPECT_EQ(shared.digested, world().rank() == 0 ? 2 : 0);
  for (int faulty = 0; faulty < size; ++faulty) {
    const OwnCopies copies(run.path);
    damage_on(faulty, checkpoints_of("run") / step_name(2) / shard_name(0));
    const Resumed result("run", needed_by(rank.store));
    EXPECT_EQ(result.name(), step_name(1));
    EXPECT_EQ(result.digested, world().rank() == 0 ? 4 : 2);
  }
}

TEST(MpiCheckpoint, ManifestsThatDifferAreAnErrorOfAllRanks) {
  const int size = world().size(), last = size - 1;
  const SharedFolder run;
  CheckpointRank rank({size, 1, 1, 1});
  fill(rank.store);
  rank.save(run.path, 1);
  rank.save(run.path, 2);
  const OwnCopies copies(run.path);
  const fs::path step = checkpoints_of("run") / step_name(2);
  damage_on(last, step / shard_name(last));
  if (world().rank() == last) seal(step, 2);
  const std::string error = error_of([&] { Resumed("run", needed_by(rank.store)); });
  EXPECT_TRUE(size == 1 ? error.empty() : has(error, "2: ") && has(error, "has the digest of ")) << error;
}

// A rank may fail before the verification, or the checkpoint may be of another model.
TEST(MpiCheckpoint, VerifiesEqualSharesIfShardsAreNotKnown) {
  const int size = world().size();
  const SharedFolder run;
  CheckpointRank rank({size, 1, 1, 1});
  fill(rank.store);
  rank.save(run.path, 1);
  rank.save(run.path, 2);
  std::vector<ParamSpec> fewer = odd_specs();
  fewer.pop_back();
  ParamStore other(*rank.device, fewer, rank.layout, coord_of(rank.layout, world().rank()), true);
  for (const bool damaged : {false, true}) {
    if (damaged) damage_on(0, checkpoints_of(run.path) / step_name(2) / shard_name(size / 2));
    for (int faulty = 0; faulty < size; ++faulty) {
      const Resumed result(run.path, [&](const CheckpointFolder& folder) {
        if (world().rank() == faulty) throw std::bad_alloc();
        return needed_by(rank.store)(folder);
      });
      EXPECT_EQ(result.name(), step_name(damaged ? 1 : 2));
      EXPECT_EQ(result.digested, (damaged ? 2 : 1) * (world().rank() == 0 ? 2 : 1));
    }
    const Resumed result(run.path, needed_by(other));
    EXPECT_EQ(result.name(), step_name(damaged ? 1 : 2));
    EXPECT_EQ(result.digested, (damaged ? 2 : 1) * (world().rank() == 0 ? 2 : 1));
    const std::string error = error_of([&] { load_checkpoint(result.folder, other, Load::all, WeightRanges::owned); });
    EXPECT_TRUE(has(error, "is of another model: it has layers.10.norm.weight")) << error;
    world().barrier();
  }
}

// A parameter of one element: all writers but the first have padding alone.
TEST(MpiCheckpoint, ResumeComparesSizesOfShardsThatNobodyReads) {
  const int size = world().size();
  const std::vector<ParamSpec> specs = {{"tiny", {1}, {Axis::none}, {}, {}, false}};
  const SharedFolder run;
  if (world().rank() == 0)
    for (const Index step : {1, 2}) write_as(run.path, Layout{size + 2}, example_state(step), specs);
  world().barrier();
  const Layout layout{size};
  const std::unique_ptr<Device> device = make_cpu();
  const ParamStore store(*device, specs, layout, coord_of(layout, world().rank()), true);
  const fs::path dir = checkpoints_of(run.path) / step_name(2), unread = dir / shard_name(size + 1);
  damage_on(0, unread);
  EXPECT_EQ(Resumed(run.path, needed_by(store)).name(), step_name(2));
  EXPECT_TRUE(has(joined(verify_checkpoint(dir)), unread.string() + " is damaged"));
  world().barrier();
  if (world().rank() == 0) fs::resize_file(unread, fs::file_size(unread) - 1);
  world().barrier();
  EXPECT_EQ(Resumed(run.path, needed_by(store)).name(), step_name(1));
}

TEST(MpiCheckpoint, EachShardIsInOneShare) {
  const Folder folder;
  const Manifest manifest = read_manifest(write_as(folder.path(), Layout{5, 1, 1, 1}, 3));
  for (const int size : {1, 2, 3, 8}) {
    std::multiset<std::string> found;
    for (int index = 0; index < size; ++index) {
      const std::set<std::string> share = shard_share(manifest, index, size);
      EXPECT_LE(share.size(), static_cast<std::size_t>((5 + size - 1) / size));
      found.insert(share.begin(), share.end());
    }
    EXPECT_EQ(found.size(), 5u);
    for (int r = 0; r < 5; ++r) EXPECT_EQ(found.count(shard_name(r)), 1u);
  }
}

TEST(MpiCheckpoint, ReportsAMissingCheckpointOnAllRanks) {
  const SharedFolder run;
  EXPECT_EQ(resume_checkpoint(world(), run.path, -1, nullptr).path(), "");
  EXPECT_NE(error_of([&] { resolve_checkpoint(world(), run.path, nullptr); }).find("2: "), std::string::npos);
}

}  // namespace
}  // namespace sy
