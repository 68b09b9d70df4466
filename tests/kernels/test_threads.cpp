// Settings of the OpenMP runtime for a process.
#include "kernels/threads.h"

#include <gtest/gtest.h>

#include <map>

namespace sy {
namespace {

using Settings = std::vector<ThreadSetting>;

Settings settings_of(const std::map<std::string, std::string>& environment, int cpus, int quota) {
  return thread_settings(
      [&](VariableName name) {
        const auto found = environment.find(name.c_str());
        return found == environment.end() ? nullptr : found->second.c_str();
      },
      cpus, quota, 123);
}

TEST(Threads, SpinBrieflyUnlessTheUserSetsAPolicy) {
  const Settings spin = settings_of({}, 4, 0);
  ASSERT_EQ(spin, (Settings{{"GOMP_SPINCOUNT", "123"}}));
  EXPECT_EQ(settings_of({{"OMP_NUM_THREADS", "4"}}, 4, 0), spin);
  for (const char* name : {"OMP_WAIT_POLICY", "GOMP_SPINCOUNT"})
    EXPECT_EQ(settings_of({{name, "passive"}}, 4, 0), Settings{}) << name;
}

TEST(Threads, NeedNoSpinSettingIfThereIsOnlyOne) {
  EXPECT_EQ(settings_of({{"OMP_NUM_THREADS", "1"}}, 4, 0), Settings{});
  EXPECT_EQ(settings_of({}, 1, 0), Settings{});
  EXPECT_EQ(settings_of({}, 1, 1), Settings{});
}

TEST(Threads, AreLimitedByTheCpuQuota) {
  const ThreadSetting three{"OMP_NUM_THREADS", "3"}, one{"OMP_NUM_THREADS", "1"};
  EXPECT_EQ(settings_of({{"OMP_WAIT_POLICY", "active"}}, 4, 3), Settings{three});
  EXPECT_EQ(settings_of({}, 4, 3).front(), three);
  EXPECT_EQ(settings_of({}, 4, 3).size(), 2u);
  EXPECT_EQ(settings_of({}, 4, 1), Settings{one});
  const std::map<std::string, std::string> active{{"OMP_WAIT_POLICY", "active"}};
  EXPECT_EQ(settings_of(active, 4, 4), Settings{});
  EXPECT_EQ(settings_of(active, 4, 8), Settings{});
  // A number set by the user has precedence; doctor reports if it is too large.
  EXPECT_EQ(settings_of({{"OMP_WAIT_POLICY", "active"}, {"OMP_NUM_THREADS", "4"}}, 4, 3), Settings{});
}

}  // namespace
}  // namespace sy
