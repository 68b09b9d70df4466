// Row `memory`: allocations of each command that writes fail, or its address space is full.
#include "src/system/files.h"
#include "tests/reliability/allocations.h"
#include "tests/reliability/writers.h"

namespace sy::campaign {
namespace {

// Whether the error of a command says that memory is missing.
bool names_memory(const std::string& err) {
  for (const char* const cause : {"memory", "address space"})
    if (err.find(cause) != std::string::npos) return true;
  return false;
}

class MemoryLimits final : public Row {
 public:
  MemoryLimits() : writers_(make_writers(true)) {
    for (Writer& writer : writers_) {
      writer.reset();
      must_run(writer.args, {.prepare = [] { arm_allocations(0, NoMemoryFault::once); },
                             .finish = [] { write_text("allocations", std::to_string(disarm_allocations())); }});
      writer.calls = std::stol(read_file(work_folder() / "allocations"));
      if (writer.calls < 3) fail("{}: only {} allocations: the campaign does not see them", writer.name, writer.calls);
    }
  }
  Index points() const override { return count_points(writers_, num_kinds); }
  TrialResult run(Index trial) override {
    constexpr const char* names[] = {"fails", "and all later ones fail", "is the first in a full address space"};
    const Point point = point_of(writers_, num_kinds, trial);
    const Writer& writer = *point.writer;
    writer.reset();
    const CommandResult first = run_command(
        writer.args, {.prepare = [&] { arm_allocations(point.call, static_cast<NoMemoryFault>(point.kind)); },
                      .finish = [] { disarm_allocations(); }});
    TrialResult result = outcome_of_failure(
        writer, first,
        fmt::format("{}, allocation {} of {} {}", writer.name, point.call, writer.calls, names[point.kind]));
    if (result.outcome == Outcome::reported && first.code != 0 && !names_memory(first.err))
      result.outcome = Outcome::unclear;
    return result;
  }

 private:
  static constexpr Index num_kinds = 3;
  std::vector<Writer> writers_;
};

}  // namespace

std::unique_ptr<Row> make_memory_limits() {
  return std::make_unique<MemoryLimits>();
}

}  // namespace sy::campaign
