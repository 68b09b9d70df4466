#include "src/experiments/environment.h"

#include <sched.h>
#include <unistd.h>

#include <cstdlib>

#include "kernels/cpu/processor.h"
#include "src/build_info.h"
#include "src/io/digest.h"
#include "src/system/files.h"

namespace sy {

namespace {

// Version, commit and options. Without a commit, or with changes on top of it, the digest of the
// program takes their place.
std::string build_text(const BuildInfo& build) {
  if (!build.commit.empty() && !build.commit.ends_with("-dirty"))
    return fmt::format("{}, commit {}, {}", build.version, build.commit.substr(0, 12), build.options);
  return fmt::format("{}, SHA-256 {}", build.version, to_hex(sha256_file(own_program())).substr(0, 12));
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
  char host[256] = {};
  gethostname(host, sizeof host - 1);
  const char* const threads = std::getenv("OMP_NUM_THREADS");
  cpu_set_t cpus;
  const int count = sched_getaffinity(0, sizeof cpus, &cpus) == 0 ? CPU_COUNT(&cpus) : 0;
  return {host, std::string(cpu_isa().name), threads && *threads ? threads : fmt::format("auto, {} CPUs", count),
          build_text(build_info()), launcher.empty() ? "launch/mpirun.sh" : launcher};
}

}  // namespace sy
