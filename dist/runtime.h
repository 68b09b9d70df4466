// Runtime of a rank: starts and ends MPI, and ends all ranks after a hang of any rank.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "dist/comm.h"
#include "dist/console.h"
#include "dist/errors.h"
#include "dist/launcher.h"
#include "dist/machine.h"
#include "kernels/device.h"

namespace sy {

class Watchdog;  // dist/watchdog.h

// Owns MPI, the world communicator and the watchdog. Construct it once, at the start of main.
// MPI starts only if a launcher (mpirun, srun) started this process. The process then ends with its
// launcher. Otherwise, and in a Slurm step of one task, the world is a comm_self.
// If srun started several tasks that cannot reach each other, the constructor ends the process.
// The watchdog runs from before MPI starts until after it has ended.
class Runtime {
 public:
  // context: of this rank; the world communicator carries it.
  // argc, argv: those of main; MPI may change them.
  // Opens closed standard streams, so that no file gets their descriptors; using them stays an
  // error. Ignores SIGXFSZ, so that a write beyond the file size limit returns an error.
  Runtime(std::shared_ptr<RankContext> context, int* argc, char*** argv);
  // Ends MPI, after all ranks have come here. Collective.
  // If run() returned a code other than 0, waits up to 10 seconds until the launcher has read the
  // output. A launcher ends all ranks as soon as one exits with such a code.
  ~Runtime();
  Runtime(const Runtime&) = delete;
  Runtime& operator=(const Runtime&) = delete;

  Comm& world() { return *world_; }

  // Runs a program on all ranks under the watchdog. Collective.
  // Returns the program's result, or the exit code of its exception. The program must return the
  // same result on all ranks.
  // A CollectiveError, which agree_on_errors() throws on all ranks, is printed by rank 0. Any other
  // exception ends all ranks as in abort_job_on_error(). Lost output is an error (output_error()).
  int run(const std::function<int()>& program);

 private:
  int exit_code_of(const std::function<int()>& program);

  std::shared_ptr<RankContext> context_;
  std::unique_ptr<Comm> world_;
  std::unique_ptr<Watchdog> watchdog_;
  bool owns_mpi_ = false;
  int code_ = 0;
};

// Prints an error of this rank and exits with code 1. Launchers then end the other ranks.
// Before the exit, it waits up to 10 seconds until the launcher has read the error.
// An alarm ends the process after 20 seconds in any case, for example if printing blocks.
// Any thread may call it; the main thread may be blocked. Destructors do not run.
// If launcher_too, Open MPI's mpirun ends as well: for the case that another machine is out of
// reach. Otherwise mpirun would wait 15 minutes for its daemon there.
[[noreturn]] void exit_process(const std::string& what, bool launcher_too);

}  // namespace sy
