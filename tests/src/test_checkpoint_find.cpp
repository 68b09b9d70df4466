// Tests of the checkpoint that is found, and of the damage that rules one out.
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>

#include "dist/runtime.h"
#include "tests/src/checkpoint_fixture.h"
#include "tests/src/raw_hdf5.h"

namespace sy {
namespace {

using namespace test;

// ---- damage ----

TEST(CheckpointDamage, DetectsAChangedByteAnywhere) {
  const Folder run;
  const fs::path dir = write_as(run.path(), {2, 1, 2, 1}, 200);
  for (const fs::path& file : files_in(dir)) {
    const std::string content = read_file(file);
    std::vector<std::size_t> positions{0, 8, 100, content.size() / 3, content.size() / 2, content.size() - 1};
    // The manifest is small, and no other file has its digest: every byte is changed.
    if (file.filename() == manifest_name)
      for (std::size_t i = 0; i < content.size(); ++i) positions.push_back(i);
    for (std::size_t at : positions) {
      std::string damaged = content;
      damaged[at] = static_cast<char>(damaged[at] ^ 1);
      std::ofstream(file, std::ios::binary) << damaged;
      const std::string problems = joined(verify_checkpoint(dir));
      ASSERT_TRUE(has(problems, file.string())) << "byte " << at << " of " << file << ": " << problems;
      ASSERT_TRUE(has(error_of([&] { resolve_checkpoint(dir, nullptr); }), file.string()));
    }
    std::ofstream(file, std::ios::binary) << content;
  }
  EXPECT_TRUE(verify_checkpoint(dir).empty());
}

TEST(CheckpointDamage, NamesTruncatedMissingAndForeignFiles) {
  const Folder run;
  const fs::path dir = write_as(run.path(), {2, 1, 2, 1}, 200);
  const std::unique_ptr<Device> device = make_cpu();
  ParamStore store(*device, odd_specs(), Layout{}, coord_of(Layout{}, 0), false);
  for (const fs::path& file : files_in(dir)) {
    const std::string content = read_file(file);
    for (std::size_t size : {std::size_t{0}, content.size() / 2, content.size() - 1}) {
      fs::resize_file(file, size);
      EXPECT_TRUE(has(joined(verify_checkpoint(dir)), file.string())) << file << " of " << size << " bytes";
      EXPECT_TRUE(has(error_of([&] { load_checkpoint(dir, store); }), file.string()));
      if (file.filename().string().starts_with("shard")) {  // these open the index alone
        EXPECT_EQ(error_of([&] { read_state(dir); }), "");
        EXPECT_EQ(error_of([&] { CheckpointTensors tensors(dir); }), "");
      } else {
        EXPECT_TRUE(has(error_of([&] { read_state(dir); }), file.string()));
        EXPECT_TRUE(has(error_of([&] { CheckpointTensors tensors(dir); }), file.string()));
      }
      std::ofstream(file, std::ios::binary) << content;
    }
    fs::remove(file);
    EXPECT_TRUE(has(joined(verify_checkpoint(dir)), file.string() + " is missing"));
    EXPECT_TRUE(has(error_of([&] { load_checkpoint(dir, store); }), file.string() + " is missing"));
    std::ofstream(file, std::ios::binary) << content;
  }
  EXPECT_TRUE(verify_checkpoint(dir).empty());

  // An intact index and intact shards, but of two runs.
  const Folder other;
  const fs::path other_dir = write_as(other.path(), {2, 1, 1, 1}, 200);
  fs::copy_file(other_dir / index_name, dir / index_name, fs::copy_options::overwrite_existing);
  EXPECT_TRUE(has(joined(verify_checkpoint(dir)), (dir / index_name).string()));
}

TEST(CheckpointDamage, ReportsAMissingCheckpoint) {
  const Folder run;
  EXPECT_TRUE(has(error_of([&] { resolve_checkpoint(run.path() / "none", nullptr); }), "none is no folder"));
  EXPECT_TRUE(has(error_of([&] { resolve_checkpoint(run.path(), nullptr); }), "manifest.json is missing"));
  fs::create_directories(checkpoints_of(run.path()));
  EXPECT_TRUE(has(error_of([&] { resolve_checkpoint(run.path(), nullptr); }), "holds no checkpoint yet"));
  fs::remove(checkpoints_of(run.path()));
  write_file(run.path() / "config.ini", "[run]\n");
  EXPECT_TRUE(has(error_of([&] { resolve_checkpoint(run.path(), nullptr); }), "holds no checkpoint yet"));

  const fs::path dir = write_as(run.path(), {1, 1, 1, 1}, 200);
  const std::string text = read_file(dir / manifest_name);
  std::string newer = text;
  newer.replace(newer.find("\"version\": 1"), 12, "\"version\": 9");
  write_file(dir / manifest_name, newer);
  EXPECT_TRUE(
      has(error_of([&] { resolve_checkpoint(dir, nullptr); }), "has format version 9, this program reads version 1"));
  for (const char* foreign :
       {"{}", "[]", "null", "", "{\"format\": \"other\"}", "{\"format\": \"switchyard checkpoint\"}"}) {
    write_file(dir / manifest_name, foreign);
    EXPECT_TRUE(has(error_of([&] { resolve_checkpoint(dir, nullptr); }), manifest_name)) << foreign;
  }
}

TEST(CheckpointDamage, FindsTheNewestCompleteCheckpoint) {
  const Folder run;
  SingleRank trainer;
  for (Index step : {5, 10, 100, 99999999, 123456789}) trainer.save(run.path(), step);
  const fs::path checkpoints = checkpoints_of(run.path());
  const auto resolve = [&](std::vector<std::string>* warnings) { return resolve_checkpoint(run.path(), warnings); };
  std::vector<std::string> warnings;
  EXPECT_EQ(resolve(&warnings), checkpoints / "step-123456789");
  EXPECT_TRUE(warnings.empty());
  fs::remove(checkpoints / "step-123456789" / shard_name(0));
  fs::resize_file(checkpoints / "step-99999999" / index_name, 1000);
  fs::create_directory(checkpoints / "step-99999998.tmp");
  EXPECT_EQ(resolve(&warnings), checkpoints / "step-00000100");
  ASSERT_EQ(warnings.size(), 2u);
  EXPECT_TRUE(has(warnings[0], "shard-00000.h5 is missing"));
  EXPECT_TRUE(has(warnings[1], "index.h5 has 1000 bytes"));
  EXPECT_EQ(resolve_checkpoint(checkpoints / "step-00000005", nullptr), checkpoints / "step-00000005");
  EXPECT_TRUE(has(error_of([&] { resolve_checkpoint(checkpoints / "step-123456789", nullptr); }), "is missing"));

  std::vector<std::string> collective;
  EXPECT_EQ(resolve_checkpoint(*trainer.world, run.path(), &collective).path(), checkpoints / "step-00000100");
  EXPECT_EQ(collective, warnings);
  for (const char* name : {"step-00000100", "step-00000010", "step-00000005"})
    fs::remove(checkpoints / name / manifest_name);
  const std::string error = error_of([&] { resolve(nullptr); });
  EXPECT_TRUE(has(error, "2: ") && has(error, "holds no whole checkpoint") && has(error, "step-00000005")) << error;
}

// Foreign files are named once and ignored.
TEST(CheckpointDamage, IgnoresForeignFiles) {
  const Folder run;
  const fs::path dir = write_as(run.path(), {2, 1, 2, 1}, 200), checkpoints = checkpoints_of(run.path());
  std::ofstream(dir / "shard-00002.h5") << "foreign";
  std::ofstream(dir / ".DS_Store") << "foreign";
  std::ofstream(checkpoints / ".DS_Store") << "foreign";
  fs::create_directory(checkpoints / "step-200");
  fs::create_directory(checkpoints / "step-00000300.tmp");
  std::vector<std::string> warnings;
  EXPECT_EQ(resolve_checkpoint(run.path(), &warnings), dir);
  ASSERT_EQ(warnings.size(), 2u) << joined(warnings);
  EXPECT_TRUE(has(warnings[0], checkpoints.string() + " holds") && has(warnings[0], ".DS_Store, step-200"));
  EXPECT_TRUE(has(warnings[1], dir.string() + " holds") && has(warnings[1], ".DS_Store, shard-00002.h5"));
  const std::unique_ptr<Device> device = make_cpu();
  ParamStore store(*device, odd_specs(), Layout{}, coord_of(Layout{}, 0), true);
  load_checkpoint(dir, store);
  EXPECT_EQ(wrong_elements(store), 0);
  fs::remove_all(dir);
  EXPECT_EQ(resume_checkpoint(*make_comm_self(), run.path(), -1, nullptr).path(), "");
}

// The files of a manifest may have the right digests although the index needs other files.
TEST(CheckpointDamage, DetectsIndexFilesMissingInTheManifest) {
  const Folder run;
  const fs::path dir = write_as(run.path(), {2, 1, 2, 1}, 200);
  EXPECT_EQ(joined(unlisted_files(dir)), "");
  fs::rename(dir / shard_name(1), run.path() / "aside");
  seal(dir, 200);
  fs::rename(run.path() / "aside", dir / shard_name(1));
  EXPECT_EQ(joined(verify_checkpoint(dir)), "");
  EXPECT_TRUE(has(joined(unlisted_files(dir)), "index.h5 needs shard-00001.h5, which is not in its manifest"));
}

// Training deletes checkpoints while other processes read them. This is not damage.
TEST(CheckpointDamage, DetectsACheckpointDeletedWhileInUse) {
  const Folder run;
  SingleRank trainer;
  trainer.save(run.path(), 1);
  chosen_checkpoint_vanished();  // forgets the choices of other tests
  resolve_checkpoint(run.path(), nullptr);
  EXPECT_FALSE(chosen_checkpoint_vanished());
  const fs::path dir = resolve_checkpoint(run.path(), nullptr);
  trainer.save(run.path(), 2, 1);
  EXPECT_TRUE(has(error_of([&] { read_state(dir); }), dir.string()));
  EXPECT_TRUE(chosen_checkpoint_vanished());
  EXPECT_FALSE(chosen_checkpoint_vanished());  // only later choices count
}

TEST(CheckpointDamage, RejectsAFolderNamedForAnotherStep) {
  const Folder run;
  const fs::path dir = write_as(run.path(), {2, 1, 2, 1}, 6), copy = dir.parent_path() / step_name(50);
  fs::copy(dir, copy);
  const std::string says = copy.string() + " holds step 6: rename it to step-00000006";
  EXPECT_TRUE(has(joined(verify_checkpoint(copy)), says));
  EXPECT_TRUE(has(joined(verify_checkpoint(copy / "")), " holds step 6: rename it"));
  EXPECT_TRUE(has(error_of([&] { resolve_checkpoint(copy, nullptr); }), says));
  EXPECT_TRUE(has(error_of([&] { read_state(copy); }), says));
  EXPECT_TRUE(has(error_of([&] { diff_checkpoints(dir, copy); }), says));
  std::vector<std::string> warnings;
  EXPECT_EQ(resolve_checkpoint(run.path(), &warnings), dir);
  EXPECT_TRUE(has(joined(warnings), says));
  const auto world = make_comm_self();
  EXPECT_EQ(resume_checkpoint(*world, run.path(), -1, nullptr).path(), dir);
  EXPECT_TRUE(has(error_of([&] { resume_checkpoint(*world, run.path(), 50, nullptr); }), says));
  fs::rename(copy, run.path() / "the best");  // not the name of a step
  EXPECT_TRUE(verify_checkpoint(run.path() / "the best").empty());
}

// ---- resuming ----

TEST(CheckpointResume, SkipsCheckpointsWithNonFiniteValues) {
  const Folder run;
  SingleRank trainer;
  const auto resume = [&](Index step, std::vector<std::string>* warnings) {
    return resume_checkpoint(*trainer.world, run.path(), step, warnings).path().filename().string();
  };
  EXPECT_EQ(resume(-1, nullptr), "");
  EXPECT_TRUE(has(error_of([&] { resume(3, nullptr); }), "2: run.resume_step = 3: " + run.path().string()));
  trainer.save(run.path(), 3);
  write_unchecked(trainer, run.path(), 4);  // from an older program; all values are finite
  std::vector<std::string> warnings;
  EXPECT_EQ(resume(-1, &warnings), step_name(4));
  EXPECT_EQ(joined(warnings), "");

  trainer.store.get("layers.0.tiny").weight.f32()[0] = infinity;
  write_unchecked(trainer, run.path(), 5);
  trainer.store.get("layers.0.tiny").weight.f32()[0] = 0;
  TrainState state = example_state(0);
  state.router_bias[0] = nan;
  write_unchecked(trainer, run.path(), 6, state);
  EXPECT_EQ(resume(-1, &warnings), step_name(4));
  ASSERT_EQ(warnings.size(), 2u);
  EXPECT_TRUE(has(warnings[0], "step-00000006 is passed over: /router/bias")) << warnings[0];
  EXPECT_TRUE(has(warnings[1], "step-00000005 is passed over: /params/layers.0.tiny")) << warnings[1];
  // It is intact, so that it can be inspected.
  EXPECT_EQ(resolve_checkpoint(run.path(), nullptr).filename(), step_name(6));

  EXPECT_EQ(resume(3, nullptr), step_name(3));
  EXPECT_TRUE(has(error_of([&] { resume(5, nullptr); }), "2: run.resume_step = 5: /params/layers.0.tiny"));
  EXPECT_TRUE(has(error_of([&] { resume(7, nullptr); }), "holds the steps 3, 4, 5, 6: choose one of them"));
  for (Index step : {3, 4}) fs::remove_all(checkpoints_of(run.path()) / step_name(step));
  EXPECT_TRUE(has(error_of([&] { resume(-1, nullptr); }), "holds no whole checkpoint"));
}

// An older program has not checked its values. The check reads the shards that training does not.
TEST(CheckpointResume, VerifiesAllShardsOfUncheckedValues) {
  const std::vector<ParamSpec> specs = {{"tiny", {1}, {Axis::none}, {}, {}, false}};
  const Folder run;
  const fs::path dir = write_as(run.path(), Layout{3}, example_state(1), specs), unread = dir / shard_name(2);
  const std::unique_ptr<Device> device = make_cpu();
  const ParamStore store(*device, specs, Layout{}, coord_of(Layout{}, 0), true);
  const std::unique_ptr<Comm> world = make_comm_self();
  const NeededShards needed = shards_to_load(store, Load::all, WeightRanges::owned);
  const auto resume = [&] { return error_of([&] { resume_checkpoint(*world, run.path(), 1, nullptr, needed); }); };
  done(H5Adelete_by_name(RawFile(dir / index_name), "/state", finite_attribute, H5P_DEFAULT));
  seal(dir, 1);
  EXPECT_EQ(resume(), "");
  std::string content = read_file(unread);
  content.back() = static_cast<char>(content.back() ^ 1);
  fs::remove(unread);
  write_file(unread, content);
  EXPECT_TRUE(has(resume(), unread.string() + " is damaged")) << resume();
}

TEST(CheckpointResume, SetsNewerCheckpointsAside) {
  const Folder run;
  SingleRank trainer;
  const fs::path checkpoints = checkpoints_of(run.path());
  for (int time = 0; time < 2; ++time) {
    for (Index step : {3, 4, 5}) trainer.save(run.path(), step);
    EXPECT_EQ(abandon_newer(run.path(), 3).size(), 2u);
    EXPECT_EQ(steps_in(checkpoints), (std::vector<Index>{3}));
  }
  EXPECT_TRUE(abandon_newer(run.path(), 3).empty());
  for (const char* name : {"step-00000004.abandoned", "step-00000005.abandoned", "step-00000005.abandoned-2"})
    EXPECT_TRUE(verify_checkpoint(checkpoints / name).empty()) << name;
  std::vector<std::string> warnings;  // the abandoned folders are not foreign
  EXPECT_EQ(resume_checkpoint(*trainer.world, run.path(), -1, &warnings).path().filename(), step_name(3));
  EXPECT_EQ(joined(warnings), "");

  // A copy of a user stays, and folders set aside stay until all checkpoints that stay are newer.
  fs::rename(checkpoints / "step-00000005.abandoned-2", checkpoints / "step-00000005.abandoned-mine");
  const auto names = [&] {
    std::vector<std::string> all;
    for (const fs::path& path : files_in(checkpoints)) all.push_back(path.filename().string());
    return fmt::format("{}", fmt::join(all, " "));
  };
  trainer.save(run.path(), 4, 0);
  trainer.save(run.path(), 5, 2);
  EXPECT_EQ(names(),
            "step-00000004 step-00000004.abandoned step-00000004.abandoned-2 step-00000005 "
            "step-00000005.abandoned step-00000005.abandoned-mine");
  trainer.save(run.path(), 6, 2);
  EXPECT_EQ(names(), "step-00000005 step-00000005.abandoned step-00000005.abandoned-mine step-00000006");
  trainer.save(run.path(), 7, 1);
  EXPECT_EQ(names(), "step-00000005.abandoned-mine step-00000007");
}

}  // namespace
}  // namespace sy
