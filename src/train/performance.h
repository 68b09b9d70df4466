// Speed of a training: tokens and FLOPs per second, the share of the machine's peak, and the time
// of each section of a step. docs/reference/measures.md defines the figures.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "dist/comm.h"
#include "kernels/dtype.h"
#include "src/train/metrics.h"

namespace sy {

// Peak speed of the machine of run.machine.
struct MachinePeak {
  std::string machine;   // value of run.machine; empty if it is not set
  std::string device;    // name of the device that computes at this speed: cpu, cuda
  double flops = 0;      // FLOP/s in the type of the run; 0 if the machine has no such peak
  bool of_node = false;  // true: all ranks of a node share it; false: each rank has it
};
// Returns why the MFU of a run is unknown, and what to do. Empty if it is known.
// device, dtype: of the run.
std::string mfu_problem(const MachinePeak& peak, std::string_view device, DType dtype);

// Largest bytes of memory that this process has had so far.
struct MemoryPeak {
  Index host = 0;    // resident memory
  Index device = 0;  // of a GPU; 0 on a host
};
// Returns the peak of the resident memory of this process; 0 if it is unknown.
Index resident_memory_peak();

// Seconds per step of a section, averaged over the steps: minimum, mean and maximum over the ranks.
struct SectionTime {
  std::string_view name;  // of StepSection
  double min = 0, mean = 0, max = 0;
  double collectives = 0;  // seconds of `mean` that were spent in collectives
};

// Speed of one start of a run, without validations and checkpoints.
struct Performance {
  Index first_step = 1, last_step = 0;  // the measured steps
  double step_seconds = 0;              // mean of these steps on rank 0
  double tokens_per_second = 0;         // of all ranks
  double tflops_per_second_per_rank = 0;
  std::optional<double> mfu;  // model FLOPs utilization; empty if it is unknown
  int ranks = 1, nodes = 1;
  MemoryPeak memory;                  // the most of any rank
  std::vector<SectionTime> sections;  // those that took time, and their sum, named "all"
  double per_rank() const { return tokens_per_second / ranks; }
  double per_node() const { return tokens_per_second / nodes; }
};

// Measures the steps of one start of a run. The first step also warms up the machine: it counts
// only if there is no other.
class PerformanceMeter {
 public:
  // Counts the nodes. Collective.
  // flops_per_token: of training (ModelCosts). peak: with 0 FLOP/s if the MFU is unknown.
  PerformanceMeter(Comm& world, double flops_per_token, const MachinePeak& peak);
  ~PerformanceMeter() { stop(); }
  PerformanceMeter(const PerformanceMeter&) = delete;
  PerformanceMeter& operator=(const PerformanceMeter&) = delete;

  // Call before each step: the times of its sections count until end_step().
  void begin_step();
  // Call after each step. Sets the other speeds of `m` from its step_seconds and tokens_per_second.
  void end_step(StepMetrics& m);

  // Returns the speed of the measured steps on rank 0, and nothing on other ranks. Empty if there
  // was no step. memory: of this rank. Collective.
  std::optional<Performance> gather(const MemoryPeak& memory);

 private:
  void set_speeds(double tokens_per_second, double& tflops_per_rank, std::optional<double>& mfu) const;
  void stop();

  Comm& world_;
  double flops_per_token_;
  double peak_flops_;     // of all ranks; 0 if unknown
  Performance measured_;  // its ranks, nodes and steps
  StepTimes times_;
  Index steps_ = 0;
  // Sums over the measured steps.
  double tokens_ = 0;
  double seconds_ = 0;
};

// Describes the speed, the memory and the time of each section in a table.
// mfu_problem: reason if the MFU is unknown. validation_seconds, save_seconds: time outside of the
// steps.
std::string performance_text(const Performance& p, const std::string& machine, const std::string& mfu_problem,
                             double validation_seconds, double save_seconds);
// Returns the line "performance: KEY=VALUE ...", which docs/reference/measures.md documents for
// tests of sites. It has no other format than that page says.
std::string performance_line(const Performance& p);

}  // namespace sy
