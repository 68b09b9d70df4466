// Commands in child processes. The program's main function is linked in as switchyard_main.
#include <fcntl.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdio>
#include <numeric>
#include <sstream>
#include <thread>

#include "kernels/check.h"
#include "tests/reliability/campaign.h"
#include "tests/reliability/file_history.h"

int switchyard_main(int argc, char** argv);

namespace sy::campaign {
namespace {

// The output of a child, in a file without a name.
class Output {
 public:
  Output() : file_(::memfd_create("output", MFD_CLOEXEC)) {
    if (file_ < 0) fail("cannot make a file for the output of a command");
  }
  ~Output() { ::close(file_); }
  Output(const Output&) = delete;
  Output& operator=(const Output&) = delete;
  int file() const { return file_; }
  std::string text() const {
    std::string text(1 << 16, 0);
    text.resize(static_cast<std::size_t>(std::max<ssize_t>(::pread(file_, text.data(), text.size(), 0), 0)));
    return text;
  }

 private:
  int file_;
};

std::vector<char*> pointers(std::vector<std::string>& args) {
  std::vector<char*> argv;
  for (std::string& argument : args) argv.push_back(argument.data());
  argv.push_back(nullptr);
  return argv;
}

// Waits for the child, and kills it and its process group after `limit` seconds.
void wait_for(pid_t child, double limit, CommandResult& result) {
  const auto handle = static_cast<int>(::syscall(SYS_pidfd_open, child, 0));
  pollfd wait{handle, POLLIN, 0};
  if (handle < 0 || ::poll(&wait, 1, static_cast<int>(limit * 1000)) == 0) {
    result.hung = true;
    ::kill(-child, SIGKILL);
    ::kill(child, SIGKILL);
  }
  if (handle >= 0) ::close(handle);
  int status = 0;
  if (::waitpid(child, &status, 0) != child) fail("cannot wait for a command");
  if (WIFEXITED(status)) result.code = WEXITSTATUS(status);
  if (WIFSIGNALED(status)) result.signal = WTERMSIG(status);
  ::kill(-child, SIGKILL);  // processes that it has left
}

// Runs `body` in a child, whose result is its exit code.
CommandResult in_child(const CommandOptions& options, const std::function<int()>& body) {
  const Output out, err;
  static long* const calls =
      static_cast<long*>(::mmap(nullptr, sizeof(long), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
  *calls = 0;
  std::fflush(nullptr);
  const pid_t child = ::fork();
  if (child < 0) fail("cannot start a child process");
  if (child == 0) {
    ::setpgid(0, 0);
    ::dup2(::open("/dev/null", O_RDONLY), STDIN_FILENO);
    ::dup2(out.file(), STDOUT_FILENO);
    ::dup2(err.file(), STDERR_FILENO);
    if (options.prepare) options.prepare();
    fault_arm(options.fault);
    if (!options.record.empty()) start_record(options.record);
    // An exception that leaves the main function ends a process.
    const int code = [&]() noexcept { return body(); }();
    *calls = fault_calls();
    fault_arm(nullptr);
    if (options.finish) options.finish();
    std::fflush(nullptr);
    ::_exit(code);
  }
  ::setpgid(child, child);
  CommandResult result;
  if (options.meanwhile) options.meanwhile(child);
  wait_for(child, options.limit, result);
  result.out = out.text();
  result.err = err.text();
  result.calls = *calls;
  return result;
}

}  // namespace

CommandResult run_command(const std::vector<std::string>& args, const CommandOptions& options) {
  return in_child(options, [&] {
    std::vector<std::string> all = args;
    all.insert(all.begin(), "switchyard");
    std::vector<char*> argv = pointers(all);
    return switchyard_main(static_cast<int>(all.size()), argv.data());
  });
}

CommandResult run_process(const std::vector<std::string>& args, const CommandOptions& options) {
  return in_child(options, [&] {
    std::vector<std::string> all = args;
    ::execvp(all.front().c_str(), pointers(all).data());
    return 127;
  });
}

CommandResult must_run(const std::vector<std::string>& args, const CommandOptions& options) {
  CommandResult result = run_command(args, options);
  if (result.code != 0) fail("'{}' failed: {}", fmt::join(args, " "), text_of(result));
  return result;
}

namespace {

Index lines_that_begin(const std::string& text, std::string_view begin) {
  Index lines = 0;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) lines += line.starts_with(begin);
  return lines;
}

}  // namespace

Index errors_in(const std::string& err) {
  return lines_that_begin(err, "switchyard: ") - lines_that_begin(err, "switchyard: warning: ");
}
bool has_warning(const std::string& err) {
  return lines_that_begin(err, "switchyard: warning: ") > 0;
}

Outcome outcome_of(const CommandResult& result) {
  if (result.hung) return Outcome::hung;
  if (result.signal != 0) return Outcome::crashed;
  if (result.code < 0 || result.code > 3) return Outcome::unclear;
  const Index errors = errors_in(result.err);
  if (result.code == 0) return errors == 0 ? Outcome::survived : Outcome::unclear;
  return errors == 1 ? Outcome::reported : Outcome::unclear;
}

std::string text_of(const CommandResult& result) {
  const std::string end = result.hung          ? "hung"
                          : result.signal != 0 ? fmt::format("signal {}", result.signal)
                                               : fmt::format("exit code {}", result.code);
  return fmt::format("{}\n{}{}\n", end, result.err.substr(0, 2000), result.out.substr(0, 2000));
}

void add_resume(TrialResult& result, const CommandResult& again, const std::string& undisturbed) {
  result.details += "again: " + text_of(again);
  if (again.code != 0)
    result.outcome = again.hung ? Outcome::hung : again.signal ? Outcome::crashed : Outcome::unclear;
  else if (weights_result("run") != undisturbed)
    result.outcome = Outcome::wrong;
}

double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}
void sleep_seconds(double seconds) {
  std::this_thread::sleep_for(std::chrono::duration<double>(seconds));
}

Index shuffled(Index trial, Index n) {
  if (n <= 1) return 0;
  Index stride = n * 5 / 8 + 1;  // neither small, nor a divisor
  while (std::gcd(stride, n) != 1) ++stride;
  return static_cast<Index>(static_cast<unsigned __int128>(trial % n) * static_cast<std::uint64_t>(stride) %
                            static_cast<std::uint64_t>(n));
}

}  // namespace sy::campaign
