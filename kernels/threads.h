// Settings of the OpenMP runtime: number of threads, and spinning of waiting threads.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/environment.h"

namespace sy {

// Number of CPUs that this process may run on; 0 if the system does not say.
int available_cpus();

// An environment variable of the OpenMP runtime.
struct ThreadSetting {
  VariableName name;
  std::string value;
  friend bool operator==(const ThreadSetting& a, const ThreadSetting& b) {
    return std::string_view(a.name.c_str()) == b.name.c_str() && a.value == b.value;
  }
};

// Number of times that a waiting thread looks for work before it sleeps (GOMP_SPINCOUNT). OpenMP's
// default takes milliseconds. If another program runs on the machine, the spinning thread then
// keeps a core from the thread that it waits for. Both counts are a small share of a time slice.
//   large products   takes less time than a futex call if cores are free
//   short products   for generation, where a token is hundreds of short parallel regions. On a busy
//                    machine, each of them may wait for a thread that has lost its core. The longer
//                    count made generation 3 times slower.
constexpr int spins_between_large_products = 10000;
constexpr int spins_between_short_products = 1000;

// Returns the OpenMP settings that the environment lacks. Pure function.
// OMP_NUM_THREADS = quota, if the variable is not set and the quota is smaller than `cpus`.
// GOMP_SPINCOUNT, unless one thread is used, or this variable or OMP_WAIT_POLICY is set.
//   value_of     value of a variable; nullptr if it is not set
//   cpus         number of CPUs that the process may run on
//   quota        cpu_quota (kernels/control_groups.h); 0 means unlimited
//   spins        the value of GOMP_SPINCOUNT
std::vector<ThreadSetting> thread_settings(const std::function<const char*(VariableName)>& value_of, int cpus,
                                           int quota, int spins);

// Applies thread_settings() to this process by executing the program again with exec().
// OpenMP reads its settings before main. Arguments, open files and the process number stay.
// No-op if there is no setting to add, or if exec() fails.
// Call it first in main, before any thread exists. Child processes do not inherit the settings.
void apply_thread_settings(char** argv, int spins = spins_between_large_products);

}  // namespace sy
