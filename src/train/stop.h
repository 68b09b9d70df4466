// Signals that ask a run to stop. The first is a request: the step is finished, a checkpoint written, and the run leaves with
// an exit code of its own. A second SIGINT, SIGTERM or SIGHUP ends the process at once.
#pragma once

#include <string>

namespace sy {

inline constexpr int stopped_exit_code = 3;

// From here on SIGUSR1, SIGINT, SIGTERM and SIGHUP ask to stop; SIGINT and SIGHUP not where they were ignored (nohup). Called
// first of all: mpirun forwards signals from its start on, long before MPI is initialised.
void listen_for_stop();

// The signal that asked this process to stop; 0: none has.
int stop_asked();
std::string signal_name(int signal);  // "SIGINT"

}  // namespace sy
