#include "src/experiments/scale.h"

#include <algorithm>
#include <cmath>

#include "src/config.h"
#include "src/data/dataset.h"

namespace sy {
namespace {

namespace fs = std::filesystem;

// Of each run, after those that are measured: a trace costs time.
constexpr Index traced_steps = 2;

// Settings of a benchmark: nothing but steps.
std::vector<std::string> settings_of(const ScaleOptions& options, const Layout& layout, Index batch, Index micro) {
  std::vector<std::string> settings = options.settings;
  const auto set = [&](const char* key, Index value) { settings.push_back(fmt::format("--{}={}", key, value)); };
  set("train.steps", options.warm_up + options.steps + traced_steps);
  set("log.trace_first", options.warm_up + options.steps + 1);
  set("log.trace_steps", traced_steps);
  set("train.warmup", 0);
  set("train.validate_every", 0);
  set("run.checkpoint_every", 0);
  set("train.global_batch", batch);
  set("train.micro_batch", micro);
  set("parallel.tp", layout.tp);
  set("parallel.ep", layout.ep);
  set("parallel.etp", layout.etp);
  set("parallel.node", layout.node);
  return settings;
}

std::string name_of(const Layout& l) {
  return fmt::format("r{}-tp{}-ep{}-etp{}{}", l.ranks, l.tp, l.ep, l.etp,
                     l.node > 1 ? fmt::format("-node{}", l.node) : "");
}

}  // namespace

double ScalePoint::spread() const {
  if (step_seconds.size() < 2) return not_known;
  const auto [least, most] = std::minmax_element(step_seconds.begin(), step_seconds.end());
  return (*most - *least) / seconds();
}

const ScalePoint* ScaleResult::base() const {
  const ScalePoint* best = nullptr;
  for (const ScalePoint& p : points) {
    if (p.balanced || p.step_seconds.empty()) continue;
    if (!best || p.layout.ranks < best->layout.ranks ||
        (p.layout.ranks == best->layout.ranks && p.tokens_per_second() > best->tokens_per_second()))
      best = &p;
  }
  return best;
}

double ScaleResult::speedup(const ScalePoint& point) const {
  const ScalePoint* from = base();
  return from ? point.tokens_per_second() / from->tokens_per_second() : not_known;
}

double ScaleResult::efficiency(const ScalePoint& point) const {
  const ScalePoint* from = base();
  return from ? speedup(point) * from->layout.ranks / point.layout.ranks : not_known;
}

double ScaleResult::routing_gap(const ScalePoint& point) const {
  if (point.balanced) return not_known;
  for (const ScalePoint& p : points)
    if (p.balanced && p.layout == point.layout) return point.seconds() / p.seconds() - 1;
  return not_known;
}

ScaleResult plan_scale(const ScaleOptions& options) {
  const Config config = read_config(options.config, options.settings);
  const Index vocab = model_vocab(config, open_training_data(config).vocab());
  ScaleResult result{options.config.stem().string(), options.weak, {}};
  std::string why;  // a layout does not fit
  for (const int ranks : options.ranks) {
    Config wanted = config;
    if (options.weak) wanted.train.global_batch = config.train.global_batch * ranks / options.ranks.front();
    wanted.train.micro_batch = 1;
    wanted.train.validate_every = 0;
    std::vector<Layout> layouts;
    if (options.layouts.empty()) {
      const int node = static_cast<int>(config.parallel.node);
      layouts = layouts_of(wanted, ranks, node == 1 && options.machine ? options.machine->node() : node);
    }
    for (Layout layout : options.layouts) {
      layout.ranks = ranks;
      try {
        check_config_for_layout(wanted, layout);
        layouts.push_back(layout);
      } catch (const InputError& e) {
        why = e.what();
      }
    }
    for (const Layout& layout : layouts) {
      const Index share = wanted.train.global_batch / layout.dp();
      Index micro = std::min(config.train.micro_batch, share);
      while (share % micro != 0) --micro;
      const std::vector<std::string> settings = settings_of(options, layout, wanted.train.global_batch, micro);
      for (const bool balanced : {false, true}) {
        if (balanced && (!options.balanced || config.moe.experts == 0)) continue;
        std::vector<std::string> of_point = settings;
        if (balanced) of_point.push_back("--moe.choice=balanced");
        const Config measured = read_config(options.config, of_point);
        ScalePoint point{layout, wanted.train.global_batch, micro, balanced, {}};
        point.tokens = wanted.train.global_batch * config.model.seq_len;
        for (int repeat = 1; repeat <= options.repeats; ++repeat) {
          const std::string name = fmt::format("{}-{}-{}", name_of(layout), balanced ? "balanced" : "own", repeat);
          Training training{options.output / result.name / name,
                            options.config,
                            of_point,
                            ranks,
                            options.warm_up + options.steps + traced_steps,
                            name};
          check_folder(training.run, measured);
          point.runs.push_back(std::move(training));
        }
        if (options.machine) {
          const Plan plan =
              make_plan(measured, vocab, ranks, {options.machine, balanced ? std::nullopt : options.load, {layout}});
          if (!plan.fitting.empty() && plan.fitting.front().time) point.predicted = plan.fitting.front().time->total();
        }
        result.points.push_back(std::move(point));
      }
    }
  }
  if (result.points.empty())
    bad_input("{}", why.empty() ? "no layout of these numbers of ranks fits the model and its batch" : why);
  return result;
}

bool measure_scale(ScaleResult& result, const ScaleOptions& options) {
  std::vector<Training> trainings;  // by repeats first, so that a machine's moods meet all points
  for (int repeat = 0; repeat < options.repeats; ++repeat)
    for (const ScalePoint& point : result.points) trainings.push_back(point.runs[repeat]);
  const auto failures = train_all(trainings, options.launcher);
  if (!failures) return false;
  for (ScalePoint& point : result.points) {
    std::vector<StepTime> traced;  // [repeat]
    for (const Training& training : point.runs) {
      if (const auto failure = failures->find(training.run); failure != failures->end()) {
        point.failure = failure->second;
        continue;
      }
      std::vector<double> seconds;
      for (const StepRecord& step : read_outcome(training.run).steps)
        if (step.step > options.warm_up && step.step <= options.warm_up + options.steps)
          seconds.push_back(step.seconds);
      point.step_seconds.push_back(median(seconds));
      if (const auto parts = traced_parts(training.run)) traced.push_back(*parts);
      std::error_code ignored;  // a benchmark's weights are of no use
      fs::remove_all(training.run / "checkpoints", ignored);
    }
    if (traced.empty()) continue;
    StepTime& mean = point.parts.emplace();
    for (const StepTime& t : traced)
      for (int p = 0; p < num_parts; ++p) mean.seconds[p] += t.seconds[p] / static_cast<double>(traced.size());
  }
  return true;
}

}  // namespace sy
