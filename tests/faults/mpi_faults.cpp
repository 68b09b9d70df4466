// One system call of a command fails. Then either the command fails and leaves older files
// unchanged, or its output is bytewise equal to that of an undisturbed run.
//
// By default every call fails once, with one of several errors in rotation. The last calls fail
// with each error. On several ranks, every 7th call fails. With SWITCHYARD_FAULTS=all, every call
// fails with every error: alone, and together with all later calls.
//
// A write may also be lost without an error. Then the command fails, or its output has the same
// values as that of an undisturbed run.
#include <gtest/gtest.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <iostream>
#include <map>
#include <sstream>
#include <tuple>

#include "dist/runtime.h"
#include "src/cli/options.h"
#include "src/io/hdf5/hdf5.h"
#include "tests/faults/faults.h"
#include "tests/mpi_world.h"
#include "tests/src/checkpoint_fixture.h"
#include "tests/src/golden_model.h"

namespace sy {
namespace {

using namespace test;

const int errors[] = {ENOSPC, EIO, lost_write, EDQUOT, half_a_write};

std::string name_of(int error) {
  return error == half_a_write ? "half a write" : error == lost_write ? "a lost write" : std::strerror(error);
}

bool all() {
  const char* const value = std::getenv("SWITCHYARD_FAULTS");
  return value && std::string(value) == "all";
}

struct Counts {
  long injected = 0, failed = 0, unharmed = 0;
};

// Returns names and contents of all files of a folder, or of one file; empty if there is no `path`.
std::map<std::string, std::string> content_of(const fs::path& path) {
  std::map<std::string, std::string> files;
  std::error_code ignored;
  if (fs::is_regular_file(path, ignored)) files["."] = read_file(path);
  if (fs::is_directory(path, ignored))
    for (const auto& entry : fs::recursive_directory_iterator(path))
      if (entry.is_regular_file()) files[fs::relative(entry.path(), path)] = read_file(entry.path());
  return files;
}

// A command under test.
struct Trial {
  std::function<void()> prepare;  // on rank 0: restores the folder before a run
  std::function<void()> run;      // on all ranks
  // Returns the output under its final name.
  std::function<std::map<std::string, std::string>()> result;
  std::function<void(const std::string& where)> check_failed;  // on rank 0, after a failure
  // Returns whether the output has the values of an undisturbed run, although its bytes may differ.
  std::function<bool()> equal_values;
  std::string path;  // substring of the paths whose calls fail
};

// Runs it with a fault on one rank. Returns the error of all ranks; empty if there is no error.
std::string run_with(const Trial& trial, int rank, const Fault& fault, long* calls = nullptr) {
  if (world().rank() == 0) trial.prepare();
  world().barrier();
  fault_arm(world().rank() == rank ? &fault : nullptr);
  std::string error;
  try {
    trial.run();
  } catch (const Error& e) {
    error = fmt::format("{}: {}", e.exit_code(), e.what());
  }
  if (calls) *calls = fault_calls();
  fault_arm(nullptr);
  const Index code = error.empty() ? 0 : 1;
  EXPECT_EQ(world().max(code), code) << "the ranks do not agree: " << error;
  return error;
}

void try_all(const Trial& trial) {
  Fault fault;
  const std::string path = trial.path;
  fault.path = path.c_str();
  fault.no_sync = true;
  Counts counts;
  for (int rank = 0; rank < world().size(); ++rank) {
    long calls = 0;
    fault.at = 0;
    ASSERT_EQ(run_with(trial, rank, fault, &calls), "");
    calls = world().max(calls);
    ASSERT_GT(calls, 5);
    std::map<std::string, std::string> undisturbed;
    if (world().rank() == 0) undisturbed = trial.result();
    ASSERT_EQ(undisturbed.empty(), world().rank() != 0);
    const long stride = world().size() == 1 || all() ? 1 : 7;
    constexpr long commit_calls = 12;  // the last calls: manifest and renames
    for (fault.at = 1 + rank; fault.at <= calls; fault.at += stride) {
      std::vector<std::pair<int, bool>> kinds;
      for (const int error : errors)
        for (const bool lasts : {false, true})
          if (all() || (!lasts && (error == errors[fault.at / stride % std::ssize(errors)] ||
                                   (fault.at > calls - commit_calls && world().size() == 1))))
            kinds.emplace_back(error, lasts);
      for (const auto& [error, lasts] : kinds) {
        fault.error = error;
        fault.lasts = lasts;
        const std::string message = run_with(trial, rank, fault);
        ++counts.injected;
        ++(message.empty() ? counts.unharmed : counts.failed);
        if (world().rank() != 0) continue;
        const std::string where = fmt::format("call {} of {} of rank {}: {}{}: {}", fault.at, calls, rank,
                                              name_of(error), lasts ? " from then on" : "", message);
        if (message.empty()) {
          ASSERT_TRUE(trial.result() == undisturbed || (error == lost_write && trial.equal_values())) << where;
        } else {
          ASSERT_NE(error, half_a_write) << where;
          ASSERT_TRUE(message.starts_with("1: ")) << where;
          ASSERT_EQ(count(message, "\n"), 0) << where;
          const auto left = trial.result();  // complete if only the sync after the rename failed
          ASSERT_TRUE(left.empty() || left == undisturbed) << where;
          trial.check_failed(where);
        }
        if (testing::Test::HasFailure()) return;
      }
    }
  }
  if (world().rank() == 0)
    std::cout << fmt::format("{} faults: {} failed as they should, {} did no harm\n", counts.injected, counts.failed,
                             counts.unharmed);
}

// Runs a command of the program on one rank, and discards its output.
void call(int (*command)(CommandLine&), std::vector<std::string> args) {
  std::ostringstream out;
  std::streambuf* const before = std::cout.rdbuf(out.rdbuf());
  struct Restore {
    std::streambuf* buffer;
    ~Restore() { std::cout.rdbuf(buffer); }
  } restore{before};
  CommandLine line{world(), std::move(args), nullptr};
  command(line);
}

bool equal_checkpoints(const fs::path& a, const fs::path& b) {
  if (!verify_checkpoint(b).empty()) return false;
  for (const TensorDifference& d : diff_checkpoints(a, b))
    if (!d.bitwise_equal) return false;
  const TrainState x = read_state(a), y = read_state(b);
  const auto values = [](const TrainState& s) {
    return std::tie(s.step, s.tokens, s.samples, s.seed, s.config, s.vocab, s.dataset, s.dataset_digest, s.layout);
  };
  return values(x) == values(y);
}

bool equal_datasets(const fs::path& a, const fs::path& b) {
  const Hdf5File x = Hdf5File::open(a), y = Hdf5File::open(b);
  if (x.datasets() != y.datasets()) return false;
  const auto bytes_of = [](const Hdf5Dataset& dataset) {
    std::string bytes(static_cast<std::size_t>(dataset.shape().elements() * size_of(dataset.dtype())), 0);
    dataset.read(full_box(dataset.shape()), bytes.data());
    return bytes;
  };
  for (const std::string& name : x.datasets())
    if (bytes_of(x.open_dataset(name)) != bytes_of(y.open_dataset(name))) return false;
  return true;
}

fs::path shared_path(const Folder& own) {
  char name[256] = {};
  if (world().rank() == 0) own.path().string().copy(name, sizeof name - 1);
  world().broadcast(view_of(reinterpret_cast<std::uint8_t*>(name), {sizeof name}), 0);
  return name;
}

TEST(FaultInjection, CheckpointsSurviveFailedCalls) {
  const Folder folder;
  const fs::path run = shared_path(folder) / "run", before = shared_path(folder) / "before";
  const std::unique_ptr<Device> device = make_cpu();
  ParamStore store(*device, odd_specs(), Layout{world().size()}, coord_of(Layout{world().size()}, world().rank()),
                   true);
  fill(store);
  const auto save = [&](const fs::path& to, Index step, Index keep) {
    for (const std::string& warning : save_checkpoint(world(), to, example_state(step), store, {.keep = keep}))
      EXPECT_TRUE(has(warning, "old checkpoint") || has(warning, "cannot")) << warning;
  };
  for (Index step : {1, 2, 3}) save(before, step, 0);
  const fs::path undisturbed = checkpoints_of(before) / step_name(3);
  const fs::path checkpoints = checkpoints_of(run);
  Trial trial;
  trial.path = checkpoints;
  trial.prepare = [&] {
    fs::remove_all(run);
    fs::create_directories(checkpoints);
    for (Index step : {1, 2})
      fs::copy(checkpoints_of(before) / step_name(step), checkpoints / step_name(step), fs::copy_options::recursive);
  };
  trial.run = [&] { save(run, 3, 2); };
  trial.result = [&] { return content_of(checkpoints / step_name(3)); };
  trial.equal_values = [&] { return equal_checkpoints(undisturbed, checkpoints / step_name(3)); };
  trial.check_failed = [&](const std::string& where) {
    for (Index step : {1, 2}) {
      const fs::path old = checkpoints / step_name(step);
      ASSERT_TRUE(verify_checkpoint(old).empty()) << where << ": " << joined(verify_checkpoint(old));
    }
  };
  try_all(trial);
}

TEST(FaultInjection, ImportSurvivesFailedCalls) {
  if (world().size() > 1) GTEST_SKIP() << "of one rank";
  const Folder folder;
  const fs::path model = folder.path() / "model", run = folder.path() / "run", other = folder.path() / "undisturbed";
  write_model(model, Json::parse(read_file(std::string(GOLDEN) + "/families.json")).at(std::size_t{0}));
  Trial trial;
  trial.path = run;
  trial.prepare = [&] { fs::remove_all(run); };
  trial.run = [&] { call(import_command, {model, run, "--quiet"}); };
  // The configuration names the folder: import into `run`, then rename it.
  call(import_command, {model, run, "--quiet"});
  fs::rename(run, other);
  trial.result = [&] { return content_of(checkpoints_of(run) / step_name(0)); };
  trial.equal_values = [&] {
    return equal_checkpoints(checkpoints_of(other) / step_name(0), checkpoints_of(run) / step_name(0));
  };
  trial.check_failed = [](const std::string&) {};
  try_all(trial);
}

void try_file(int (*command)(CommandLine&), const std::vector<std::string>& args) {
  const Folder folder;
  const fs::path file = folder.path() / "out.h5", undisturbed = folder.path() / "undisturbed";
  Trial trial;
  trial.path = file;
  trial.prepare = [&] { fs::remove(file); };
  const auto make = [&](const fs::path& path) {
    std::vector<std::string> all_args = args;
    all_args.push_back(path);
    call(command, all_args);
  };
  make(undisturbed);
  trial.run = [&] { make(file); };
  trial.result = [&] { return content_of(file); };
  trial.equal_values = [&] { return equal_datasets(undisturbed, file); };
  trial.check_failed = [&](const std::string& where) {
    for (const auto& entry : fs::directory_iterator(folder.path()))
      ASSERT_TRUE(entry.path() == file || entry.path() == undisturbed) << entry.path() << ": " << where;
  };
  try_all(trial);
}

TEST(FaultInjection, LogitsFileSurvivesFailedCalls) {
  if (world().size() > 1) GTEST_SKIP() << "of one rank";
  try_file(evaluate_command, {FIRST_RUN "/run", "--tokens=1,2,3", "--backend=cpu", "--quiet", "--logits"});
}

TEST(FaultInjection, ExpertsFileSurvivesFailedCalls) {
  if (world().size() > 1) GTEST_SKIP() << "of one rank";
  try_file(experts_command, {FIRST_RUN "/run", "--hdf5"});
}

}  // namespace
}  // namespace sy
