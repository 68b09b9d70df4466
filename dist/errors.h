// Errors that all ranks agree on, and the end of all ranks after an error of one.
// Communicators in this file are on host buffers.
#pragma once

#include <functional>
#include <string>
#include <utility>

#include "dist/comm.h"

namespace sy {

// An error that all ranks of a communicator throw together.
struct CollectiveError : Error {
  using Error::Error;
};
// Runs `work` on every rank of `comm`. If it throws on some ranks, all ranks throw a
// CollectiveError with the exit code and the message of the lowest such rank. Collective.
// Work that may fail on one rank alone (open a file, write a shard) must run in agree_on_errors()
// if it stands between collectives.
void agree_on_errors(Comm& comm, const std::function<void()>& work);

// Runs `work` and returns its result. A CollectiveError passes through.
// After any other exception, prints the error and aborts all ranks with its exit code. The other
// ranks may wait in a collective that never completes.
// The abort comes before objects from outside `work` are freed. A GPU frees no memory while a
// collective on it waits for other ranks. In a world of one rank, all exceptions pass through.
int abort_job_on_error(Comm& world, const std::function<int()>& work);

// Returns exit code and message of the exception that is being handled. Call it in a catch block.
// An exception that is no std::exception passes through.
std::pair<int, std::string> current_error();

// Installs a handler of exceptions that nothing catches, such as those of threads and of parallel
// regions. A lack of memory then prints one error and exits with code 1. Other exceptions abort.
void install_terminate_handler();

// Returns the text of rank `root` on every rank. Collective. Other ranks' `text` is ignored.
std::string broadcast_text(Comm& comm, std::string text, int root);

}  // namespace sy
