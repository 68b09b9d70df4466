// What doctor finds out by asking the operating system, and by trying. A probe that takes `world` is collective, and ends whatever
// another rank finds.
#pragma once

#include <chrono>
#include <filesystem>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "src/doctor/facts.h"

namespace sy {

// Every rank's text, which ends in no blank and is not empty on all of them, on every rank. Collective.
std::vector<std::string> gather(Comm& world, const std::string& mine);

// Of this process.
Limits process_limits();

// What the control groups that this process is in let it have, by `root`/proc/self/cgroup and `root`/sys/fs/cgroup: the tightest.
// free: bytes of the limit that are not taken, files that are merely cached aside. -1: there is no limit.
struct MemoryLimit {
  Index bytes = -1, free = -1;
};
MemoryLimit memory_limit(const std::filesystem::path& root);

// "ext4", or the number (statfs(2): f_type) where it has no name here.
std::string file_system_name(std::uint32_t magic);

// Seconds since 1970 by this machine's clock.
double time_of_day();
// Seconds by which this rank's clock is ahead of rank 0's, and the greatest error of this.
std::pair<double, double> probe_clock(Comm& world, double (*clock)() = time_of_day);

// FLOP/s of products of one size on the device that this rank would take by its number on its machine, while all ranks compute. 0
// where local_rank is negative, or the device cannot be had.
double probe_speed(Comm& world, int local_rank);

// Writes in `folder`, which is not made, and removes what it wrote. patience: for which the other ranks wait to see what rank 0 has
// written. measures: this rank measures how fast it writes there.
constexpr std::chrono::milliseconds folder_patience{5000};
FolderFacts probe_folder(Comm& world, const std::filesystem::path& folder, bool measures,
                         std::chrono::milliseconds patience = folder_patience);

}  // namespace sy
