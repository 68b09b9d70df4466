// Row `windows`: a rank is killed, is stopped for ever or exits in a chosen window of a training.
#include <cstdlib>
#include <sstream>

#include "src/system/files.h"
#include "tests/reliability/rank_faults.h"
#include "tests/reliability/ranks.h"

namespace sy::campaign {
namespace {

struct WindowEntry {
  const char* name;
  Window window;
  bool is_first = false;      // the first call alone
  bool shares_memory = true;  // otherwise data travel by messages of MPI
};
constexpr WindowEntry windows[] = {
    {"start of MPI", Window::init},
    {"shared window", Window::shared},
    {"first collective", Window::collective, true},
    {"collective", Window::collective},
    {"message", Window::message, false, false},
    {"save", Window::save},
    {"end", Window::end},
};
constexpr Index num_entries = std::size(windows), num_ranks = 2;

class Windows final : public Row {
 public:
  Windows() {
    make_inputs();
    for (const bool shares_memory : {false, true}) {
      fs::remove_all("run");
      const CommandResult whole = run_job(command_, {.limit = 300, .prepare = [&] {
                                                       ::setenv("CAMPAIGN_COUNTS", "counts", 1);
                                                       if (!shares_memory) ::setenv("SWITCHYARD_WINDOW", "0", 1);
                                                     }});
      if (whole.code != 0) fail("a training of two ranks failed: {}", text_of(whole));
      for (Index rank = 0; rank < num_ranks; ++rank) {
        std::istringstream in(read_file(fmt::format("counts.{}", rank)));
        for (long& count : counts_[shares_memory][rank]) in >> count;
      }
    }
    for (const WindowEntry& entry : windows)
      for (Index rank = 0; rank < num_ranks; ++rank)
        // Rank 1 writes its shard alone.
        if (count_of(entry, rank) < 3) fail("{}: rank {} passes it {} times", entry.name, rank, count_of(entry, rank));
    undisturbed_ = weights_result("run");
  }
  Index points() const override { return 0; }

  // Consecutive trials have all windows, actions and ranks. The call is a random one.
  TrialResult run(Index trial) override {
    Draw draw("windows", trial);
    const WindowEntry& entry = windows[trial % num_entries];
    const Index action = trial / num_entries % std::ssize(action_names),
                rank = trial / num_entries / std::ssize(action_names) % num_ranks;
    const long calls = count_of(entry, rank), call = 1 + draw.below(entry.is_first ? 2 : calls);
    fs::remove_all("run");
    const CommandResult lost =
        run_job(command_,
                {.limit = 90, .prepare = [&] {
                   ::setenv("SWITCHYARD_TIMEOUT", "3", 1);
                   ::setenv("CAMPAIGN_WINDOW",
                            fmt::format("{} {} {} {}", rank, static_cast<int>(entry.window), call, action).c_str(), 1);
                   if (!entry.shares_memory) ::setenv("SWITCHYARD_WINDOW", "0", 1);
                 }});
    TrialResult result{outcome_of_lost_rank(lost),
                       fmt::format("rank {} {} at passage {} of {} of the window '{}': {}", rank, action_names[action],
                                   call, calls, entry.name, text_of(lost))};
    if (result.outcome == Outcome::survived && weights_result("run") != undisturbed_) result.outcome = Outcome::wrong;
    if (!is_failure(result.outcome)) add_resume(result, run_job(command_, {.limit = 180}), undisturbed_);
    return result;
  }

 private:
  long count_of(const WindowEntry& entry, Index rank) const {
    return counts_[entry.shares_memory][rank][static_cast<std::size_t>(entry.window)];
  }

  std::vector<std::string> command_ =
      job_command(train_args({"--run.resume=true", "--train.steps=6", "--parallel.ep=2"}));
  WindowCounts counts_[2][num_ranks] = {};
  std::string undisturbed_;
};

}  // namespace

std::unique_ptr<Row> make_windows() {
  return std::make_unique<Windows>();
}

}  // namespace sy::campaign
