// Energy counters of processors, on a folder like /sys/class/powercap.
#include "src/system/rapl.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>

#include "tests/src/temp_folder.h"

namespace sy {
namespace {

struct Powercap {
  TempFolder folder;
  void zone(const std::string& zone, const std::string& name, const std::string& microjoules,
            const std::string& range = "262143328850") const {
    folder.write(zone + "/name", name + "\n");
    folder.write(zone + "/max_energy_range_uj", range + "\n");
    folder.write(zone + "/energy_uj", microjoules + "\n");
  }
};

TEST(Rapl, SumsPackagesAndMemory) {
  const Powercap powercap;
  powercap.zone("intel-rapl:0", "package-0", "1000000");
  powercap.zone("intel-rapl:1", "package-1", "5000000");
  powercap.zone("intel-rapl:0:0", "core", "100");
  powercap.zone("intel-rapl:0:1", "dram", "7000000");
  powercap.zone("intel-rapl:2", "psys", "100");
  powercap.zone("intel-rapl-mmio:0", "package-0", "1000000");  // the same package
  powercap.folder.write("intel-rapl/enabled", "1\n");
  RaplReader reader(powercap.folder.path());
  EXPECT_EQ(reader.problem(), "");
  EXPECT_EQ(reader.joules(), 0);
  for (const char* zone : {"intel-rapl:0", "intel-rapl:0:0", "intel-rapl:2", "intel-rapl-mmio:0"})
    powercap.folder.write(std::string(zone) + "/energy_uj", "3500000\n");
  powercap.folder.write("intel-rapl:1/energy_uj", "5250000\n");
  powercap.folder.write("intel-rapl:0:1/energy_uj", "7000500\n");
  EXPECT_DOUBLE_EQ(reader.joules(), 2.5 + 0.25 + 0.0005);
}

TEST(Rapl, AddsTheRangeWhenACounterBeginsAgain) {
  const Powercap powercap;
  powercap.zone("intel-rapl:0", "package-0", "9000000", "10000000");
  RaplReader reader(powercap.folder.path());
  powercap.folder.write("intel-rapl:0/energy_uj", "500000\n");
  EXPECT_DOUBLE_EQ(reader.joules(), 1.5);
  powercap.folder.write("intel-rapl:0/energy_uj", "400000\n");
  EXPECT_DOUBLE_EQ(reader.joules(), 1.5 + 9.9);
  powercap.folder.write("intel-rapl:0/energy_uj", "2400000\n");
  EXPECT_DOUBLE_EQ(reader.joules(), 1.5 + 9.9 + 2);
}

TEST(Rapl, SaysWhyTheEnergyIsUnknown) {
  const Powercap powercap;
  RaplReader none(powercap.folder.path());
  EXPECT_TRUE(has(none.problem(), "has no RAPL zone")) << none.problem();
  EXPECT_TRUE(has(RaplReader("/nowhere").problem(), "/nowhere has no RAPL zone"));
  EXPECT_TRUE(std::isnan(none.joules()));
  powercap.zone("intel-rapl:0", "package-0", "no number");
  EXPECT_TRUE(has(RaplReader(powercap.folder.path()).problem(), "intel-rapl:0/energy_uj cannot be read"));
  powercap.zone("intel-rapl:0", "package-0", "7");
  RaplReader reader(powercap.folder.path());
  EXPECT_EQ(reader.problem(), "");
  std::filesystem::remove(powercap.folder.path() / "intel-rapl:0/energy_uj");
  EXPECT_TRUE(std::isnan(reader.joules()));
  EXPECT_TRUE(has(reader.problem(), "cannot be read any more"));
}

TEST(Rapl, ReadsTheFolderOfTheVariable) {
  EXPECT_EQ(powercap_folder(), "/sys/class/powercap");
  setenv("SWITCHYARD_POWERCAP", "/elsewhere", 1);
  EXPECT_EQ(powercap_folder(), "/elsewhere");
  EXPECT_TRUE(has(rapl_problem(), "/elsewhere has no RAPL zone"));
  unsetenv("SWITCHYARD_POWERCAP");
}

}  // namespace
}  // namespace sy
