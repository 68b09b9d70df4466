// NVIDIA's management library. The driver brings it, and it is loaded at its first use.
#include <dlfcn.h>

#include <map>

#include "kernels/cuda/devices.h"

namespace sy::cuda {
namespace {

// The functions of NVML that are used. They return 0 if they succeed.
class Nvml {
 public:
  using Gpu = void*;  // nvmlDevice_t

  Nvml() {
    void* const library = dlopen("libnvidia-ml.so.1", RTLD_LAZY | RTLD_LOCAL);
    if (!library) return;
    const auto init = reinterpret_cast<int (*)()>(dlsym(library, "nvmlInit_v2"));
    gpu_by_bus_ = reinterpret_cast<GpuByBus>(dlsym(library, "nvmlDeviceGetHandleByPciBusId_v2"));
    total_energy_ = reinterpret_cast<TotalEnergy>(dlsym(library, "nvmlDeviceGetTotalEnergyConsumption"));
    usable_ = init && gpu_by_bus_ && total_energy_ && init() == 0;
  }

  std::optional<double> energy_joules(const std::string& id) {
    if (!usable_) return std::nullopt;
    const auto [it, is_new] = gpus_.emplace(id, nullptr);
    if (is_new && gpu_by_bus_(id.c_str(), &it->second) != 0) it->second = nullptr;
    unsigned long long millijoules = 0;
    if (!it->second || total_energy_(it->second, &millijoules) != 0) return std::nullopt;
    return static_cast<double>(millijoules) / 1e3;
  }

 private:
  using GpuByBus = int (*)(const char*, Gpu*);
  using TotalEnergy = int (*)(Gpu, unsigned long long*);
  GpuByBus gpu_by_bus_ = nullptr;
  TotalEnergy total_energy_ = nullptr;
  bool usable_ = false;
  std::map<std::string, Gpu> gpus_;  // by id; nullptr if NVML does not know it
};

}  // namespace

std::optional<double> energy_joules(const std::string& device_id) {
  static Nvml nvml;  // stays loaded until the process ends
  return nvml.energy_joules(device_id);
}

}  // namespace sy::cuda
