// `switchyard scale`: the same training on several numbers of ranks and layouts, and their speeds.
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "src/config.h"
#include "src/experiments/outcome.h"
#include "src/experiments/step_breakdown.h"
#include "src/experiments/trainings.h"
#include "src/plan/plan.h"
#include "src/text/json.h"

namespace sy {

// Host and build properties that a measured time depends on, besides the run's settings.
struct Environment {
  std::string host;             // host of this process, which starts the ranks
  std::string instruction_set;  // instruction set of the CPU kernels, such as "avx2"
  std::string threads;          // OMP_NUM_THREADS, or "auto, 8 CPUs" if it is not set
  // Version, commit and options; the program's SHA-256 instead if there is no clean commit.
  std::string build;
  std::string launcher;  // "launch/mpirun.sh" if the user chose none

  Json json() const;
  // Returns a folder name such as "avx2-0f3a9c21". It is the instruction set and the first 8 hex
  // digits of SHA-256 of json().
  std::string folder() const;
};

// Returns the environment of the runs that this process starts. launcher: may be empty.
// Throws InputError if SWITCHYARD_ISA names no instruction set of this processor.
Environment this_environment(const std::string& launcher);

constexpr Index max_scale_steps = 1'000'000;  // of ScaleOptions::warm_up and ScaleOptions::steps

struct ScaleOptions {
  std::filesystem::path config, output;
  std::vector<std::string> settings;  // "--key=value", for every run
  std::vector<int> ranks;             // in rising order
  // Used with any number of ranks (`ranks` is not read); all layouts that fit if empty.
  std::vector<Layout> layouts;
  // Strong scaling keeps the global batch; weak scaling lets it grow with the ranks. Both may be
  // true, but not both false.
  bool strong = true, weak = false;
  bool by_nodes = false;          // compare numbers of nodes, not of ranks
  bool balanced = true;           // also measure each point with forced balanced routing
  Index warm_up = 3, steps = 10;  // unmeasured and measured steps
  // Each repeat starts its ranks anew. The first repeats of all points run before the second ones.
  // 6 is the smallest number with a 95 % interval of the median.
  int repeats = 6;
  // Machine for which `plan` predicts each point; no predictions if empty.
  std::optional<Machine> machine{};
  // Machine with the peak speed for MFU; empty if it is unknown.
  std::optional<Machine> peak{};
  // Expert load of the unforced routing, for predictions; equal loads if empty.
  std::optional<Shares> load{};
  std::string launcher;  // see train_all()
};

enum class Scaling { strong, weak };

// A layout on a number of ranks, with one batch and one kind of routing.
struct ScalePoint {
  Layout layout;
  Index global_batch = 0, micro_batch = 0;
  bool balanced = false;       // moe.choice = balanced
  std::vector<Training> runs;  // [repeat]
  // [successful repeat] median over its measured steps.
  std::vector<double> step_seconds{};
  // Energy of the measured steps of each repeat that could read it: of the hosts' processors and
  // memory, and of the GPUs.
  std::vector<double> cpu_joules_per_token{}, gpu_joules_per_token{};
  int nodes = 0;         // number of hosts of its runs; 0 means unknown
  bool on_gpus = false;  // its runs computed on GPUs
  // Time of a traced step by category, mean over ranks and runs.
  std::optional<StepTime> breakdown{};
  std::string failure{};                // reason why a run failed; empty if none did
  std::vector<std::string> warnings{};  // warnings of its runs, without duplicates
  // If false, an earlier call measured it, with the same settings and environment.
  bool requested = true;
  // All of its runs were complete before this call.
  bool reused = false;
  Index tokens = 0;                                        // per step
  double predicted = not_known;                            // seconds/step; NaN without a machine
  double seconds() const { return median(step_seconds); }  // NaN if nothing was measured
  double spread() const;                                   // (max - min) / median of the repeats
  // Interval of the median step time, in seconds; empty for fewer than two repeats.
  std::optional<MedianInterval> interval() const { return median_interval(step_seconds); }
  double tokens_per_second() const { return static_cast<double>(tokens) / seconds(); }
  double tokens_per_second_per_rank() const { return tokens_per_second() / layout.ranks; }
  // NaN if the number of nodes is unknown.
  double tokens_per_second_per_node() const { return nodes > 0 ? tokens_per_second() / nodes : not_known; }
  double joules_per_token() const;  // of all that could be read; NaN if nothing could
};

struct ScaleResult {
  ScaleOptions options;
  std::vector<ScalePoint> points;  // by ranks, the requested ones first, by layout and routing
  Environment environment{};
  Config config{};             // configuration that the runs change
  double flops_per_token = 0;  // of training (ModelCosts)
  Json provenance = {};        // record of the call; may be null
  Json check = {};             // result of --check (scale_check.h); may be null

  std::string name() const { return options.config.stem().string(); }  // of the configuration
  // Whether a point belongs to a kind of scaling. A point on the fewest ranks belongs to both.
  bool is_strong(const ScalePoint& point) const;
  bool is_weak(const ScalePoint& point) const;
  bool is_of(Scaling kind, const ScalePoint& point) const {
    return kind == Scaling::strong ? is_strong(point) : is_weak(point);
  }
  // Returns the number of ranks of a point or, if `options.by_nodes`, of its nodes.
  double units(const ScalePoint& point) const { return options.by_nodes ? point.nodes : point.layout.ranks; }
  // Returns the reference point of a kind of scaling: the fastest measured point with unforced
  // routing on the fewest ranks or nodes. If points of both kinds were measured, both kinds share
  // the fastest of these. nullptr if no point of the kind was measured.
  const ScalePoint* base(Scaling kind) const;
  // Returns the reference point of a point's kind; that of strong scaling if it belongs to both.
  const ScalePoint* base_of(const ScalePoint& point) const;
  // Ratio of tokens/s to base_of(); NaN if either is unknown.
  double speedup(const ScalePoint& point) const;
  // Speed-up divided by the ratio of the numbers of ranks or nodes.
  double efficiency(const ScalePoint& point) const;
  // Model TFLOP/s of all ranks, and of one.
  double tflops_per_second(const ScalePoint& point) const;
  double tflops_per_second_per_rank(const ScalePoint& point) const;
  // Model FLOPs utilization; NaN if it is unknown.
  double mfu(const ScalePoint& point) const;
  // Returns why the MFU of a point is unknown, and what to do. Empty if it is known.
  std::string mfu_problem(const ScalePoint& point) const;
  // Returns by which share a step takes longer with unforced than with balanced routing; NaN if
  // unknown.
  double routing_gap(const ScalePoint& point) const;
  // Returns the warnings of the point's runs and of doubtful numbers: efficiency above 110 %,
  // spread above 20 %.
  std::vector<std::string> warnings(const ScalePoint& point) const;
};

// Layouts and batches of each number of ranks, and the reasons why requested layouts are left out.
struct ScaleLayouts {
  std::vector<std::pair<Layout, Index>> layouts;  // with the global batch
  std::vector<std::string> left_out;
};
// Throws InputErrors if no layout fits.
ScaleLayouts scale_layouts(const Config& config, const ScaleOptions& options);

// Returns the requested points, not yet measured, and matching points of earlier calls. A point
// matches if it was measured with the same settings in the same environment.
// Runs are in OUTPUT/NAME/ENVIRONMENT/. The micro-batch is at most the configuration's, and the
// largest that divides a rank's share of the batch. Throws InputError if no layout fits.
ScaleResult plan_scale(const ScaleOptions& options);
// Measures the points that have not been measured. Returns false if this process was asked to stop.
bool measure_scale(ScaleResult& result);

}  // namespace sy
