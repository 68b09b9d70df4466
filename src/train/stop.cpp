#include "src/train/stop.h"

#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstring>
#include <ctime>

#include "dist/runtime.h"

namespace sy {
namespace {

const std::chrono::steady_clock::time_point program_start = std::chrono::steady_clock::now();

volatile std::sig_atomic_t requested_signal = 0;
volatile std::sig_atomic_t second_signal_ends = 0;  // 1 after SIGINT, SIGTERM or SIGHUP
timespec first_signal_time;
const char* stop_notice = "";     // answer to a signal whose repetition ends the process
const char* request_notice = "";  // answer to SIGUSR1, which may be repeated

void on_stop_signal(int signal) {
  if (signal != SIGUSR1) {
    timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    if (!second_signal_ends) {
      second_signal_ends = 1;
      first_signal_time = now;
    } else if (1000 * (now.tv_sec - first_signal_time.tv_sec) + (now.tv_nsec - first_signal_time.tv_nsec) / 1'000'000 >
               1000) {
      // Within a second it is the same request: `timeout` and a closing shell send the signal
      // twice.
      std::signal(signal, SIG_DFL);
      std::raise(signal);
    }
  }
  if (!requested_signal) {
    const char* notice = signal == SIGUSR1 ? request_notice : stop_notice;
    static_cast<void>(!write(STDERR_FILENO, notice, std::strlen(notice)));
  }
  requested_signal = signal;
}

bool interrupt_was_ignored = false, hangup_was_ignored = false;

bool is_ignored(int signal) {
  struct sigaction action {};
  return sigaction(signal, nullptr, &action) == 0 && action.sa_handler == SIG_IGN;
}

// Functions of this section run before the constructors of shared libraries.
[[gnu::section(".preinit_array"), gnu::used]] void (*const record_ignored_signals)() = [] {
  interrupt_was_ignored = is_ignored(SIGINT);
  hangup_was_ignored = is_ignored(SIGHUP);
};

}  // namespace

void restore_ignored_signals() {
  if (interrupt_was_ignored) std::signal(SIGINT, SIG_IGN);
  if (hangup_was_ignored) std::signal(SIGHUP, SIG_IGN);
}

void install_stop_handlers() {
  // A step may take long, so the user gets an answer. Under a launcher, all ranks would print it.
  if (launcher_pid() == 0) {
    stop_notice = isatty(STDERR_FILENO) ? "\nstopping after this step; a second Ctrl-C ends the run at once\n"
                                        : "stopping after this step; a second signal ends the run at once\n";
    request_notice = "stopping after this step\n";
  }
  for (const int signal : {SIGUSR1, SIGTERM}) std::signal(signal, on_stop_signal);
  for (const int signal : {SIGINT, SIGHUP})
    if (std::signal(signal, on_stop_signal) == SIG_IGN) std::signal(signal, SIG_IGN);
}

int stop_signal() {
  return requested_signal;
}

std::string signal_name(int signal) {
  return std::string("SIG") + sigabbrev_np(signal);
}

double program_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - program_start).count();
}

}  // namespace sy
