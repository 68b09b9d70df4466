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

// Calls the handler. If a kernel runs, the report names its launch, block and thread.
[[noreturn]] void report(const std::string& mistake);

template <class... Args>
[[noreturn]] void mistake(fmt::format_string<Args...> format, Args&&... args) {
  report(fmt::format(format, std::forward<Args>(args)...));
}

}  // namespace sy::cuda_host
