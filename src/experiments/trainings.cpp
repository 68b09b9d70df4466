#include "src/experiments/trainings.h"

#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <functional>
#include <set>
#include <sstream>
#include <thread>

#include "kernels/check.h"
#include "src/data/dataset.h"
#include "src/experiments/outcome.h"
#include "src/experiments/runs.h"
#include "src/io/lock.h"
#include "src/io/manifest.h"
#include "src/system/files.h"
#include "src/system/new_folders.h"
#include "src/text/numbers.h"
#include "src/text/strings.h"
#include "src/text/table.h"
#include "src/train/metrics.h"
#include "src/train/stop.h"

namespace sy {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

// Line in RUN.log between the output of two starts.
constexpr std::string_view start_line = "---- next start ----";
constexpr std::string_view warning_begin = "warning: ";
constexpr std::string_view ranks_placeholder = "{ranks}";

enum class Starts { all, last };
// Returns the messages in RUN.log.
std::vector<std::string> messages_in_log(const fs::path& log, Starts starts) {
  constexpr std::string_view begin = "switchyard: ";
  std::vector<std::string> messages;
  if (file_exists(log))
    read_lines(log, [&](const TextLine& line) {
      if (starts == Starts::last && line.text == start_line) messages.clear();
      if (line.text.starts_with(begin)) messages.emplace_back(line.text.substr(begin.size()));
    });
  return messages;
}

bool is_warning(const std::string& message) {
  return message.starts_with(warning_begin);
}

// Returns the last error of the last start.
std::string last_error(const fs::path& log) {
  std::vector<std::string> messages = messages_in_log(log, Starts::last);
  std::erase_if(messages, is_warning);
  return messages.empty() ? "" : messages.back();
}

fs::path log_of(const fs::path& run) {
  return run.string() + ".log";
}

// Returns the command that starts a program on a number of ranks. "{ranks}" in `launcher`
// stands for that number. If `launcher` is empty, launch/mpirun.sh of this clone or installation is
// used.
// A single rank then needs no launcher, unless `always` is true. Throws InputError if the script is
// missing.
std::vector<std::string> launch_command(const std::string& launcher, int ranks, bool always) {
  std::vector<std::string> command;
  if (!launcher.empty()) {
    std::istringstream in(launcher);
    for (std::string argument; in >> argument;) {
      if (const auto at = argument.find(ranks_placeholder); at != argument.npos)
        argument.replace(at, ranks_placeholder.size(), std::to_string(ranks));
      command.push_back(argument);
    }
    return command;
  }
  if (ranks == 1 && !always) return command;
  for (const std::filesystem::path& folder : resource_folders()) {
    const std::filesystem::path script = folder / "launch" / "mpirun.sh";
    std::error_code none;
    if (std::filesystem::exists(script, none)) return {script.string(), std::to_string(ranks)};
  }
  bad_input("launch/mpirun.sh is not beside {}: say how ranks are started, as in --launcher \"mpirun -np {{ranks}}\"",
            program_path().string());
}

struct ProgramResult {
  int code = 0;  // exit code, or 128 + the signal that ended it
  // Last error that it printed, without "switchyard: "; empty if there is none.
  std::string error;
};
// Runs a program to its end. Its output goes to the file `log`: after that of earlier starts if
// `append` is true. Calls `meanwhile` about ten times a second.
// A stop request to this process (src/train/stop.h) is passed on. If this process dies, the program
// gets SIGTERM. Throws Failure if it cannot be started.
ProgramResult run_program(const std::vector<std::string>& command, const std::filesystem::path& log, bool append,
                          const std::function<void()>& meanwhile) {
  std::vector<char*> argv;
  for (const std::string& argument : command) argv.push_back(const_cast<char*>(argument.c_str()));
  argv.push_back(nullptr);
  const int out = open(log.c_str(), O_WRONLY | O_CREAT | O_APPEND | (append ? 0 : O_TRUNC) | O_CLOEXEC, 0666);
  if (out < 0) fail("cannot write {}: {}", log.string(), std::strerror(errno));
  if (append) {
    const std::string line = fmt::format("\n{}\n", start_line);  // the last line may lack its end
    if (write(out, line.data(), line.size()) != std::ssize(line))
      fail("cannot write {}: {}", log.string(), std::strerror(errno));
  }
  const pid_t self = getpid();
  const pid_t child = fork();
  if (child < 0) fail("cannot start {}: {}", command.front(), std::strerror(errno));
  if (child == 0) {
    // A terminal's Ctrl-C then reaches only the parent, which passes it on.
    setpgid(0, 0);
    for (const int signal : {SIGUSR1, SIGTERM, SIGINT, SIGHUP}) std::signal(signal, SIG_DFL);
    prctl(PR_SET_PDEATHSIG, SIGTERM);
    const int in = open("/dev/null", O_RDONLY);
    dup2(in, STDIN_FILENO);
    dup2(out, STDOUT_FILENO);
    dup2(out, STDERR_FILENO);
    if (getppid() == self) execvp(argv.front(), argv.data());
    static_cast<void>(!write(STDERR_FILENO, "switchyard: cannot be started\n", 30));
    _exit(127);
  }
  close(out);
  bool passed_on = false;
  int status = 0;
  for (;;) {
    const pid_t ended = waitpid(child, &status, WNOHANG);
    if (ended == child) break;
    if (ended < 0 && errno != EINTR) fail("lost {}: {}", command.front(), std::strerror(errno));
    if (const int signal = stop_signal(); signal != 0 && !passed_on) {
      passed_on = true;
      kill(child, signal);
    }
    meanwhile();
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
  }
  ProgramResult result{WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status), last_error(log)};
  if (result.code == 127) fail("cannot start {}: see {}", command.front(), log.string());
  return result;
}

