// run.replay_step: repeats one step of a run, with a trace and the gradient norm of each parameter.
#include <algorithm>
#include <cmath>

#include "dist/phase.h"
#include "dist/runtime.h"
#include "src/io/manifest.h"
#include "src/io/trace.h"
#include "src/provenance/provenance.h"
#include "src/system/files.h"
#include "src/text/strings.h"
#include "src/train/stop.h"
#include "src/train/training_run.h"

namespace sy {

namespace fs = std::filesystem;

namespace {

// Returns the line of a step in RUN/metrics.jsonl; null if there is none.
Json recorded_step(const fs::path& run_dir, Index step) {
  Json found;
  const fs::path path = run_dir / "metrics.jsonl";
  if (!file_exists(path)) return found;
  read_lines(path, [&](const TextLine& line) {
    const std::optional<Json> m = Json::try_parse(line.text);
    if (m && integer_at(*m, "step") == step) found = *m;
  });
  return found;
}

// Compares the loss and the gradient norm of a step with its line in metrics.jsonl.
std::string comparison_text(const StepMetrics& m, const Json& recorded) {
  if (recorded.is_null()) return "metrics.jsonl has no line of it";
  const auto number = [&](const char* name) { return number_at(recorded, name).value_or(std::nan("")); };
  const double loss = number("loss"), norm = number("grad_norm");
  const auto equal = [](double a, double b) { return a == b || (!std::isfinite(a) && !std::isfinite(b)); };
  return equal(loss, m.loss) && equal(norm, m.grad_norm)
             ? "equal to metrics.jsonl"
             : fmt::format("metrics.jsonl has loss {}, gradient norm {}", loss, norm);
}

}  // namespace

fs::path TrainingRun::load_before(Index step) {
  agree_on_errors(world_, [&] {
    if (!file_exists(dir_ / "config.ini"))
      bad_input("{} holds no run: run.replay_step repeats a step of the run in run.dir", dir_.string());
    lock_folder();
  });
  std::vector<std::string> warnings;
  const CheckpointFolder checkpoint =
      usable_checkpoint_before(world_, dir_, step, &warnings, shards_to_read(Load::all));
  if (!checkpoint.path().empty()) {
    agree_on_errors(world_, [&] { check_same_model(checkpoint); });
    load(checkpoint);
  } else if (!config_.run.init_from.empty()) {
    start_from(resolve_checkpoint(world_, config_.run.init_from, &warnings, shards_to_read(Load::weights)));
  } else {
    engine_.store().initialize(config_.train.seed);
  }
  print(warnings);
  return checkpoint.path();
}

int TrainingRun::replay() {
  const Index step = config_.run.replay_step;
  const fs::path from = load_before(step);
  const std::string& source = config_.run.init_from;
  const std::string start = !from.empty() ? from.string() : source.empty() ? "the initial weights" : source;
  if (trainer_.steps_done() + 1 < step && !options_.quiet)
    print(fmt::format("repeats   steps {} to {}", trainer_.steps_done() + 1, step - 1));
  while (trainer_.steps_done() + 1 < step) {
    const ScopedStep scoped_step(world_.rank_context(), trainer_.steps_done() + 1);
    trainer_.step();
    if (const int signal = static_cast<int>(world_.max(stop_signal()))) {
      print(fmt::format("stopped before step {} as {} asked: nothing was written", trainer_.steps_done() + 1,
                        signal_name(signal)));
      return stopped_exit_code;
    }
  }
  const fs::path folder = dir_ / "replay" / step_name(step);
  StepTrace trace(world_, folder, step, 1, parse_record(state_.provenance));
  trainer_.measure_params(true);
  trace.begin_step(step);
  StepResult result;
  std::string error;
  try {
    const ScopedStep scoped_step(world_.rank_context(), step);
    result = trainer_.step();
  } catch (const Diverged& e) {
    error = e.what();
  }
  trace.end_step(step, true);
  const std::vector<ParamNorm> norms = trainer_.param_norms();
  agree_on_errors(world_, [&] {
    if (is_first_rank()) write_replay(folder, start, result, error, norms);
  });
  return 0;
}

void TrainingRun::write_replay(const fs::path& folder, const std::string& start, const StepResult& result,
                               const std::string& error, std::vector<ParamNorm> norms) {
  const StepMetrics& m = result.metrics;
  const Json recorded = recorded_step(dir_, config_.run.replay_step);
  Json out{{"step", config_.run.replay_step}, {"start", start}, {"layout", state_.layout}};
  if (error.empty()) {
    for (const auto& [name, value] : {std::pair{"loss", m.loss},
                                      {"aux_loss", m.aux_loss},
                                      {"z_loss", m.z_loss},
                                      {"lr", m.lr},
                                      {"grad_norm", m.grad_norm}})
      out.append(name, value);
    out.append("tokens", m.tokens);
    out.append("samples", m.samples);
    out.append("skipped", result.skipped);
    out.append("experts", Json{{"routed", result.routed}, {"dropped", result.dropped}});
  } else {
    out.append("error", error);
  }
  out.append("recorded", recorded);
  Json parameters = Json::array();
  for (const ParamNorm& p : norms) parameters.push_back({{"name", p.name}, {"grad_norm", p.norm}});
  out.append("parameters", std::move(parameters));
  write_file(folder / "step.json", json_text(out, 2));
  if (options_.quiet) return;
  print(fmt::format("replayed  step {} from {}", config_.run.replay_step, start));
  print(error.empty()
            ? fmt::format("result    loss {}, gradient norm {}: {}", m.loss, m.grad_norm, comparison_text(m, recorded))
            : "result    " + error);
  // NaN counts as the largest
  std::ranges::stable_sort(norms, std::ranges::greater(), [](const ParamNorm& p) {
    return std::isnan(p.norm) ? std::numeric_limits<double>::infinity() : p.norm;
  });
  std::vector<std::string> largest;
  for (std::size_t i = 0; i < std::min<std::size_t>(3, norms.size()); ++i)
    largest.push_back(fmt::format("{} {:.4g}", norms[i].name, norms[i].norm));
  print("gradients " + join(largest));
  print(fmt::format("wrote     {}", folder.string()));
}

}  // namespace sy
