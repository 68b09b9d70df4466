// Row `folder`: two processes use one folder. These are two trainings, or a training that deletes
// old checkpoints and a reader, or a reader whose folder is moved.
#include <algorithm>
#include <chrono>
#include <thread>

#include "src/io/checkpoint.h"
#include "src/io/checkpoint_internal.h"
#include "tests/reliability/campaign.h"

namespace sy::campaign {
namespace {

constexpr Index num_steps = 10;

class SharedFolders final : public Row {
 public:
  SharedFolders() {
    make_inputs();
    must_run(train_args({fmt::format("--train.steps={}", num_steps), fmt::format("--run.keep={}", num_steps)}));
    // The reading of each checkpoint, as the newest of the folder.
    for (Index step = num_steps; step > 0; --step) {
      const CommandResult read = must_run(evaluate_);
      readings_[static_cast<std::size_t>(step)] = reading(read, "run");
      if (read.out.find(fmt::format(" at step {},", step)) == std::string::npos)
        fail("the evaluation of step {} is of another step: {}", step, text_of(read));
      fs::remove_all(checkpoints_of("run") / step_name(step));
    }
    fs::remove_all("run");
    must_run(args_);
    undisturbed_ = weights_result("run");
    replace_folder("run", "finished");
  }
  Index points() const override { return 0; }

  TrialResult run(Index trial) override {
    using Kind = TrialResult (SharedFolders::*)(std::chrono::microseconds moment);
    constexpr Kind kinds[] = {&SharedFolders::two_trainings, &SharedFolders::reader_of_a_training,
                              &SharedFolders::moved_folder};
    Draw draw("folder", trial);
    const Index kind = draw.below(std::ssize(kinds));
    fs::remove_all("run");
    fs::remove_all("moved");
    return (this->*kinds[kind])(std::chrono::microseconds(draw.below(30000)));
  }

 private:
  TrialResult two_trainings(std::chrono::microseconds moment) {
    CommandResult other;
    const CommandResult first = run_command(args_, {.meanwhile = [&](pid_t) {
                                              std::this_thread::sleep_for(moment);
                                              other = run_command(args_);
                                            }});
    TrialResult result{outcome_of(first), fmt::format("two trainings: {}\nother: {}", text_of(first), text_of(other))};
    if (is_failure(outcome_of(other))) result.outcome = outcome_of(other);
    return resumed(std::move(result));
  }

  // The reader must have the result of a checkpoint that was the newest while it ran.
  TrialResult reader_of_a_training(std::chrono::microseconds moment) {
    CommandResult reader;
    Index before = 0, after = 0;
    std::string read;
    const CommandResult training = run_command(args_, {.meanwhile = [&](pid_t) {
                                                 // The moment also chooses the first step to read.
                                                 const Index first = moment.count() % num_steps;
                                                 const double begin = now();
                                                 while (newest_step() < first && now() - begin < 10)
                                                   sleep_seconds(0.001);
                                                 before = newest_step();
                                                 reader = run_command(evaluate_);
                                                 after = newest_step();
                                                 read = reading(reader, "run");
                                               }});
    TrialResult result{outcome_of(training), fmt::format("reader of a training, steps {} to {}: {}\nreader: {}", before,
                                                         after, text_of(training), text_of(reader))};
    if (is_failure(outcome_of(reader))) result.outcome = outcome_of(reader);
    if (is_failure(result.outcome)) return result;
    if (outcome_of(reader) == Outcome::reported) result.outcome = Outcome::reported;
    if (reader.code == 0) {
      const bool legal =
          after > 0 && std::any_of(readings_.begin() + std::max<Index>(before, 1), readings_.begin() + after + 1,
                                   [&](const std::string& right) { return read == right; });
      if (!legal) {
        result.outcome = Outcome::wrong;
        return result;
      }
    }
    return resumed(std::move(result));
  }

  TrialResult moved_folder(std::chrono::microseconds moment) {
    replace_folder("finished", "run");
    const CommandResult reader = run_command(evaluate_, {.meanwhile = [&](pid_t) {
                                               std::this_thread::sleep_for(moment);
                                               fs::rename("run", "moved");
                                             }});
    TrialResult result{outcome_of(reader), "a folder moves beside its reader: " + text_of(reader)};
    if (is_failure(result.outcome)) return result;
    const std::string& right = readings_[num_steps];
    // The evaluation may be in neither folder.
    const bool whole =
        fs::exists(evaluation("moved")) ? reading(reader, "moved") == right : right.starts_with(reader.out);
    if ((reader.code == 0 && !whole) || weights_result("moved") != undisturbed_) result.outcome = Outcome::wrong;
    if (is_failure(result.outcome)) return result;
    // The reader has not changed the folder.
    fs::rename("moved", "run");
    const CommandResult again = run_command(evaluate_);
    result.details += "again: " + text_of(again);
    if (again.code != 0 || reading(again, "run") != right) result.outcome = Outcome::wrong;
    return result;
  }

  // One training may have been refused. The other one, or a resume, is whole.
  TrialResult resumed(TrialResult result) {
    if (is_failure(result.outcome)) return result;
    const CommandResult last = run_command(args_);
    result.details += "again: " + text_of(last);
    if (last.code != 0 || weights_result("run") != undisturbed_) result.outcome = Outcome::wrong;
    return result;
  }

  static fs::path evaluation(const fs::path& run) { return run / "evaluation.json"; }
  // Output and file of an evaluation.
  static std::string reading(const CommandResult& read, const fs::path& run) {
    return read.out + files_result(evaluation(run));
  }
  static Index newest_step() {
    std::error_code ignored;
    if (!fs::is_directory(checkpoints_of("run"), ignored)) return 0;
    const std::vector<Index> steps = steps_in(checkpoints_of("run"));
    return steps.empty() ? 0 : *std::ranges::max_element(steps);
  }

  std::vector<std::string> args_ = train_args({"--run.resume=true", fmt::format("--train.steps={}", num_steps)});
  std::vector<std::string> evaluate_ = {"evaluate", "run", "--backend", "cpu", "--quiet", "--max-windows", "2"};
  // The reading of each step. Number 0 is empty.
  std::vector<std::string> readings_ = std::vector<std::string>(num_steps + 1);
  std::string undisturbed_;
};

}  // namespace

std::unique_ptr<Row> make_shared_folders() {
  return std::make_unique<SharedFolders>();
}

}  // namespace sy::campaign
