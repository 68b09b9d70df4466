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

// Values that each rank contributes: two times of each section, and its memory.
constexpr std::size_t num_values = 2 * num_step_sections + 2;
using RankValues = std::array<double, num_values>;

double seconds_of(StepTimes::Clock::duration time) {
  return std::chrono::duration<double>(time).count();
}

// Returns a section of a step. times: [ranks] seconds of all steps. collectives: their sum.
SectionTime section_time(std::string_view name, const std::vector<double>& times, double collectives, Index steps) {
  const double n = static_cast<double>(steps), ranks = static_cast<double>(times.size());
  SectionTime section{name, times.front() / n, 0, times.front() / n, collectives / (n * ranks)};
  for (const double t : times) {
    section.least = std::min(section.least, t / n);
    section.most = std::max(section.most, t / n);
    section.mean += t / (n * ranks);
  }
  return section;
}

std::vector<SectionTime> section_times(const std::vector<RankValues>& ranks, Index steps) {
  std::vector<SectionTime> sections;
  std::vector<double> sums(ranks.size());
  double all_collectives = 0;
  for (int p = 0; p < num_step_sections; ++p) {
    std::vector<double> times;
    double collectives = 0;
    for (std::size_t r = 0; r < ranks.size(); ++r) {
      times.push_back(ranks[r][static_cast<std::size_t>(p)]);
      collectives += ranks[r][static_cast<std::size_t>(num_step_sections) + static_cast<std::size_t>(p)];
      sums[r] += times.back();
    }
    all_collectives += collectives;
    if (std::ranges::any_of(times, [](double t) { return t > 0; }))
      sections.push_back(section_time(name_of(static_cast<StepSection>(p)), times, collectives, steps));
  }
  sections.push_back(section_time("all", sums, all_collectives, steps));
  return sections;
}

}  // namespace

std::string mfu_problem(const MachinePeak& peak, std::string_view device, DType dtype) {
  if (peak.machine.empty()) return "give run.machine or run `switchyard doctor --machine`";
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

void PerformanceMeter::end_step(Index tokens, StepMetrics& m) {
  stop();
  set_speeds(m.tokens_per_second, m.tflops_per_second_per_rank, m.mfu);
  if (++steps_ <= 2) measured_.first_step = m.step;
  measured_.last_step = m.step;
  tokens_ += tokens;
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
    mine[num_step_sections + p] = seconds_of(times.collectives);
  }
  mine[num_values - 2] = static_cast<double>(memory.host);
  mine[num_values - 1] = static_cast<double>(memory.device);
  std::vector<RankValues> ranks(static_cast<std::size_t>(world_.size()));
  constexpr Index n = num_values;
  world_.all_gather(view_of(mine.data(), {n}), view_of(ranks.front().data(), {world_.size() * n}));
  if (world_.rank() != 0) return std::nullopt;

  Performance p = measured_;
  const Index steps = std::max<Index>(1, steps_ - 1);
  p.step_seconds = seconds_ / static_cast<double>(steps);
  p.tokens_per_second = static_cast<double>(tokens_) / seconds_;
  set_speeds(p.tokens_per_second, p.tflops_per_second_per_rank, p.mfu);
  p.sections = section_times(ranks, steps);
  for (const RankValues& rank : ranks) {
    p.memory.host = std::max(p.memory.host, static_cast<Index>(rank[num_values - 2]));
    p.memory.device = std::max(p.memory.device, static_cast<Index>(rank[num_values - 1]));
  }
  return p;
}

std::string performance_text(const Performance& p, const std::string& machine, const std::string& mfu_problem,
                             double validation_seconds, double save_seconds) {
  Table table({"section of a step", "min ms", "average ms", "max ms", "share", "collectives ms"});
  const auto milliseconds = [](double seconds) { return number_text(seconds * 1e3, 2); };
  for (const SectionTime& section : p.sections)
    table.row({std::string(section.name), milliseconds(section.least), milliseconds(section.mean),
               milliseconds(section.most), percent_text(section.mean / p.sections.back().mean),
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
