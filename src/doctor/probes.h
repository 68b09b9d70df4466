// Probes of doctor: questions to the operating system, and small experiments.
// A probe that takes `world` is collective, and returns whatever another rank finds.
#pragma once

#include <chrono>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "src/doctor/facts.h"

namespace sy {

inline double seconds_since(std::chrono::steady_clock::time_point begin) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

// Returns RankFacts::gpu_aware_mpi and nccl_over_tcp of this process, from its environment.
// cuda_aware: MpiInfo::cuda_aware.
std::string gpu_aware_mpi_setting(std::string_view cuda_aware);
std::string nccl_over_tcp_setting();

// Returns the limits of this process.
Limits process_limits();

// Returns "ext4", or the number (statfs(2): f_type) if the type has no name here.
std::string file_system_name(std::uint32_t magic);

// Seconds since 1970 by this machine's clock.
double time_of_day();
// Returns the seconds by which this rank's clock is ahead of rank 0's, and the largest error of
// this value.
std::pair<double, double> probe_clock(Comm& world, double (*clock)() = time_of_day);

// Returns the FLOP/s of GEMMs of one size while all ranks compute.
// The device is the one of a rank with this number on its machine. Returns 0 if local_rank is
// negative or the device is unavailable.
double probe_speed(Comm& world, int local_rank);

// Writes files in `folder`, which must exist, and removes them.
//
// timeout: how long the other ranks wait for the file of rank 0.
// measures: if true, this rank measures the speed of writing.
constexpr std::chrono::milliseconds folder_timeout{5000};
FolderFacts probe_folder(Comm& world, const std::filesystem::path& folder, bool measures,
                         std::chrono::milliseconds timeout = folder_timeout);

}  // namespace sy
