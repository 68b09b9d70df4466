// Version, commit and options of this build. cmake/build_info.cmake writes the definition.
#pragma once

#include <string>

namespace sy {

struct BuildInfo {
  std::string version;
  std::string commit;   // 40 digits, and "-dirty" if tracked files had changed; empty outside of a git work tree
  std::string options;  // build type, compiler, flags, backends
};
const BuildInfo& build_info();

}  // namespace sy
