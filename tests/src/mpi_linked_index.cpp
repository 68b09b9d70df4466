// Real ranks save checkpoints with linked indexes, each written by another rank.
#include <gtest/gtest.h>

#include <fstream>

#include "dist/runtime.h"
#include "src/io/checkpoint_saver.h"
#include "tests/mpi_world.h"
#include "tests/src/mpi_checkpoint.h"

namespace sy {
namespace {

using namespace test;

// Saves with indexes of few mappings. Two ranks have one index all the same.
void save_linked(CheckpointRank& rank, const fs::path& run, Index step, bool asynchronous = false, Index keep = 0) {
  ShardContents contents = shard_contents(rank.store);
  contents.mappings_per_index = few_mappings;
  TrainState state = example_state(step);
  state.layout = rank.layout.str();
  CheckpointSaver saver(world(), run, asynchronous);
  saver.start(state, contents);
  saver.finish([&](const TrainState&) { return Retention{.keep = keep}; });
}

std::vector<std::string> linked_indexes(const fs::path& dir) {
  std::vector<std::string> names;
  for (const Manifest::File& file : read_manifest(dir).files)
    if (written_format().is_linked_index(file.name)) names.push_back(file.name);
  return names;
}

// The files are those that one process writes, and the tensors those of a checkpoint of one index.
TEST(LinkedIndexLayouts, HaveTheTensorsOfOneIndex) {
  const std::vector<Layout> layouts = checkpoint_layouts(world().size());
  for (const Layout& writer : layouts) {
    const SharedFolder run, whole;
    CheckpointRank rank(writer);
    fill(rank.store);
    save_linked(rank, run.path, 7, &writer == &layouts.front());
    rank.save(whole.path, 7);
    const fs::path dir = resolve_checkpoint(world(), run.path, nullptr).path(),
                   of_one = checkpoints_of(whole.path) / step_name(7);
    EXPECT_EQ(std::ssize(linked_indexes(dir)) > 1, world().size() > 2);
    EXPECT_EQ(linked_indexes(of_one), std::vector<std::string>{});
    for (const Layout& reader : {layouts.front(), layouts.back()}) {
      CheckpointRank other(reader);
      const bool with_head = reader == layouts.front();
      load_checkpoint(with_head ? CheckpointFolder(world(), dir) : CheckpointFolder(dir), other.store);
      EXPECT_EQ(wrong_elements(other.store), 0) << writer.str() << " read by " << reader.str();
    }
    if (world().rank() == 0) {
      for (const TensorDifference& d : diff_checkpoints(dir, of_one)) EXPECT_TRUE(d.bitwise_equal) << d.name;
      const Folder simulated;
      const fs::path expected = write_linked(simulated.path(), writer, 7);
      std::vector<std::string> names = {index_name};
      for (const std::string& name : linked_indexes(expected)) names.push_back(name);
      std::sort(names.begin() + 1, names.end());
      for (int r = 0; r < writer.ranks; ++r) names.push_back(shard_name(r));
      std::vector<std::string> listed;
      for (const Manifest::File& file : read_manifest(dir).files) listed.push_back(file.name);
      EXPECT_EQ(listed, names);
      for (const std::string& name : names) EXPECT_EQ(read_file(dir / name), read_file(expected / name)) << name;
    }
    world().barrier();
  }
}

// Rank 0 alone opens the indexes, whatever a rank then reads.
TEST(LinkedIndexLayouts, AreReadByRankZero) {
  const SharedFolder run;
  CheckpointRank rank(checkpoint_layouts(world().size()).front());
  fill(rank.store);
  save_linked(rank, run.path, 7);
  const fs::path dir = resolve_checkpoint(world(), run.path, nullptr).path();
  const std::uint64_t before = file_activity().opened;
  const CheckpointFolder folder(world(), dir);
  EXPECT_EQ(read_state(folder).step, 7);
  check_parameters(folder, odd_specs());
  const std::uint64_t indexes = 1 + linked_indexes(dir).size();
  EXPECT_EQ(file_activity().opened - before, world().rank() == 0 ? indexes : 0);
  world().barrier();
}

TEST(LinkedIndexLayouts, ResumeFindsDamageInAnyIndex) {
  const SharedFolder prepared;
  CheckpointRank rank({world().size(), 1, 1, 1});
  fill(rank.store);
  for (const Index step : {1, 2}) save_linked(rank, prepared.path, step);
  for (const std::string& file : linked_indexes(checkpoints_of(prepared.path) / step_name(2))) {
    const SharedFolder run;
    const fs::path damaged = checkpoints_of(run.path) / step_name(2) / file;
    if (world().rank() == 0) {
      fs::copy(prepared.path, run.path, fs::copy_options::recursive);
      std::fstream stream(damaged, std::ios::in | std::ios::out | std::ios::binary);
      stream.seekg(-3, std::ios::end);
      const auto byte = static_cast<char>(stream.peek() ^ 1);
      stream.seekp(-3, std::ios::end);
      stream.put(byte);
    }
    world().barrier();
    std::vector<std::string> warnings;
    EXPECT_EQ(resume_checkpoint(world(), run.path, -1, &warnings).path().filename(), step_name(1)) << file;
    if (world().rank() == 0) {
      EXPECT_NE(joined(warnings).find(damaged.string()), std::string::npos) << joined(warnings);
    }
    world().barrier();
  }
}

// A linked index cannot be written: the save fails on all ranks. If the job is killed instead, the
// folder is as it is at this call.
TEST(LinkedIndexLayouts, LoseNothingIfAWriterFailsOrIsKilled) {
  const SharedFolder prepared;
  CheckpointRank rank({world().size(), 1, world().size() % 2 ? 1 : 2, 1});
  fill(rank.store);
  save_linked(rank, prepared.path, 1);
  for (const std::string& file : linked_indexes(checkpoints_of(prepared.path) / step_name(1)))
    for (const std::string_view point : {"create", "create /optimizer/", "write attribute shape", "close", "sync"}) {
      const SharedFolder run;
      save_linked(rank, run.path, 1);
      const Folder killed;
      std::string error;
      bool met = false;
      {
        const FaultScope fault([&](std::string_view what, const fs::path& path) {
          if (path.filename() != file || !what.starts_with(point)) return;
          met = true;
          fs::copy(run.path, killed.path(), fs::copy_options::recursive | fs::copy_options::overwrite_existing);
          fail("injected: {}", what);
        });
        error = error_of([&] { save_linked(rank, run.path, 2, false, 1); });
      }
      EXPECT_EQ(world().max(met ? 1 : 0), 1) << file << ": " << point;
      EXPECT_TRUE(error.starts_with("1: injected: ")) << error;
      EXPECT_EQ(resume_checkpoint(world(), run.path, -1, nullptr).path().filename(), step_name(1));
      EXPECT_FALSE(fs::exists(checkpoints_of(run.path) / "step-00000002.tmp"));
      if (met) {
        const auto self = make_comm_self();
        EXPECT_TRUE(fs::exists(checkpoints_of(killed.path()) / "step-00000002.tmp"));
        EXPECT_EQ(resume_checkpoint(*self, killed.path(), -1, nullptr).path().filename(), step_name(1));
        SingleRank alone;
        EXPECT_EQ(joined(alone.save(killed.path(), 2, 1)), "");
        EXPECT_EQ(files_in(checkpoints_of(killed.path())).size(), 1u);
      }
      world().barrier();
      save_linked(rank, run.path, 2, true, 1);
      EXPECT_EQ(resolve_checkpoint(world(), run.path, nullptr).path().filename(), step_name(2));
      EXPECT_FALSE(fs::exists(checkpoints_of(run.path) / step_name(1)));
      world().barrier();
    }
}

}  // namespace
}  // namespace sy
