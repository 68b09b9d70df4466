// Signals that ask a run to stop. After the first one, the run finishes the step, writes a
// checkpoint and exits with stopped_exit_code. If SIGINT, SIGTERM or SIGHUP comes again, more than
// 1 s after the first of these three, it ends the process at once.
#pragma once

#include <string>

namespace sy {

inline constexpr int stopped_exit_code = 3;

// Ignores SIGINT and SIGHUP if they were ignored when the process began (nohup). Call it first of
// all: UCX, a library of MPI, installs a handler of SIGHUP when it is loaded.
void restore_ignored_signals();
// Installs handlers: from now on SIGUSR1, SIGINT, SIGTERM and SIGHUP request a stop. SIGINT and
// SIGHUP stay ignored if they were (nohup). Call it before MPI starts, after
// restore_ignored_signals(): mpirun forwards signals from its start.
void install_stop_handlers();

// Returns the signal that asked this process to stop; 0 if there was none.
int stop_signal();
std::string signal_name(int signal);  // "SIGINT"

// Returns the time since the start of the program, in seconds.
double program_seconds();

}  // namespace sy
