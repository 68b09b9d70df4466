// What a measured time depends on besides the settings of the run.
#pragma once

#include <string>

#include "src/text/json.h"

namespace sy {

struct Environment {
  std::string host;             // of this process, which starts the ranks
  std::string instruction_set;  // of the CPU kernels: "avx2"
  std::string threads;          // OMP_NUM_THREADS, or "auto, 8 CPUs"
  std::string build;            // version, commit and options; version and SHA-256 without a commit
  std::string launcher;         // of launch_words (src/experiments/program.h)

  Json json() const;
  // The name of a folder that no other environment has: "avx2-0f3a9c21".
  std::string folder() const;
};

// The environment of the runs that this process starts. Throws InputError if SWITCHYARD_ISA names no
// instruction set of this processor.
Environment this_environment(const std::string& launcher);

}  // namespace sy
