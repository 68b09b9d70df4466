#include "src/experiments/program.h"

#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstring>
#include <fstream>
#include <sstream>
#include <thread>

#include "kernels/check.h"
#include "src/system/files.h"
#include "src/train/stop.h"

namespace sy {
namespace {

// Returns the last line that begins like an error.
std::string last_error(const std::filesystem::path& log) {
  constexpr std::string_view begin = "switchyard: ";
  std::ifstream in(log);
  std::string error;
  for (std::string line; std::getline(in, line);)
    if (line.starts_with(begin) && !line.starts_with("switchyard: warning: ")) error = line.substr(begin.size());
  return error;
}

}  // namespace

std::vector<std::string> launch_command(const std::string& launcher, int ranks, bool always) {
  std::vector<std::string> command;
  if (!launcher.empty()) {
    std::istringstream in(launcher);
    for (std::string argument; in >> argument;) {
      if (const auto at = argument.find("{ranks}"); at != argument.npos) argument.replace(at, 7, std::to_string(ranks));
      command.push_back(argument);
    }
    return command;
  }
  if (ranks == 1 && !always) return command;
  for (const std::filesystem::path& folder : resource_folders()) {
    const std::filesystem::path script = folder / "launch" / "mpirun.sh";
    std::error_code none;
    if (std::filesystem::exists(script, none)) return {script.string(), std::to_string(ranks)};
  }
  bad_input("launch/mpirun.sh is not beside {}: say how ranks are started, as in --launcher \"mpirun -np {{ranks}}\"",
            program_path().string());
}

ProgramResult run_program(const std::vector<std::string>& command, const std::filesystem::path& log,
                          const std::function<void()>& meanwhile) {
  std::vector<char*> argv;
  for (const std::string& argument : command) argv.push_back(const_cast<char*>(argument.c_str()));
  argv.push_back(nullptr);
  const int out = open(log.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
  if (out < 0) fail("cannot write {}: {}", log.string(), std::strerror(errno));
  const pid_t self = getpid();
  const pid_t child = fork();
  if (child < 0) fail("cannot start {}: {}", command.front(), std::strerror(errno));
  if (child == 0) {
    // A terminal's Ctrl-C then reaches only the parent, which passes it on.
    setpgid(0, 0);
    for (const int signal : {SIGUSR1, SIGTERM, SIGINT, SIGHUP}) std::signal(signal, SIG_DFL);
    prctl(PR_SET_PDEATHSIG, SIGTERM);
    const int in = open("/dev/null", O_RDONLY);
    dup2(in, STDIN_FILENO);
    dup2(out, STDOUT_FILENO);
    dup2(out, STDERR_FILENO);
    if (getppid() == self) execvp(argv.front(), argv.data());
    static_cast<void>(!write(STDERR_FILENO, "switchyard: cannot be started\n", 30));
    _exit(127);
  }
  close(out);
  bool passed_on = false;
  int status = 0;
  for (;;) {
    const pid_t ended = waitpid(child, &status, WNOHANG);
    if (ended == child) break;
    if (ended < 0 && errno != EINTR) fail("lost {}: {}", command.front(), std::strerror(errno));
    if (const int signal = stop_signal(); signal != 0 && !passed_on) {
      passed_on = true;
      kill(child, signal);
    }
    meanwhile();
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
  }
  ProgramResult result{WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status), last_error(log)};
  if (result.code == 127) fail("cannot start {}: see {}", command.front(), log.string());
  return result;
}

}  // namespace sy
