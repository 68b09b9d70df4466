// Ranks with different instruction sets compute with the narrowest of them.
#include <gtest/gtest.h>

#include <cstdlib>

#include "dist/runtime.h"
#include "kernels/cpu/processor.h"
#include "tests/mpi_world.h"

namespace sy {
namespace {

using test::world;

struct IsaOfRank : testing::Test {
  ~IsaOfRank() override { use_cpu_isa(before); }
  const CpuIsa& before = cpu_isa();
};

TEST_F(IsaOfRank, IsTheNarrowestOfAllRanks) {
  const std::span<const CpuIsa> all = cpu_isas();
  const CpuIsa& mine = choose_isa(all, "");
  // narrow: the rank with the narrowest instruction set.
  for (int narrow = 0; narrow < world().size(); ++narrow) {
    use_cpu_isa(world().rank() == narrow ? all.front() : mine);
    agree_on_isa(world());
    EXPECT_EQ(cpu_isa().name, all.front().name);
  }
  use_cpu_isa(mine);
  agree_on_isa(world());
  EXPECT_EQ(cpu_isa().name, mine.name);
}

}  // namespace
}  // namespace sy
