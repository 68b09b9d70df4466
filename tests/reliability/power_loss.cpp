// Rows `power` and `power-commands`: a power loss at each change of the files of a command.
#include <cstdlib>
#include <regex>

#include "tests/reliability/file_history.h"
#include "tests/reliability/writers.h"

namespace sy::campaign {
namespace {

class PowerLosses final : public Row {
 public:
  // writers: their files are below root().
  PowerLosses(const char* name, std::vector<Writer> writers) : name_(name) {
    for (Writer& writer : writers) {
      const fs::path file = work_folder() / "history";
      const std::string text = root().string();
      Fault none;
      none.path = text.c_str();
      empty_root();
      fs::remove(file);
      must_run(writer.args, {.fault = &none,
                             .prepare =
                                 [&] {
                                   // For the trainings that the command starts.
                                   ::setenv("CAMPAIGN_RECORD", (file.string() + " " + text).c_str(), 1);
                                 },
                             .record = file});
      writer.undisturbed = writer.result();
      if (writer.undisturbed.empty()) fail("{}: no result: the campaign does not see it", writer.name);
      // The whole history must give the same files. It lacks the logs that the launcher writes.
      const auto files = [&writer] { return writer.starts_trainings ? writer.result() : files_result(root()); };
      const std::string made = files();
      FileHistory history(root());
      history.add_recorded(file);
      empty_root();
      history.restore(history.size(), [](Index) { return true; });
      if (files() != made) fail("{}: the recorded changes do not give its files", writer.name);
      // A command that has ended has its result on the disk. Few trials have this point.
      empty_root();
      history.restore(history.size(), [](Index) { return false; });
      if (writer.result() != writer.undisturbed) fail("{}: a power loss after its end loses its result", writer.name);
      recorded_.push_back({std::move(writer), std::move(history)});
    }
  }
  static fs::path root() { return work_folder() / "root"; }

  Index points() const override {
    Index points = 0;
    for (const Recorded& recorded : recorded_) points += points_of(recorded);
    return points;
  }
  TrialResult run(Index trial) override {
    Index index = shuffled(trial, points());
    for (const Recorded& recorded : recorded_) {
      if (index < points_of(recorded)) return run(recorded, index / num_kinds, index % num_kinds, Draw(name_, trial));
      index -= points_of(recorded);
    }
    fail("no such point");
  }

 private:
  struct Recorded {
    Writer writer;
    FileHistory history;
  };

  static Index points_of(const Recorded& recorded) { return (recorded.history.size() + 1) * num_kinds; }
  static void empty_root() {
    fs::remove_all(root());
    fs::create_directories(root());
  }
  TrialResult run(const Recorded& recorded, Index count, Index kind, Draw draw) const {
    const Writer& writer = recorded.writer;
    const FileHistory& history = recorded.history;
    const Index first_lost = draw.below(count + 1);
    const std::function<bool(Index)> keeps[num_kinds] = {
        [](Index) { return false; },                 // all that was not synced is lost
        [&](Index i) { return i < first_lost; },     // only the last changes are lost
        [&](Index) { return draw.below(2) == 0; }};  // each change by chance: they were reordered
    empty_root();
    history.restore(count, keeps[kind]);
    TrialResult result{Outcome::survived, fmt::format("{}, power loss after {} of {} changes, kind {}: ", writer.name,
                                                      count, history.size(), kind)};
    // A command that has ended has its result on the disk.
    if (count == history.size() && writer.result() != writer.undisturbed)
      return {Outcome::wrong, result.details + "the result is not on the disk"};
    result.outcome = outcome_again(writer, result.details);
    if (is_failure(result.outcome) || !writer.is_training) return result;
    Index committed = 0;
    for (const Index step : history.committed(count)) committed = std::max(committed, step);
    std::smatch found;
    const bool resumed = std::regex_search(result.details, found, std::regex(R"(\(step (\d+)\))"));
    if ((resumed ? std::stoll(found[1]) : 0) >= committed) return result;
    return {Outcome::wrong, result.details + fmt::format("step {} was saved", committed)};
  }

  static constexpr Index num_kinds = 3;
  const char* name_;
  std::vector<Recorded> recorded_;
};

}  // namespace

std::unique_ptr<Row> make_power_losses() {
  return std::make_unique<PowerLosses>("power", make_trainings_below(PowerLosses::root()));
}
std::unique_ptr<Row> make_command_power_losses() {
  return std::make_unique<PowerLosses>("power-commands", make_commands_below(PowerLosses::root()));
}

}  // namespace sy::campaign
