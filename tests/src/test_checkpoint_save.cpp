// Saving a checkpoint is atomic, whatever fails.
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <csignal>
#include <fstream>
#include <utility>

#include "dist/runtime.h"
#include "tests/src/checkpoint_fixture.h"
#include "tests/src/raw_hdf5.h"

namespace sy {
namespace {

using namespace test;

TEST(CheckpointSave, KeepsTheNewest) {
  const Folder run;
  SingleRank trainer;
  const auto steps = [&] { return steps_in(checkpoints_of(run.path())); };
  for (Index step : {1, 2, 3, 4}) trainer.save(run.path(), step, 0);
  EXPECT_EQ(steps(), (std::vector<Index>{4, 3, 2, 1}));
  trainer.save(run.path(), 5, 3);
  EXPECT_EQ(steps(), (std::vector<Index>{5, 4, 3}));
  // Training resumes from an older step. An abandoned newer checkpoint is no reason to delete
  // anything.
  trainer.save(run.path(), 4, 2);
  EXPECT_EQ(steps(), (std::vector<Index>{5, 4, 3}));
  trainer.save(run.path(), 6, 1);
  EXPECT_EQ(steps(), (std::vector<Index>{6}));
  fs::create_directories(checkpoints_of(run.path()) / "step-00000003.tmp");
  std::ofstream(checkpoints_of(run.path()) / "step-00000003.tmp" / shard_name(0)) << "x";
  fs::create_directories(checkpoints_of(run.path()) / "notes.tmp");
  trainer.save(run.path(), 7, 1);
  EXPECT_FALSE(fs::exists(checkpoints_of(run.path()) / "step-00000003.tmp"));
  EXPECT_TRUE(fs::exists(checkpoints_of(run.path()) / "notes.tmp"));
}

// Folders and files of the user stay, and do not count as checkpoints.
TEST(CheckpointSave, KeepsForeignFiles) {
  const Folder run, elsewhere;
  SingleRank trainer;
  const fs::path checkpoints = checkpoints_of(run.path());
  const auto note = [](const fs::path& file) {
    fs::create_directories(file.parent_path());
    std::ofstream(file) << "mine";
  };
  for (Index step : {1, 2, 3}) trainer.save(run.path(), step);
  note(checkpoints / "step-00000002" / "notes.txt");
  note(checkpoints / "step-00000003" / "notes" / "a");
  note(checkpoints / "step-00000005" / "notes.txt");  // named like a step, but not a checkpoint
  note(checkpoints / "step-00000004.tmp-keep-this" / "index.h5");
  note(checkpoints / "step-00000006.tmp");
  note(checkpoints / "step-00000007.tmp" / "notes.txt");
  note(elsewhere.path() / "index.h5");
  fs::create_directory_symlink(elsewhere.path(), checkpoints / "step-00000008.tmp");
  const std::string warnings = joined(trainer.save(run.path(), 8, 1));
  for (
      const char* message :
      {"step-00000002 stays, since Switchyard did not write notes.txt: move that elsewhere, or remove the folder yourself",
       "step-00000003 stays, since Switchyard did not write notes: ",
       "step-00000005 stays, since it has no manifest.json", "step-00000006.tmp stays, ",
       "step-00000007.tmp stays, since Switchyard did not write notes.txt", "step-00000008.tmp stays, "})
    EXPECT_TRUE(has(warnings, message)) << message << " in " << warnings;
  EXPECT_EQ(std::count(warnings.begin(), warnings.end(), '\n'), 5) << warnings;
  EXPECT_FALSE(fs::exists(checkpoints / "step-00000001"));
  for (const char* path : {"step-00000002/notes.txt", "step-00000002/index.h5", "step-00000003/notes/a",
                           "step-00000005/notes.txt", "step-00000004.tmp-keep-this/index.h5", "step-00000006.tmp",
                           "step-00000007.tmp/notes.txt", "step-00000008.tmp/index.h5"})
    EXPECT_TRUE(fs::exists(checkpoints / path)) << path;
  EXPECT_TRUE(verify_checkpoint(checkpoints / "step-00000008").empty());
  EXPECT_EQ(files_in(elsewhere.path()).size(), 1u);
  // run.keep does not count a folder of the user.
  trainer.save(run.path(), 9, 3);
  EXPECT_TRUE(fs::exists(checkpoints / "step-00000008" / manifest_name));
}

TEST(CheckpointSave, KeepsPinnedCheckpoints) {
  const Folder run;
  SingleRank trainer;
  const auto save = [&](Index step, Index pinned) {
    Retention retention{.keep = 2};
    if (pinned >= 0) retention.pinned.insert(pinned);
    save_checkpoint(*trainer.world, run.path(), example_state(step), trainer.store, retention);
    return steps_in(checkpoints_of(run.path()));
  };
  for (Index step : {2, 4}) save(step, -1);
  EXPECT_EQ(save(6, 2), (std::vector<Index>{6, 4, 2}));
  EXPECT_EQ(save(8, 2), (std::vector<Index>{8, 6, 2}));
  EXPECT_EQ(newest_before(checkpoints_of(run.path()), 6), 2);
  EXPECT_EQ(newest_before(checkpoints_of(run.path()), 2), -1);
  EXPECT_EQ(oldest_checkpoint(checkpoints_of(run.path())), 2);
  EXPECT_EQ(save(10, -1), (std::vector<Index>{10, 8}));
}

TEST(CheckpointSave, KeepsMultiplesOfKeepEvery) {
  const Folder run;
  SingleRank trainer;
  for (Index step = 0; step <= 14; step += 2)
    save_checkpoint(*trainer.world, run.path(), example_state(step), trainer.store,
                    {.keep = 2, .keep_every = 4, .pinned = {2, 6}});
  EXPECT_EQ(steps_in(checkpoints_of(run.path())), (std::vector<Index>{14, 12, 8, 6, 4, 2, 0}));
  save_checkpoint(*trainer.world, run.path(), example_state(16), trainer.store, {.keep = 2});
  EXPECT_EQ(steps_in(checkpoints_of(run.path())), (std::vector<Index>{16, 14}));
}

// After a crash, an old checkpoint is either intact or has a name that no reader accepts. Its new
// name is on the disk before any of its files is deleted.
TEST(CheckpointSave, SyncsNamesBeforeDeletingFiles) {
  const Folder run;
  SingleRank trainer;
  for (Index step : {1, 2}) trainer.save(run.path(), step);
  std::vector<std::string> points;
  {
    const FaultScope count([&](std::string_view what, const fs::path& path) {
      if (what == "rename" || what == "remove" || what == "sync" || what == "mkdir")
        points.push_back(fmt::format("{} {}", what, path.lexically_relative(run.path()).string()));
    });
    trainer.save(run.path(), 3, 1);
  }
  const auto at = [&](const std::string& point, std::ptrdiff_t from = 0) {
    const auto found = std::find(points.begin() + from, points.end(), point) - points.begin();
    EXPECT_LT(found, std::ssize(points)) << point << " in " << joined(points);
    return found;
  };
  EXPECT_LT(at("sync ."), at("rename checkpoints/step-00000003"));
  const auto renamed = at("rename checkpoints/step-00000001.tmp");
  EXPECT_LT(at("rename checkpoints/step-00000002.tmp"), at("remove checkpoints/step-00000001.tmp"));
  EXPECT_LT(at("sync checkpoints", renamed), at("remove checkpoints/step-00000001.tmp"));
}

TEST(CheckpointSave, ReplacesTheFolderOfARepeatedStep) {
  const Folder run;
  SingleRank trainer;
  trainer.save(run.path(), 5);
  const fs::path dir = checkpoints_of(run.path()) / step_name(5);
  fs::resize_file(dir / shard_name(0), 10);
  EXPECT_TRUE(trainer.save(run.path(), 5).empty());
  EXPECT_TRUE(verify_checkpoint(dir).empty());
  EXPECT_EQ(files_in(checkpoints_of(run.path())).size(), 1u);
  std::ofstream(dir / "foreign") << "x";
  const fs::path aside = dir.string() + ".tmp";
  for (int time = 0; time < 2; ++time) {
    EXPECT_TRUE(
        has(joined(trainer.save(run.path(), 5)), aside.string() + " stays, since Switchyard did not write foreign"));
    EXPECT_TRUE(verify_checkpoint(dir).empty());
    EXPECT_EQ(files_in(aside), (std::vector<fs::path>{aside / "foreign"}));
    EXPECT_EQ(files_in(dir).size(), 3u);
  }
  EXPECT_EQ(files_in(checkpoints_of(run.path())).size(), 2u);
  fs::remove_all(aside);

  // The new name could not be synced to the disk. After a crash the old content may be there, so it
  // is kept.
  {
    bool renamed = false;
    const FaultScope fault([&](std::string_view what, const fs::path& path) {
      if (std::exchange(renamed, false)) fail("injected: {} {}", what, path.string());
      renamed = what == "rename" && path == dir;
    });
    EXPECT_TRUE(has(error_of([&] { trainer.save(run.path(), 5); }), "injected: sync"));
  }
  EXPECT_TRUE(verify_checkpoint(dir).empty());
  EXPECT_TRUE(verify_checkpoint(dir.string() + ".tmp").empty());
  EXPECT_TRUE(trainer.save(run.path(), 5).empty());
  EXPECT_EQ(files_in(checkpoints_of(run.path())).size(), 1u);
}

TEST(CheckpointSave, WritesEqualBytesForEqualStates) {
  const Folder run, other;
  SingleRank trainer;
  trainer.save(run.path(), 5);
  trainer.save(other.path(), 5);
  for (const fs::path& file : files_in(checkpoints_of(run.path()) / step_name(5)))
    EXPECT_EQ(read_file(file), read_file(checkpoints_of(other.path()) / step_name(5) / file.filename())) << file;
}

// Every operation that changes the disk fails once, or fails from then on. The run loses nothing.
TEST(CheckpointSave, LosesNothingAtAnyFailedCall) {
  SingleRank trainer;
  std::vector<std::string> points;
  const Folder prepared;
  for (Index step : {1, 2, 3}) trainer.save(prepared.path(), step);
  fs::create_directories(checkpoints_of(prepared.path()) / "step-00000002.tmp");
  const auto prepare = [&](const fs::path& run) { fs::copy(prepared.path(), run, fs::copy_options::recursive); };
  {
    const Folder run;
    prepare(run.path());
    const FaultScope count([&](std::string_view what, const fs::path& path) {
      points.push_back(fmt::format("{} {}", what, path.filename().string()));
    });
    ASSERT_TRUE(trainer.save(run.path(), 4, 2).empty());
  }
  ASSERT_GT(points.size(), 100u);
  const auto commit = std::find(points.begin(), points.end(), "rename step-00000004") - points.begin();
  ASSERT_LT(commit, std::ssize(points));

  // There are many similar datasets and attributes. Every 5th of them is tested, and every other
  // operation.
  const auto alike = [](const std::string& point) {
    return point.starts_with("write ") || point.starts_with("create /");
  };
  for (bool for_good : {false, true})
    for (std::ptrdiff_t failing = 0; failing < std::ssize(points); ++failing) {
      const std::string& point = points[static_cast<std::size_t>(failing)];
      if (alike(point) && failing % 5 != 0) continue;
      const Folder run;
      prepare(run.path());
      std::string error;
      std::vector<std::string> warnings;
      {
        std::ptrdiff_t at = 0;
        const FaultScope fault([&](std::string_view what, const fs::path& path) {
          const std::ptrdiff_t now = at++;
          if (now == failing || (for_good && now > failing)) fail("injected: {} {}", what, path.string());
        });
        error = error_of([&] { warnings = trainer.save(run.path(), 4, 2); });
      }
      const std::string where = fmt::format("{} ({}{})", point, failing, for_good ? ", for good" : "");
      const std::vector<Index> steps = steps_in(checkpoints_of(run.path()));
      for (Index step : steps)
        ASSERT_TRUE(verify_checkpoint(checkpoints_of(run.path()) / step_name(step)).empty()) << where;
      // The call after the commit removes it.
      if (!for_good && failing < commit && point == "remove step-00000002.tmp") {
        ASSERT_TRUE(error.empty() && warnings.empty()) << where << ": " << error;
        ASSERT_EQ(steps.front(), 4) << where;
      } else if (failing <= commit) {
        ASSERT_TRUE(has(error, "1: ") && has(error, "injected: ")) << where << ": " << error;
        ASSERT_EQ(steps, (std::vector<Index>{3, 2, 1})) << where;
        ASSERT_TRUE(for_good || !fs::exists(checkpoints_of(run.path()) / "step-00000004.tmp")) << where;
      } else if (!error.empty()) {  // the name is not synced: nothing is deleted
        ASSERT_EQ(steps, (std::vector<Index>{4, 3, 2, 1})) << where;
      } else {
        ASSERT_FALSE(warnings.empty()) << where;
        ASSERT_EQ(steps.front(), 4) << where;
      }
      // The disk works again.
      ASSERT_TRUE(trainer.save(run.path(), 4, 2).empty()) << where;
      ASSERT_EQ(files_in(checkpoints_of(run.path())).size(), 2u) << where;
      ASSERT_EQ(resolve_checkpoint(run.path(), nullptr).filename(), step_name(4)) << where;
    }
}

// With a limit on file sizes, writes of the system fail within HDF5, at every stage of a file.
TEST(CheckpointSave, ReportsFailedWrites) {
  const Folder run;
  SingleRank trainer;
  trainer.save(run.path(), 1);
  const auto largest = fs::file_size(checkpoints_of(run.path()) / step_name(1) / shard_name(0));
  const auto open_files = [] {
    return std::distance(fs::directory_iterator("/proc/self/fd"), fs::directory_iterator());
  };
  const auto open_before = open_files();
  struct rlimit before {};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);
  for (std::uintmax_t limit :
       {std::uintmax_t{1}, std::uintmax_t{512}, std::uintmax_t{3000}, largest / 2, largest - 1}) {
    struct rlimit limited = before;
    limited.rlim_cur = limit;
    ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &limited), 0);
    const std::string error = error_of([&] { trainer.save(run.path(), 2, 1); });
    ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &before), 0);
    EXPECT_TRUE(has(error, "1: ") && has(error, shard_name(0)) && has(error, "File too large"))
        << limit << ": " << error;
    EXPECT_EQ(files_in(checkpoints_of(run.path())).size(), 1u) << limit;
    EXPECT_EQ(resolve_checkpoint(run.path(), nullptr).filename(), step_name(1));
  }
  std::signal(SIGXFSZ, handler);
  EXPECT_EQ(open_files(), open_before);
  trainer.save(run.path(), 2, 1);
  EXPECT_EQ(resolve_checkpoint(run.path(), nullptr).filename(), step_name(2));
}

