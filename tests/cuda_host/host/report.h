// Reporting of mistakes.
#pragma once

#include <fmt/format.h>

#include <source_location>
#include <string>

#include "host/control.h"

namespace sy::cuda_host {

using Where = std::source_location;

inline Counters counter_values;

std::string text(const Where& where);  // file:line (function)

// Tells the handler, with the launch and the thread where a kernel runs.
[[noreturn]] void report(const std::string& mistake);

template <class... Args>
[[noreturn]] void mistake(fmt::format_string<Args...> format, Args&&... args) {
  report(fmt::format(format, std::forward<Args>(args)...));
}

}  // namespace sy::cuda_host
