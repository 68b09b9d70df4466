// Version, commit and options of this build. cmake/build_info.cmake generates the definition.
#pragma once

#include <string>

namespace sy {

struct BuildInfo {
  std::string version;
  // 40 hex digits, "-dirty" if tracked files had changed; empty outside a git work tree
  std::string commit;
  std::string options;  // build type, compiler, flags, backends
};
const BuildInfo& build_info();

}  // namespace sy
