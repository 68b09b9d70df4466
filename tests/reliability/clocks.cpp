#include "tests/reliability/clocks.h"

#include <dlfcn.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <csignal>

#include "src/system/files.h"
#include "tests/reliability/campaign.h"

namespace {

struct Jump {
  std::atomic<clockid_t> clock = CLOCK_REALTIME;
  std::atomic<long> call = 0, calls = 0;
  std::atomic<double> seconds = 0;
} jump;

double added(clockid_t clock) {
  if (clock != jump.clock) return 0;
  const long n = ++jump.calls;
  return jump.call > 0 && n >= jump.call ? jump.seconds.load() : 0;
}

}  // namespace

extern "C" int clock_gettime(clockid_t clock, struct timespec* value) {
  static const auto real = reinterpret_cast<int (*)(clockid_t, timespec*)>(dlsym(RTLD_NEXT, "clock_gettime"));
  const int result = real(clock, value);
  if (result == 0) value->tv_sec += static_cast<time_t>(added(clock));
  return result;
}
extern "C" time_t time(time_t* result) {
  timespec now{};
  clock_gettime(CLOCK_REALTIME, &now);
  if (result) *result = now.tv_sec;
  return now.tv_sec;
}

namespace sy::campaign {

void set_clock_jump(clockid_t clock, long call, double seconds) {
  jump.clock = clock;
  jump.call = call;
  jump.calls = 0;
  jump.seconds = seconds;
}
long clock_calls() {
  return jump.calls;
}

namespace {

class Clocks final : public Row {
 public:
  Clocks() {
    make_inputs();
    for (std::size_t i = 0; i < std::size(clocks); ++i) {
      fs::remove_all("run");
      // The number of calls is the exit code of a training in a child, whose text is in a file.
      must_run(args_, {.prepare = [&] { set_clock_jump(clocks[i], 0, 0); },
                       .finish = [&] { write_text("calls", std::to_string(clock_calls())); }});
      calls_[i] = std::stol(read_file("calls"));
      if (calls_[i] < 5) fail("the campaign sees only {} calls of a clock", calls_[i]);
    }
    undisturbed_ = weights_result("run");
  }
  Index points() const override { return 0; }
  TrialResult run(Index trial) override {
    Draw draw("clock", trial);
    const auto which = static_cast<std::size_t>(draw.below(std::size(clocks)));
    const long call = 1 + draw.below(calls_[which]);
    // A monotonic clock only goes on, for instance after the machine was suspended.
    constexpr double jumps[] = {-86400, -3600, -2, 2, 3600, 86400, 3.2e7};
    const double seconds = jumps[which == 0 ? draw.below(7) : 3 + draw.below(2)];
    fs::remove_all("run");
    const CommandResult done = run_command(args_, {.prepare = [&] { set_clock_jump(clocks[which], call, seconds); }});
    TrialResult result{outcome_of(done), fmt::format("clock {} jumps by {} s at call {} of {}: {}", which, seconds,
                                                     call, calls_[which], text_of(done))};
    if (result.outcome == Outcome::survived && weights_result("run") != undisturbed_) result.outcome = Outcome::wrong;
    return result;
  }

 private:
  static constexpr clockid_t clocks[] = {CLOCK_REALTIME, CLOCK_MONOTONIC};
  std::vector<std::string> args_ = train_args();
  long calls_[2] = {};
  std::string undisturbed_;
};

}  // namespace

std::unique_ptr<Row> make_clocks() {
  return std::make_unique<Clocks>();
}

}  // namespace sy::campaign
