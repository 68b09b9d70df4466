// The launcher that started this rank: mpirun, or srun.
#pragma once

#include <sys/types.h>

namespace sy {

// Returns whether a launcher (mpirun, MPICH's, srun) started this process as a rank of MPI.
// False in a Slurm step of one task.
bool launched();
// Returns the process id of the launcher of this rank: mpirun, or its daemon on another machine.
// 0 if launched() is false.
pid_t launcher_pid();

// Ends this process with exit code 2 if srun started several tasks without a process manager.
// Such tasks cannot reach each other. The first task prints the error. No-op otherwise.
void exit_without_process_manager();
// From now on, this process ends with exit code 1 when its launcher ends. Needs a launcher.
void exit_with_launcher();
// Waits until the launcher has read this rank's output: until it sleeps, at most 10 seconds.
void wait_for_launcher_to_read();
// Ends Open MPI's mpirun, or its daemon on another machine. Takes up to five seconds.
// No-op for other launchers.
void terminate_mpirun();

}  // namespace sy
