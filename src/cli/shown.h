// Text on the terminal while it is generated.
#pragma once

#include <fmt/core.h>
#include <unistd.h>

#include <cstdio>
#include <string>
#include <string_view>

#include "src/text/table.h"

namespace sy {

// Prints text as it is generated. A terminal gets whole characters, and no control characters.
class Shown {
 public:
  void add(std::string_view text) {
    pending_ += text;
    show(terminal_ ? whole_characters(pending_) : pending_.size());
  }
  void finish() {
    show(pending_.size());
    fmt::print("\n");
  }

 private:
  void show(std::size_t bytes) {
    const std::string text = pending_.substr(0, bytes);
    fmt::print("{}", terminal_ ? visible(text, "\n\t") : text);
    std::fflush(stdout);
    pending_.erase(0, bytes);
  }
  const bool terminal_ = isatty(STDOUT_FILENO) != 0;
  std::string pending_;
};

}  // namespace sy
