// Rows `kill` and `call`: SIGKILL, or an error, at each system call of each command that writes.
#include <cerrno>
#include <csignal>
#include <cstring>

#include "tests/reliability/writers.h"

namespace sy::campaign {
namespace {

class Kills final : public Row {
 public:
  Kills() : writers_(make_writers(true)) {}
  Index points() const override { return count_points(writers_, num_kinds); }
  TrialResult run(Index trial) override {
    const Point point = point_of(writers_, num_kinds, trial);
    const Writer& writer = *point.writer;
    Fault fault{writer.path.c_str(), point.call, point.kind == 0 ? kill_before : kill_halfway};
    fault.removals = true;
    writer.reset();
    const CommandResult killed = run_command(writer.args, {.fault = &fault});
    TrialResult result{Outcome::survived, fmt::format("{}, SIGKILL {} call {} of {}: {}", writer.name,
                                                      point.kind == 0 ? "before" : "halfway of", point.call,
                                                      writer.calls, text_of(killed))};
    // A command whose threads made fewer calls than usual may have ended before.
    if (killed.signal != SIGKILL || killed.hung) result.outcome = outcome_of(killed);
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

}  // namespace

std::unique_ptr<Row> make_kills() {
  return std::make_unique<Kills>();
}
std::unique_ptr<Row> make_failed_calls() {
  return std::make_unique<FailedCalls>();
}

}  // namespace sy::campaign
