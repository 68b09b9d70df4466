// Row `power`: a power loss at each change of the files of a training.
#include <mutex>
#include <optional>
#include <regex>

#include "src/system/files.h"
#include "tests/reliability/file_history.h"

namespace sy::campaign {
namespace {

// The history that a child records.
std::optional<FileHistory> recorded;
std::mutex recording;
void record_change(const FileChange& change) {
  const std::lock_guard lock(recording);
  recorded->add(change);
}

class PowerLosses final : public Row {
 public:
  PowerLosses() {
    make_inputs();
    // With keep = 1, the checkpoint before is deleted as soon as the new one is on the disk.
    for (const char* const setting : {"--run.async_checkpoint=true", "--run.async_checkpoint=false", "--run.keep=1"}) {
      Training training{train_args({setting, "--run.resume=true", "--log.csv=true"}, "root/run"), FileHistory(root_),
                        ""};
      const fs::path file = work_folder() / "history";
      const std::string text = root_.string();
      Fault none;
      none.path = text.c_str();
      empty_root();
      must_run(training.args, {.fault = &none,
                               .prepare = [&] { recorded.emplace(root_); },
                               .finish = [&] { recorded->save(file); },
                               .record = record_change});
      training.history.load(file);
      training.undisturbed = training_result(run_);
      // The whole history must give the files of the run.
      const std::string files = files_result(run_);
      empty_root();
      training.history.restore(training.history.size(), [](Index) { return true; });
      if (files_result(run_) != files) fail("the recorded changes do not give the files of the run");
      trainings_.push_back(std::move(training));
    }
  }
  Index points() const override {
    Index points = 0;
    for (const Training& training : trainings_) points += (training.history.size() + 1) * num_kinds;
    return points;
  }
  TrialResult run(Index trial) override {
    Index index = shuffled(trial, points());
    for (const Training& training : trainings_) {
      const Index here = (training.history.size() + 1) * num_kinds;
      if (index < here) return run(training, index / num_kinds, index % num_kinds, Draw("power", trial));
      index -= here;
    }
    fail("no such point");
  }

 private:
  struct Training {
    std::vector<std::string> args;
    FileHistory history;
    std::string undisturbed;
  };

  void empty_root() const {
    fs::remove_all(root_);
    fs::create_directories(root_);
  }
  TrialResult run(const Training& training, Index count, Index kind, Draw draw) const {
    const Index first_lost = draw.below(count + 1);
    const std::function<bool(Index)> keeps[num_kinds] = {
        [](Index) { return false; },                 // all that was not synced is lost
        [&](Index i) { return i < first_lost; },     // only the last changes are lost
        [&](Index) { return draw.below(2) == 0; }};  // each change by chance: they were reordered
    empty_root();
    training.history.restore(count, keeps[kind]);
    Index committed = 0;
    for (const Index step : training.history.committed(count)) committed = std::max(committed, step);
    const CommandResult again = run_command(training.args);
    TrialResult result{outcome_of(again),
                       fmt::format("power loss after {} of {} changes, kind {}, step {} was saved: {}", count,
                                   training.history.size(), kind, committed, text_of(again))};
    if (is_failure(result.outcome)) return result;
    if (again.code != 0) {
      result.outcome = Outcome::unclear;
      return result;
    }
    std::smatch found;
    const bool resumed = std::regex_search(again.out, found, std::regex(R"(\(step (\d+)\))"));
    if (training_result(run_) != training.undisturbed || (resumed ? std::stoll(found[1]) : 0) < committed)
      result.outcome = Outcome::wrong;
    return result;
  }

  static constexpr Index num_kinds = 3;
  const fs::path root_ = work_folder() / "root";
  const fs::path run_ = root_ / "run";  // its name may be lost, too
  std::vector<Training> trainings_;
};

}  // namespace

std::unique_ptr<Row> make_power_losses() {
  return std::make_unique<PowerLosses>();
}

}  // namespace sy::campaign
