// The launcher that started this rank: mpirun of Open MPI or MPICH, srun, or another one.
#pragma once

#include <sys/types.h>

namespace sy {

// Returns whether a launcher started this process as a rank of MPI.
// False in a Slurm step of one task.
bool launched();
// Numbers of this process that a launcher puts into the environment. -1: it does not set them.
struct LaunchedRank {
  int rank = -1, size = -1, local_rank = -1;  // local_rank: among the ranks of this machine
};
// Known before MPI starts.
LaunchedRank launched_rank();
// Returns the process id of the launcher of this rank: mpirun, or its daemon on another machine.
// 0 if launched() is false.
pid_t launcher_pid();
// Returns the parent of a process; 0 if it is unknown.
pid_t parent_of(pid_t process);

// Ends this process with exit code 2 if srun started several tasks without a process manager.
// Such tasks cannot reach each other. The first task prints the error. No-op otherwise.
void exit_without_process_manager();
// Returns whether the launcher started more processes than the `size` that MPI connects, as the
// launcher of another MPI library does. Every process is then the only rank.
bool is_unconnected(int size);
// From now on, this process ends with exit code 1 when its launcher ends. Needs a launcher.
void exit_with_launcher();
// Waits until the launcher has read this rank's output: until it sleeps, at most 10 seconds.
void wait_for_launcher_to_read();
// Ends mpirun of Open MPI or MPICH, or Open MPI's daemon on another machine. Takes up to five
// seconds. No-op for other launchers.
void terminate_mpirun();

}  // namespace sy
