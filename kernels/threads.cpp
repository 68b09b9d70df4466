#include "kernels/threads.h"

#include <sched.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <cstdlib>

#include "kernels/control_groups.h"

namespace sy {
namespace {

// Variable with the names of the variables that the first start set, separated by blanks. If it is
// set, this is the second start, which does not execute the program again.
constexpr VariableName second_start = "SWITCHYARD_THREAD_SETTINGS";

}  // namespace

int available_cpus() {
  cpu_set_t set;
  return sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 0;
}

std::vector<ThreadSetting> thread_settings(const std::function<const char*(VariableName)>& value_of, int cpus,
                                           int quota, int spins) {
  std::vector<ThreadSetting> settings;
  int threads = cpus;
  if (const char* const number = value_of("OMP_NUM_THREADS")) {
    threads = std::atoi(number);
  } else if (quota > 0 && quota < cpus) {
    threads = quota;
    settings.push_back({"OMP_NUM_THREADS", std::to_string(quota)});
  }
  if (threads != 1 && !value_of("OMP_WAIT_POLICY") && !value_of("GOMP_SPINCOUNT"))
    settings.push_back({"GOMP_SPINCOUNT", std::to_string(spins)});
  return settings;
}

void apply_thread_settings(char** argv, int spins) {
  std::string names;
  if (const char* const set = environment(second_start)) {
    names = set;
    prctl(PR_SET_NAME, program_invocation_short_name);  // the kernel named it "exe"
  } else {
    const auto settings =
        thread_settings(environment, available_cpus(), cpu_quota(cpu_time(control_group_root())), spins);
    if (settings.empty()) return;
    for (const ThreadSetting& s : settings) {
      set_environment(s.name, s.value.c_str());
      names += std::string(s.name.c_str()) + " ";
    }
    set_environment(second_start, names.c_str());
    execv("/proc/self/exe", argv);  // returns only if it failed: the threads then are as they were
  }
  for (const VariableName name : std::initializer_list<VariableName>{"GOMP_SPINCOUNT", "OMP_NUM_THREADS"})
    if (names.find(name.c_str()) != names.npos) unset_environment(name);
  unset_environment(second_start);
}

}  // namespace sy
