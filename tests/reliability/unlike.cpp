// Row `unlike`: ranks that hang or are slow, and ranks that differ in their program, configuration
// or processor.
#include <csignal>
#include <cstdlib>

#include "kernels/cpu/processor.h"
#include "tests/reliability/ranks.h"

namespace sy::campaign {
namespace {

// Settings that differ from those of config.ini.
constexpr const char* settings[] = {"train.lr=0.1",   "train.steps=30",         "train.global_batch=8",
                                    "train.seed=7",   "train.warmup=3",         "moe.d_ff=32",
                                    "moe.top_k=1",    "model.layers=3",         "model.d_model=32",
                                    "run.dtype=bf16", "run.checkpoint_every=3", "parallel.ep=2"};
// Properties of a build (CAMPAIGN_BUILD), and their names in messages.
constexpr const char* builds[][2] = {{"version", "the program's version"},
                                     {"commit", "the program's commit"},
                                     {"options", "the program's build options"}};

class UnlikeRanks final : public Row {
 public:
  UnlikeRanks() {
    make_inputs();
    for (const CpuIsa& isa : cpu_isas()) {
      if (!isa.runs_here()) continue;
      const RankCommand rank{args_, {isa_variable(isa.name)}};
      fs::remove_all("run");
      const CommandResult done = run_job(job_command(rank, rank), {.limit = 300});
      if (done.code != 0) fail("a training of two ranks failed: {}", text_of(done));
      isas_.emplace_back(isa.name, weights_result("run"));
    }
  }
  Index points() const override { return 0; }

  TrialResult run(Index trial) override {
    using Kind = TrialResult (UnlikeRanks::*)(Draw&);
    constexpr Kind kinds[] = {&UnlikeRanks::hung, &UnlikeRanks::slow, &UnlikeRanks::other_build,
                              &UnlikeRanks::other_setting, &UnlikeRanks::other_processor};
    Draw draw("unlike", trial);
    fs::remove_all("run");
    return (this->*kinds[trial % std::ssize(kinds)])(draw);
  }

 private:
  static std::string isa_variable(std::string_view name) { return fmt::format("SWITCHYARD_ISA={}", name); }

  // Signals a rank once both have begun to train, and after some steps.
  static void signal_rank(Index rank, double delay, const std::function<void(pid_t)>& signal) {
    for (int i = 0; i < 600 && !fs::exists("run/metrics.jsonl"); ++i) sleep_seconds(0.02);
    sleep_seconds(delay);
    const std::vector<pid_t> ranks = rank_processes();
    if (std::ssize(ranks) > rank) signal(ranks[static_cast<std::size_t>(rank)]);
  }

  TrialResult hung(Draw& draw) {
    const Index rank = draw.below(2);
    const double delay = static_cast<double>(draw.below(300)) / 1000;
    const CommandResult lost = run_job(
        command_,
        {.limit = 90,
         .prepare = [] { ::setenv("SWITCHYARD_TIMEOUT", "3", 1); },
         .meanwhile = [&](pid_t) { signal_rank(rank, delay, [](pid_t process) { ::kill(process, SIGSTOP); }); }});
    TrialResult result{outcome_of_lost_rank(lost),
                       fmt::format("rank {} is stopped after {} s: {}", rank, delay, text_of(lost))};
    if (!is_failure(result.outcome)) add_resume(result, run_job(command_, {.limit = 180}), undisturbed());
    return result;
  }

  // The rank is stopped again and again, each time for less than the timeout.
  TrialResult slow(Draw& draw) {
    const Index rank = draw.below(2), stops = 1 + draw.below(8);
    const CommandResult done = run_job(command_, {.limit = 120,
                                                  .prepare = [] { ::setenv("SWITCHYARD_TIMEOUT", "10", 1); },
                                                  .meanwhile =
                                                      [&](pid_t) {
                                                        signal_rank(rank, 0, [&](pid_t process) {
                                                          for (Index i = 0; i < stops; ++i) {
                                                            ::kill(process, SIGSTOP);
                                                            sleep_seconds(static_cast<double>(draw.below(500)) / 1000);
                                                            ::kill(process, SIGCONT);
                                                            sleep_seconds(static_cast<double>(draw.below(20)) / 1000);
                                                          }
                                                        });
                                                      }});
    return whole(done, undisturbed(), fmt::format("rank {} is stopped {} times", rank, stops));
  }

  TrialResult other_build(Draw& draw) {
    const auto& [variable, name] = builds[draw.below(std::ssize(builds))];
    const RankCommand other{args_, {fmt::format("CAMPAIGN_BUILD={}", variable)}};
    return refused(other, {args_}, draw, name);
  }

  TrialResult other_setting(Draw& draw) {
    const std::string setting = settings[draw.below(std::ssize(settings))];
    RankCommand other{args_};
    other.args.push_back("--" + setting);
    return refused(other, {args_}, draw, setting.substr(0, setting.find('=')));
  }

  // All ranks use the narrower instruction set.
  TrialResult other_processor(Draw& draw) {
    const Index a = draw.below(std::ssize(isas_)), b = draw.below(std::ssize(isas_));
    const auto& [first, first_result] = isas_[static_cast<std::size_t>(a)];
    const auto& [second, second_result] = isas_[static_cast<std::size_t>(b)];
    const CommandResult done =
        run_job(job_command({args_, {isa_variable(first)}}, {args_, {isa_variable(second)}}), {.limit = 120});
    return whole(done, a < b ? first_result : second_result, fmt::format("ranks with {} and {}", first, second));
  }

  // The job must have the result of an undisturbed one.
  static TrialResult whole(const CommandResult& done, const std::string& expected, const std::string& fault) {
    TrialResult result{outcome_of(done), fault + ": " + text_of(done)};
    if (result.outcome == Outcome::reported) result.outcome = Outcome::unclear;
    if (result.outcome == Outcome::survived && weights_result("run") != expected) result.outcome = Outcome::wrong;
    return result;
  }

  // The job must end with one error that names rank 1 and the difference, and write nothing.
  static TrialResult refused(const RankCommand& a, const RankCommand& b, Draw& draw, const std::string& difference) {
    const bool swapped = draw.below(2) == 1;
    const CommandResult done = run_job(swapped ? job_command(b, a) : job_command(a, b), {.limit = 120});
    TrialResult result{outcome_of(done), fmt::format("ranks differ in {}: {}", difference, text_of(done))};
    if (is_failure(result.outcome)) return result;
    if (result.outcome == Outcome::survived || fs::exists("run"))
      result.outcome = Outcome::wrong;
    else if (done.code != 2 || done.err.find("rank 1 on ") == std::string::npos ||
             done.err.find(fmt::format(" has {} = ", difference)) == std::string::npos)
      result.outcome = Outcome::unclear;
    return result;
  }

  // Without SWITCHYARD_ISA, the widest instruction set computes.
  const std::string& undisturbed() const { return isas_.back().second; }

  std::vector<std::string> args_ = train_args({"--run.resume=true", "--train.steps=12"});
  std::vector<std::string> command_ = job_command(args_);
  std::vector<std::pair<std::string, std::string>> isas_;  // names, and weights of trainings
};

}  // namespace

std::unique_ptr<Row> make_unlike_ranks() {
  return std::make_unique<UnlikeRanks>();
}

}  // namespace sy::campaign
