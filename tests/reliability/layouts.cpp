// Row `layouts`: a rank of two is killed while it writes. The training goes on under the same
// layout, and under another one.
#include <cmath>
#include <csignal>
#include <cstdlib>
#include <sstream>

#include "src/io/checkpoint.h"
#include "src/io/manifest.h"
#include "src/system/files.h"
#include "src/text/json.h"
#include "tests/reliability/rank_faults.h"
#include "tests/reliability/ranks.h"

namespace sy::campaign {
namespace {

constexpr Index num_ranks = 2, num_kinds = 2;
constexpr double tolerance = 1e-5;

// A layout of two ranks.
struct TwoRanks {
  const char* name;
  std::string setting;
};
const std::vector<TwoRanks> layouts = {{"dp 2", "--parallel.ep=1"}, {"ep 2", "--parallel.ep=2"}};

// A job one of whose ranks is killed. It trains two steps and saves the second.
struct JobEntry {
  const TwoRanks& layout;
  Index until;  // 2: begins without a folder, with all logs. 4: deletes the checkpoint of step 2
};
const JobEntry jobs[] = {{layouts[0], 4}, {layouts[1], 4}, {layouts[1], 2}};

// Trains until `step`, from the last checkpoint in the folder.
std::vector<std::string> args_until(Index step, const std::string& setting, bool has_logs) {
  std::vector<std::string> args = train_args({"--run.resume=true", "--run.checkpoint_every=2", "--run.keep=1",
                                              fmt::format("--train.steps={}", step), setting});
  if (has_logs) args.insert(args.end(), {"--log.csv=true", "--log.prometheus=true", "--log.tensorboard=true"});
  return args;
}

// Outcome of a job one of whose ranks was killed. It must end with one message, and with the exit
// code of a signal; with MPICH it is 1.
Outcome outcome_of_kill(const CommandResult& result) {
  const Outcome outcome = outcome_of_lost_rank(result);
  if (outcome != Outcome::reported) return outcome;
  return errors_in(result.err) <= 1 && (result.code == 128 + SIGKILL || result.code == 1) ? outcome : Outcome::unclear;
}

// Metrics that all layouts must agree on.
// counts: steps, and routed and dropped assignments of each step and expert.
struct Metrics {
  std::vector<double> losses;  // of all steps and validations
  std::vector<std::int64_t> counts;
};

fs::path checkpoint_of(const fs::path& run) {
  const std::vector<Index> steps = steps_in(checkpoints_of(run));
  if (steps.empty()) fail("{} has no checkpoint", run.string());
  return checkpoints_of(run) / step_name(steps.front());
}

Metrics metrics_of(const fs::path& run) {
  Metrics metrics;
  read_lines(run / "metrics.jsonl", [&](const TextLine& line) {
    const Json json = Json::parse(line.text);
    for (const auto& [name, value] : json.members()) {
      if (name == "step" || name == "routed" || name == "dropped") metrics.counts.push_back(value.get<std::int64_t>());
      if (name.ends_with("loss") && !value.is_null()) metrics.losses.push_back(value.get<double>());
    }
  });
  const ExpertHistory experts = read_state(checkpoint_of(run)).experts;
  metrics.counts.insert(metrics.counts.end(), experts.routed.begin(), experts.routed.end());
  metrics.counts.insert(metrics.counts.end(), experts.dropped.begin(), experts.dropped.end());
  return metrics;
}

// Description of a difference beyond the tolerance; empty if there is none.
std::string difference(const Metrics& a, const Metrics& b) {
  if (a.counts != b.counts) return "the steps, or the routed or dropped counts differ";
  if (a.losses.size() != b.losses.size()) return "the metrics have unequal numbers of losses";
  for (std::size_t i = 0; i < a.losses.size(); ++i)
    if (!(std::abs(a.losses[i] - b.losses[i]) <= tolerance))
      return fmt::format("a loss of {} differs from {}", a.losses[i], b.losses[i]);
  return "";
}

class Layouts final : public Row {
 public:
  Layouts() {
    make_inputs();
    for (const JobEntry& job : jobs) {
      Case c{&job};
      c.start = fmt::format("start-{}", cases_.size());
      fs::remove_all("run");
      if (!c.is_new()) {
        must_run_job(c.args_until(2));
        replace_folder("run", c.start);
      }
      must_run_job(c.args_until(job.until), [] {
        ::setenv("CAMPAIGN_COUNTS", "counts", 1);
        ::setenv("CAMPAIGN_KILL", ("0 0 0 " + run_folder()).c_str(), 1);
      });
      for (Index rank = 0; rank < num_ranks; ++rank) {
        std::istringstream in(read_file(fmt::format("counts.{}", rank)));
        for (long number = 0; in >> number;) c.calls[rank] = number;
        if (c.calls[rank] < 3) fail("{}: rank {} makes {} calls", job.layout.name, rank, c.calls[rank]);
      }
      must_run_job(c.args_until(6));
      c.undisturbed = training_result("run");
      replace_folder("run", fmt::format("undisturbed-{}", cases_.size()));
      c.metrics = metrics_of("run");
      cases_.push_back(c);
    }
    if (const std::string unequal = difference(cases_[0].metrics, cases_[1].metrics); !unequal.empty())
      fail("two undisturbed layouts: {}", unequal);
  }
  Index points() const override {
    Index points = 0;
    for (const Case& c : cases_) points += num_kinds * (c.calls[0] + c.calls[1]);
    return points;
  }

