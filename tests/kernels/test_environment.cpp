// The table of environment variables.
#include "kernels/environment.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <set>
#include <sstream>
#include <string>

namespace sy {
namespace {

// Returns the texts between pairs of ` in docs/reference/environment.md.
std::set<std::string> documented_names() {
  std::stringstream text;
  text << std::ifstream(DOCS "/reference/environment.md").rdbuf();
  std::set<std::string> names;
  for (std::string between, name; std::getline(text, between, '`') && std::getline(text, name, '`');)
    names.insert(name);
  return names;
}

TEST(Environment, IsDocumented) {
  const std::set<std::string> documented = documented_names();
  ASSERT_TRUE(documented.contains("SWITCHYARD_ISA"));
  for (const auto& [name, meaning] : environment_variables) {
    const std::string family(name.substr(0, name.find('_')));  // "PMI_*" stands for its variables
    const bool by_family = (family == "PMI" || family == "PMIX") && documented.contains(family + "_*");
    EXPECT_TRUE(by_family || documented.contains(std::string(name))) << name;
    EXPECT_FALSE(meaning.empty()) << name;
  }
}

TEST(Environment, KeepsTheUsersSettingsOfLibraries) {
  setenv("NCCL_NVLS_ENABLE", "1", 1);
  unsetenv("NCCL_MAX_P2P_NCHANNELS");
  set_library_defaults();
  EXPECT_STREQ(environment("NCCL_NVLS_ENABLE"), "1");
  EXPECT_STREQ(environment("NCCL_MAX_P2P_NCHANNELS"), "16");
  unsetenv("NCCL_NVLS_ENABLE");
  set_library_defaults();
  EXPECT_STREQ(environment("NCCL_NVLS_ENABLE"), "0");
}

}  // namespace
}  // namespace sy
