// Energy counters of processors and memory: RAPL, as Linux's powercap folder shows them.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace sy {

// Returns the folder of the zones: $SWITCHYARD_POWERCAP, or /sys/class/powercap.
std::filesystem::path powercap_folder();

// Reads the energy of this host: the sum of the zones "package-N" and "dram".
//
// Other zones do not count: "core" and "uncore" are part of a package, and "psys" contains all. A
// counter begins at 0 again after `max_energy_range_uj`. It must be read once in each such range,
// which is some minutes.
class RaplReader {
 public:
  explicit RaplReader(const std::filesystem::path& folder = powercap_folder());
  // Returns why the energy cannot be read, and what to do. Empty if it can.
  const std::string& problem() const { return problem_; }
  // Returns the joules since construction; NaN if there is a problem.
  double joules();

 private:
  struct Zone {
    std::filesystem::path energy;  // the counter, in microjoules
    double range, last;            // microjoules
  };
  std::vector<Zone> zones_;
  double microjoules_ = 0;
  std::string problem_;
};

// Returns why the energy of this host cannot be read, and what to do. Empty if it can.
std::string rapl_problem();

}  // namespace sy
