#include "src/experiments/environment.h"

#include "dist/runtime.h"
#include "kernels/cpu/processor.h"
#include "kernels/environment.h"
#include "kernels/threads.h"
#include "src/build_info.h"
#include "src/system/digest.h"
#include "src/system/files.h"

namespace sy {

namespace {

// Returns version, commit and options. Without a clean commit it returns the version and the digest
// of the program.
std::string build_text(const BuildInfo& build) {
  if (!build.commit.empty() && !build.dirty)
    return fmt::format("{}, commit {}, {}", build.version, build.commit.substr(0, 12), options_text(build));
  return fmt::format("{}, SHA-256 {}", build.version, to_hex(sha256_file(program_path())).substr(0, 12));
}

}  // namespace

Json Environment::json() const {
  return {{"host", host},
          {"instruction_set", instruction_set},
          {"threads", threads},
          {"build", build},
          {"launcher", launcher}};
}

std::string Environment::folder() const {
  return instruction_set + "-" + to_hex(sha256(json_text(json()))).substr(0, 8);
}

Environment this_environment(const std::string& launcher) {
  const char* const threads = environment("OMP_NUM_THREADS");
  return {host_name(), std::string(cpu_isa().name),
          threads && *threads ? threads : fmt::format("auto, {} CPUs", available_cpus()), build_text(build_info()),
          launcher.empty() ? "launch/mpirun.sh" : launcher};
}

}  // namespace sy
