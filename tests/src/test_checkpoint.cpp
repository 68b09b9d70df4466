#include <gtest/gtest.h>
#include <sys/resource.h>

#include <cmath>
#include <csignal>
#include <fstream>
#include <limits>
#include <map>
#include <utility>

#include "dist/runtime.h"
#include "src/io/hdf5.h"
#include "tests/src/checkpoint_fixture.h"

namespace sy {
namespace {

using namespace test;

const Layout layouts[] = {{1, 1, 1, 1}, {2, 1, 1, 1}, {2, 1, 2, 1}, {2, 2, 1, 1},
                          {4, 2, 2, 1}, {4, 1, 2, 2}, {4, 4, 1, 1},  // more tp ranks than rows can fill
                          {6, 2, 3, 1}, {6, 1, 3, 2}, {3, 1, 3, 1}, {6, 2, 1, 1}};

bool has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

std::string joined(const std::vector<std::string>& lines) {
  return fmt::format("{}", fmt::join(lines, "\n"));
}

// One rank's training, saved by the real protocol.
struct SingleRank {
  std::unique_ptr<Backend> backend = make_cpu();
  std::unique_ptr<Comm> world = make_comm_self();
  ParamStore store{*backend, odd_specs(), Layout{}, coord_of(Layout{}, 0), true};
  SingleRank() { fill(store); }
  std::vector<std::string> save(const fs::path& run, Index step, Index keep = 0) {
    return save_checkpoint(*world, run, example_state(step), store, keep);
  }
};

TEST(ShardRuns, EveryElementIsWrittenByExactlyOneRank) {
  const std::vector<ParamSpec> specs = odd_specs();
  for (const Layout& layout : layouts) {
    std::map<std::string, std::vector<int>> written;
    for (const ParamSpec& spec : specs) written[spec.name].assign(static_cast<std::size_t>(spec.shape.elements()), 0);
    for (int rank = 0; rank < layout.ranks; ++rank) {
      const FlatLayout flat = flat_layout(specs, layout, coord_of(layout, rank));
      for (const OwnedRun& run : shard_runs(flat, layout, coord_of(layout, rank))) {
        const Placement& p = *run.placement;
        for (Index i = run.local.begin; i < run.local.end; ++i)
          ++written[p.spec->name][static_cast<std::size_t>(global_index(p.spec->shape, p.box, i))];
        Index i = run.local.begin;  // the boxes are the same elements in the same order
        for (const Box& box : global_boxes(p, run.local))
          for (Index k = 0; k < box.elements(); ++k, ++i)
            ASSERT_EQ(global_index(p.spec->shape, box, k), global_index(p.spec->shape, p.box, i)) << p.spec->name;
        ASSERT_EQ(i, run.local.end);
      }
    }
    for (const auto& [name, counts] : written)
      for (int count : counts) ASSERT_EQ(count, 1) << name << " on " << layout.str();
  }
}

TEST(Checkpoint, AnyLayoutIsReadByAnyOther) {
  const std::unique_ptr<Backend> backend = make_cpu();
  for (const Layout& writer : layouts) {
    const Folder run;
    const fs::path dir = write_as(run.path(), writer, 200);
    ASSERT_EQ(verify_checkpoint(dir), std::vector<std::string>{});
    for (const Layout& reader : layouts)
      for (int rank = 0; rank < reader.ranks; ++rank)
        for (bool training : {true, false}) {
          ParamStore store(*backend, odd_specs(), reader, coord_of(reader, rank), training);
          load_checkpoint(dir, store);
          ASSERT_EQ(wrong_elements(store), 0) << writer.str() << " read by rank " << rank << " of " << reader.str();
        }
  }
}

TEST(Checkpoint, StateComesBack) {
  const Folder run;
  const TrainState written = example_state(200), read = read_state(write_as(run.path(), {6, 2, 3, 1}, 200));
  EXPECT_EQ(read.step, 200);
  EXPECT_EQ(read.tokens, written.tokens);
  EXPECT_EQ(read.samples, written.samples);
  EXPECT_EQ(read.seed, written.seed);
  EXPECT_EQ(read.config, written.config);
  EXPECT_EQ(read.vocab, written.vocab);
  EXPECT_EQ(read.dataset, written.dataset);
  EXPECT_EQ(read.dataset_digest, written.dataset_digest);
  EXPECT_EQ(read.layout, (Layout{6, 2, 3, 1}).str());
  EXPECT_EQ(read.experts.layers, 2);
  EXPECT_EQ(read.experts.experts, 3);
  EXPECT_EQ(read.experts.layer_ids, written.experts.layer_ids);
  EXPECT_EQ(read.experts.steps, written.experts.steps);
  EXPECT_EQ(read.experts.routed, written.experts.routed);
  EXPECT_EQ(read.experts.dropped, written.experts.dropped);
  EXPECT_EQ(read.experts.probability, written.experts.probability);
  EXPECT_EQ(read.router_bias, written.router_bias);
}

TEST(Checkpoint, StateOfADenseModelAtStepZero) {
  const Folder run;
  SingleRank trainer;
  save_checkpoint(*trainer.world, run.path(), TrainState{}, trainer.store, 0);
  const TrainState read = read_state(resolve_checkpoint(run.path(), nullptr));
  EXPECT_EQ(read.step, 0);
  EXPECT_EQ(read.config, "");
  EXPECT_EQ(read.experts.windows(), 0);
  EXPECT_EQ(read.experts.layers, 0);
  EXPECT_TRUE(read.experts.routed.empty());
  EXPECT_TRUE(read.router_bias.empty());
}

TEST(Checkpoint, TensorsAreListedWholeAndInOrder) {
  const Folder run;
  const CheckpointTensors tensors(write_as(run.path(), {4, 2, 2, 1}, 200));
  std::vector<std::string> parameters;
  for (const TensorInfo& t : tensors.list())
    if (t.name.starts_with("/params/")) parameters.push_back(t.name.substr(8));
  const std::vector<ParamSpec> specs = odd_specs();
  ASSERT_EQ(parameters.size(), specs.size());
  for (std::size_t i = 0; i < specs.size(); ++i) {
    EXPECT_EQ(parameters[i], specs[i].name);
    for (const TensorKind& kind : tensor_kinds) {
      const std::string name = kind.prefix + specs[i].name;
      ASSERT_TRUE(tensors.find(name));
      EXPECT_EQ(tensors.find(name)->shape, specs[i].shape);
      const Index n = specs[i].shape.elements(), begin = n / 3, end = n - n / 5;
      const std::vector<double> values = tensors.values(name, {begin, end});
      for (Index k = begin; k < end; ++k)
        ASSERT_EQ(values[static_cast<std::size_t>(k - begin)], expected_value(name, k)) << name << " " << k;
    }
  }
  ASSERT_TRUE(tensors.find("/experts/routed"));
  EXPECT_EQ(tensors.find("/experts/routed")->dtype, DType::i64);
  EXPECT_EQ(tensors.find("/experts/routed")->shape, (Shape{4, 2, 3}));
  EXPECT_EQ(tensors.values("/experts/steps", {0, 4}), (std::vector<double>{4, 9, 14, 19}));
  EXPECT_FALSE(tensors.find("/params/none"));

  const TensorStatistics s = statistics(tensors, "/experts/steps");
  EXPECT_EQ(s.min, 4);
  EXPECT_EQ(s.max, 19);
  EXPECT_DOUBLE_EQ(s.mean, 11.5);
  EXPECT_DOUBLE_EQ(s.rms, std::sqrt((16 + 81 + 196 + 361) / 4.0));
  EXPECT_EQ(s.nans, 0);
}

// The HDF5 library alone, as any other tool: without a shard, just its elements are NaN.
TEST(Checkpoint, ALostShardReadsAsNaN) {
  const Layout layout{4, 2, 2, 1};
  const Folder run;
  const fs::path dir = write_as(run.path(), layout, 200);
  fs::remove(dir / shard_name(2));
  const std::vector<ParamSpec> specs = odd_specs();
  const FlatLayout flat = flat_layout(specs, layout, coord_of(layout, 2));
  std::map<std::string, std::vector<bool>> lost;
  for (const ParamSpec& spec : specs) lost[spec.name].assign(static_cast<std::size_t>(spec.shape.elements()), false);
  Index number = 0;
  for (const OwnedRun& run_of_2 : shard_runs(flat, layout, coord_of(layout, 2)))
    for (Index i = run_of_2.local.begin; i < run_of_2.local.end; ++i, ++number)
      lost[run_of_2.placement->spec->name]
          [static_cast<std::size_t>(global_index(run_of_2.placement->spec->shape, run_of_2.placement->box, i))] = true;
  ASSERT_GT(number, 100);
  const Hdf5File index = Hdf5File::open(dir / index_name);
  for (const ParamSpec& spec : specs) {
    std::vector<float> values(static_cast<std::size_t>(spec.shape.elements()));
    const std::string name = "/params/" + spec.name;
    index.open_dataset(name).read(whole(spec.shape), values.data());
    for (std::size_t i = 0; i < values.size(); ++i) {
      if (lost[spec.name][i])
        ASSERT_TRUE(std::isnan(values[i])) << name << " " << i;
      else
        ASSERT_EQ(values[i], expected_value(name, static_cast<Index>(i))) << name << " " << i;
    }
  }

  const std::unique_ptr<Backend> backend = make_cpu();
  ParamStore store(*backend, odd_specs(), Layout{}, coord_of(Layout{}, 0), true);
  EXPECT_TRUE(
      has(error_of([&] { load_checkpoint(dir, store); }), "2: " + (dir / shard_name(2)).string() + " is missing"));
  seal(dir, 200);  // a manifest that does not know of the shard: the NaNs are still noticed
  EXPECT_TRUE(has(error_of([&] { load_checkpoint(dir, store); }), "holds NaN, since shard-00002.h5 is missing"));
}

TEST(Checkpoint, NaNInATensorIsAnError) {
  const Folder run;
  SingleRank trainer;
  const Param weight = trainer.store.get("layers.0.moe.router.weight");
  weight.weight.f32()[77] = std::numeric_limits<float>::quiet_NaN();
  trainer.save(run.path(), 5);
  const fs::path dir = resolve_checkpoint(run.path(), nullptr);
  const std::string error = error_of([&] { load_checkpoint(dir, trainer.store); });
  EXPECT_TRUE(has(error, "2: /params/layers.0.moe.router.weight of ")) << error;
  EXPECT_TRUE(has(error, "diverged")) << error;
  EXPECT_EQ(statistics(CheckpointTensors(dir), "/params/layers.0.moe.router.weight").nans, 1);
}

TEST(Checkpoint, AnotherModelIsNamed) {
  const Folder run;
  const fs::path dir = write_as(run.path(), {2, 1, 2, 1}, 200);
  const std::unique_ptr<Backend> backend = make_cpu();
  std::vector<ParamSpec> specs = odd_specs();
  specs[2].shape = {4, 3, 29};
  specs[6].name = "layers.0.moe.gate.weight";
  ParamStore store(*backend, specs, Layout{}, coord_of(Layout{}, 0), false);
  const std::string error = error_of([&] { load_checkpoint(dir, store); });
  for (const char* part :
       {"2: ", "it has layers.0.attention.q.weight [6, 3, 29], this model has [4, 3, 29]",
        "it lacks layers.0.moe.gate.weight [6, 29]", "it has layers.0.moe.router.weight [6, 29], this model has none"})
    EXPECT_TRUE(has(error, part)) << error;
}

// ---- damage ----

std::vector<fs::path> files_in(const fs::path& dir) {
  std::vector<fs::path> files;
  for (const auto& entry : fs::directory_iterator(dir)) files.push_back(entry.path());
  std::sort(files.begin(), files.end());
  return files;
}

TEST(CheckpointDamage, AChangedByteIsNoticedAnywhere) {
  const Folder run;
  const fs::path dir = write_as(run.path(), {2, 1, 2, 1}, 200);
  for (const fs::path& file : files_in(dir)) {
    const std::string content = read_file(file);
    std::vector<std::size_t> positions{0, 8, 100, content.size() / 3, content.size() / 2, content.size() - 1};
    if (file.filename() == manifest_name)  // small, and without a digest in another file: every byte
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

TEST(CheckpointDamage, TruncatedMissingAndForeignFilesAreNamed) {
  const Folder run;
  const fs::path dir = write_as(run.path(), {2, 1, 2, 1}, 200);
  const std::unique_ptr<Backend> backend = make_cpu();
  ParamStore store(*backend, odd_specs(), Layout{}, coord_of(Layout{}, 0), false);
  for (const fs::path& file : files_in(dir)) {
    const std::string content = read_file(file);
    for (std::size_t size : {std::size_t{0}, content.size() / 2, content.size() - 1}) {
      fs::resize_file(file, size);
      EXPECT_TRUE(has(joined(verify_checkpoint(dir)), file.string())) << file << " of " << size << " bytes";
      EXPECT_TRUE(has(error_of([&] { load_checkpoint(dir, store); }), file.string()));
      EXPECT_TRUE(has(error_of([&] { read_state(dir); }), file.string()));
      EXPECT_TRUE(has(error_of([&] { CheckpointTensors tensors(dir); }), file.string()));
      std::ofstream(file, std::ios::binary) << content;
    }
    fs::remove(file);
    EXPECT_TRUE(has(joined(verify_checkpoint(dir)), file.string() + " is missing"));
    EXPECT_TRUE(has(error_of([&] { load_checkpoint(dir, store); }), file.string() + " is missing"));
    std::ofstream(file, std::ios::binary) << content;
  }
  std::ofstream(dir / "shard-00002.h5") << "foreign";
  EXPECT_EQ(joined(verify_checkpoint(dir)), (dir / "shard-00002.h5").string() + " does not belong to this checkpoint");
  fs::remove(dir / "shard-00002.h5");
  EXPECT_TRUE(verify_checkpoint(dir).empty());

  // A whole index and whole shards, but of two runs.
  const Folder other;
  const fs::path other_dir = write_as(other.path(), {2, 1, 1, 1}, 200);
  fs::copy_file(other_dir / index_name, dir / index_name, fs::copy_options::overwrite_existing);
  EXPECT_TRUE(has(joined(verify_checkpoint(dir)), (dir / index_name).string()));
}

TEST(CheckpointDamage, NoCheckpointAtAll) {
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

TEST(CheckpointDamage, TheNewestWholeOneIsFound) {
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
  EXPECT_EQ(resolve_checkpoint(*trainer.world, run.path(), &collective), checkpoints / "step-00000100");
  EXPECT_EQ(collective, warnings);
  for (const char* name : {"step-00000100", "step-00000010", "step-00000005"})
    fs::remove(checkpoints / name / manifest_name);
  const std::string error = error_of([&] { resolve(nullptr); });
  EXPECT_TRUE(has(error, "2: ") && has(error, "holds no whole checkpoint") && has(error, "step-00000005")) << error;
}

// ---- saving ----

TEST(CheckpointSave, KeepsTheNewest) {
  const Folder run;
  SingleRank trainer;
  const auto steps = [&] { return steps_in(checkpoints_of(run.path())); };
  for (Index step : {1, 2, 3, 4}) trainer.save(run.path(), step, 0);
  EXPECT_EQ(steps(), (std::vector<Index>{4, 3, 2, 1}));
  trainer.save(run.path(), 5, 3);
  EXPECT_EQ(steps(), (std::vector<Index>{5, 4, 3}));
  // Going on from an older one: what is newer, and was abandoned, is no reason to delete anything.
  trainer.save(run.path(), 4, 2);
  EXPECT_EQ(steps(), (std::vector<Index>{5, 4, 3}));
  trainer.save(run.path(), 6, 1);
  EXPECT_EQ(steps(), (std::vector<Index>{6}));
  fs::create_directories(checkpoints_of(run.path()) / "step-00000003.tmp" / "x");
  fs::create_directories(checkpoints_of(run.path()) / "notes.tmp");
  trainer.save(run.path(), 7, 1);
  EXPECT_FALSE(fs::exists(checkpoints_of(run.path()) / "step-00000003.tmp"));
  EXPECT_TRUE(fs::exists(checkpoints_of(run.path()) / "notes.tmp"));
}

TEST(CheckpointSave, AStepReachedAgainReplacesItsFolder) {
  const Folder run;
  SingleRank trainer;
  trainer.save(run.path(), 5);
  const fs::path dir = checkpoints_of(run.path()) / step_name(5);
  fs::resize_file(dir / shard_name(0), 10);
  std::ofstream(dir / "foreign") << "x";
  EXPECT_TRUE(trainer.save(run.path(), 5).empty());
  EXPECT_TRUE(verify_checkpoint(dir).empty());
  EXPECT_EQ(files_in(checkpoints_of(run.path())).size(), 1u);

  // The new name could not be forced to the disk: after a crash the old content may be there, so it is kept.
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

TEST(CheckpointSave, EqualStatesGiveEqualBytes) {
  const Folder run, other;
  SingleRank trainer;
  trainer.save(run.path(), 5);
  trainer.save(other.path(), 5);
  for (const fs::path& file : files_in(checkpoints_of(run.path()) / step_name(5)))
    EXPECT_EQ(read_file(file), read_file(checkpoints_of(other.path()) / step_name(5) / file.filename())) << file;
}

// Every operation that changes the disk fails once, and then for good, and the run is none the worse for it.
TEST(CheckpointSave, AFaultAtAnyPointLosesNothing) {
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

  // Datasets and attributes are many and alike: every 5th of them, and all the rest.
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
      if (failing <= commit) {
        ASSERT_TRUE(has(error, "1: ") && has(error, "injected: ")) << where << ": " << error;
        ASSERT_EQ(steps, (std::vector<Index>{3, 2, 1})) << where;
        ASSERT_TRUE(for_good || !fs::exists(checkpoints_of(run.path()) / "step-00000004.tmp")) << where;
      } else if (!error.empty()) {  // the folder's name could not be forced to the disk: an error, but
                                    // nothing is deleted
        ASSERT_EQ(steps, (std::vector<Index>{4, 3, 2, 1})) << where;
      } else {
        ASSERT_FALSE(warnings.empty()) << where;
        ASSERT_EQ(steps.front(), 4) << where;
      }
      // The disk is well again.
      ASSERT_TRUE(trainer.save(run.path(), 4, 2).empty()) << where;
      ASSERT_EQ(files_in(checkpoints_of(run.path())).size(), 2u) << where;
      ASSERT_EQ(resolve_checkpoint(run.path(), nullptr).filename(), step_name(4)) << where;
    }
}

// A limit on the size of files makes the system's own writes fail within HDF5, at every stage of a file.
TEST(CheckpointSave, WritesThatTheSystemRefuses) {
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

TEST(CheckpointSave, AFolderThatCannotBeMade) {
  const Folder run;
  SingleRank trainer;
  std::ofstream(checkpoints_of(run.path())) << "a file in the way";
  EXPECT_TRUE(has(error_of([&] { trainer.save(run.path(), 1); }), "1: cannot make the folder " + run.path().string()));
}

// ---- comparison ----

TEST(CheckpointDiff, EqualWhateverTheLayout) {
  const Folder a, b;
  const auto differences =
      diff_checkpoints(write_as(a.path(), {4, 2, 2, 1}, 200), write_as(b.path(), {6, 1, 3, 2}, 200));
  EXPECT_EQ(differences.size(), odd_specs().size() * 3 + 6);
  for (const TensorDifference& d : differences) {
    EXPECT_TRUE(d.bitwise_equal) << d.name;
    EXPECT_EQ(d.max_abs, 0) << d.name;
    EXPECT_EQ(d.note, "");
  }
}

TEST(CheckpointDiff, DifferencesAreMeasured) {
  const Folder a, b;
  SingleRank first, second;
  const auto weight = [](SingleRank& r, const char* name) { return r.store.get(name).weight.f32(); };
  weight(second, "embedding.weight")[1942] += 0.5f;
  weight(second, "embedding.weight")[3] -= 0.25f;
  weight(first, "layers.0.norm.weight")[4] = 0.0f;
  weight(second, "layers.0.norm.weight")[4] = -0.0f;
  weight(second, "layers.0.tiny")[0] = std::numeric_limits<float>::quiet_NaN();
  weight(second, "layers.10.norm.weight")[2] = std::numeric_limits<float>::infinity();
  first.save(a.path(), 5);
  TrainState state = example_state(5);
  state.experts.dropped[7] += 3;
  state.router_bias.clear();
  save_checkpoint(*second.world, b.path(), state, second.store, 0);
  std::map<std::string, TensorDifference> different;
  for (const TensorDifference& d :
       diff_checkpoints(resolve_checkpoint(a.path(), nullptr), resolve_checkpoint(b.path(), nullptr)))
    if (!d.bitwise_equal) different[d.name] = d;
  ASSERT_EQ(different.size(), 6u);
  EXPECT_NEAR(different["/params/embedding.weight"].max_abs, 0.5, 1e-4);
  EXPECT_EQ(different.at("/params/layers.0.norm.weight").max_abs, 0);
  EXPECT_TRUE(std::isnan(different.at("/params/layers.0.tiny").max_abs));
  EXPECT_TRUE(std::isinf(different.at("/params/layers.10.norm.weight").max_abs));
  EXPECT_EQ(different.at("/experts/dropped").max_abs, 3);
  EXPECT_EQ(different.at("/router/bias").note, "only in the first");
}

TEST(CheckpointDiff, OtherShapesAreNoted) {
  const Folder a, b;
  const fs::path first = write_as(a.path(), {1, 1, 1, 1}, 200);
  const std::unique_ptr<Backend> backend = make_cpu();
  std::vector<ParamSpec> specs = odd_specs();
  specs[1].shape = {4};
  specs[9].name = "layers.0.other";
  ParamStore store(*backend, specs, Layout{}, coord_of(Layout{}, 0), true);
  fill(store);
  const auto world = make_comm_self();
  save_checkpoint(*world, b.path(), example_state(200), store, 0);
  std::map<std::string, std::string> notes;
  for (const TensorDifference& d : diff_checkpoints(first, resolve_checkpoint(b.path(), nullptr)))
    if (!d.bitwise_equal) notes[d.name] = d.note;
  EXPECT_EQ(notes.size(), 9u);
  EXPECT_EQ(notes.at("/optimizer/v/layers.0.norm.weight"), "[5] against [4]");
  EXPECT_EQ(notes.at("/params/layers.0.tiny"), "only in the first");
  EXPECT_EQ(notes.at("/params/layers.0.other"), "only in the second");
}

}  // namespace
}  // namespace sy
