// Functions of libc that a test replaces in its program and in the libraries of that program.
#pragma once

#include <dlfcn.h>

namespace sy {

// Returns the next function of this name, after that of the program.
template <class Function>
Function next_function(const char* name) {
  return reinterpret_cast<Function>(dlsym(RTLD_NEXT, name));
}

}  // namespace sy

// Defines `real` as the function of libc that is replaced.
#define NEXT(name) static const auto real = sy::next_function<decltype(&name)>(#name)
// Defines `mode`, the argument of open() and its variants after `flags`.
#define OPEN_MODE(flags)                    \
  va_list rest;                             \
  va_start(rest, flags);                    \
  const mode_t mode = va_arg(rest, mode_t); \
  va_end(rest)
