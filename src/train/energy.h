// Energy of training steps: of the processors and the memory of all hosts, and of all GPUs.
#pragma once

#include <memory>
#include <string>

#include "dist/comm.h"
#include "kernels/device.h"
#include "src/system/rapl.h"
#include "src/train/metrics.h"

namespace sy {

// Reads the counters of each host and each GPU by one rank of it.
class EnergyMeter {
 public:
  // Collective. device: of this rank, which must outlive this object.
  EnergyMeter(Comm& world, Device& device);

  // Call before each step.
  void begin_step() { begin_ = read(); }
  // Call after each step. Sets m.energy on all ranks. Collective.
  void end_step(StepMetrics& m);
  // Returns a line about the energies that are measured, or why none is.
  std::string describe() const;

 private:
  // Joules that this rank has read since a fixed time; 0 if it reads no counter.
  StepEnergy read();

  Comm& world_;
  Device& device_;
  std::unique_ptr<RaplReader> host_;            // nullptr if another rank of the host reads it
  bool reads_device_ = false;                   // whether this rank reads its GPU
  bool cpu_known_ = false, gpu_known_ = false;  // on all hosts and all GPUs
  std::string problem_;                         // of this rank's host
  StepEnergy begin_;
};

}  // namespace sy
