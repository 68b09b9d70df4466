// Version, commit and options of this build. cmake/build_info.cmake generates the definition.
#pragma once

#include <string>

namespace sy {

struct BuildInfo {
  std::string version;
  // 40 hex digits; empty outside a git work tree, unless the source tarball names it
  std::string commit;
  bool dirty = false;            // tracked files differed from the commit
  std::string build_type;        // "Release"
  std::string compiler;          // "GNU 12.2.0"
  std::string flags;             // of all C++ sources: "-O3 -DNDEBUG"
  std::string kernel_flags;      // further ones of the CPU kernels
  std::string instruction_sets;  // those of the CPU kernels: "sse42 avx2"
  std::string cuda_compiler;     // "NVIDIA 13.0.88"; empty in a build without CUDA
};
const BuildInfo& build_info();

// Returns the commit, with "-dirty" if tracked files differed from it; empty if it is unknown.
inline std::string commit_text(const BuildInfo& build) {
  return build.commit + (build.dirty ? "-dirty" : "");
}
// Returns one line of all that distinguishes builds of one commit.
inline std::string options_text(const BuildInfo& build) {
  return build.build_type + ", " + build.compiler + ", " + build.flags + ", CPU kernels " + build.instruction_sets +
         " (" + build.kernel_flags + "), CUDA " + (build.cuda_compiler.empty() ? "OFF" : build.cuda_compiler);
}

}  // namespace sy
