// `switchyard plan`: what each layout of so many ranks takes of memory, computes, sends, and how long its steps last.
#pragma once

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
  double tokens() const { return static_cast<double>(config.train.global_batch * config.model.seq_len); }
};

// With a load, the time is that of a step in which every layer waits for its busiest rank, of the `looked_at` layouts that are the
// fastest with experts equally busy; the time that the mean rank waits is Part::waiting. Throws InputError where no layout fits the model.
Plan make_plan(const Config& config, Index vocab, int ranks, const PlanOptions& options);
constexpr std::size_t looked_at = 24;

// "tp2-ep4,ep8-etp2": what is not named is 1. Throws InputError.
std::vector<Layout> parse_layouts(const std::string& text, int ranks);

// shown: layouts of each table; 0: all.
std::string plan_text(const Plan& plan, std::size_t shown);
Json plan_json(const Plan& plan);

}  // namespace sy
