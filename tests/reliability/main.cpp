// Runs trials of one row of the fault campaign. tests/reliability/campaign.sh calls it.
//
//   campaign --row NAME [--seconds S] [--trials N] [--journal FILE]   trials that the journal lacks
//   campaign --row NAME --trial N                                     one trial, with its details
//   campaign --list                                                   names, ranks and shares
//   campaign --summary --journal FILE                                 the table
//   campaign COMMAND ARGUMENTS...                                     as the program `switchyard`
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <iostream>
#include <limits>

#include "dist/runtime.h"
#include "kernels/environment.h"
#include "src/build_info.h"
#include "src/provenance/provenance.h"
#include "src/text/numbers.h"
#include "tests/mpi_world.h"
#include "tests/reliability/journal.h"
#include "tests/reliability/rank_faults.h"

int switchyard_main(int argc, char** argv);

namespace sy {

namespace test {
static Comm* shared_world = nullptr;
Comm& world() {
  return *shared_world;
}
}  // namespace test

namespace campaign {

const std::vector<RowEntry>& rows() {
  static const std::vector<RowEntry> all = {
      {"kill", "SIGKILL before and halfway of each write, sync, rename and removal of a command that writes", 2000, 1,
       3, make_kills},
      {"kill-children", "SIGKILL as in `kill`, of a `sweep` or `scale` that trains, or of one of its trainings", 0, 1,
       2, make_child_kills},
      {"layouts", "SIGKILL of a rank of two as in `kill`; then the same layout, and another one", 0, 1, 3,
       make_layouts},
      {"power", "power loss: changes since the last sync lost or reordered", 500, 1, 3, make_power_losses},
      {"power-commands", "the same of prepare, import, export, `sweep` and `scale` with their trainings", 0, 1, 2,
       make_command_power_losses},
      {"call", "disk full, EIO, EDQUOT, half a write, read-only, no descriptors; once and lasting", 2000, 1, 6,
       make_failed_calls},
      {"call-reads", "reads that fail: EIO, EACCES, ENOENT, no descriptors; once and lasting", 0, 1, 2,
       make_failed_reads},
      {"damage", "bit flipped, range zeroed, cut, extended, missing or exchanged: checkpoints, data, kept files", 10000,
       1, 4, make_damage},
      {"text", "the same of texts without a digest: configuration, metrics, records", 500, 1, 1, make_text_damage},
      {"foreign", "16 kinds: FIFO, folder, device or link in place of a file; strange names; hostile expressions", 1600,
       1, 1, make_foreign_files},
      {"number", "NaN, infinity, spike in a gradient; bit flipped in a weight, a moment or a copy", 500, 2, 1,
       make_numbers},
      {"signal", "KILL, TERM, USR1, INT, HUP, STOP at a random moment", 1000, 1, 2, make_signals},
      {"ranks", "the same to a rank, the launcher or all", 1000, 1, 2, make_rank_signals},
      {"clock", "a clock that jumps", 100, 1, 1, make_clocks},
      {"folder", "two trainings in one folder, deletion beside a reader, a folder that is moved", 100, 1, 1,
       make_shared_folders},
      {"memory", "an allocation fails, once or with all later ones; a full address space", 2000, 1, 3,
       make_memory_limits},
      {"windows", "a rank is killed, stopped or exits: MPI_Init, shared window, collectives, save, end", 300, 1, 2,
       make_windows},
      {"datagrams", "forged, cut, extended, changed and repeated heartbeats, and signed ones with wrong numbers", 10000,
       1, 1, make_datagrams},
      {"unlike", "a hung or slow rank; ranks of unlike builds, configurations or processors", 100, 1, 2,
       make_unlike_ranks},
  };
  return all;
}

namespace {

struct Options {
  std::string row, journal;
  double seconds = 60;
  Index trials = std::numeric_limits<Index>::max(), trial = -1;
};

TrialResult tried(Row& row, Index trial) {
  try {
    return row.run(trial);
  } catch (const std::exception& e) {
    return {Outcome::wrong, std::string("the result cannot be read: ") + e.what()};
  }
}

constexpr double seconds_of_batch = 300;  // an interrupted campaign loses no more

std::string batch_text(const Batch& batch) {
  std::string text = fmt::format("{}: {} trials from {} on, {:.1f}/s:", batch.row, batch.trials, batch.first,
                                 static_cast<double>(batch.trials) / batch.seconds);
  for (std::size_t i = 0; i < num_outcomes; ++i)
    if (batch.outcomes[i] > 0) text += fmt::format(" {} {}", batch.outcomes[i], outcome_names[i]);
  return text + (batch.points > 0 ? fmt::format("; {} different faults", batch.points) : "");
}

// Runs trials until the time is over. Returns 1 if a fault passed unnoticed.
// world: of all ranks of a row with several; rank 0 writes the journal.
int run_row(const RowEntry& entry, const Options& options, Comm* world) {
  const bool reports = !world || world->rank() == 0;
  std::unique_ptr<Row> row = entry.make();
  if (options.trial >= 0) {
    const TrialResult result = tried(*row, options.trial);
    if (reports) fmt::print("{}: {}\n", outcome_names[static_cast<std::size_t>(result.outcome)], result.details);
    return is_failure(result.outcome);
  }
  Batch batch{entry.name, 0, 0, row->points()};
  if (!options.journal.empty()) batch.first = next_trial(read_journal(options.journal), entry.name);
  const double begin = now();
  double begin_of_batch = begin;
  Index trials = 0;
  int code = 0;
  const auto agree = [&](bool value) { return world ? world->max(value) > 0 : value; };
  // Writes the trials since the last batch to the journal.
  const auto end_batch = [&] {
    batch.seconds = now() - begin_of_batch;
    batch.commit = commit_text(build_info());
    batch.date = utc_text(static_cast<double>(std::time(nullptr))).substr(0, 10);
    if (reports) {
      if (!options.journal.empty()) add_to_journal(options.journal, batch);
      fmt::print("{}\n", batch_text(batch));
      std::fflush(stdout);
    }
    batch.first += batch.trials;
    batch.trials = 0;
    batch.outcomes = {};
    begin_of_batch = now();
  };
  while (agree(trials < options.trials && (trials == 0 || now() - begin < options.seconds))) {
    const Index trial = batch.first + batch.trials;
    const TrialResult result = tried(*row, trial);
    ++batch.outcomes[static_cast<std::size_t>(result.outcome)];
    ++batch.trials;
    ++trials;
    if (is_failure(result.outcome)) {
      code = 1;
      if (reports)
        fmt::print(stderr, "campaign: {} --trial {} is {}: {}\n", entry.name, trial,
                   outcome_names[static_cast<std::size_t>(result.outcome)], result.details);
    }
    if (agree(now() - begin_of_batch > seconds_of_batch)) end_batch();
  }
  if (batch.trials > 0) end_batch();
  return code;
}

int usage() {
  std::cerr << "campaign: --row NAME [--seconds S] [--trials N] [--journal FILE] [--trial N], --list, or --summary "
               "--journal FILE\n";
  return 2;
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  bool list = false, summarizes = false;
  for (int i = 1; i < argc; ++i) {
    const std::string name = argv[i];
    if (name == "--list")
      list = true;
    else if (name == "--summary")
      summarizes = true;
    else if (i + 1 == argc)
      return usage();
    else if (const std::string value = argv[++i]; name == "--row")
      options.row = value;
    else if (name == "--journal")
      options.journal = fs::absolute(value);
    else if (name == "--seconds")
      options.seconds = std::stod(value);
    else if (name == "--trials")
      options.trials = std::stoll(value);
    else if (name == "--trial")
      options.trial = std::stoll(value);
    else
      return usage();
  }
  if (list)
    for (const RowEntry& row : rows()) fmt::print("{} {} {}\n", row.name, row.ranks, row.share);
  if (summarizes) fmt::print("{}", summary(read_journal(options.journal)));
  if (list || summarizes) return 0;
  for (const RowEntry& row : rows()) {
    if (options.row != row.name) continue;
    if (row.ranks == 1) {
      const int code = run_row(row, options, nullptr);
      fs::current_path("/");
      fs::remove_all(work_folder());
      return code;
    }
    set_library_defaults();
    Runtime runtime(std::make_shared<RankContext>(), &argc, &argv);
    test::shared_world = &runtime.world();
    return runtime.run([&] { return run_row(row, options, &runtime.world()); });
  }
  return usage();
}

}  // namespace campaign
}  // namespace sy

int main(int argc, char** argv) {
  if (argc > 1 && argv[1][0] != '-') {
    sy::campaign::arm_rank_faults();
    const int code = switchyard_main(argc, argv);
    sy::campaign::write_window_counts();
    return code;
  }
  // A thread of the parent would not exist in its forked children. OpenMP reads this before main.
  if (!getenv("OMP_NUM_THREADS")) {
    setenv("OMP_NUM_THREADS", "1", 1);
    execv("/proc/self/exe", argv);
  }
  try {
    return sy::campaign::main(argc, argv);
  } catch (const std::exception& e) {
    fmt::print(stderr, "campaign: {}\n", e.what());
    return 2;
  }
}
