// Real ranks save and load: every layout of this number of ranks, and a fault on each rank.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <fstream>
#include <limits>
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
  const fs::path dir = resolve_checkpoint(world(), run.path, nullptr);
  const std::uint64_t before = file_activity().opened;
  const CheckpointFolder folder(world(), dir);
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
    const fs::path dir = resolve_checkpoint(world(), run.path, nullptr);
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
      const fs::path newest = resolve_checkpoint(world(), run.path, nullptr);
      EXPECT_EQ(newest.filename(), step_name(met ? 1 : 2));
      EXPECT_FALSE(fs::exists(newest.parent_path() / "step-00000002.tmp"));
      world().barrier();  // the next save may make that folder
      load_checkpoint(newest, rank.store);
      EXPECT_EQ(wrong_elements(rank.store), 0);
      rank.save(run.path, 2, 1);
      EXPECT_EQ(resolve_checkpoint(world(), run.path, nullptr).filename(), step_name(2));
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
    EXPECT_EQ(resume_checkpoint(world(), run.path, -1, nullptr).filename(), step_name(1));
    EXPECT_EQ(resume_checkpoint(world(), run.path, 1, nullptr).filename(), step_name(1));
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
      EXPECT_EQ(resolve_checkpoint(world(), run.path, nullptr).filename(), step_name(1));
      EXPECT_FALSE(fs::exists(checkpoints_of(run.path) / "step-00000002.tmp"));
      world().barrier();
      saver.start(example_state(2), rank.store);
      poll_to_the_end(saver, {.keep = 1});
      EXPECT_EQ(resolve_checkpoint(world(), run.path, nullptr).filename(), step_name(2));
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
  EXPECT_EQ(resolve_checkpoint(world(), run.path, nullptr).filename(), step_name(1));
  world().barrier();
  open = true;
  EXPECT_EQ(poll_to_the_end(saver).step, 2);
  EXPECT_EQ(resolve_checkpoint(world(), run.path, nullptr).filename(), step_name(2));
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
  EXPECT_EQ(resolve_checkpoint(world(), run.path, nullptr).filename(), step_name(1));
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

// Each rank verifies a share of the files. A damaged file of any of them is found.
TEST(MpiCheckpoint, ResumeFindsDamageInAnyFile) {
  CheckpointRank rank({world().size(), 1, 1, 1});
  fill(rank.store);
  std::vector<std::string> files = {index_name, manifest_name};
  for (int r = 0; r < world().size(); ++r) files.push_back(shard_name(r));
  for (const std::string& file : files) {
    const SharedFolder run;
    rank.save(run.path, 1);
    rank.save(run.path, 2);
    const fs::path damaged = checkpoints_of(run.path) / step_name(2) / file;
    if (world().rank() == 0) {
      std::fstream stream(damaged, std::ios::in | std::ios::out | std::ios::binary);
      stream.seekg(-3, std::ios::end);
      const auto byte = static_cast<char>(stream.peek() ^ 1);
      stream.seekp(-3, std::ios::end);
      stream.put(byte);
    }
    world().barrier();
    std::vector<std::string> warnings;
    EXPECT_EQ(resume_checkpoint(world(), run.path, -1, &warnings).filename(), step_name(1)) << file;
    EXPECT_EQ(resolve_checkpoint(world(), run.path, nullptr).filename(), step_name(1)) << file;
    if (world().rank() == 0) {
      EXPECT_EQ(warnings.size(), 1u) << joined(warnings);
      EXPECT_NE(joined(warnings).find(damaged.string()), std::string::npos) << joined(warnings);
    }
    EXPECT_TRUE(
        error_of([&] { resume_checkpoint(world(), run.path, 2, nullptr); }).starts_with("2: run.resume_step = 2"));
    world().barrier();
  }
}

TEST(MpiCheckpoint, EachFileIsInOneShare) {
  const Folder folder;
  const fs::path dir = write_as(folder.path(), Layout{5, 1, 1, 1}, 3);
  const Manifest manifest = read_manifest(dir);
  for (const Manifest::File& file : manifest.files) fs::remove(dir / file.name);
  for (const int size : {1, 2, 3, 8}) {
    std::vector<std::string> found;
    for (int index = 0; index < size; ++index) {
      const auto share = file_problems(dir, manifest, CheckFiles::digests, {index, size});
      EXPECT_LE(share.size(), static_cast<std::size_t>(5 / size + 2));
      found.insert(found.end(), share.begin(), share.end());
    }
    EXPECT_EQ(found.size(), 6u);
    EXPECT_EQ(std::set<std::string>(found.begin(), found.end()).size(), 6u);
  }
}

TEST(MpiCheckpoint, ReportsAMissingCheckpointOnAllRanks) {
  const SharedFolder run;
  EXPECT_EQ(resume_checkpoint(world(), run.path, -1, nullptr), "");
  EXPECT_NE(error_of([&] { resolve_checkpoint(world(), run.path, nullptr); }).find("2: "), std::string::npos);
}

}  // namespace
}  // namespace sy
