#include "src/train/energy.h"

#include <limits>

#include "dist/machine.h"

namespace sy {

namespace {
constexpr double unknown = std::numeric_limits<double>::quiet_NaN();
}

EnergyMeter::EnergyMeter(Comm& world, Device& device) : world_(world), device_(device) {
  if (local_rank(world) == 0) host_ = std::make_unique<RaplReader>();
  if (host_) problem_ = host_->problem();
  cpu_known_ = world.max(problem_.empty() ? 0 : 1) == 0;
  if (world.max(device.on_host() ? 1 : 0) > 0) return;
  reads_device_ = rank_on_device(world, device.device_id()) == 0;
  gpu_known_ = world.max(reads_device_ && !device.energy_joules() ? 1 : 0) == 0;
}

StepEnergy EnergyMeter::read() {
  return {.cpu_joules = host_ && cpu_known_ ? host_->joules() : 0,
          .gpu_joules = reads_device_ && gpu_known_ ? device_.energy_joules().value_or(unknown) : 0};
}

void EnergyMeter::end_step(StepMetrics& m) {
  const StepEnergy end = read();
  m.energy = {.cpu_joules = cpu_known_ ? world_.sum(end.cpu_joules - begin_.cpu_joules) : unknown,
              .gpu_joules = gpu_known_ ? world_.sum(end.gpu_joules - begin_.gpu_joules) : unknown};
}

std::string EnergyMeter::describe() const {
  if (cpu_known_ && gpu_known_) return "energy    of processors, memory and GPUs is in metrics.jsonl";
  if (cpu_known_) return "energy    of processors and memory is in metrics.jsonl";
  const std::string problem = problem_.empty() ? "another host cannot read it" : problem_;
  if (gpu_known_) return "energy    of GPUs is in metrics.jsonl; of processors and memory it is unknown: " + problem;
  return "energy    unknown: " + problem;
}

}  // namespace sy
