// Signals that ask a run to stop. After the first one, the run finishes the step, writes a
// checkpoint and exits with stopped_exit_code. A second SIGINT, SIGTERM or SIGHUP ends the process
// at once.
#pragma once

#include <string>

namespace sy {

inline constexpr int stopped_exit_code = 3;

// Ignores SIGINT and SIGHUP if they were ignored when the process began (nohup). Call it first of
// all: UCX, a library of MPI, installs a handler of SIGHUP when it is loaded.
void restore_ignored_signals();
// Installs handlers: from now on SIGUSR1, SIGINT, SIGTERM and SIGHUP request a stop. SIGINT and
// SIGHUP stay ignored if they were (nohup). Call it first of all: mpirun forwards signals from its
// start, long before MPI is initialised.
void install_stop_handlers();

// Returns the signal that asked this process to stop; 0 if there was none.
int stop_signal();
std::string signal_name(int signal);  // "SIGINT"

// Returns the time since the start of the program, in seconds.
double program_seconds();

}  // namespace sy
