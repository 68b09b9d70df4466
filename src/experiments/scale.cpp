#include "src/experiments/scale.h"

#include <algorithm>
#include <cmath>
#include <regex>
#include <tuple>

#include "dist/runtime.h"
#include "kernels/cpu/processor.h"
#include "kernels/environment.h"
#include "kernels/threads.h"
#include "src/build_info.h"
#include "src/config/layout.h"
#include "src/data/masking.h"
#include "src/io/manifest.h"
#include "src/params/costs.h"
#include "src/system/digest.h"
#include "src/system/files.h"
#include "src/system/new_folders.h"
#include "src/text/error_list.h"
#include "src/text/numbers.h"

namespace sy {
namespace {

namespace fs = std::filesystem;

// Returns version, commit and options. Without a clean commit it returns the version and the digest
// of the program.
std::string build_text(const BuildInfo& build) {
  if (!build.commit.empty() && !build.dirty)
    return fmt::format("{}, commit {}, {}", build.version, build.commit.substr(0, 12), options_text(build));
  return fmt::format("{}, SHA-256 {}", build.version, to_hex(sha256_file(program_path())).substr(0, 12));
}

// Traced steps of each run. They come after the measured ones, because a trace costs time.
constexpr Index traced_steps = 2;

// Settings of a benchmark, which only trains steps.
std::vector<std::string> settings_of(const ScaleOptions& options, const Layout& layout, Index batch, Index micro) {
  std::vector<std::string> settings = options.settings;
  const auto set = [&](const char* key, Index value) { settings.push_back(fmt::format("--{}={}", key, value)); };
  set("train.steps", options.warm_up + options.steps + traced_steps);
  set("log.trace_first", options.warm_up + options.steps + 1);
  set("log.trace_steps", traced_steps);
  settings.push_back("--log.energy=true");
  set("train.warmup", 0);
  set("train.validate_every", 0);
  for (const char* key : {"train.patience", "train.target_loss", "run.keep_best", "run.max_hours"}) set(key, 0);
  set("run.checkpoint_every", 0);
  set("train.global_batch", batch);
  settings.emplace_back("--train.batch_ramp=");
  set("train.micro_batch", micro);
  set("parallel.tp", layout.tp);
  set("parallel.ep", layout.ep);
  set("parallel.etp", layout.etp);
  set("parallel.ranks_per_node", layout.ranks_per_node);
  return settings;
}

// other_batch: the global batch, if it is not the configuration's; otherwise 0.
std::string name_of(const Layout& l, Index other_batch, bool balanced) {
  return fmt::format("r{}-tp{}-ep{}-etp{}{}{}-{}", l.ranks, l.tp, l.ep, l.etp,
                     l.ranks_per_node > 1 ? fmt::format("-node{}", l.ranks_per_node) : "",
                     other_batch > 0 ? fmt::format("-batch{}", other_batch) : "", balanced ? "balanced" : "own");
}

// Returns the layout, batch and routing of the point whose first repeat has this folder name
// (name_of). A global batch of 0 means the configuration's.
std::optional<ScalePoint> point_of_folder(const std::string& name) {
  static const std::regex form(
      "r([0-9]{1,7})-tp([0-9]{1,7})-ep([0-9]{1,7})-etp([0-9]{1,7})(-node([0-9]{1,7}))?"
      "(-batch([0-9]{1,9}))?-(own|balanced)-1");
  std::smatch match;
  if (!std::regex_match(name, match, form)) return std::nullopt;
  const auto number = [&](int i, int otherwise = 1) { return match[i].matched ? std::stoi(match[i]) : otherwise; };
  const Layout layout{number(1), number(2), number(3), number(4), number(6)};
  if (std::min({layout.ranks, layout.tp, layout.ep, layout.etp}) < 1) return std::nullopt;
  return ScalePoint{layout, number(8, 0), 0, match[9] == "balanced", {}};
}

// Returns whether weak scaling has a batch of whole sequences on a number of ranks.
bool has_weak_batch(const Config& config, const ScaleOptions& options, int ranks) {
  return config.train.global_batch * ranks % options.ranks.front() == 0;
}

// Returns the global batches of a number of ranks; may be empty. Strong and weak scaling have the
// same batch on the fewest ranks.
std::vector<Index> batches_of(const Config& config, const ScaleOptions& options, int ranks) {
  std::vector<Index> batches;
  if (options.strong) batches.push_back(config.train.global_batch);
  const Index weak = config.train.global_batch * ranks / options.ranks.front();
  if (options.weak && has_weak_batch(config, options, ranks) && (batches.empty() || weak != batches.front()))
    batches.push_back(weak);
  return batches;
}

// Returns the configuration with which the layouts of a batch are chosen.
Config to_choose_by(Config config, Index batch) {
  config.train.global_batch = batch;
  config.train.batch_ramp = {};
  config.train.micro_batch = 1;
  config.train.validate_every = 0;
  return config;
}

// Makes the points of one call of scale.
class Points {
 public:
  Points(const ScaleOptions& options, const Environment& environment)
      : options_(options),
        config_(read_config(options.config, options.settings)),
        vocab_(training_vocab(config_)),
        folder_(options.output / options.config.stem() / environment.folder()) {}

