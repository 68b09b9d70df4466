// Several input errors in one message.
#pragma once

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "kernels/check.h"

namespace sy {

// An InputError whose message names each of several errors.
struct InputErrors : InputError {
  InputErrors(std::string from, std::vector<std::string> all);
  std::string origin;  // the file or the command that has the errors
  std::vector<std::string> errors;
};

// Collects the input errors of a command, so that one message names all of them.
class ErrorList {
 public:
  explicit ErrorList(std::string command) : command_(std::move(command)) {}
  template <class... Args>
  void add(fmt::format_string<Args...> error, Args&&... args) {
    append(command_, fmt::format(error, std::forward<Args>(args)...));
  }
  // Calls `check`. If it throws an InputError, adds that, each error once, and returns false.
  template <class Check>
  bool run(Check&& check) {
    try {
      check();
      return true;
    } catch (const InputError& e) {
      append(e);
      return false;
    }
  }
  bool empty() const { return errors_.empty(); }
  // Throws InputErrors unless the list is empty.
  void raise() const;

 private:
  void append(const std::string& origin, const std::string& error);
  void append(const InputError& error);
  std::string command_, origin_;  // origin_: of all errors; the command if they have several
  std::vector<std::string> errors_;
};

}  // namespace sy
