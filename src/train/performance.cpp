#include "src/train/performance.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <chrono>
#include <fstream>

#include "dist/machine.h"
#include "src/text/numbers.h"
#include "src/text/table.h"

namespace sy {
namespace {

// Values of a rank: the time of each section, that of all of them, the time of each section's
// collectives, and the rank's memory.
constexpr std::size_t num_times = num_step_sections + 1, num_values = num_times + num_step_sections + 2;
using RankValues = std::array<double, num_values>;

// The least and the greatest of each value over all ranks, and the sum.
struct ReducedValues {
  RankValues least, most, sum;
};

// Reduces `mine` over all ranks. Collective.
ReducedValues reduce_values(Comm& world, const RankValues& mine) {
  std::array<double, 2 * num_values> ends;  // the greatest value is minus the least of its negative
  for (std::size_t i = 0; i < num_values; ++i) ends[2 * i] = mine[i], ends[2 * i + 1] = -mine[i];
  ReducedValues reduced{{}, {}, mine};
  world.all_reduce(view_of(ends.data(), {std::ssize(ends)}), Reduce::max);
  world.all_reduce(view_of(reduced.sum.data(), {std::ssize(reduced.sum)}));
  for (std::size_t i = 0; i < num_values; ++i) reduced.most[i] = ends[2 * i], reduced.least[i] = -ends[2 * i + 1];
  return reduced;
}

double seconds_of(StepTimes::Clock::duration time) {
  return std::chrono::duration<double>(time).count();
}

// Returns the sections that took any time, then all of them together. steps: number of steps.
std::vector<SectionTime> section_times(const ReducedValues& values, double ranks, double steps) {
  std::vector<SectionTime> sections;
  double all_collectives = 0;
  const auto add = [&](std::string_view name, std::size_t i, double collectives) {
    sections.push_back({name, values.least[i] / steps, values.sum[i] / (steps * ranks), values.most[i] / steps,
                        collectives / (steps * ranks)});
  };
  for (std::size_t p = 0; p < num_step_sections; ++p) {
    const double collectives = values.sum[num_times + p];
    all_collectives += collectives;
    if (values.most[p] > 0) add(name_of(static_cast<StepSection>(p)), p, collectives);
  }
  add("all", num_step_sections, all_collectives);
  return sections;
}

}  // namespace

std::string mfu_problem(const MachinePeak& peak, std::string_view device, DType dtype) {
  if (peak.machine.empty())
    return "give run.machine or measure one: launch/mpirun.sh 2 switchyard doctor --machine FILE";
  if (peak.device != device)
    return fmt::format("run.machine = {} has the speed of {}, and this run computes on {}", peak.machine, peak.device,
                       device);
  if (peak.flops <= 0)
    return fmt::format("run.machine = {} has no compute.peak_{}", peak.machine, dtype == DType::f32 ? "f32" : "bf16");
  return "";
}

Index resident_memory_peak() {
  std::ifstream status("/proc/self/status");
  constexpr std::string_view key = "VmHWM:";  // "VmHWM:     1234 kB"
  for (std::string line; std::getline(status, line);) {
    if (!line.starts_with(key)) continue;
    const std::size_t digits = std::min(line.find_first_of("0123456789"), line.size());
    Index kilobytes = 0;
    std::from_chars(line.data() + digits, line.data() + line.size(), kilobytes);
    return kilobytes * 1024;
  }
  return 0;
}

PerformanceMeter::PerformanceMeter(Comm& world, double flops_per_token, const MachinePeak& peak)
    : world_(world), flops_per_token_(flops_per_token) {
  measured_.ranks = world.size();
  measured_.nodes = static_cast<int>(world.sum(local_rank(world) == 0 ? 1 : 0));
  peak_flops_ = peak.flops * (peak.of_node ? measured_.nodes : measured_.ranks);
}

void PerformanceMeter::stop() {
  StepTimes*& times = world_.rank_context().step_times;
  if (times == &times_) times = nullptr;
}

void PerformanceMeter::begin_step() {
  if (steps_ == 1) {
    times_.clear();
    tokens_ = 0;
    seconds_ = 0;
  }
  world_.rank_context().step_times = &times_;
}

void PerformanceMeter::end_step(StepMetrics& m) {
  stop();
  set_speeds(m.tokens_per_second, m.tflops_per_second_per_rank, m.mfu);
  if (++steps_ <= 2) measured_.first_step = m.step;
  measured_.last_step = m.step;
  tokens_ += m.tokens_per_second * m.step_seconds;
  seconds_ += m.step_seconds;
}

void PerformanceMeter::set_speeds(double tokens_per_second, double& tflops_per_rank, std::optional<double>& mfu) const {
  const double flops = tokens_per_second * flops_per_token_;
  tflops_per_rank = flops / world_.size() / 1e12;
  if (peak_flops_ > 0) mfu = flops / peak_flops_;
}

std::optional<Performance> PerformanceMeter::gather(const MemoryPeak& memory) {
  if (steps_ == 0) return std::nullopt;
  RankValues mine{};
  for (std::size_t p = 0; p < num_step_sections; ++p) {
    const StepTimes::Times& times = times_[static_cast<StepSection>(p)];
    mine[p] = seconds_of(times.all);
    mine[num_step_sections] += mine[p];
    mine[num_times + p] = seconds_of(times.collectives);
  }
  mine[num_values - 2] = static_cast<double>(memory.host);
  mine[num_values - 1] = static_cast<double>(memory.device);
  const ReducedValues values = reduce_values(world_, mine);
  if (world_.rank() != 0) return std::nullopt;

  Performance p = measured_;
  const auto steps = static_cast<double>(std::max<Index>(1, steps_ - 1));
  p.step_seconds = seconds_ / steps;
  p.tokens_per_second = tokens_ / seconds_;
  set_speeds(p.tokens_per_second, p.tflops_per_second_per_rank, p.mfu);
  p.sections = section_times(values, world_.size(), steps);
  p.memory.host = std::max(p.memory.host, static_cast<Index>(values.most[num_values - 2]));
  p.memory.device = std::max(p.memory.device, static_cast<Index>(values.most[num_values - 1]));
  return p;
}

std::string performance_text(const Performance& p, const std::string& machine, const std::string& mfu_problem,
                             double validation_seconds, double save_seconds) {
  Table table({"section of a step", "min ms", "average ms", "max ms", "share", "collectives ms"});
  const auto milliseconds = [](double seconds) { return number_text(seconds * 1e3, 2); };
  for (const SectionTime& section : p.sections)
    table.row({std::string(section.name), milliseconds(section.min), milliseconds(section.mean),
               milliseconds(section.max), percent_text(section.mean / p.sections.back().mean),
               milliseconds(section.collectives)});
  std::string text = table.str();
  text += fmt::format("time      {} a step, mean of steps {} to {}; in all, {} of validation and {} of checkpoints\n",
                      seconds_text(p.step_seconds), p.first_step, p.last_step, seconds_text(validation_seconds),
                      seconds_text(save_seconds));
  text += fmt::format("memory    {} of a rank at most{}\n", megabytes(p.memory.host),
                      p.memory.device > 0 ? fmt::format(", and {} of its GPU", megabytes(p.memory.device)) : "");
  text += fmt::format("speed     {} tokens/s, {} per rank, {} per node; {:.4g} TFLOP/s per rank\n",
                      short_count_text(p.tokens_per_second), short_count_text(p.per_rank()),
                      short_count_text(p.per_node()), p.tflops_per_second_per_rank);
  return text + (p.mfu ? fmt::format("MFU       {} of the peak of {}", percent_text(*p.mfu), machine)
                       : "MFU       unknown: " + mfu_problem);
}

std::string performance_line(const Performance& p) {
  return fmt::format(
      "performance: tokens_per_second={:.1f} tokens_per_second_per_rank={:.1f} tokens_per_second_per_node={:.1f} "
      "tflops_per_second_per_rank={:.6f} mfu={} step_seconds={:.6f} steps={} ranks={} nodes={} host_memory_bytes={} "
      "device_memory_bytes={}",
      p.tokens_per_second, p.per_rank(), p.per_node(), p.tflops_per_second_per_rank,
      p.mfu ? fmt::format("{:.4f}", *p.mfu) : "unknown", p.step_seconds, p.last_step - p.first_step + 1, p.ranks,
      p.nodes, p.memory.host, p.memory.device);
}

}  // namespace sy