  const Config& config() const { return config_; }

  double flops_per_token() const { return model_costs(config_, vocab_).flops_per_token; }

  ScalePoint point(const Layout& layout, Index global, bool balanced) const {
    const Index share = global / layout.dp();
    Index micro = std::min(config_.train.micro_batch, share);
    while (share % micro != 0) --micro;
    ScalePoint point{layout, global, micro, balanced, {}};
    point.tokens = global * config_.tokens_per_sample();
    for (int repeat = 1; repeat <= options_.repeats; ++repeat) {
      const std::string name =
          fmt::format("{}-{}", name_of(layout, global == config_.train.global_batch ? 0 : global, balanced), repeat);
      point.runs.push_back({.run = folder_ / name,
                            .config = options_.config,
                            .settings = settings(point),
                            .ranks = layout.ranks,
                            .steps = options_.warm_up + options_.steps + traced_steps,
                            .label = name,
                            .measured = true});
    }
    return point;
  }

  // Throws InputError if a folder of the point's runs holds other runs.
  void check_folders(const ScalePoint& point) {
    for (const Training& training : point.runs) check_folder(training, measured(point), digests_);
  }

  // Returns the configuration of the runs of a point.
  Config measured(const ScalePoint& point) const { return read_config(options_.config, settings(point)); }

  double predicted(const ScalePoint& point) const {
    if (!options_.machine) return not_known;
    const Plan plan = make_plan(measured(point), vocab_, point.layout.ranks,
                                {options_.machine, point.balanced ? std::nullopt : options_.load, {point.layout}});
    return !plan.fitting.empty() && plan.fitting.front().time ? plan.fitting.front().time->total() : not_known;
  }

  // Returns the points that earlier calls measured completely, without those in `known`.
  std::vector<ScalePoint> earlier(const std::vector<ScalePoint>& known) {
    std::vector<ScalePoint> found;
    for (const std::string& name : names_in(folder_)) {
      const auto named = point_of_folder(name);
      if (!named) continue;
      const Index batch = named->global_batch > 0 ? named->global_batch : config_.train.global_batch;
      const std::vector<Index> batches = batches_of(config_, options_, named->layout.ranks);
      if (std::ranges::find(batches, batch) == batches.end() || std::ranges::any_of(known, [&](const ScalePoint& p) {
            return p.layout == named->layout && p.global_batch == batch && p.balanced == named->balanced;
          }))
        continue;
      ScalePoint point;
      Config config;
      try {
        check_config_for_layout(to_choose_by(config_, batch), named->layout);
        point = this->point(named->layout, batch, named->balanced);
        config = measured(point);
      } catch (const InputError&) {  // a run of another configuration
        continue;
      }
      std::erase_if(point.runs, [&](const Training& t) { return !matches(t, config); });
      point.requested = false;
      if (!point.runs.empty()) found.push_back(std::move(point));
    }
    std::ranges::sort(found, {}, [](const ScalePoint& p) {
      return std::tuple(p.layout.ranks, p.global_batch, p.layout.tp, p.layout.ep, p.layout.etp, p.layout.ranks_per_node,
                        p.balanced);
    });
    return found;
  }

