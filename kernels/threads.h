// Number of threads that OpenMP computes with, and how they wait for each other.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace sy {

// An environment variable of the OpenMP runtime.
struct ThreadSetting {
  std::string name, value;
  friend bool operator==(const ThreadSetting&, const ThreadSetting&) = default;
};

// Settings that a process should start with, without those that its environment makes already. Pure.
//   environment  value of a variable; nullptr if it is not set
//   cpus         number of CPUs that the process may run on
//   quota        cpu_quota (kernels/control_groups.h)
std::vector<ThreadSetting> thread_settings(const std::function<const char*(const char*)>& environment, int cpus,
                                           int quota);

// Gives this process the settings of thread_settings. OpenMP reads them before main, so that the program is executed
// once more with the same arguments, files and process number. Call it first in main, before there is a thread.
// Programs that this one starts do not inherit the settings.
void apply_thread_settings(char** argv);

}  // namespace sy
