// Host and build properties that a measured time depends on, besides the run's settings.
#pragma once

#include <string>

#include "src/text/json.h"

namespace sy {

struct Environment {
  std::string host;             // host of this process, which starts the ranks
  std::string instruction_set;  // instruction set of the CPU kernels, such as "avx2"
  std::string threads;          // OMP_NUM_THREADS, or "auto, 8 CPUs" if it is not set
  // Version, commit and options; the program's SHA-256 instead if there is no clean commit.
  std::string build;
  std::string launcher;  // "launch/mpirun.sh" if the user chose none

  Json json() const;
  // Returns a folder name such as "avx2-0f3a9c21". It is the instruction set and the first 8 hex
  // digits of SHA-256 of json().
  std::string folder() const;
};

// Returns the environment of the runs that this process starts. launcher: may be empty.
// Throws InputError if SWITCHYARD_ISA names no instruction set of this processor.
Environment this_environment(const std::string& launcher);

}  // namespace sy
