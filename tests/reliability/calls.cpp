// Rows `kill`, `kill-children`, `call` and `call-reads`: SIGKILL, or an error, at each system call
// of each command that writes.
#include <cerrno>
#include <csignal>
#include <cstring>
#include <sstream>

#include "src/io/lock.h"
#include "src/system/files.h"
#include "tests/reliability/writers.h"

namespace sy::campaign {
namespace {

// Outcome of a command one of whose trainings was killed: its table must say so. A killed training
// leaves its lock file below the working folder. Without one, it made fewer calls than usual.
Outcome outcome_of_lost_training(const CommandResult& result) {
  if (result.hung) return Outcome::hung;
  if (result.signal != 0) return Outcome::crashed;
  bool is_killed = false;
  for (const auto& entry : std::filesystem::recursive_directory_iterator("."))
    is_killed |= entry.path().filename() == lock_name;
  const bool is_named = result.out.find(" failed: ") != result.out.npos;
  if (is_killed && !is_named) return Outcome::wrong;
  return result.code == (is_named ? 1 : 0) && errors_in(result.err) == 0 ? Outcome::survived : Outcome::unclear;
}

class Kills final : public Row {
 public:
  explicit Kills(std::vector<Writer> writers) : writers_(std::move(writers)) {}
  Index points() const override { return count_points(writers_, num_kinds); }
  TrialResult run(Index trial) override {
    const Point point = point_of(writers_, num_kinds, trial);
    const Writer& writer = *point.writer;
    Fault fault{writer.path.c_str(), point.call, point.kind == 0 ? kill_before : kill_halfway};
    fault.removals = true;
    writer.reset();
    const CommandResult killed = run_killed(writer, fault);
    TrialResult result{Outcome::survived, fmt::format("{}, SIGKILL {} call {} of {}: {}", writer.name,
                                                      point.kind == 0 ? "before" : "halfway of", point.call,
                                                      writer.calls, text_of(killed))};
    if (writer.rank >= 0) {
      result.outcome = outcome_of_lost_training(killed);
    } else if (killed.signal != SIGKILL || killed.hung) {
      // A command whose threads made fewer calls than usual may have ended before.
      result.outcome = outcome_of(killed);
    }
    if (!is_failure(result.outcome)) result.outcome = outcome_again(writer, result.details);
    return result;
  }

 private:
  static constexpr Index num_kinds = 2;
  std::vector<Writer> writers_;
};

class FailedCalls final : public Row {
 public:
  FailedCalls() : writers_(make_writers(true)) {}
  Index points() const override { return count_points(writers_, num_kinds); }
  TrialResult run(Index trial) override {
    const Point point = point_of(writers_, num_kinds, trial);
    const Writer& writer = *point.writer;
    const int error = errors[point.kind / 2];
    Fault fault{writer.path.c_str(), point.call, error, point.kind % 2 == 1};
    fault.removals = true;
    writer.reset();
    const CommandResult first = run_command(writer.args, {.fault = &fault});
    return outcome_of_failure(writer, first,
                              fmt::format("{}, {}{} at call {} of {}", writer.name,
                                          error == half_a_write ? "half a write" : std::strerror(error),
                                          fault.lasts ? " from then on" : "", point.call, writer.calls));
  }

 private:
  static constexpr int errors[] = {ENOSPC, EIO, EDQUOT, half_a_write, EROFS, EMFILE};
  static constexpr Index num_kinds = 2 * std::size(errors);
  std::vector<Writer> writers_;
};

// An error of calls that read, and the kinds of calls that may have it.
// ENOENT: a file that has vanished after a look-up. If the look-up says that a file does not exist,
// the command may believe it.
struct ReadError {
  int error;
  int calls;
};
constexpr ReadError read_errors[] = {{EIO, fault_opens | fault_lookups | fault_data},
                                     {EACCES, fault_opens | fault_lookups},
                                     {ENOENT, fault_opens},
                                     {EMFILE, fault_opens}};

class FailedReads final : public Row {
 public:
  FailedReads() {
    const std::string folder = work_folder().string(), counts = folder + "/reads";
    for (Writer& writer : make_writers(false)) {
      writer.path = folder;
      Fault none;
      none.path = writer.path.c_str();
      none.reads = fault_opens | fault_lookups | fault_data;
      writer.reset();
      must_run(writer.args, {.fault = &none, .finish = [&] {
                               std::string text;
                               for (const ReadError& error : read_errors)
                                 text += std::to_string(fault_reads(error.calls)) + " ";
                               write_text(counts, text);
                             }});
      std::istringstream in(read_file(counts));
      for (const ReadError& error : read_errors) {
        if (!(in >> writer.calls) || writer.calls < 3)
          fail("{}: {} reads: the campaign does not see it", writer.name, writer.calls);
        writers_.push_back(writer);
        errors_.push_back(error);
      }
    }
  }
  Index points() const override { return count_points(writers_, num_kinds); }
  TrialResult run(Index trial) override {
    const Point point = point_of(writers_, num_kinds, trial);
    const Writer& writer = *point.writer;
    const ReadError& error = errors_[static_cast<std::size_t>(point.writer - writers_.data())];
    Fault fault{writer.path.c_str(), point.call, error.error, point.kind == 1};
    fault.reads = error.calls;
    writer.reset();
    const CommandResult first = run_command(writer.args, {.fault = &fault});
    return outcome_of_failure(writer, first,
                              fmt::format("{}, {}{} at read {} of {}", writer.name, std::strerror(error.error),
                                          fault.lasts ? " from then on" : "", point.call, writer.calls));
  }

 private:
  static constexpr Index num_kinds = 2;
  std::vector<Writer> writers_;    // one of each command and error
  std::vector<ReadError> errors_;  // of writers_
};

}  // namespace

std::unique_ptr<Row> make_kills() {
  return std::make_unique<Kills>(make_writers(true));
}
std::unique_ptr<Row> make_child_kills() {
  return std::make_unique<Kills>(make_starters());
}
std::unique_ptr<Row> make_failed_reads() {
  return std::make_unique<FailedReads>();
}
std::unique_ptr<Row> make_failed_calls() {
  return std::make_unique<FailedCalls>();
}

}  // namespace sy::campaign