// One line that is rewritten on a terminal; otherwise one line per run.
class Progress {
 public:
  explicit Progress(std::size_t runs) : runs_(runs) {}
  // `fraction`: completed share of run `number`, which counts from 1.
  void show(std::size_t number, const std::string& label, double fraction) {
    const bool begins = number != number_;
    number_ = number;
    const double elapsed = std::chrono::duration<double>(Clock::now() - start_).count();
    if (!begins && (!terminal_ || elapsed - shown_ < 0.5)) return;
    shown_ = elapsed;
    const double done = static_cast<double>(number - 1) + fraction;
    const double left = done > 0.05 ? elapsed / done * (static_cast<double>(runs_) - done) : -1;
    std::string line = fmt::format("run {} of {}: {}", number, runs_, visible(label));
    if (left >= 0) line += fmt::format(", {} left", duration_text(left));
    std::fputs((terminal_ ? "\r" + line + "\033[K" : line + "\n").c_str(), stderr);
    std::fflush(stderr);
  }
  ~Progress() {
    if (terminal_ && number_ > 0) std::fputs("\r\033[K", stderr);
  }

 private:
  const bool terminal_ = isatty(STDERR_FILENO);
  const Clock::time_point start_ = Clock::now();
  std::size_t runs_, number_ = 0;
  double shown_ = 0;
};

// Returns the record of the last start of a run; null if there is none.
Json last_record(const std::filesystem::path& run) {
  if (!is_file(run / provenance_name)) return {};
  std::string text = read_file(run / provenance_name);
  while (text.ends_with('\n')) text.pop_back();
  return parse_record(text.substr(text.rfind('\n') + 1));  // npos + 1 is 0
}

}  // namespace

std::vector<std::string> different_settings(const Config& here, const Config& there) {
  std::vector<std::string> other;
  const auto add = [&](std::string_view key, const std::string& a, const std::string& b) {
    if (a != b) other.push_back(fmt::format("{}: {} here, {} there", key, a, b));
  };
  for (const ResumePolicy policy : {ResumePolicy::must_match, ResumePolicy::reorders_samples, ResumePolicy::report})
    for (const KeyDifference& d : differences(here, there, policy)) add(d.key, d.here, d.there);
  // A resumption ignores these keys.
  for (const char* key : {"model.init_std", "model.init_residual_scale", "moe.expert_map", "run.init_from",
                          "run.check_every", "run.memory_check"})
    add(key, value_of(here, key), value_of(there, key));
  return other;
}

const std::string& DataDigests::of(const fs::path& folder) {
  const auto known = digests_.find(folder);
  return known != digests_.end() ? known->second : digests_.emplace(folder, Dataset(folder).digest()).first->second;
}

std::vector<std::string> other_settings(const Training& training, const Config& config, DataDigests& digests) {
  if (!file_exists(training.run / "config.ini")) return {};
  const Config there = read_config(training.run / "config.ini", {});
  std::vector<std::string> other = different_settings(config, there);
  const auto add = [&](std::string_view key, const std::string& a, const std::string& b) {
    if (a != b) other.push_back(fmt::format("{}: {} here, {} there", key, a, b));
  };
  // The run has sizes in place of `auto`.
  for (const char* key : {"parallel.tp", "parallel.ep", "parallel.etp", "parallel.ranks_per_node"})
    if (const std::string here = value_of(config, key); here != "auto") add(key, here, value_of(there, key));
  const Json record = last_record(training.run);
  if (const auto ranks = integer_at(record, "ranks"); ranks && training.ranks > 0)
    add("ranks", std::to_string(training.ranks), std::to_string(*ranks));
  if (const Json* const digest = record.find("data_digest"); digest && digest->is_string())
    add("digest of data.path", digests.of(config.data.path).substr(0, 12), digest->get<std::string>().substr(0, 12));
  return other;
}

void check_folder(const Training& training, const Config& config, DataDigests& digests) {
  if (const std::vector<std::string> other = other_settings(training, config, digests); !other.empty())
    bad_input("{} holds a run of other settings ({}): choose another --output, or remove it", training.run.string(),
              join(other));
}

