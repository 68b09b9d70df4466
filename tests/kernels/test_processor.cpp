// Selection of the instruction set, and the order of the instruction sets of this program.
#include "kernels/cpu/processor.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "kernels/device.h"

namespace sy {
namespace {

bool offered() {
  return true;
}
bool missing() {
  return false;
}

std::string why_not(std::span<const CpuIsa> all, std::string_view name, int exit_code) {
  try {
    return std::string(choose_isa(all, name).name);
  } catch (const Error& e) {
    EXPECT_EQ(e.exit_code(), exit_code);
    return e.what();
  }
}

TEST(Processor, ChoosesTheWidestOrTheNamedInstructionSet) {
  const CpuKernels none{};
  const CpuIsa three[] = {{"narrow", offered, none}, {"wide", offered, none}, {"wider", missing, none}};
  EXPECT_EQ(choose_isa(three, "").name, "wide");
  EXPECT_EQ(choose_isa(three, "narrow").name, "narrow");
  EXPECT_EQ(choose_isa(three, "wide").name, "wide");
  EXPECT_EQ(why_not(three, "wider", 2),
            "SWITCHYARD_ISA = 'wider': this processor lacks it: set it to narrow or wide, or unset it");
  EXPECT_EQ(why_not(three, "Wide", 2),
            "SWITCHYARD_ISA = 'Wide': there is no such instruction set: set it to narrow or wide, or unset it");
  const CpuIsa old[] = {{"narrow", missing, none}, {"wide", missing, none}};
  EXPECT_EQ(why_not(old, "", 1),
            "this processor lacks narrow, which the CPU kernels need at least: use another machine");
}

TEST(Processor, ChoosesASlowInstructionSetByNameAlone) {
  const CpuKernels none{};
  const CpuIsa three[] = {{"narrow", offered, none}, {"wide", offered, none, missing}, {"wider", missing, none}};
  EXPECT_EQ(choose_isa(three, "").name, "narrow");
  EXPECT_EQ(choose_isa(three, "wide").name, "wide");
  const CpuIsa wider[] = {{"narrow", offered, none}, {"wide", offered, none, missing}, {"wider", offered, none}};
  EXPECT_EQ(choose_isa(wider, "").name, "wider");
  const CpuIsa slow[] = {{"narrow", offered, none, missing}, {"wide", offered, none, missing}};
  EXPECT_EQ(choose_isa(slow, "").name, "narrow");
}

TEST(Processor, SupportsAllNarrowerInstructionSets) {
  bool before = true;
  for (const CpuIsa& isa : cpu_isas()) {
    EXPECT_TRUE(before || !isa.runs_here()) << isa.name;
    before = isa.runs_here();
  }
}

TEST(Processor, BackendsUseTheChosenInstructionSet) {
  const CpuIsa& before = cpu_isa();
  for (const CpuIsa& isa : cpu_isas()) {
    if (!isa.runs_here()) continue;
    use_cpu_isa(isa);
    EXPECT_EQ(&cpu_isa(), &isa);
    EXPECT_TRUE(make_cpu()->describe().starts_with("cpu (" + std::string(isa.name) + "), ")) << isa.name;
  }
  use_cpu_isa(before);
}

}  // namespace
}  // namespace sy
