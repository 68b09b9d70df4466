#include "src/train/training_run.h"

#include <cerrno>
#include <chrono>
#include <cmath>
#include <cstring>
#include <utility>

#include "dist/phase.h"
#include "dist/runtime.h"
#include "src/data/run_tokenizer.h"
#include "src/data/sequence_pairs.h"
#include "src/io/manifest.h"
#include "src/io/trace.h"
#include "src/params/costs.h"
#include "src/provenance/provenance.h"
#include "src/text/numbers.h"
#include "src/text/table.h"
#include "src/train/energy.h"
#include "src/train/memory.h"
#include "src/train/routing_warnings.h"
#include "src/train/run_texts.h"

namespace sy {

namespace fs = std::filesystem;

namespace {

// Returns true if an error message says that the disk is full.
bool is_disk_full(const std::string& what) {
  for (const int error : {ENOSPC, EDQUOT, EFBIG})
    if (what.find(std::strerror(error)) != what.npos) return true;
  return false;
}

}  // namespace

TrainingRun::TrainingRun(Comm& world, const Config& config, const RunOptions& options, const Layout& layout,
                         Dataset dataset, std::unique_ptr<Device> device, DeviceReservation reservation)
    : world_(world),
      options_(options),
      config_(config),
      dir_(config.run.dir),
      dataset_(std::move(dataset)),
      samples_(training_samples(dataset_, config)),
      engine_(config, model_vocab(config, dataset_.vocab()), std::move(device), std::move(reservation.mesh), true,
              reservation.arenas, reservation.slots),
      trainer_(engine_, samples_),
      library_bytes_(reservation.library_bytes) {
  state_.seed = config.train.seed;
  state_.config = to_ini(config);
  state_.vocab = engine_.vocab();
  state_.dataset = fs::absolute(config.data.path).string();
  state_.dataset_digest = dataset_.digest();
  state_.tokenizer = to_text(tokenizers_of(dataset_.description()));
  state_.unicode_versions = dataset_.unicode_versions();
  if (!options.provenance.is_null())
    state_.provenance = with_inputs(options.provenance, state_.config, state_.dataset_digest).dump();
  state_.layout = layout.str();
  state_.experts.layers = engine_.model().moe_layers();
  state_.experts.experts = config.moe.experts;
  state_.experts.layer_ids = engine_.model().moe_layer_ids();
}

int TrainingRun::execute() {
  try {
    return config_.run.replay_step > 0 ? replay() : train();
  } catch (const CollectiveError& e) {
    if (saver_.in_progress()) {  // an earlier checkpoint, which the error does not concern
      try {
        advance_save(true);
      } catch (const CollectiveError&) {
      }
    }
    if (!is_disk_full(e.what())) throw;
    const std::string advice = config_.run.keep == 0
                                   ? "set run.keep (0: all checkpoints are kept)"
                                   : fmt::format("lower run.keep = {} (checkpoints kept)", config_.run.keep);
    throw CollectiveError(e.exit_code(),
                          fmt::format("{}: make room, or {}, then continue with --run.resume=true", e.what(), advice));
  }
}

void TrainingRun::print(const std::string& text) {
  if (is_first_rank()) progress_.note(visible(text, "\n"));
}

void TrainingRun::warn_once(const std::string& text) {
  if (warned_.insert(text).second) print(std::vector<std::string>{text});
}

void TrainingRun::print(const std::vector<std::string>& warnings) {
  if (warnings.empty()) return;  // the progress line stays
  progress_.clear();
  for (const std::string& w : warnings) warn(w);
}

int TrainingRun::train() {
  const bool resumed = prepare_folder();
  if (trainer_.steps_done() >= config_.train.steps) {
    agree_on_errors(world_, [&] {
      if (!is_first_rank()) return;
      if (const std::string missing = missing_steps_warning(dir_, trainer_.steps_done()); !missing.empty())
        warn(missing);
    });
    print(fmt::format("{} is complete: step {} of {}. Raise train.steps to go on.", dir_.string(),
                      trainer_.steps_done(), config_.train.steps));
    return 0;
  }
  bool stop_early = world_.max(out_of_patience() || reached_target()) > 0;
  if (!stop_early) announce();
  agree_on_errors(world_, [&] {
    if (!is_first_rank()) return;
    metrics_ = std::make_unique<MetricsFile>(dir_, trainer_.steps_done() + 1, sinks());
    rise_ = metrics_->history().rise;
    skips_ = metrics_->history().skips;
    losses_known_ = metrics_->history().missing.longest() < LossRise::window;
  });
  if (config_.run.checkpoint_first && !resumed) save();
  const Index first = trainer_.steps_done() + 1;
  int stop = static_cast<int>(world_.max(stop_signal()));
  // The last step of which a line has the counts of the experts, unless metrics.jsonl is lost.
  Index counted = (first - 1) / config_.run.log_every * config_.run.log_every;
  if (metrics_ && metrics_->history().counted > 0) counted = metrics_->history().counted;
  std::vector<std::string> moe_layers;
  for (const std::int64_t layer : state_.experts.layer_ids) moe_layers.push_back(config_.layer_name(layer));
  RoutingWarnings routing_warnings(counted, std::move(moe_layers));
  MachinePeak peak = options_.peak;
  if (!mfu_problem_.empty()) peak.flops = 0;
  PerformanceMeter meter(world_, model_costs(config_, engine_.vocab()).flops_per_token, peak);
  DomainEpochs epochs = domain_epochs(dataset_, samples_, trainer_.samples_done());
  std::optional<EnergyMeter> energy;
  if (config_.log.energy) energy.emplace(world_, engine_.device());
  if (energy && !options_.quiet) print(energy->describe());
  StepTrace step_trace(world_, dir_ / "trace", config_.log.trace_first, config_.log.trace_steps,
                       parse_record(state_.provenance));
  while (!stop && !stop_early && trainer_.steps_done() < config_.train.steps) {
    // Waiting for other ranks after the passes belongs to this step as well.
    const ScopedStep scoped_step(world_.rank_context(), trainer_.steps_done() + 1);
    const double begin = program_seconds();
    step_trace.begin_step(trainer_.steps_done() + 1);
    meter.begin_step();
    if (energy) energy->begin_step();
    StepResult result = step_or_advice();
    result.metrics.save_seconds = save_seconds_ - std::exchange(reported_save_seconds_, save_seconds_);
    const Index step = trainer_.steps_done();
    meter.end_step(result.metrics);
    if (energy) energy->end_step(result.metrics);
    step_trace.end_step(step);
    const bool log = step % config_.run.log_every == 0 || step == config_.train.steps;
    if (is_first_rank()) window_.add(result);  // only the rank that writes the history has it
    ExpertCounts counts;
    if (log) {
      window_.close(step, state_.experts);
      counts = counts_since(std::exchange(counted, step), state_.experts);
    }
    const std::vector<DomainScore> validation = validate(step);
    agree_on_errors(world_, [&] {
      if (!is_first_rank()) return;
      if (!result.skipped || std::isfinite(result.metrics.loss)) rise_.add(step, result.metrics.loss);
      if (result.skipped) {
        skips_.add(step);
        print(std::vector<std::string>{skipped_text(result, trainer_.norms(), config_.train.max_skipped)});
      }
      result.metrics.epochs = domain_epochs(dataset_, samples_, trainer_.samples_done());
      print(repetition_warnings(step, epochs, result.metrics.epochs));
      epochs = result.metrics.epochs;
      metrics_->write(result.metrics, counts.routed.empty() ? nullptr : &counts, validation);
      const bool last = step == config_.train.steps;
      if (!options_.quiet || last) progress_.step(result.metrics);
      if (log) print(routing_warnings.add(step, counts));
      if (!validation.empty() && (!options_.quiet || last))
        progress_.note(validation_text(step, config_.train.steps, validation));
    });
    advance_save(false);
    const ValidationOutcome outcome = record_validation(step, validation);
    stop_early = outcome.stop_early;
    time_limit_.add_step(program_seconds() - begin);
    stop = stop_reason_everywhere();
    const Index every = config_.run.checkpoint_every;
    if (stop || stop_early || outcome.is_best || step == config_.train.steps || (every > 0 && step % every == 0))
      save();
  }
  advance_save(true);
  step_trace.end_step(trainer_.steps_done(), true);
  progress_.clear();
  const std::optional<Performance> performance = meter.gather(memory_peak());
  if (performance && !options_.quiet)
    print(performance_text(*performance, config_.run.machine, mfu_problem_, validation_seconds_, save_seconds_));
  const bool complete = trainer_.steps_done() == config_.train.steps || stop_early;
  if (stop_early) print(early_stop_text());
  if (complete && metrics_) metrics_->finish(config_.train.target_loss == 0 || reached_target());
  if (complete && trainer_.steps_done() >= first) report_end(first);
  if (!complete)
    print(fmt::format(
        "stopped at step {} as {} asked; continue with --run.resume=true", trainer_.steps_done(),
        stop == time_is_over ? fmt::format("run.max_hours = {}", config_.run.max_hours) : signal_name(stop)));
  if (performance) print(performance_line(*performance));
  return complete ? 0 : stopped_exit_code;
}

TrainingRun::ValidationOutcome TrainingRun::record_validation(Index step, const std::vector<DomainScore>& scores) {
  if (scores.empty()) return {};
  const bool is_best = state_.validation.add(step, total_of(scores).loss(), config_.run.keep_best);
  const Index flags =
      world_.max(is_first_rank() ? (is_best ? 1 : 0) + (out_of_patience() || reached_target() ? 2 : 0) : 0);
  return {(flags & 1) != 0, (flags & 2) != 0};
}

bool TrainingRun::out_of_patience() const {
  return is_first_rank() && config_.train.patience > 0 && state_.validation.since_lowest >= config_.train.patience;
}

bool TrainingRun::reached_target() const {
  const double target = config_.train.target_loss;
  return is_first_rank() && target > 0 && state_.validation.lowest <= target;
}

std::string TrainingRun::early_stop_text() const {
  const ValidationRecord& v = state_.validation;
  if (reached_target())
    return fmt::format(
        "reached the target at step {} of {}: the validation loss of step {}, {:.4f}, is not above train.target_loss = "
        "{}. Lower train.target_loss to go on",
        trainer_.steps_done(), config_.train.steps, v.lowest_step, v.lowest, config_.train.target_loss);
  const fs::path lowest = checkpoints_of(dir_) / step_name(v.lowest_step);
  std::error_code error;
  const bool exists = v.lowest_step >= 0 && fs::exists(lowest / manifest_name, error);
  return fmt::format(
      "stopped early at step {} of {}: {} validations since step {} have not lowered the loss of {:.4f} "
      "(train.patience = {}){}. Raise train.patience to go on",
      trainer_.steps_done(), config_.train.steps, v.since_lowest, std::max<Index>(v.lowest_step, 0), v.lowest,
      config_.train.patience, exists ? fmt::format("; {} is the best checkpoint", lowest.string()) : "");
}

StepResult TrainingRun::step_or_advice() {
  try {
    return trainer_.step();
  } catch (const Diverged& e) {
    advance_save(true);
    agree_on_errors(world_, [&] {
      const Index before = is_first_rank() && losses_known_ ? checkpoint_before_rise() : -1;
      if (before >= 0)
        fail("{}: {} is the newest before the loss rose: --run.resume=true --run.resume_step={}", e.what(),
             (checkpoints_of(dir_) / step_name(before)).string(), before);
    });
    throw;
  }
}

Index TrainingRun::checkpoint_before_rise() const {
  if (rise_.begin() == 0) return -1;
  const fs::path checkpoints = checkpoints_of(dir_);
  const Index good = newest_before(checkpoints, rise_.begin() - 1);
  return good >= 0 ? good : newest_before(checkpoints, rise_.begin());
}

Retention TrainingRun::retention(const TrainState& saved) {
  Retention out{config_.run.keep, config_.run.keep_every, {}};
  if (const Index before = checkpoint_before_trouble(); before >= 0) out.pinned.insert(before);
  for (const ValidationRecord::Entry& entry : saved.validation.best) out.pinned.insert(entry.step);
  // The steps after an outlier may show that the weights were bad before it.
  for (const Index step : skips_.at(trainer_.steps_done()))
    if (const Index before = newest_before(checkpoints_of(dir_), step); before >= 0) out.pinned.insert(before);
  return out;
}

Index TrainingRun::checkpoint_before_trouble() {
  if (config_.run.keep == 0) return -1;
  const fs::path checkpoints = checkpoints_of(dir_);
  const auto path = [&](Index step) { return (checkpoints / step_name(step)).string(); };
  if (!losses_known_) {
    const Index oldest = oldest_checkpoint(checkpoints);
    if (oldest >= 0)
      warn_once(
          fmt::format("{} lacks too many losses to say whether they have risen: {}, the oldest checkpoint, is not "
                      "deleted, whatever run.keep says",
                      (dir_ / "metrics.jsonl").string(), path(oldest)));
    return oldest;
  }
  const Index before = checkpoint_before_rise();
  if (before >= 0)
    warn_once(fmt::format(
        "the loss has risen since step {} (its mean over {} steps was then above {} times the smallest such mean, "
        "{:.4g}): {} "
        "is the newest checkpoint before that, and is not deleted, whatever run.keep says: go back to it with "
        "--run.resume=true --run.resume_step={} and a lower train.lr",
        rise_.begin(), LossRise::window, LossRise::factor, rise_.smallest(), path(before), before));
  return before;
}

MetricsSinks TrainingRun::sinks() const {
  MetricsSinks sinks{.enabled = config_.log,
                     .layers = state_.experts.layer_ids,
                     .domains = {},
                     .mfu = mfu_problem_.empty(),
                     .mtp = config_.model.mtp_depth > 0,
                     .indexer = config_.num_indexers() > 0,
                     .skips = config_.train.spike_sigma > 0};
  for (const Domain& d : dataset_.domains()) sinks.train_domains.push_back(d.name);
  if (config_.train.validate_every > 0) sinks.domains = sinks.train_domains;
  sinks.mllog = mllog_settings(config_, engine_.mesh().layout, samples_.samples_per_epoch(), validation_windows());
  return sinks;
}

Index TrainingRun::validation_windows() const {
  if (config_.train.validate_every == 0) return 0;
  Index windows = 0;
  const std::optional<SequencePairs> pairs = training_pairs(config_, dataset_);
  for (int domain = 0; domain < static_cast<int>(dataset_.domains().size()); ++domain) {
    const Index all =
        EvalStream(dataset_, domain, config_.model.seq_len, 0, {}, nullptr, pairs ? &*pairs : nullptr).windows();
    windows += config_.train.validate_windows > 0 ? std::min(all, config_.train.validate_windows) : all;
  }
  return windows;
}

std::vector<DomainScore> TrainingRun::validate(Index step) {
  const auto& t = config_.train;
  if (t.validate_every == 0 || (step % t.validate_every != 0 && step != t.steps)) return {};
  const auto started = std::chrono::steady_clock::now();
  // Half of the sequences of a training micro-batch: nothing is dropped here, so busy experts get
  // more rows than in training.
  const EvaluateOptions options{.windows_per_pass = std::max<Index>(1, t.micro_batch / 2),
                                .max_windows = t.validate_windows};
  const std::vector<DomainScore> scores = evaluate(engine_, dataset_, options, [](Index, Index) {});
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - started;
  progress_.pause(took.count(), t.validate_every);
  validation_seconds_ += took.count();
  return scores;
}

void TrainingRun::announce() {
  if (!is_first_rank()) return;
  const Layout& layout = engine_.mesh().layout;
  const Config::Train& t = config_.train;
  const Index last_samples =
      trainer_.samples_done() + t.samples_before(t.steps + 1) - t.samples_before(trainer_.steps_done() + 1);
  print(all_config_warnings(config_, layout, dataset_, samples_, last_samples));
  if (!config_.run.machine.empty() && !mfu_problem_.empty()) warn_once("MFU will be unknown: " + mfu_problem_);
  if (options_.quiet) return;
  const MemoryPlan memory = plan_memory(config_, engine_.vocab(), layout, 0, engine_.device(), engine_.slots());
  print(training_summary(config_, dataset_, samples_, last_samples, layout, memory, engine_.device().describe(),
                         library_bytes_));
}

void TrainingRun::check_lock() const {
  if (!lock_->held())
    fail(
        "{} was removed or replaced while it was trained in: nothing more is written there: start again in a folder of "
        "its own",
        dir_.string());
}

void TrainingRun::save() {
  advance_save(true);
  const double begin = progress_.elapsed();
  agree_on_errors(world_, [&] {
    if (is_first_rank()) check_lock();
  });
  if (config_.run.check_every > 0) trainer_.check_replicas();
  trainer_.check_memory();
  window_.close(trainer_.steps_done(), state_.experts);
  state_.step = trainer_.steps_done();
  state_.samples = trainer_.samples_done();
  state_.tokens = trainer_.tokens_done();
  state_.router_bias = engine_.router_bias();
  state_.batch_norm_averages = engine_.batch_norm_averages();
  state_.batch_norms = count_batch_norms(engine_.store().specs());
  state_.norms = trainer_.norms();
  const PhaseGuard saving(world_.rank_context(), {"save of a checkpoint", -1, "", state_.step});
  saver_.start(state_, engine_.store());
  save_seconds_ += progress_.elapsed() - begin;
  if (!config_.run.async_checkpoint) advance_save(true);
}

void TrainingRun::advance_save(bool waits) {
  if (!saver_.in_progress()) return;
  const double begin = progress_.elapsed();
  std::optional<PhaseGuard> saving;
  if (waits) saving.emplace(world_.rank_context(), Phase{"save of a checkpoint", -1, "", state_.step});
  const auto retained = [&](const TrainState& state) {
    check_lock();
    return retention(state);
  };
  const std::optional<SavedCheckpoint> saved = waits ? saver_.finish(retained) : saver_.poll(retained);
  save_seconds_ += progress_.elapsed() - begin;
  if (!saved) return;
  for (const std::string& warning : saved->warnings) warn_once(warning);
  time_limit_.add_save(saved->seconds);
  if (!options_.quiet)
    print(fmt::format("saved     {} in {}", (checkpoints_of(dir_) / step_name(saved->step)).string(),
                      seconds_text(saved->seconds)));
}

void TrainingRun::report_end(Index first) {
  if (!is_first_rank() || options_.quiet) return;
  RunEnd end;
  end.run = dir_;
  end.first_step = first;
  end.last_step = trainer_.steps_done();
  end.seconds = progress_.elapsed();
  end.totals = metrics_->totals();
  end.can_evaluate = dataset_.valid_tokens() > 0;
  end.has_experts = config_.moe.experts > 0;
  end.can_generate = !state_.tokenizer.empty();
  end.is_encoder = config_.model.kind == ModelKind::encoder;
  const Config::Model& model = config_.stacks.empty() ? config_.model : config_.stacks[1].model;
  end.reads_source = !config_.stacks.empty();
  end.positions = model.position == Position::learned || model.position == Position::axial ? model.seq_len : 0;
  print(end_text(end));
}

MemoryPeak TrainingRun::memory_peak() {
  MemoryPeak peak{.host = resident_memory_peak()};
  if (engine_.device().on_host()) return peak;
  const Mesh& mesh = engine_.mesh();
  peak.device = library_bytes_ + engine_.scratch().peak() + engine_.store().packed_weights().bytes() +
                plan_parameters(engine_.store().specs(), config_.dtype(), mesh.layout, world_.rank()).parameters();
  for (Index slot = 0; slot < engine_.slots(); ++slot) peak.device += engine_.saved(slot).peak();
  return peak;
}

}  // namespace sy