 private:
  // Returns whether an earlier call measured the run, with these settings. Warns of a run whose
  // files cannot be read.
  bool matches(const Training& training, const Config& config) {
    try {
      return has_ended(training) && other_settings(training, config, digests_).empty();
    } catch (const InputError& e) {
      warn(fmt::format("{} was measured by an earlier call and is left out: {}", training.run.string(), e.what()));
      return false;
    }
  }

  std::vector<std::string> settings(const ScalePoint& point) const {
    std::vector<std::string> settings = settings_of(options_, point.layout, point.global_batch, point.micro_batch);
    if (point.balanced)
      settings.insert(settings.end(), {"--moe.choice=balanced", "--moe.noise=0", "--moe.learned_noise=false"});
    return settings;
  }

  const ScaleOptions& options_;
  Config config_;
  Index vocab_;
  fs::path folder_;
  DataDigests digests_;
};

}  // namespace

Json Environment::json() const {
  return {{"host", host},
          {"instruction_set", instruction_set},
          {"threads", threads},
          {"build", build},
          {"launcher", launcher}};
}

std::string Environment::folder() const {
  return instruction_set + "-" + to_hex(sha256(json_text(json()))).substr(0, 8);
}

Environment this_environment(const std::string& launcher) {
  const char* const threads = environment("OMP_NUM_THREADS");
  return {host_name(), std::string(cpu_isa().name),
          threads && *threads ? threads : fmt::format("auto, {} CPUs", available_cpus()), build_text(build_info()),
          launcher.empty() ? "launch/mpirun.sh" : launcher};
}

double ScalePoint::spread() const {
  if (step_seconds.size() < 2) return not_known;
  const auto [least, most] = std::minmax_element(step_seconds.begin(), step_seconds.end());
  return (*most - *least) / seconds();
}

double ScalePoint::joules_per_token() const {
  const double cpu = median(cpu_joules_per_token), gpu = median(gpu_joules_per_token);
  return std::isnan(cpu) ? gpu : std::isnan(gpu) ? cpu : cpu + gpu;
}

bool ScaleResult::is_strong(const ScalePoint& point) const {
  return options.strong && point.global_batch == config.train.global_batch;
}

bool ScaleResult::is_weak(const ScalePoint& point) const {
  return options.weak && point.global_batch * options.ranks.front() == config.train.global_batch * point.layout.ranks;
}

const ScalePoint* ScaleResult::base(Scaling kind) const {
  const auto fastest = [&](bool of_both) {
    const ScalePoint* best = nullptr;
    for (const ScalePoint& p : points) {
      if (p.balanced || p.step_seconds.empty() || units(p) <= 0) continue;
      const bool belongs = of_both ? is_strong(p) && is_weak(p) : is_of(kind, p);
      if (belongs && (!best || units(p) < units(*best) ||
                      (units(p) == units(*best) && p.tokens_per_second() > best->tokens_per_second())))
        best = &p;
    }
    return best;
  };
  const ScalePoint* const of_both = options.strong && options.weak ? fastest(true) : nullptr;
  return of_both ? of_both : fastest(false);
}

const ScalePoint* ScaleResult::base_of(const ScalePoint& point) const {
  return base(is_strong(point) ? Scaling::strong : Scaling::weak);
}

double ScaleResult::speedup(const ScalePoint& point) const {
  const ScalePoint* from = base_of(point);
  return from ? point.tokens_per_second() / from->tokens_per_second() : not_known;
}

double ScaleResult::efficiency(const ScalePoint& point) const {
  const ScalePoint* from = base_of(point);
  return from && units(point) > 0 ? speedup(point) * units(*from) / units(point) : not_known;
}

double ScaleResult::tflops_per_second(const ScalePoint& point) const {
  return flops_per_token * point.tokens_per_second() / 1e12;
}

double ScaleResult::tflops_per_second_per_rank(const ScalePoint& point) const {
  return tflops_per_second(point) / point.layout.ranks;
}

std::string ScaleResult::mfu_problem(const ScalePoint& point) const {
  const std::optional<Machine>& peak = options.peak;
  if (!peak)
    return "give --machine or run.machine: a name such as h100, or a file that `switchyard doctor --machine FILE` wrote";
  const char* const device = point.on_gpus ? "cuda" : "cpu";
  if (peak->backend != device)
    return fmt::format("{} has the speed of {}, and the runs compute on {}: give the machine of the runs", peak->name,
                       peak->backend, device);
  if (peak->peak(config.dtype()) <= 0)
    return fmt::format("{} has no compute.peak_{}: add it to its file", peak->name,
                       config.dtype() == DType::f32 ? "f32" : "bf16");
  return peak->shared && point.nodes == 0 ? "the number of nodes is unknown" : "";
}

double ScaleResult::mfu(const ScalePoint& point) const {
  if (!mfu_problem(point).empty()) return not_known;
  const int units = options.peak->shared ? point.nodes : point.layout.ranks;
  return flops_per_token * point.tokens_per_second() / (options.peak->peak(config.dtype()) * units);
}

double ScaleResult::routing_gap(const ScalePoint& point) const {
  if (point.balanced) return not_known;
  for (const ScalePoint& p : points)
    if (p.balanced && p.layout == point.layout && p.global_batch == point.global_batch)
      return point.seconds() / p.seconds() - 1;
  return not_known;
}

std::vector<std::string> ScaleResult::warnings(const ScalePoint& point) const {
  constexpr double most_efficiency = 1.1, most_spread = 0.2;
  std::vector<std::string> warnings = point.warnings;
  if (efficiency(point) > most_efficiency)
    warnings.push_back(
        "an efficiency above 110 % is hardly real: something may have slowed the runs on the fewest ranks down: measure "
        "these again on an idle machine");
  if (point.spread() > most_spread)
    warnings.push_back(
        "the repeats spread by more than 20 %: something else may use the machine: measure again when it is idle, or with "
        "more --repeats");
  return warnings;
}

ScaleLayouts scale_layouts(const Config& config, const ScaleOptions& options) {
  ScaleLayouts chosen;
  ErrorList errors("scale");
  for (const int ranks : options.ranks) {
    if (options.weak && !has_weak_batch(config, options, ranks))
      chosen.left_out.push_back(fmt::format(
          "weak scaling is not measured on {}: its batch, train.global_batch * {} / {} = {} * {} / {}, is no whole number",
          counted(ranks, "rank"), ranks, options.ranks.front(), config.train.global_batch, ranks,
          options.ranks.front()));
    for (const Index batch : batches_of(config, options, ranks)) {
      const Config by = to_choose_by(config, batch);
      if (options.layouts.empty()) {
        const int node = static_cast<int>(config.parallel.ranks_per_node);
        for (const Layout& layout :
             layouts_of(by, ranks, node <= 1 && options.machine ? options.machine->node() : node))
          chosen.layouts.emplace_back(layout, batch);
      }
      for (Layout layout : options.layouts) {
        layout.ranks = ranks;
        if (errors.run([&] { check_config_for_layout(by, layout); }))
          chosen.layouts.emplace_back(layout, batch);
        else
          chosen.left_out.push_back(fmt::format("--layouts {} is not measured on {}: {}", layout.short_name(),
                                                counted(ranks, "rank"), layout_problem(by, layout)));
      }
    }
  }
  if (!chosen.layouts.empty()) return chosen;
  errors.raise();
  bad_input("no layout of these numbers of ranks fits the model and its batch");
}

ScaleResult plan_scale(const ScaleOptions& options) {
  const Environment environment = this_environment(options.launcher);
  Points points(options, environment);
  const Config& config = points.config();
  ScaleResult result{options, {}, environment, config, points.flops_per_token()};
  const ScaleLayouts chosen = scale_layouts(config, options);
  for (const std::string& left_out : chosen.left_out) warn(left_out);
  for (const auto& [layout, batch] : chosen.layouts)
    for (const bool balanced : {false, true}) {
      if (balanced && (!options.balanced || config.moe.experts == 0)) continue;
      ScalePoint point = points.point(layout, batch, balanced);
      points.check_folders(point);
      result.points.push_back(std::move(point));
    }
  for (ScalePoint& point : points.earlier(result.points)) result.points.push_back(std::move(point));
  std::ranges::stable_sort(result.points, {}, [](const ScalePoint& p) { return p.layout.ranks; });
  if (result.points.front().layout.ranks > options.ranks.front()) {
    std::vector<std::string> fewest;  // of each kind, which may be equal
    for (const Scaling kind : {Scaling::strong, Scaling::weak}) {
      const auto first =
          std::ranges::find_if(result.points, [&](const ScalePoint& p) { return result.is_of(kind, p); });
      if (first == result.points.end()) continue;
      const std::string ranks = counted(first->layout.ranks, "rank");
      if (std::ranges::find(fewest, ranks) == fewest.end()) fewest.push_back(ranks);
    }
    warn(fmt::format("no point has {}: speed-up and efficiency are those over {}",
                     counted(options.ranks.front(), "rank"),
                     join(fewest, " (strong scaling) and ") + (fewest.size() > 1 ? " (weak scaling)" : "")));
  }
  for (ScalePoint& point : result.points) {
    point.predicted = points.predicted(point);
    point.reused = std::ranges::all_of(point.runs, has_ended);
  }
  return result;
}

namespace {

// Adds a run to a point: its median step, and the energy of its measured steps.
void add_measured_steps(const Outcome& outcome, const ScaleOptions& options, ScalePoint& point) {
  std::vector<double> seconds;
  double cpu = 0, gpu = 0;
  for (const StepRecord& step : outcome.steps) {
    if (step.step <= options.warm_up || step.step > options.warm_up + options.steps) continue;
    seconds.push_back(step.seconds);
    cpu += step.cpu_joules;
    gpu += step.gpu_joules;
  }
  point.step_seconds.push_back(median(seconds));
  const double tokens = static_cast<double>(point.tokens) * static_cast<double>(seconds.size());
  if (std::isfinite(cpu)) point.cpu_joules_per_token.push_back(cpu / tokens);
  if (std::isfinite(gpu)) point.gpu_joules_per_token.push_back(gpu / tokens);
}

}  // namespace

bool measure_scale(ScaleResult& result) {
  const ScaleOptions& options = result.options;
  // By repeat first, so that a slow phase of the machine affects all points.
  std::vector<Training> trainings;
  for (int repeat = 0; repeat < options.repeats; ++repeat)
    for (const ScalePoint& point : result.points)
      if (point.requested) trainings.push_back(point.runs[repeat]);
  make_synced_folders(trainings.front().run.parent_path());
  write_file(trainings.front().run.parent_path() / "environment.json", json_text(result.environment.json()));
  const auto incomplete = train_all(trainings, options.launcher);
  if (!incomplete) return false;
  for (ScalePoint& point : result.points) {
    std::vector<StepTime> traced;  // [repeat]
    for (const Training& training : point.runs) {
      if (const auto problem = incomplete->find(training.run); problem != incomplete->end()) {
        point.failure = problem->second.reason;
        continue;
      }
      add_warnings(training.run, point.warnings);
      add_measured_steps(read_outcome(training.run), options, point);
      const RunHardware hardware = hardware_of(training.run);
      point.nodes = std::max(point.nodes, hardware.hosts);
      point.on_gpus = result.config.run.backend == "cuda" || (result.config.run.backend == "auto" && hardware.gpus);
      if (const auto breakdown = traced_breakdown(training.run)) traced.push_back(*breakdown);
      std::error_code ignored;  // a benchmark does not need its weights
      fs::remove_all(training.run / "checkpoints", ignored);
    }
    if (traced.empty()) continue;
    StepTime& mean = point.breakdown.emplace();
    for (const StepTime& t : traced)
      for (int p = 0; p < num_time_categories; ++p)
        mean.seconds[p] += t.seconds[p] / static_cast<double>(traced.size());
  }
  return true;
}

}  // namespace sy
