// Fuzz targets: readers of files that others may have written (docs/reliability/fuzzing.md).
//
// A target gives any bytes to a reader of the program. The reader accepts them, or refuses them
// with an InputError. Another exception, a crash, too much memory or too much time is a finding.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace sy::fuzz {

using Input = std::span<const std::byte>;
inline std::string_view view_of(Input input) {
  return {reinterpret_cast<const char*>(input.data()), input.size()};
}
inline Input input_of(std::string_view text) {
  return std::as_bytes(std::span(text));
}

struct Target {
  const char* name;   // also the name of its folder in tests/fuzz/corpus
  const char* reads;  // for the table of the page
  // Throws InputError if the input is refused.
  void (*run)(Input input);
  // If true, a library that the reader calls has known findings. Then the replay leaves out changed
  // inputs, and fuzz.sh runs the target only by its name.
  bool has_known_findings = false;
};

// Targets of one topic.
std::vector<Target> checkpoint_targets();  // checkpoints and tensors
std::vector<Target> data_targets();        // texts, data sets and tokenizers
std::vector<Target> setting_targets();     // configurations and descriptions
std::vector<Target> record_targets();      // records that the program wrote

// All targets. The names are unique.
const std::vector<Target>& targets();
const Target* find_target(std::string_view name);  // nullptr if there is none

// Bounds of one input. fuzz.sh and the replay test use them.
constexpr std::size_t max_allocation_bytes = std::size_t{256} << 20;  // of a single allocation
constexpr double max_seconds = 20;

struct Verdict {
  std::string refusal = {};  // message of the InputError; empty if the input is accepted
  std::string failure = {};  // exception that is no InputError; empty if there is none
};
Verdict run(const Target& target, Input input);

}  // namespace sy::fuzz
