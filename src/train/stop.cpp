#include "src/train/stop.h"

#include <unistd.h>

#include <csignal>
#include <cstring>
#include <ctime>

#include "dist/runtime.h"

namespace sy {
namespace {

volatile std::sig_atomic_t asked = 0;
volatile std::sig_atomic_t insisting = 0;  // 1 after a signal whose repetition ends the process
timespec first_time;
const char* notice_of_order = "";    // answer to a signal whose repetition ends the process
const char* notice_of_request = "";  // answer to SIGUSR1, which may be repeated

void ask_to_stop(int signal) {
  if (signal != SIGUSR1) {
    timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    if (!insisting) {
      insisting = 1;
      first_time = now;
    } else if (1000 * (now.tv_sec - first_time.tv_sec) + (now.tv_nsec - first_time.tv_nsec) / 1'000'000 > 1000) {
      // Within a second it is the same request: `timeout` and a closing shell send the signal
      // twice.
      std::signal(signal, SIG_DFL);
      std::raise(signal);
    }
  }
  if (!asked) {
    const char* notice = signal == SIGUSR1 ? notice_of_request : notice_of_order;
    static_cast<void>(!write(STDERR_FILENO, notice, std::strlen(notice)));
  }
  asked = signal;
}

}  // namespace

void listen_for_stop() {
  // A step may take long, so the user gets an answer. Under a launcher, all ranks would print it.
  if (launcher() == 0) {
    notice_of_order = isatty(STDERR_FILENO) ? "\nstopping after this step; a second Ctrl-C ends the run at once\n"
                                            : "stopping after this step; a second signal ends the run at once\n";
    notice_of_request = "stopping after this step\n";
  }
  for (const int signal : {SIGUSR1, SIGTERM}) std::signal(signal, ask_to_stop);
  for (const int signal : {SIGINT, SIGHUP})
    if (std::signal(signal, ask_to_stop) == SIG_IGN) std::signal(signal, SIG_IGN);
}

int stop_asked() {
  return asked;
}

std::string signal_name(int signal) {
  return std::string("SIG") + sigabbrev_np(signal);
}

}  // namespace sy
