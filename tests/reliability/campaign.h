// The fault campaign: trials of one kind of fault each, and their counts
// (docs/reliability/campaign.md).
//
// A row of the table is a kind of fault. Its trials have numbers from 0 on. The number chooses the
// command, the point and the fault, so a trial can be repeated. The first points() trials differ.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "kernels/philox.h"
#include "kernels/tensor.h"
#include "tests/faults/faults.h"

namespace sy::campaign {

namespace fs = std::filesystem;

// survived: the command has the result of an undisturbed one.
// reported: it ended with one error or a warning, and a later command has that result.
// The others are failures. wrong: a result differs without a word. crashed: by a signal that was
// not injected. unclear: another exit code than 0 to 3, or not exactly one error.
enum class Outcome { survived, reported, wrong, hung, crashed, unclear };
constexpr const char* outcome_names[] = {"survived", "reported", "wrong", "hung", "crashed", "unclear"};
constexpr std::size_t num_outcomes = std::size(outcome_names);
inline bool is_failure(Outcome outcome) {
  return outcome > Outcome::reported;
}

struct TrialResult {
  Outcome outcome = Outcome::survived;
  std::string details;  // the fault, and the output of the command
};

class Row {
 public:
  virtual ~Row() = default;
  // Number of trials that differ; 0: each trial draws its moment at random.
  virtual Index points() const = 0;
  virtual TrialResult run(Index trial) = 0;
};

struct RowEntry {
  const char* name;
  const char* fault;  // for the table
  Index least;        // number of trials that the table asks for; 0: all points
  int ranks;          // under mpirun if greater than 1
  int share;          // of the time of a campaign
  std::unique_ptr<Row> (*make)();
};
const std::vector<RowEntry>& rows();

std::unique_ptr<Row> make_kills();
std::unique_ptr<Row> make_child_kills();
std::unique_ptr<Row> make_power_losses();
std::unique_ptr<Row> make_command_power_losses();
std::unique_ptr<Row> make_failed_calls();
std::unique_ptr<Row> make_failed_reads();
std::unique_ptr<Row> make_damage();
std::unique_ptr<Row> make_text_damage();
std::unique_ptr<Row> make_foreign_files();
std::unique_ptr<Row> make_signals();
std::unique_ptr<Row> make_rank_signals();
std::unique_ptr<Row> make_clocks();
std::unique_ptr<Row> make_shared_folders();
std::unique_ptr<Row> make_numbers();
std::unique_ptr<Row> make_memory_limits();
std::unique_ptr<Row> make_windows();
std::unique_ptr<Row> make_datagrams();
std::unique_ptr<Row> make_unlike_ranks();
std::unique_ptr<Row> make_layouts();

// Random numbers of a trial.
class Draw {
 public:
  Draw(const char* row, Index trial) : stream_(static_cast<std::uint64_t>(trial), row) {}
  Index below(Index n) { return static_cast<Index>(stream_.bits(count_++) % static_cast<std::uint64_t>(n)); }

 private:
  RandomStream stream_;
  Index count_ = 0;
};
// Maps trials 0 to n - 1 to all numbers below n, in another order.
Index shuffled(Index trial, Index n);

// ---- commands in child processes ----

struct CommandResult {
  int code = -1;      // exit code; -1 after a signal
  int signal = 0;     // that ended the process; 0: no signal
  bool hung = false;  // exceeded its limit
  std::string out, err;
  long calls = 0;  // counted system calls (tests/faults/faults.h)
};
struct CommandOptions {
  const Fault* fault = nullptr;
  double limit = 120;                       // seconds until a command counts as hung
  std::function<void()> prepare = nullptr;  // called in the child
  std::function<void()> finish = nullptr;   // called in the child after the command
  fs::path record = {};                     // file of start_record(); empty: records nothing
  std::function<void(pid_t)> meanwhile = nullptr;
};
// Runs a command of the program in a forked child, without exec(). Threads must not exist.
CommandResult run_command(const std::vector<std::string>& args, const CommandOptions& options = {});
// Starts a program, and waits for it.
CommandResult run_process(const std::vector<std::string>& args, const CommandOptions& options = {});
// The same, which must succeed: otherwise throws Failure.
CommandResult must_run(const std::vector<std::string>& args, const CommandOptions& options = {});

// Number of error messages, "switchyard: ...", that are no warnings.
Index errors_in(const std::string& err);
bool has_warning(const std::string& err);
// Outcome of a command that had a fault, without a look at its result: a failure, reported if it
// ended with one error, otherwise survived.
Outcome outcome_of(const CommandResult& result);
std::string text_of(const CommandResult& result);
// Adds the outcome of the same training, sent again. It must end with the weights `undisturbed`.
void add_resume(TrialResult& result, const CommandResult& again, const std::string& undisturbed);

double now();  // seconds of a steady clock
void sleep_seconds(double seconds);

// ---- folders ----

// The empty working folder of this campaign, which is also the current one.
const fs::path& work_folder();
void write_text(const fs::path& path, const std::string& text);
void replace_folder(const fs::path& from, const fs::path& to);  // copies; removes an old `to`
std::vector<fs::path> files_below(const fs::path& folder);      // sorted, relative

// A small data set data/ and the configuration config.ini of a training of four steps.
void make_inputs();
// Arguments of that training in a folder below the working folder.
std::vector<std::string> train_args(const std::vector<std::string>& more = {}, const fs::path& run = "run");
// Text that is equal for equal results of a training: its newest checkpoint without the record of
// the program, and its metrics without times. "" if there is no checkpoint.
std::string training_result(const fs::path& run);
// Weights and optimizer state alone.
std::string weights_result(const fs::path& run);
// Digests of the files of a folder or of a file; "" if there is none. Without JSON members that
// differ between two calls.
std::string files_result(const fs::path& path);

}  // namespace sy::campaign
