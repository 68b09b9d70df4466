#include "dist/runtime.h"

#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <string_view>

#include "dist/comm_mpi.h"
#include "dist/leftovers.h"
#include "dist/shared_memory_transport.h"
#include "dist/watchdog.h"
#include "kernels/environment.h"

namespace sy {
namespace {

// Returns the limits from the environment; the defaults if they are invalid.
// run() then reports the error on all ranks.
WatchdogLimits limits_or_default() {
  try {
    return watchdog_limits();
  } catch (const InputError&) {
    return {};
  }
}

}  // namespace

Runtime::Runtime(std::shared_ptr<RankContext> context, int* argc, char*** argv) : context_(std::move(context)) {
  open_standard_streams();
  std::signal(SIGXFSZ, SIG_IGN);
  exit_without_process_manager();
  if (launched()) exit_with_launcher();
  try {
    watchdog_ = std::make_unique<Watchdog>(*context_, limits_or_default());
  } catch (const std::exception&) {
    exit_process(current_error().second, false);
  }
  if (!launched()) {
    world_ = make_comm_self(context_);
    return;
  }
  const ScopedBlock block(context_->blocked, "the start of MPI on all ranks");
  int provided = 0;
  MPI_Init_thread(argc, argv, MPI_THREAD_FUNNELED, &provided);
  owns_mpi_ = true;
  MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
  const ScopedBlock block_on_window(context_->blocked,
                                    "the start of the other ranks of this machine, which share memory");
  auto transport = SharedMemoryTransport::open(context_->blocked, MPI_COMM_WORLD, &context_->shared_memory.missing);
  if (transport) context_->shared_memory = {transport->size(), transport->bytes(), ""};
  if (launched_rank().local_rank == 0) {
    collect_leftovers(job_folder().parent_path());
    record_job(job_folder());
  }
  world_ = make_comm_mpi(context_, MPI_COMM_WORLD, false, std::move(transport));
  // Launchers may not pass the environment to all ranks.
  const char* const setting = environment("SWITCHYARD_COMPARE");
  context_->fingerprints = {world_->max(setting && std::string_view(setting) == "1") > 0, world_->rank()};
}

Runtime::~Runtime() {
  constexpr const char* others = "the end of the other ranks";
  {
    const ScopedBlock block(context_->blocked, others);  // freeing the window waits for its ranks
    world_.reset();
  }
  if (!owns_mpi_) return;
  std::fflush(stdout);
  if (code_ != 0) wait_for_launcher_to_read();
  const ScopedBlock block(context_->blocked, others);
  MPI_Barrier(MPI_COMM_WORLD);  // no rank leaves before launchers have read all output
  MPI_Finalize();
  watchdog_.reset();
}

int Runtime::run(const std::function<int()>& program) {
  return code_ = exit_code_of(program);
}

int Runtime::exit_code_of(const std::function<int()>& program) {
  try {
    WatchdogLimits limits;
    agree_on_errors(*world_, [&] {
      limits = watchdog_limits();
      check_window_setting();
    });
    watchdog_->rendezvous(*world_, limits);
    return abort_job_on_error(*world_, [&] {
      const int code = program();
      agree_on_errors(*world_, [] {
        if (const std::string why = output_error(); !why.empty())
          fail("cannot write standard output: {}: what was to be printed is not whole", why);
      });
      return code;
    });
  } catch (const CollectiveError& e) {
    if (world_->rank() == 0) print_error(e.what());
    return e.exit_code();
  } catch (const std::exception&) {
    const auto [code, what] = current_error();
    print_error(what);
    return code;
  }
}

// The alarm ends the process if standard error is a full pipe without a reader,
// or if the launcher never sleeps.
void exit_process(const std::string& what, bool launcher_too) {
  std::signal(SIGALRM, SIG_DFL);
  alarm(20);
  const std::string shown = error_lines(what);
  static_cast<void>(!write(STDERR_FILENO, shown.data(), shown.size()));
  log_console(shown);
  if (launched()) wait_for_launcher_to_read();
  if (launched() && launcher_too) terminate_mpirun();
  _exit(1);
}

}  // namespace sy