bool has_ended(const Training& training) {
  // A killed process leaves its lock file.
  if (file_exists(training.run / lock_name)) return false;
  if (last_step(training.run) < training.steps)
    return !training.measured && file_exists(training.run / "config.ini") &&
           inspect_run(training.run).state == RunState::stopped_early;
  if (training.measured) return true;
  const std::vector<Index> saved = steps_in(checkpoints_of(training.run));
  if (!saved.empty()) return saved.front() >= training.steps;
  return std::ranges::all_of(messages_in_log(log_of(training.run), Starts::last), is_warning);
}

void add_warnings(const fs::path& run, std::vector<std::string>& warnings) {
  for (std::string& message : messages_in_log(log_of(run), Starts::all)) {
    if (!is_warning(message)) continue;
    message.erase(0, warning_begin.size());
    if (std::ranges::find(warnings, message) == warnings.end()) warnings.push_back(std::move(message));
  }
}

void check_launcher(const std::string& launcher, const std::vector<int>& ranks) {
  const auto other = std::ranges::find_if(ranks, [](int n) { return n != 1; });
  if (!launcher.empty() && launcher.find(ranks_placeholder) == launcher.npos && other != ranks.end())
    bad_input("--launcher \"{}\" cannot start {}: write {} in place of the number of ranks", launcher,
              counted(*other, "rank"), ranks_placeholder);
}

namespace {

// Returns why a training that a program has run is incomplete; empty if it is complete.
std::optional<IncompleteRun> problem_of(const Training& t, const ProgramResult& result) {
  if (result.code == stopped_exit_code)
    return IncompleteRun{fmt::format("after {} of {} steps, with a checkpoint: the same command continues it",
                                     last_step(t.run), t.steps),
                         true};
  if (result.code != 0)
    return IncompleteRun{result.error.empty() ? fmt::format("exit code {}", result.code) : result.error};
  const auto ranks = integer_at(last_record(t.run), "ranks");
  if (!ranks || *ranks == t.ranks) return std::nullopt;
  return IncompleteRun{fmt::format("it ran on {} instead of {}: write {} in --launcher in place of the number of ranks",
                                   counted(*ranks, "rank"), t.ranks, ranks_placeholder)};
}

}  // namespace

std::optional<std::map<fs::path, IncompleteRun>> train_all(const std::vector<Training>& trainings,
                                                           const std::string& launcher) {
  std::vector<const Training*> waiting;
  std::set<fs::path> known;
  for (const Training& t : trainings)
    if (known.insert(t.run).second && !has_ended(t)) waiting.push_back(&t);
  std::map<fs::path, IncompleteRun> incomplete;
  Progress progress(waiting.size());
  for (std::size_t i = 0; i < waiting.size(); ++i) {
    const Training& t = *waiting[i];
    make_synced_folders(t.run.parent_path());
    if (t.measured && file_exists(t.run / "config.ini")) {
      if (const std::string holder = lock_holder(t.run); !holder.empty()) {
        incomplete[t.run] = {fmt::format("{} is in use by {}", t.run.string(), holder)};
        continue;
      }
      std::error_code ignored;
      fs::remove_all(t.run, ignored);
    }
    std::vector<std::string> command = launch_command(launcher, t.ranks, t.measured);
    command.insert(command.end(), {program_path().string(), "train", t.config.string()});
    command.insert(command.end(), t.settings.begin(), t.settings.end());
    command.insert(command.end(), {"--run.dir=" + t.run.string(), "--run.resume=true", "--quiet"});
    progress.show(i + 1, t.label, 0);
    const bool continues = file_exists(t.run / "config.ini");
    const ProgramResult result = run_program(command, log_of(t.run), continues, [&] {
      progress.show(i + 1, t.label,
                    static_cast<double>(last_step(t.run)) / static_cast<double>(std::max<Index>(t.steps, 1)));
    });
    if (stop_signal() != 0) return std::nullopt;
    if (auto problem = problem_of(t, result)) incomplete[t.run] = *std::move(problem);
  }
  return incomplete;
}

RunHardware hardware_of(const std::filesystem::path& run) {
  const Json record = last_record(run);
  const Json *const hosts = record.find("hosts"), *const gpus = record.find("gpus");
  return {hosts ? static_cast<int>(hosts->size()) : 0, gpus && !gpus->empty()};
}

Json with_runs(Json record, const std::vector<Training>& runs) {
  constexpr const char* names[] = {"hosts", "processors", "gpus", "data_digest"};
  std::vector<Json> values[std::size(names)];
  const auto add = [](std::vector<Json>& list, const Json& value) {
    if (!value.is_null() && std::ranges::find(list, value) == list.end()) list.push_back(value);
  };
  for (const Training& run : runs) {
    const Json last = last_record(run.run);
    for (std::size_t i = 0; i < std::size(names); ++i) {
      const Json* const value = last.find(names[i]);
      if (value && value->is_array())
        for (const Json& element : *value) add(values[i], element);
      else if (value)
        add(values[i], *value);
    }
  }
  if (values[0].empty() || !record.is_object()) return record;
  for (std::size_t i = 0; i < std::size(names); ++i) record[names[i]] = Json(values[i]);
  if (const std::vector<Json>& digests = values[3]; digests.size() == 1) record[names[3]] = digests.front();
  return record;
}

}  // namespace sy
