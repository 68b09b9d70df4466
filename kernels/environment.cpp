#include "kernels/environment.h"

#include <unistd.h>

#include <algorithm>
#include <cstdlib>

namespace sy {
namespace {

struct Default {
  VariableName name;
  const char* value;
};

const Default library_defaults[] = {
    // Load all kernels, those of libraries too, when the context is created ("Lazy Loading" in
    // NVIDIA's CUDA programming guide). By default a kernel is loaded at its first launch. Its code
    // then takes device memory that activations already use. Loading may also wait for running
    // work, such as a collective that waits for another rank.
    {"CUDA_MODULE_LOADING", "EAGER"},
    // Sums within NVSwitch differ from call to call. The user can allow them by setting this to 1.
    {"NCCL_NVLS_ENABLE", "0"},
    {"NCCL_MAX_P2P_NCHANNELS", "16"},
    // Two communicators must not deadlock: their kernels launch in the order of the calls on all
    // ranks.
    {"NCCL_LAUNCH_ORDER_IMPLICIT", "1"},
};

}  // namespace

const char* environment(VariableName name) {
  return std::getenv(name.c_str());
}

int environment_int(VariableName name) {
  const char* const value = environment(name);
  return value ? std::atoi(value) : -1;
}

bool environment_has_process_manager() {
  return std::ranges::any_of(environment_entries(), [](const auto& entry) {
    const std::string& name = entry.first;
    return name.starts_with("PMI_") || (name.starts_with("PMIX_") && !name.starts_with("PMIX_MCA_"));
  });
}

std::vector<std::pair<std::string, std::string>> environment_entries() {
  std::vector<std::pair<std::string, std::string>> found;
  for (char** variable = environ; *variable; ++variable) {
    const std::string_view entry = *variable;
    const std::size_t equals = entry.find('=');
    if (equals != entry.npos) found.emplace_back(entry.substr(0, equals), entry.substr(equals + 1));
  }
  std::sort(found.begin(), found.end());
  return found;
}

void set_environment(VariableName name, const char* value) {
  setenv(name.c_str(), value, 1);
}

void unset_environment(VariableName name) {
  unsetenv(name.c_str());
}

void set_library_defaults() {
  for (const Default& setting : library_defaults) setenv(setting.name.c_str(), setting.value, 0);
}

}  // namespace sy