TEST(CheckpointSave, ReportsAFolderThatCannotBeCreated) {
  const Folder run;
  SingleRank trainer;
  std::ofstream(checkpoints_of(run.path())) << "a file in the way";
  EXPECT_TRUE(has(error_of([&] { trainer.save(run.path(), 1); }), "1: cannot make the folder " + run.path().string()));
}

// Otherwise it would seek a free name for ever.
TEST(CheckpointSave, ReportsANameThatCannotBeLookedUp) {
  const Folder dir;
  const fs::path loop = dir.path() / "checkpoints";
  fs::create_symlink(loop, loop);
  EXPECT_THROW(free_number(loop, 1), Failure);
}

TEST(CheckpointSave, RejectsNonFiniteValues) {
  const Folder run;
  SingleRank good;
  good.save(run.path(), 1);
  for (const TensorKind& kind : tensor_kinds(odd_specs()))
    for (float value : {nan, infinity}) {
      SingleRank trainer;
      const std::string bad = kind.prefix + "layers.10.norm.weight";
      for_each_element(trainer.store, [&](const std::string& name, Index i, float* x) {
        if (name == bad && i == 7) *x = value;
      });
      const std::string error = error_of([&] { trainer.save(run.path(), 2, 1); });
      EXPECT_TRUE(has(error, "1: " + bad + " holds values that are not finite at step 2")) << error;
      EXPECT_EQ(files_in(checkpoints_of(run.path())).size(), 1u);
    }
  TrainState state = example_state(2);
  state.router_bias[3] = nan;
  EXPECT_TRUE(
      has(error_of([&] { save_checkpoint(*good.world, run.path(), state, good.store, {.keep = 1}); }), "/router/bias"));
  EXPECT_EQ(resolve_checkpoint(run.path(), nullptr).filename(), step_name(1));
}

}  // namespace
}  // namespace sy
