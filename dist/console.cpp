#include "dist/console.h"

#include <fcntl.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstring>
#include <mutex>
#include <new>
#include <sstream>

#include "kernels/check.h"

namespace sy {
namespace {

// A copy of the printed warnings and errors. Threads may print at the same time.
struct ConsoleLog {
  std::mutex mutex;
  std::FILE* file = nullptr;
  std::string early;  // printed before the file was known
  std::string error;  // the reason why text is missing in the file
};
ConsoleLog console_log;
std::atomic<bool> printed_error{false};

}  // namespace

std::string error_lines(const std::string& what) {
  std::string shown;
  std::istringstream lines(what);
  for (std::string line; std::getline(lines, line, next_line);)
    shown += (shown.empty() ? "switchyard: " : "  ") + one_line(line) + "\n";
  return shown;
}

// Prints in one write, since other ranks may print too. Ignores errors of standard error.
void print_error(const std::string& what) {
  const std::string text = error_lines(what);
  std::fputs(text.c_str(), stderr);
  if (!what.starts_with("warning: ")) printed_error = true;
  log_console(text);
}

bool has_printed_error() {
  return printed_error;
}

// Opens closed standard streams.
// Otherwise a file opened later would get such a descriptor, and with it the printed output.
// /dev/null is opened in the opposite direction: using the stream still fails.
void open_standard_streams() {
  for (const int stream : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO})
    if (fcntl(stream, F_GETFD) < 0 && errno == EBADF)
      static_cast<void>(open("/dev/null", stream == STDIN_FILENO ? O_WRONLY : O_RDONLY));
}

void log_console(std::string_view text) {
  constexpr std::size_t max_early_bytes = 1 << 16;
  const std::lock_guard lock(console_log.mutex);
  if (!console_log.file) {
    try {
      if (console_log.early.size() + text.size() <= max_early_bytes) console_log.early += text;
    } catch (const std::bad_alloc&) {
      console_log.error = "no memory";  // fits in the string itself
    }
    return;
  }
  if (std::fwrite(text.data(), 1, text.size(), console_log.file) == text.size() && std::fflush(console_log.file) == 0)
    return;
  if (console_log.error.empty()) console_log.error = std::strerror(errno);
  std::clearerr(console_log.file);
}

void attach_console_log(std::FILE* file, std::string_view heading) {
  std::string early(heading);
  {
    const std::lock_guard lock(console_log.mutex);
    console_log.file = file;
    early += console_log.early;
  }
  log_console(early);
}

std::string console_log_error() {
  const std::lock_guard lock(console_log.mutex);
  return console_log.error;
}

std::string one_line(std::string text) {
  for (char& c : text)
    if (static_cast<unsigned char>(c) < ' ' || c == 0x7f) c = ' ';
  // The control characters U+0080 to U+009F have two bytes in UTF-8.
  for (std::size_t i = 0; i + 1 < text.size(); ++i)
    if (text[i] == '\xc2' && static_cast<unsigned char>(text[i + 1]) < 0xa0) text[i] = text[i + 1] = ' ';
  return text;
}

void warn(const std::string& text) {
  print_error("warning: " + text);
}

std::string output_error() {
  errno = 0;
  // A network file system may report a failed write only when a descriptor is closed.
  const bool broken = std::fflush(stdout) != 0 || std::ferror(stdout) != 0;
  const int copy = broken ? -1 : dup(STDOUT_FILENO);
  if (!broken && (copy < 0 || close(copy) == 0)) return "";
  std::string why = errno != 0 ? std::strerror(errno) : "an earlier write failed";
  std::clearerr(stdout);
  return why;
}

}  // namespace sy
