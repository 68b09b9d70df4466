// Rows `signal` and `ranks`: signals at random moments of a training, which is then resumed.
#include <csignal>

#include "tests/reliability/ranks.h"

namespace sy::campaign {
namespace {

constexpr int signals[] = {SIGKILL, SIGTERM, SIGUSR1, SIGINT, SIGHUP, SIGSTOP};
constexpr Index num_signals = std::size(signals);

// A stopped process goes on after a moment.
void send(pid_t process, int signal) {
  ::kill(process, signal);
  if (signal != SIGSTOP) return;
  sleep_seconds(0.03);
  ::kill(process, SIGCONT);
}

// Result of a training that got a signal: exit code 0, 3 with a checkpoint, or the signal.
Outcome outcome_of_stop(const CommandResult& result, int signal, bool by_launcher) {
  if (result.hung) return Outcome::hung;
  const bool is_ending = signal == SIGKILL || signal == SIGTERM || signal == SIGINT || signal == SIGHUP;
  // A second signal, or one before the program handles it, ends the process.
  if (result.signal != 0)
    return result.signal == signal || (signal == SIGUSR1 && result.signal == SIGUSR1) ? Outcome::survived
                                                                                      : Outcome::crashed;
  if (result.code == 0 || result.code == 3) return Outcome::survived;
  return by_launcher && is_ending ? Outcome::survived : Outcome::unclear;
}

class Signals final : public Row {
 public:
  Signals() {
    make_inputs();
    const double begin = now();
    must_run(args_);
    seconds_ = now() - begin;
    undisturbed_ = weights_result("run");
  }
  Index points() const override { return 0; }
  TrialResult run(Index trial) override {
    Draw draw("signal", trial);
    const int signal = signals[draw.below(num_signals)];
    const double moment = seconds_ * 1.2 * static_cast<double>(draw.below(10000)) / 10000;
    fs::remove_all("run");
    const CommandResult stopped = run_command(args_, {.meanwhile = [&](pid_t child) {
                                                sleep_seconds(moment);
                                                send(child, signal);
                                              }});
    TrialResult result{outcome_of_stop(stopped, signal, false),
                       fmt::format("SIG{} after {:.4f} s: {}", sigabbrev_np(signal), moment, text_of(stopped))};
    if (is_failure(result.outcome)) return result;
    add_resume(result, run_command(args_), undisturbed_);
    return result;
  }

 private:
  std::vector<std::string> args_ = train_args({"--run.resume=true", "--train.steps=12"});
  double seconds_ = 0;
  std::string undisturbed_;
};

// Two ranks. A signal goes to a rank, to the launcher, or to all processes of the job.
class RankSignals final : public Row {
 public:
  RankSignals() {
    make_inputs();
    must_run_ranks();
    undisturbed_ = weights_result("run");
  }
  Index points() const override { return 0; }
  TrialResult run(Index trial) override {
    Draw draw("ranks", trial);
    const int signal = signals[draw.below(num_signals)];
    const Index target = draw.below(4);
    const double moment = 2.5 * seconds_ * static_cast<double>(draw.below(10000)) / 10000;
    fs::remove_all("run");
    const CommandResult stopped = run_job(command_, {.limit = 180, .meanwhile = [&](pid_t script) {
                                                       sleep_seconds(moment);
                                                       const std::vector<pid_t> ranks = rank_processes();
                                                       if (target < 2 && std::ssize(ranks) > target)
                                                         send(ranks[static_cast<std::size_t>(target)], signal);
                                                       else
                                                         send(target == 3 ? -script : script, signal);
                                                     }});
    TrialResult result{outcome_of_stop(stopped, signal, true),
                       fmt::format("SIG{} to {} after {:.3f} s: {}", sigabbrev_np(signal),
                                   target < 2    ? fmt::format("rank {}", target)
                                   : target == 2 ? "launch/mpirun.sh"
                                                 : "all",
                                   moment, text_of(stopped))};
    // SIGUSR1 has no handler in a rank that has not started.
    if (result.outcome == Outcome::unclear && signal == SIGUSR1) result.outcome = Outcome::survived;
    if (is_failure(result.outcome)) return result;
    add_resume(result, run_job(command_, {.limit = 180}), undisturbed_);
    return result;
  }

 private:
  void must_run_ranks() {
    const double begin = now();
    const CommandResult result = run_job(command_, {.limit = 300});
    if (result.code != 0) fail("a training of two ranks failed: {}", text_of(result));
    seconds_ = now() - begin;
  }
  std::vector<std::string> command_ = job_command(train_args({"--run.resume=true", "--train.steps=12"}));
  double seconds_ = 0;
  std::string undisturbed_;
};

}  // namespace

std::unique_ptr<Row> make_signals() {
  return std::make_unique<Signals>();
}
std::unique_ptr<Row> make_rank_signals() {
  return std::make_unique<RankSignals>();
}

}  // namespace sy::campaign
