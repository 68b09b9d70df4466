// `switchyard plan`: what each layout of so many ranks takes of memory, computes, sends, and how long its steps last.
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
  int ranks;  // of the group
  Collective kind;
  std::string_view part;                                  // DryTransfer::part
  bool update;                                            // of gradients and weights, not of a pass
  double calls = 0, sent = 0, received = 0, seconds = 0;  // bytes; seconds: 0 without a machine
  double roots = 0;                                       // of broadcasts and reductions, of all calls together
};

struct Candidate {
  Layout layout;
  MemoryPlan memory{};  // of the rank that needs most; of one that cannot fit, as far as it was looked at
  bool fits = true;
  // What follows is of layouts that fit.
  Index passes = 0;  // micro-batches of a step
  double flops = 0;  // of a step
  std::vector<TrafficLine> traffic{};
  std::optional<StepTime> time{};  // with a machine
  double sent() const;
};

struct PlanOptions {
  std::optional<Machine> machine;
  std::optional<Shares> load;
  std::vector<Layout> layouts;  // these alone; empty: all that the configuration fits
  bool suggest = false;         // if nothing fits, look for settings that do
  // Called after each layout, with what is being done.
  std::function<void(std::string_view phase, Index done, Index total)> progress{};
};

// Settings with which layouts fit that do not with the configuration's.
struct Suggestion {
  Index micro_batch;
  bool recompute;
  std::size_t layouts;  // number of layouts that fit
  Candidate best;       // the fastest of them
  // The options that set them: "--train.micro_batch=1 --train.recompute=true".
  std::string options(const Config& config) const;
};

struct Plan {
  Config config;
  Index vocab;
  int ranks;
  std::optional<Machine> machine;
  bool loaded;
  double memory;                     // bytes that a rank may take; 0: not known
  std::vector<Candidate> fitting;    // the fastest first; without a machine, that which needs the least memory
  std::vector<Candidate> too_large;  // that which needs the least first
  // If nothing fits and PlanOptions::suggest is set: the largest micro-batch of layouts that fit,
  // as the configuration has train.recompute, and with recomputation. Empty if no micro-batch is
  // small enough.
  std::vector<Suggestion> suggestions{};
  bool suggested = false;  // PlanOptions::suggest, and there is a machine
  double tokens() const { return static_cast<double>(config.train.global_batch * config.model.seq_len); }
};

// The layouts of so many ranks that are planned: those of `options`, or all that fit. vocab 0: not known. Throws InputErrors
// that names every layout that does not fit.
std::vector<Layout> layouts_to_plan(const Config& config, Index vocab, int ranks, const PlanOptions& options);
// Throws InputError if the machine does not compute in run.dtype.
void check_machine_computes(const Machine& machine, const Config& config);

// With a load, the time is that of a step in which every layer waits for its busiest rank, of the `looked_at` layouts that are the
// fastest with experts equally busy; the time that the mean rank waits is Part::waiting. Throws InputError where no layout fits the model.
Plan make_plan(const Config& config, Index vocab, int ranks, const PlanOptions& options);
constexpr std::size_t looked_at = 24;

// "tp2-ep4,ep8-etp2": what is not named is 1. Each stays once. Throws InputError.
std::vector<Layout> parse_layouts(const std::string& text, int ranks);

// shown: layouts of each table; 0: all.
std::string plan_text(const Plan& plan, std::size_t shown);
// An element of "plans" in the document of `switchyard plan --json` (docs/reference/json.md).
Json plan_json(const Plan& plan);

}  // namespace sy
