// `switchyard plan`: memory, compute, traffic and step time of each layout of a number of ranks.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "src/plan/cost.h"
#include "src/plan/load.h"
#include "src/text/json.h"

namespace sy {

// All calls of one kind of collective in a step of one rank.
struct TrafficLine {
  std::string_view group;
  int ranks;  // size of the group
  Collective kind;
  std::string_view subphase;  // "dispatch", "combine", "batch norm", or empty
  // If true, it moves gradients and weights; otherwise it belongs to a pass.
  bool update;
  // sent, received: bytes. seconds: 0 without a machine.
  double calls = 0, sent = 0, received = 0, seconds = 0;
  // Number of roots of all broadcasts or reductions together.
  double roots = 0;
};

// All calls of one operation in a step of one rank.
struct OperationLine {
  std::string_view op;
  bool update;  // it belongs to Profile::update, not to Profile::pass
  // seconds: 0 without a machine.
  double calls = 0, flops = 0, bytes = 0, seconds = 0;
};

struct Candidate {
  Layout layout;
  // Memory of the rank that needs most. If parameters alone do not fit, only their memory.
  MemoryPlan memory{};
  bool fits = true;
  // The following members are only set if the layout was profiled, because its parameters fit.
  Index passes = 0;  // micro-batches per step
  double flops = 0;  // per step
  std::vector<TrafficLine> traffic{};
  // The longest first; without a machine, the one with most bytes first.
  std::vector<OperationLine> operations{};
  std::optional<StepTime> time{};  // empty without a machine
  double sent() const;
};

struct PlanOptions {
  std::optional<Machine> machine;
  std::optional<Shares> load;
  // Only these layouts; all that fit the configuration if empty.
  std::vector<Layout> layouts;
  bool suggest = false;  // if nothing fits, look for settings that do
  // Called after each layout, with a description of the work.
  std::function<void(std::string_view phase, Index done, Index total)> progress{};
};

// Changed settings with which some layouts fit that do not fit with the configuration's.
struct Suggestion {
  Index micro_batch;
  Recompute recompute;
  std::size_t layouts;  // number of layouts that fit
  Candidate best;       // the fastest of them
  // Returns the configuration with the settings.
  Config apply(Config config) const;
  // Returns command-line options, such as "--train.micro_batch=1 --train.recompute=block".
  std::string options(const Config& config) const;
};

struct Plan {
  Config config;
  Index vocab;
  int ranks;
  std::optional<Machine> machine;
  bool loaded;
  // Bytes that a rank may use; 0 means unknown.
  double memory;
  // The fastest first; without a machine, the one that needs the least memory first.
  std::vector<Candidate> fitting;
  std::vector<Candidate> too_large;  // the one that needs the least memory first
  // Suggestions if nothing fits and PlanOptions::suggest is set, for the configuration's mode of
  // train.recompute and the dearer ones, from the cheapest to the dearest. Each has the largest
  // micro-batch with which some layout fits. Modes with a micro-batch that a cheaper mode allows
  // are left out. Empty if no micro-batch is small enough.
  std::vector<Suggestion> suggestions{};
  bool suggested = false;  // PlanOptions::suggest is set, and there is a machine
  // Numbers of layouts that fit with balanced experts: planned with the load, and not planned with
  // it. 0 without a load.
  std::size_t with_load = 0, without_load = 0;
  // Returns the bytes of an asynchronous checkpoint's copy in the memory of a CPU. 0 without a
  // machine, and on a GPU.
  Index checkpoint_copy(const MemoryPlan& m) const {
    return machine && machine->backend == "cpu" && config.run.async_checkpoint ? m.checkpoint_copy : 0;
  }
  // Returns the bytes that must fit into `memory`.
  Index needed(const MemoryPlan& m) const { return m.total() + checkpoint_copy(m); }
  bool holds(Index bytes) const { return memory == 0 || static_cast<double>(bytes) <= memory; }
  bool fits(const MemoryPlan& m) const { return holds(needed(m)); }
  double tokens() const { return static_cast<double>(config.train.global_batch * config.tokens_per_sample()); }
};

// Returns the layouts to plan: those of `options`, or all that fit. vocab: 0 means unknown. Throws
// InputErrors that name every layout that does not fit.
std::vector<Layout> layouts_to_plan(const Config& config, Index vocab, int ranks, const PlanOptions& options);
// Throws InputError if the machine does not compute in run.dtype.
void check_machine_computes(const Machine& machine, const Config& config);

// Plans all layouts. Throws InputError if no layout fits the model.
// With a load, the time is that of a step in which every layer waits for its busiest rank. Only the
// first `max_loaded_layouts` layouts with balanced experts are planned with it: the fastest, or
// without a machine the smallest. If none of them fits, the next ones are.
// TimeCategory::waiting is the time that the mean rank waits.
Plan make_plan(const Config& config, Index vocab, int ranks, const PlanOptions& options);
constexpr std::size_t max_loaded_layouts = 24;

// Parses "tp2-ep4,ep8-etp2". Omitted sizes are 1. Duplicates are removed. Throws InputError.
std::vector<Layout> parse_layouts(const std::string& text, int ranks);

// shown: layouts per table; 0 means all. operations: also shows the operations of the first layout.
std::string plan_text(const Plan& plan, std::size_t shown, bool operations = false);
// An element of "plans" in the document of `switchyard plan --json` (docs/reference/json.md).
Json plan_json(const Plan& plan);

}  // namespace sy
