#include "src/experiments/sweep.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <set>

#include "dist/runtime.h"
#include "src/analyse/page.h"
#include "src/analyse/plot.h"
#include "src/config/layout.h"
#include "src/data/masking.h"
#include "src/experiments/document.h"
#include "src/params/costs.h"
#include "src/plan/automatic_layout.h"
#include "src/text/error_list.h"
#include "src/text/numbers.h"
#include "src/text/strings.h"
#include "src/text/table.h"
#include "src/train/metrics.h"

namespace sy {
namespace fs = std::filesystem;

std::vector<double> Trial::losses() const {
  std::vector<double> losses;
  for (const Outcome& o : outcomes) losses.push_back(o.loss());
  return losses;
}

SweepResult plan_sweep(const Sweep& sweep, const SweepOptions& options) {
  std::vector<std::string> common = sweep.settings;
  common.insert(common.end(), options.settings.begin(), options.settings.end());
  ErrorList errors(sweep.base.string());
  Config base;
  std::vector<std::string> warnings;
  errors.run([&] { base = read_config(sweep.base, common, {{check_data_path}}, nullptr, &warnings); });
  std::vector<ConfigCheck> checks{{check_data_path}};
  if (options.ranks > 0)
    checks.push_back({[&](const Config& c) {
                        if (!has_automatic_layout(c)) check_config_for_layout(c, c.layout(options.ranks));
                      },
                      true});
  std::vector<std::vector<std::string>> combined;
  errors.run([&] { combined = combinations(sweep.variations); });
  std::vector<Config> configs;
  for (const std::vector<std::string>& combination : combined) {
    std::vector<std::string> settings = common;
    for (const std::string& s : combination) settings.push_back("--" + s);
    errors.run([&] { configs.push_back(read_config(sweep.base, settings, checks)); });
  }
  for (const Variation& v : sweep.variations)
    if (!options.seeds.empty() && std::ranges::find(v.keys, "train.seed") != v.keys.end())
      errors.add("train.seed varies, and --seeds gives seeds, too: remove one of them");
  const auto validates = [](const Config& c) { return c.train.validate_every > 0; };
  if (!configs.empty() &&
      !std::ranges::all_of(configs, [&](const Config& c) { return validates(c) == validates(configs[0]); }))
    errors.add(
        "some runs have train.validate_every = 0, others have not: validation losses and training losses cannot be "
        "compared");
  errors.raise();
  for (const std::string& text : warnings) warn(text);
  SweepResult result{sweep.name, {}, validates(configs.front()), options.ranks, base};
  DataDigests digests;
  const fs::path folder = options.output / (sweep.settings.empty() ? sweep.base.stem() : fs::path(sweep.name));
  for (std::size_t i = 0; i < combined.size(); ++i) {
    const std::vector<std::string>& combination = combined[i];
    std::vector<std::string> settings = common;
    for (const std::string& s : combination) settings.push_back("--" + s);
    Trial trial;
    trial.label = combination.empty() ? "base" : join(combination, ", ");
    trial.config = std::move(configs[i]);
    std::vector<std::string> other;  // settings that differ from the base configuration
    for (const std::string& s : combination) {
      const std::string key = s.substr(0, s.find('='));
      if (value_of(trial.config, key) != value_of(base, key)) other.push_back(key + "=" + value_of(trial.config, key));
    }
    errors.run([&] {
      const ModelCosts costs = model_costs(trial.config, training_vocab(trial.config));
      trial.parameters = static_cast<double>(costs.parameters.total);
      trial.active = static_cast<double>(costs.parameters.active);
      trial.flops_per_token = costs.flops_per_token;
    });
    std::vector<std::string> seeds(1);  // as settings; "" means the configuration's own
    if (!options.seeds.empty()) seeds.clear();
    for (const Index seed : options.seeds) seeds.push_back(fmt::format("train.seed={}", seed));
    for (const std::string& seed : seeds) {
      Training training{{}, sweep.base, settings, options.ranks, trial.config.train.steps, {}};
      std::vector<std::string> named = other;
      if (!seed.empty()) {
        named.push_back(seed);
        training.settings.push_back("--" + seed);
      }
      training.run = folder / folder_name(named);
      training.label = fmt::format("{}: {}", sweep.name, folder_name(named));
      errors.run([&] {
        const Config config = read_config(sweep.base, training.settings);
        check_folder(training, config, digests);
        trial.seeds.push_back(static_cast<Index>(config.train.seed));
      });
      trial.runs.push_back(std::move(training));
    }
    result.trials.push_back(std::move(trial));
  }
  errors.raise();
  return result;
}

namespace {

// Throws InputError if two sweeps have the same name, or two configurations the same folder.
void check_distinct(const std::vector<SweepResult>& sweeps, const std::vector<Training>& trainings) {
  std::set<std::string> names;
  for (const SweepResult& sweep : sweeps)
    if (!names.insert(sweep.name).second)
      bad_input("two sweeps have the name {}: sweep them one by one, each with its own --output, or rename a file",
                sweep.name);
  const auto ini_of = [](const Training& t) { return to_ini(read_config(t.config, t.settings)); };
  std::map<fs::path, const Training*> first;  // of each folder
  for (const Training& t : trainings) {
    const auto [there, is_new] = first.emplace(t.run, &t);
    if (!is_new && ini_of(*there->second) != ini_of(t))
      bad_input(
          "{} would hold runs of two configurations: give values whose names differ by more than '/', ' ' and '_'",
          t.run.string());
  }
}

}  // namespace

bool train_sweeps(std::vector<SweepResult>& sweeps, const SweepOptions& options) {
  std::vector<Training> trainings;
  for (const SweepResult& sweep : sweeps)
    for (const Trial& trial : sweep.trials) trainings.insert(trainings.end(), trial.runs.begin(), trial.runs.end());
  check_distinct(sweeps, trainings);
  const auto incomplete = train_all(trainings, options.launcher);
  if (!incomplete) return false;
  for (SweepResult& sweep : sweeps)
    for (Trial& trial : sweep.trials)
      for (std::size_t run = 0; run < trial.runs.size(); ++run) {
        const Training& training = trial.runs[run];
        add_warnings(training.run, trial.warnings);
        if (const auto problem = incomplete->find(training.run); problem != incomplete->end()) {
          const auto& [reason, stopped] = problem->second;
          if (trial.failure.empty() || (!stopped && trial.failed == 0)) trial.failure = reason;
          ++(stopped ? trial.stopped : trial.failed);
          continue;
        }
        const bool may_stop_early = trial.config.train.patience > 0 || trial.config.train.target_loss > 0;
        trial.outcomes.push_back(read_outcome(training.run, may_stop_early ? last_step(training.run) : training.steps));
        trial.ended.push_back(run);
        if (const MissingSteps& missing = trial.outcomes.back().missing; !missing.empty())
          warn(fmt::format("{} lacks {}: its numbers are of the other steps; remove the run's folder to train it again",
                           (training.run / "metrics.jsonl").string(), missing.text()));
      }
  return true;
}

namespace {

const std::vector<std::string> sweep_columns = {"run",      "parameters", "active",  "FLOPs/token", "loss",
                                                "to first", "tokens/s",   "dropped", "MaxVio"};

std::vector<std::string> sweep_cells(const SweepResult& result, const Trial& trial, Footnotes& notes) {
  const double loss = trial.loss(), against = loss - result.trials.front().loss();
  std::vector<double> speeds, dropped, violations;
  for (const Outcome& o : trial.outcomes) {
    speeds.push_back(o.tokens_per_second());
    dropped.push_back(o.dropped());
    violations.push_back(o.max_violation);
  }
  std::string loss_text = number_text(loss, 4);
  if (std::isfinite(trial.spread())) loss_text += fmt::format(" ± {:.4f}", trial.spread());
  std::vector<std::string> without;  // runs without an outcome
  if (trial.failed > 0) without.push_back(fmt::format("{} failed", trial.failed));
  if (trial.stopped > 0) without.push_back(fmt::format("{} stopped", trial.stopped));
  if (!without.empty())
    loss_text = !trial.outcomes.empty() ? fmt::format("{} ({})", loss_text, join(without, ", "))
                : trial.failed > 0      ? "failed"
                                        : "stopped";
  return {trial.label + notes.marks(trial.warnings),
          short_count_text(trial.parameters),
          short_count_text(trial.active),
          short_count_text(trial.flops_per_token),
          loss_text,
          std::isfinite(against) ? fmt::format("{:+.4f}", against) : "-",
          short_count_text(median(speeds)),
          percent_text(mean(dropped)),
          number_text(mean(violations), 2)};
}

}  // namespace

std::string sweep_text(const SweepResult& result) {
  Table table(sweep_columns);
  Footnotes notes;
  for (const Trial& trial : result.trials) table.row(sweep_cells(result, trial, notes));
  std::string text = fmt::format("{}: {} loss, nats per token\n{}", result.name,
                                 result.validated ? "validation" : "training", table.str()) +
                     visible(notes.lines("warning "), "\n");
  for (const Trial& trial : result.trials)
    if (!trial.failure.empty())
      text += fmt::format("{} {}: {}\n", trial.label, trial.failed > 0 ? "failed" : "stopped", trial.failure);
  return text;
}

std::string sweep_markdown(const SweepResult& result) {
  const auto line = [](const std::vector<std::string>& row) { return "| " + join(row, " | ") + " |\n"; };
  std::string text = line(sweep_columns) + line(std::vector<std::string>(sweep_columns.size(), "---"));
  Footnotes notes;
  for (const Trial& trial : result.trials) text += line(sweep_cells(result, trial, notes));
  return notes.texts().empty() ? text : text + "\nWarnings:\n\n" + notes.lines("- ");
}

namespace {

// JSON of a run of a trial. outcome: nullptr if the run failed.
Json run_json(const Training& run, Index seed, const Outcome* outcome) {
  const auto known = [&](auto value) { return outcome ? Json(value(*outcome)) : Json(); };
  Json curve;
  if (outcome) curve = Json::array();
  for (const LossAt& v : outcome ? outcome->validation : std::vector<LossAt>())
    curve.push_back({{"step", v.step}, {"loss", v.loss}});
  return {{"folder", run.run.string()},
          {"seed", seed},
          {"steps", known([](const Outcome& o) { return o.last_step(); })},
          {"loss", known([](const Outcome& o) { return o.loss(); })},
          {"tokens_per_second", known([](const Outcome& o) { return o.tokens_per_second(); })},
          {"dropped", known([](const Outcome& o) { return o.dropped(); })},
          {"max_violation", known([](const Outcome& o) { return o.max_violation; })},
          {"validation", std::move(curve)}};
}

Json trial_json(const Trial& trial) {
  Json runs = Json::array();
  for (std::size_t run = 0; run < trial.runs.size(); ++run) {
    const auto at = std::find(trial.ended.begin(), trial.ended.end(), run);
    const Outcome* const outcome = at == trial.ended.end() ? nullptr : &trial.outcomes[at - trial.ended.begin()];
    runs.push_back(run_json(trial.runs[run], trial.seeds[run], outcome));
  }
  return {{"run", trial.label},
          {"parameters", std::llround(trial.parameters)},
          {"active_parameters", std::llround(trial.active)},
          {"flops_per_token", trial.flops_per_token},
          {"loss", trial.loss()},
          {"deviation", trial.spread()},
          {"warnings", trial.warnings},
          {"failure", text_or_null(trial.failure)},
          {"failed", trial.failed},
          {"stopped", trial.stopped},
          {"runs", std::move(runs)}};
}

}  // namespace

Json sweep_json(const std::vector<SweepResult>& results, const Json& provenance) {
  Json out = json_document("sweep", provenance);
  Json& sweeps = out["sweeps"] = Json::array();
  for (const SweepResult& result : results) {
    Json& sweep = sweeps.push_back({{"name", result.name},
                                    {"loss_is", result.validated ? "validation" : "training"},
                                    {"ranks", result.ranks},
                                    {"configuration", config_json(result.base)},
                                    {"trials", Json::array()}});
    for (const Trial& trial : result.trials) sweep["trials"].push_back(trial_json(trial));
  }
  return out;
}

std::string sweep_picture(const SweepResult& result, const Json& provenance) {
  LineChart chart;
  chart.x_label = "step";
  chart.y_label = result.validated ? "validation loss (nats per token)" : "training loss (nats per token)";
  chart.width = 720;
  chart.height = 360;
  bool any = false;
  for (const Trial& trial : result.trials) {
    std::map<Index, std::vector<double>> at;  // [step] losses of all seeds
    for (const Outcome& o : trial.outcomes) {
      for (const LossAt& v : o.validation) at[v.step].push_back(v.loss);
      if (!o.validation.empty()) continue;
      // Training losses are averaged over a fiftieth of the run each, because single batches differ
      // more than runs do.
      const std::size_t each = std::max<std::size_t>(1, o.steps.size() / 50);
      for (std::size_t i = 0; i + each <= o.steps.size(); i += each) {
        std::vector<double> some;
        for (std::size_t j = i; j < i + each; ++j) some.push_back(o.steps[j].loss);
        at[o.steps[i + each - 1].step].push_back(mean(some));
      }
    }
    if (at.empty()) continue;
    Line line{trial.label, {}, {}, Series::by_order};
    for (const auto& [step, losses] : at) {
      line.x.push_back(static_cast<double>(step));
      line.y.push_back(mean(losses));
    }
    any = any || line.x.size() > 1;
    chart.depths.push_back(static_cast<double>(chart.lines.size()));
    chart.lines.push_back(std::move(line));
  }
  if (!any) return "";
  return svg_document(draw({plot_of(chart)}).front(), "", provenance);
}

}  // namespace sy
