// Runtime of a rank: starts and ends MPI, and ends all ranks after an error or a hang of any rank.
#pragma once

#include <sys/types.h>

#include <cstdio>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "dist/comm.h"
#include "kernels/backend.h"

namespace sy {

class Watchdog;  // dist/watchdog.h

// Owns MPI, the world communicator and the watchdog. Construct it once, at the start of main.
// MPI starts only if a launcher (mpirun, srun) started this process. The process then ends with its
// launcher. Otherwise, and in a Slurm step of one task, the world is a comm_self.
// If srun started several tasks that cannot reach each other, the constructor ends the process.
// The watchdog runs from before MPI starts until after it has ended.
class Runtime {
 public:
  // argc, argv: those of main; MPI may change them.
  // Opens closed standard streams, so that no file gets their descriptors; using them stays an
  // error. Ignores SIGXFSZ, so that a write beyond the file size limit returns an error.
  Runtime(int* argc, char*** argv);
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
  void start_watchdog();
  int exit_code_of(const std::function<int()>& program);

  std::unique_ptr<Comm> world_;
  std::unique_ptr<Watchdog> watchdog_;
  bool owns_mpi_ = false;
  int code_ = 0;
};

// Runs `work` and returns its result. A CollectiveError passes through.
// After any other exception, prints the error and aborts all ranks with its exit code:
// the other ranks may wait in a collective that never completes.
// The abort comes before objects from outside `work` are freed. A GPU frees no memory while a
// collective on it waits for other ranks. In a world of one rank, all exceptions pass through.
int abort_job_on_error(Comm& world, const std::function<int()>& work);

// Prints an error of this rank and exits with code 1. Launchers then end the other ranks.
// Before the exit, it waits up to 10 seconds until the launcher has read the error.
// An alarm ends the process after 20 seconds in any case, for example if printing blocks.
// Any thread may call it; the main thread may be blocked. Destructors do not run.
// If launcher_too, Open MPI's mpirun ends as well: for the case that another machine is out of
// reach. Otherwise mpirun would wait 15 minutes for its daemon there.
[[noreturn]] void exit_process(const std::string& what, bool launcher_too);

// Returns the process id of the launcher of this rank: mpirun, or its daemon on another machine.
// 0 if no launcher started this process (Runtime).
pid_t launcher();

// Flushes standard output. Returns why output to it was lost (full disk, closed stream).
// Empty if all output was written. Reports each loss once.
std::string output_error();

// Returns `text` on one line: control characters become blanks.
std::string one_line(std::string text);
// Prints "switchyard: warning: TEXT" to standard error, and to the log of attach_console_log().
// If the warning is the same for all ranks, call it on one rank only.
void warn(const std::string& text);

// Writes a heading to the file. From then on, the file gets a copy of this process's warnings and
// errors, including up to 64 KiB of those printed before. Call it at most once.
// The caller must leave the file open until the process ends.
void attach_console_log(std::FILE* file, std::string_view heading);
// Appends `text`, which the caller has printed itself, to the copy in that file.
// Write errors do not throw: console_log_error() reports them.
void log_console(std::string_view text);
// Returns the reason of the first failed write to that file.
// Empty if no write failed, or if there is no file.
std::string console_log_error();

// Returns the name of this host, as of gethostname().
std::string host_name();

// Returns the text of rank `root` on every rank. Collective. Other ranks' `text` is ignored.
// comm: on host buffers, as in all functions below.
std::string broadcast_text(Comm& comm, std::string text, int root);

// Returns the index of this rank among the ranks of its machine. Collective.
int local_rank(Comm& world);
// Returns the number of ranks of this machine with the same device, including this one. Collective.
int ranks_sharing(Comm& world, const std::string& device);

// Checks that all ranks have a GPU or none has, and that no two ranks share a GPU.
// With the backend "auto", each rank chooses its device itself, so that they may differ.
// Returns the number of ranks that share this rank's GPU; 1 if the backend is on the host.
// Ranks may share a GPU if DeviceCollectives::shares_devices. Throws CollectiveError. Collective.
int agree_on_devices(Comm& world, const Backend& backend);

// Makes all ranks use CPU kernels of one instruction set,
// so that results do not depend on the node.
// It is the narrowest set that a rank's processor and $SWITCHYARD_ISA select
// (kernels/cpu/processor.h).
// Throws CollectiveError if a rank can select none. Collective.
void agree_on_isa(Comm& world);

// An error that all ranks of a communicator throw together.
struct CollectiveError : Error {
  using Error::Error;
};
// Runs `work` on every rank of `comm`. If it throws on some ranks, all ranks throw a
// CollectiveError with the exit code and the message of the lowest such rank. Collective.
// Work that may fail on one rank alone (open a file, write a shard) must run in agree_on_errors()
// if it stands between collectives.
void agree_on_errors(Comm& comm, const std::function<void()>& work);

}  // namespace sy
