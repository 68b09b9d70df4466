// The process among its ranks: starts and ends MPI, and sees to it that an error on any rank, or a hang, ends all of them.
#pragma once

#include <sys/types.h>

#include <functional>
#include <memory>
#include <string>

#include "dist/comm.h"
#include "kernels/backend.h"

namespace sy {

class Watchdog;   // dist/watchdog.h
class JobRecord;  // dist/leftovers.h

// Construct once, at the start of main. MPI is started only where a launcher (mpirun, srun) started this process, and the
// process then ends with its launcher; alone, the world is a comm_self. The watchdog runs from before
// MPI starts until after it has ended. Standard streams that were closed are open from here on, so that no file takes their place, but cannot be written; a file that may not grow (SIGXFSZ) is an error of the write.
class Runtime {
 public:
  Runtime(int* argc, char*** argv);
  ~Runtime();
  Runtime(const Runtime&) = delete;
  Runtime& operator=(const Runtime&) = delete;

  Comm& world() { return *world_; }

  // Runs a program on all ranks, under the watchdog, and returns the exit code that all of them share. An Error that
  // agree() has told to every rank ends all of them in order; one that strikes a single rank ends them as or_end_all
  // does. Output that was lost is an error. All that ranks print is out, and their launchers have read it, before any of
  // them leaves with a code that is not 0.
  int run(const std::function<int()>& program);

 private:
  void start_watchdog();
  int code_of(const std::function<int()>& program);

  std::unique_ptr<Comm> world_;
  std::unique_ptr<Watchdog> watchdog_;
  std::unique_ptr<JobRecord> record_;
  bool owns_mpi_ = false;
  int code_ = 0;
};

// Runs work and returns what it does. An error that strikes this rank alone is printed and ends all ranks, since the others
// wait in a collective that will never complete. It ends them here, before anything is freed that was made outside of
// `work`: a GPU frees no memory while a collective waits there for other ranks.
int or_end_all(Comm& world, const std::function<int()>& work);

// Prints an error of this rank, lets its launcher read it, and ends the process with exit code 1, at once. Launchers then end
// the other ranks. For another thread than the one that computes, which may be stuck anywhere but in printing. launcher_too: where a
// machine is out of reach, since mpirun would wait for its daemon there for a quarter of an hour: it is ended, too.
[[noreturn]] void end_process(const std::string& what, bool launcher_too);

// The process that started this rank: mpirun, or its like on another machine. 0: there is none.
pid_t launcher();

// Why something that was printed to standard output did not get there (a full disk, a closed stream), told once; empty where
// all of it did.
std::string lost_output();

// `text`, on one line and without what a terminal would obey: control characters become blanks.
std::string one_line(std::string text);
// A line on standard error: "switchyard: warning: ". On one rank alone, where the others would say the same.
void warn(const std::string& text);

// Name of this host, as gethostname() gives it.
std::string host_name();

// Returns the text of rank `root` on every rank. Collective.
std::string broadcast_text(Comm& comm, std::string text, int root);

// Which of the ranks on its machine this one is, from 0 on. Collective.
int local_rank(Comm& world);
// How many ranks of its machine, itself included, name the same device. Collective.
int ranks_sharing(Comm& world, const std::string& device);

// Sees to it that the ranks can compute together: on the same kind of device, which "auto" leaves to what each of them finds,
// and each on one of its own. Returns how many share this one's (NCCL_HOSTID makes NCCL allow it). Collective; throws
// AgreedError.
int agree_on_devices(Comm& world, const Backend& backend);

// Sees to it that the CPU kernels of all ranks are those of one instruction set, so that a result does not depend on which
// node a rank is on: the narrowest of those that the ranks' processors and $SWITCHYARD_ISA choose (kernels/cpu/processor.h).
// Collective; throws AgreedError where a rank can choose none.
void agree_on_isa(Comm& world);

// Runs `work` on every rank of `comm`; if it threw an Error on some, every rank throws an AgreedError with the exit code
// and the message of the lowest such rank. The only way to do something that may fail on one rank alone (open a file,
// write a shard) between collectives.
struct AgreedError : Error {
  using Error::Error;
};
void agree(Comm& comm, const std::function<void()>& work);

}  // namespace sy
