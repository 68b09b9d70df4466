// The main program. It starts the ranks, finds the command and returns one exit code on all of
// them.
#include <chrono>
#include <thread>

#include "dist/console.h"
#include "dist/mpi_info.h"
#include "dist/rank_settings.h"
#include "dist/watchdog.h"
#include "kernels/environment.h"
#include "kernels/threads.h"
#include "src/build_info.h"
#include "src/cli/options.h"
#include "src/io/checkpoint.h"
#include "src/provenance/provenance.h"
#include "src/text/strings.h"
#include "src/train/stop.h"

namespace {

// Checks that all ranks run the same command, since different ones would deadlock. `train` compares
// its settings itself, whatever their spelling.
void check_same_start(sy::Comm& world, const std::string& name, const std::vector<std::string>& args) {
  const sy::BuildInfo& build = sy::build_info();
  std::vector<sy::RankSetting> settings = {{"the command", name},
                                           {"the program's version", build.version},
                                           {"the program's commit", sy::commit_text(build)},
                                           {"the program's build options", sy::options_text(build)}};
  if (name != "train") settings.push_back({"the arguments", sy::join(args, " ")});
  sy::check_rank_settings(world, settings, "start all ranks with the same program and command line");
}

// Returns whether MPI connects the ranks. Otherwise each of them would train alone. The first one
// then prints the error, and leaves first: a launcher may end the others when one leaves.
bool are_connected(const sy::Comm& world) {
  if (!sy::is_unconnected(world.size())) return true;
  if (sy::launched_rank().rank > 0)
    std::this_thread::sleep_for(std::chrono::seconds(1));
  else
    sy::print_error(
        fmt::format("the launcher has started {} processes, which MPI does not connect: use the launcher of {} "
                    "(SWITCHYARD_MPIEXEC names it to launch/mpirun.sh), or srun --mpi=pmix",
                    sy::launched_rank().size, sy::mpi_info().library));
  return false;
}

// Runs a command. If it reads a run's newest checkpoint and a concurrent training deletes it, the
// command starts again: for a minute, and at least 19 times, since an attempt may take longer.
int run_command(const sy::Command& command, sy::Comm& world, const std::vector<std::string>& args) {
  using Clock = std::chrono::steady_clock;
  constexpr int least_attempts = 20;
  const Clock::time_point deadline = Clock::now() + std::chrono::minutes(1);
  const sy::Json provenance = command.records ? sy::collect_provenance(world) : sy::Json();
  for (int attempt = 1;; ++attempt) {
    sy::CommandLine line{world, args, nullptr, provenance};
    try {
      return command.run(line);
    } catch (const sy::Error& e) {
      // Ranks may communicate only after an error that all of them share.
      const bool shared = world.size() == 1 || dynamic_cast<const sy::CollectiveError*>(&e);
      if (!command.repeatable || !shared) throw;
      const bool may_repeat = attempt < least_attempts || Clock::now() < deadline;
      if (world.max(may_repeat && sy::chosen_checkpoint_vanished()) == 0) throw;
    }
    if (world.rank() == 0 && attempt == 1)
      sy::warn("the run has deleted the checkpoint that was being read: now its newest one is read");
  }
}

}  // namespace

int main(int argc, char** argv) {
  sy::install_terminate_handler();
  sy::restore_ignored_signals();
  const std::string_view command = argc > 1 ? argv[1] : "help";
  sy::apply_thread_settings(
      argv, command == "generate" ? sy::spins_between_short_products : sy::spins_between_large_products);
  sy::set_library_defaults();
  if (command == "train") sy::install_stop_handlers();
  const auto context = std::make_shared<sy::RankContext>();
  sy::Runtime runtime(context, &argc, &argv);
  return runtime.run([&] {
    sy::Comm& world = runtime.world();
    std::vector<std::string> args(argv + 1, argv + argc);
    std::string name = args.empty() ? "help" : args.front();
    if (!args.empty()) args.erase(args.begin());
    if (name == "--help" || name == "-h") name = "help";
    if (name == "--version") name = "version";
    if (name != "doctor" && !are_connected(world)) return 2;  // doctor reports it
    check_same_start(world, name, args);
    std::vector<std::string> known;
    for (const sy::Command& c : sy::commands()) {
      if (name == c.name) {
        if (c.parallel) {
          sy::agree_on_isa(world);
          return run_command(c, world, args);
        }
        // One rank runs the command. Other ranks wait for its result.
        int code = 0;
        sy::agree_on_errors(world, [&] {
          if (world.rank() != 0) return;
          const sy::UnlimitedLocalWork unlimited(*context);
          const auto self = sy::make_comm_self(context);
          code = run_command(c, *self, args);
        });
        return static_cast<int>(world.max(code));
      }
      known.emplace_back(c.name);
    }
    sy::agree_on_errors(world, [&] {
      const std::string near = sy::nearest(name, known);
      sy::bad_input("unknown command '{}': {}", name,
                    near.empty() ? "`switchyard help` lists them" : "did you mean " + near + "?");
    });
    return 2;
  });
}