  TrialResult run(Index trial) override {
    Index index = shuffled(trial, points()), rank = 0;
    auto c = cases_.begin();
    for (; index >= num_kinds * c->calls[rank]; rank = 1 - rank) {
      index -= num_kinds * c->calls[rank];
      if (rank == 1) ++c;
    }
    const long call = index / num_kinds + 1, kind = index % num_kinds;
    fs::remove_all("run");
    if (!c->is_new()) replace_folder(c->start, "run");
    const CommandResult killed =
        run_job(job_command(c->args_until(c->job->until)),
                {.limit = 120, .prepare = [&] {
                   ::setenv("CAMPAIGN_KILL", fmt::format("{} {} {} {}", rank, call, kind, run_folder()).c_str(), 1);
                 }});
    TrialResult result{
        outcome_of_kill(killed),
        fmt::format("{} to step {}: rank {} is killed {} call {} of {}: {}", c->job->layout.name, c->job->until, rank,
                    kind == 0 ? "before" : "halfway of", call, c->calls[rank], text_of(killed))};
    if (is_failure(result.outcome)) return result;
    std::error_code ignored;
    fs::create_directories("run", ignored);  // a new job may be killed before it makes it
    replace_folder("run", "killed");

    const CommandResult same = run_job(job_command(c->args_until(6)), {.limit = 120});
    result.details += "the same layout: " + text_of(same);
    if (const Outcome outcome = resumed(same); is_failure(outcome)) return {outcome, result.details};
    if (training_result("run") != c->undisturbed) return {Outcome::wrong, result.details};

    // Another layout: one rank, or the other one of two.
    replace_folder("killed", "run");
    const TwoRanks& other = layouts[&c->job->layout == layouts.data() ? 1 : 0];
    const bool is_alone = trial % 2 == 0;
    const CommandResult last = is_alone ? run_command(c->args_until(6, "--parallel.ep=1"))
                                        : run_job(job_command(c->args_until(6, other.setting)), {.limit = 120});
    result.details += fmt::format("{}: {}", is_alone ? "one rank" : other.name, text_of(last));
    if (const Outcome outcome = resumed(last); is_failure(outcome)) return {outcome, result.details};
    if (const std::string unequal = difference(metrics_of("run"), c->metrics); !unequal.empty())
      return {Outcome::wrong, result.details + unequal};
    result.outcome = Outcome::survived;
    return result;
  }

 private:
  struct Case {
    const JobEntry* job;
    fs::path start = {};         // a run of two steps
    long calls[num_ranks] = {};  // of each rank
    std::string undisturbed = {};
    Metrics metrics = {};

    bool is_new() const { return job->until == 2; }
    std::vector<std::string> args_until(Index step) const { return args_until(step, job->layout.setting); }
    std::vector<std::string> args_until(Index step, const std::string& setting) const {
      return campaign::args_until(step, setting, is_new());
    }
  };

  static std::string run_folder() { return (work_folder() / "run").string(); }
  static Outcome resumed(const CommandResult& result) {
    if (result.hung) return Outcome::hung;
    if (result.signal != 0) return Outcome::crashed;
    return result.code == 0 ? Outcome::survived : Outcome::unclear;
  }
  static void must_run_job(const std::vector<std::string>& args, const std::function<void()>& prepare = nullptr) {
    const CommandResult done = run_job(job_command(args), {.limit = 300, .prepare = prepare});
    if (done.code != 0) fail("a training of two ranks failed: {}", text_of(done));
  }

  std::vector<Case> cases_;
};

}  // namespace

std::unique_ptr<Row> make_layouts() {
  return std::make_unique<Layouts>();
}

}  // namespace sy::campaign
