// Errors. Two kinds reach a user; each carries its exit code:
//   InputError (2)  the user's input is wrong; the message says what is wrong and what to do
//   Failure    (1)  the machine failed: a full disk, a lost rank, no memory
// Any other error, such as that of SY_ASSERT, is a mistake in switchyard.
#pragma once

#include <fmt/format.h>

#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>

namespace sy {

// Separator of the lines of a message. The first line says what is wrong as a whole. The other
// lines are printed indented and name each item. A line feed cannot be the separator, because
// quoted text may contain one.
constexpr char next_line = '\x1e';

class Error : public std::runtime_error {
 public:
  Error(int exit_code, const std::string& what) : std::runtime_error(what), exit_code_(exit_code) {}
  int exit_code() const { return exit_code_; }

 private:
  int exit_code_;
};

struct InputError : Error {
  explicit InputError(const std::string& what) : Error(2, what) {}
};

struct Failure : Error {
  explicit Failure(const std::string& what) : Error(1, what) {}
};

// Thrown if memory is insufficient. `what` says how much and where. A caller that knows the purpose
// of the memory adds what to do.
struct NoMemory : Failure {
  using Failure::Failure;
};

// Thrown if a device is unavailable. `missing` says what is missing. The caller that knows the
// source of the backend's name adds what to do.
struct NoDevice : InputError {
  NoDevice(std::string_view device, std::string_view why)
      : InputError(fmt::format("{}: {}", device, why)), name(device), missing(why) {}
  std::string name, missing;
};

template <class... Args>
[[noreturn]] void no_memory(fmt::format_string<Args...> format, Args&&... args) {
  throw NoMemory(fmt::format(format, std::forward<Args>(args)...));
}

template <class... Args>
[[noreturn]] void bad_input(fmt::format_string<Args...> format, Args&&... args) {
  throw InputError(fmt::format(format, std::forward<Args>(args)...));
}

template <class... Args>
[[noreturn]] void fail(fmt::format_string<Args...> format, Args&&... args) {
  throw Failure(fmt::format(format, std::forward<Args>(args)...));
}

}  // namespace sy

#define SY_ASSERT(condition, ...)                                                                                \
  do {                                                                                                           \
    if (!(condition))                                                                                            \
      throw std::logic_error(fmt::format("{}:{}: internal check failed: {}: {}", __FILE__, __LINE__, #condition, \
                                         fmt::format(__VA_ARGS__)));                                             \
  } while (false)
