// Host and build properties that a measured time depends on, besides the run's settings.
#pragma once

#include <string>

#include "src/text/json.h"

namespace sy {

struct Environment {
  std::string host;             // of this process, which starts the ranks
  std::string instruction_set;  // of the CPU kernels: "avx2"
  std::string threads;          // OMP_NUM_THREADS, or "auto, 8 CPUs" if it is not set
  std::string build;            // version, commit, options; SHA-256 if there is no clean commit
  std::string launcher;         // "launch/mpirun.sh" if none was chosen

  Json json() const;
  // Folder name: instruction set and the first 8 hex digits of SHA-256 of json(): "avx2-0f3a9c21".
  std::string folder() const;
};

// Returns the environment of the runs that this process starts. launcher: may be empty.
// Throws InputError if SWITCHYARD_ISA names no instruction set of this processor.
Environment this_environment(const std::string& launcher);

}  // namespace sy
