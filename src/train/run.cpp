// `switchyard train`: the run folder, resuming, the loop over steps, checkpoints, signals.
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstring>
#include <optional>
#include <set>

#include "dist/node_groups.h"
#include "dist/phase.h"
#include "dist/rank_settings.h"
#include "dist/runtime.h"
#include "src/data/run_tokenizer.h"
#include "src/evaluate/evaluate.h"
#include "src/families/export.h"
#include "src/io/lock.h"
#include "src/io/manifest.h"
#include "src/io/trace.h"
#include "src/model/rope.h"
#include "src/system/files.h"
#include "src/text/numbers.h"
#include "src/text/strings.h"
#include "src/text/table.h"
#include "src/train/device_reservation.h"
#include "src/train/history.h"
#include "src/train/memory.h"
#include "src/train/routing_warnings.h"
#include "src/train/run_texts.h"
#include "src/train/stop.h"
#include "src/train/time_limit.h"
#include "src/train/trainer.h"

namespace sy {
namespace {

namespace fs = std::filesystem;

// Time in which an ended run should release its folder. Under load, ranks outlive mpirun by a
// second or two.
constexpr std::chrono::seconds lock_timeout(5);

// A reason to stop that is no number of a signal: run.max_hours.
constexpr int time_is_over = 1 << 20;

// Returns true if an error message says that the disk is full.
bool is_disk_full(const std::string& what) {
  for (const int error : {ENOSPC, EDQUOT, EFBIG})
    if (what.find(std::strerror(error)) != what.npos) return true;
  return false;
}

// Formats differences as "KEY: A here, B there".
std::string differences_text(const std::vector<KeyDifference>& differences) {
  std::vector<std::string> texts;
  for (const KeyDifference& d : differences)
    texts.push_back(fmt::format("{}: {} here, {} there", d.key, d.here, d.there));
  return join(texts);
}

// Describes the coming training in four lines, or five if a rope table depends on the length.
// `memory` is that of a rank. `device` is its name. `library_bytes` is device memory that libraries
// hold (DeviceReservation).
std::string summary(const Config& config, const Dataset& dataset, const SampleStream& samples, const Layout& layout,
                    const MemoryPlan& memory, const std::string& device, Index library_bytes) {
  const ParamCount count = count_params(config, model_vocab(config, dataset.vocab()));
  return fmt::format(
      "model     {:.2f} M parameters, {:.2f} M active per token\n"
      "layout    {} ({}), {}\n"
      "memory    {} per rank: weights {}, gradients {}, optimizer {}, activations about {}{}\n"
      "data      {}: {} sequences of {} tokens an epoch; a step takes {}{}",
      static_cast<double>(count.total) / 1e6, static_cast<double>(count.active) / 1e6, layout.str(),
      counted(layout.ranks, "rank"), device, megabytes(memory.total()), megabytes(memory.weights),
      megabytes(memory.gradients), megabytes(memory.optimizer), megabytes(memory.activations),
      library_bytes > 0 ? fmt::format("; NCCL and cuBLAS have {}", megabytes(library_bytes)) : "", config.data.path,
      samples.samples_per_epoch(), config.model.seq_len, config.train.global_batch,
      training_rope_text(block_specs(config)));
}

// Formats the logical experts of each MoE layer in physical order, as "0 2 1 3; 1 0 2 3".
std::string order_text(const std::vector<std::vector<Index>>& layers) {
  std::vector<std::string> texts;
  for (const std::vector<Index>& order : layers) texts.push_back(fmt::format("{}", fmt::join(order, " ")));
  return join(texts);
}

// Returns warnings about valid but probably unintended settings.
std::vector<std::string> all_config_warnings(const Config& config, const Layout& layout, const SampleStream& samples) {
  std::vector<std::string> out = config_warnings(config, layout);
  if (samples.samples_per_epoch() < config.train.global_batch)
    out.push_back(fmt::format(
        "data.path = {} has {} sequences of {} tokens, fewer than train.global_batch = {}: a step trains on "
        "some of them several times: prepare more text, or lower train.global_batch",
        config.data.path, samples.samples_per_epoch(), config.model.seq_len, config.train.global_batch));
  return out;
}

class Run {
 public:
  Run(Comm& world, const Config& config, const RunOptions& options, const Layout& layout, Dataset dataset,
      std::unique_ptr<Backend> backend, DeviceReservation reservation)
      : world_(world),
        options_(options),
        config_(config),
        dir_(config.run.dir),
        dataset_(std::move(dataset)),
        samples_(dataset_, config.model.seq_len, config.train.seed),
        engine_(config, model_vocab(config, dataset_.vocab()), std::move(backend), std::move(reservation.mesh), true,
                reservation.arena_bytes),
        trainer_(engine_, samples_),
        library_bytes_(reservation.library_bytes) {
    state_.seed = config.train.seed;
    state_.config = to_ini(config);
    state_.vocab = engine_.vocab();
    state_.dataset = fs::absolute(config.data.path).string();
    state_.dataset_digest = dataset_.digest();
    state_.tokenizer = to_text(tokenizers_of(dataset_));
    state_.unicode_versions = dataset_.unicode_versions();
    state_.layout = layout.str();
    state_.experts.layers = engine_.model().moe_layers();
    state_.experts.experts = config.moe.experts;
    state_.experts.layer_ids = engine_.model().moe_layer_ids();
  }

  int execute() {
    try {
      return train();
    } catch (const CollectiveError& e) {
      if (!is_disk_full(e.what())) throw;
      const std::string advice = config_.run.keep == 0
                                     ? "set run.keep (0: all checkpoints are kept)"
                                     : fmt::format("lower run.keep = {} (checkpoints kept)", config_.run.keep);
      throw CollectiveError(
          e.exit_code(), fmt::format("{}: make room, or {}, then continue with --run.resume=true", e.what(), advice));
    }
  }

 private:
  bool is_first_rank() const { return world_.rank() == 0; }
  void print(const std::string& text) {
    if (is_first_rank()) progress_.note(visible(text, "\n"));
  }
  // Prints a warning only once. Each save finds the causes of the previous one again.
  void warn_once(const std::string& text) {
    if (warned_.insert(text).second) print(std::vector<std::string>{text});
  }
  void print(const std::vector<std::string>& warnings) {
    if (warnings.empty()) return;  // the progress line stays
    progress_.clear();
    for (const std::string& w : warnings) warn(w);
  }

  int train() {
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
    bool stop_early = world_.max(out_of_patience()) > 0;
    if (!stop_early) announce();
    agree_on_errors(world_, [&] {
      if (!is_first_rank()) return;
      metrics_ = std::make_unique<MetricsFile>(dir_, trainer_.steps_done() + 1, sinks());
      rise_ = metrics_->history().rise;
      losses_known_ = metrics_->history().missing.longest() < LossRise::window;
    });
    if (config_.run.checkpoint_first && !resumed) save();
    const Index first = trainer_.steps_done() + 1;
    int stop = signal_everywhere();
    RoutingWarnings routing_warnings(trainer_.steps_done(), state_.experts.layer_ids);
    StepTrace step_trace(world_, dir_ / "trace", config_.log.trace_first, config_.log.trace_steps);
    while (!stop && !stop_early && trainer_.steps_done() < config_.train.steps) {
      // Waiting for other ranks after the passes belongs to this step as well.
      const ScopedStep scoped_step(trainer_.steps_done() + 1);
      const double begin = program_seconds();
      step_trace.begin_step(trainer_.steps_done() + 1);
      const StepResult result = step_or_advice();
      const Index step = trainer_.steps_done();
      step_trace.end_step(step);
      const bool log = step % config_.run.log_every == 0 || step == config_.train.steps;
      if (is_first_rank()) window_.add(result);  // only the rank that writes the history has it
      ExpertCounts counts;
      if (log) {
        window_.close(step, state_.experts);
        counts = counts_since((step - 1) / config_.run.log_every * config_.run.log_every, state_.experts);
      }
      const std::vector<DomainScore> validation = validate(step);
      agree_on_errors(world_, [&] {
        if (!is_first_rank()) return;
        rise_.add(step, result.metrics.loss);
        metrics_->write(result.metrics, counts.routed.empty() ? nullptr : &counts, validation);
        const bool last = step == config_.train.steps;
        if (!options_.quiet || last) progress_.step(result.metrics);
        if (log) print(routing_warnings.add(step, counts));
        if (!validation.empty() && (!options_.quiet || last))
          progress_.note(validation_text(step, config_.train.steps, validation));
      });
      const ValidationOutcome outcome = record_validation(step, validation);
      stop_early = outcome.stop_early;
      time_limit_.add_step(program_seconds() - begin);
      stop = stop_reason_everywhere();
      const Index every = config_.run.checkpoint_every;
      if (stop || stop_early || outcome.is_best || step == config_.train.steps || (every > 0 && step % every == 0))
        save();
    }
    step_trace.end_step(trainer_.steps_done(), true);
    progress_.clear();
    if (trainer_.steps_done() == config_.train.steps || stop_early) {
      if (stop_early) print(early_stop_text());
      report_end(first);
      return 0;
    }
    print(fmt::format(
        "stopped at step {} as {} asked; continue with --run.resume=true", trainer_.steps_done(),
        stop == time_is_over ? fmt::format("run.max_hours = {}", config_.run.max_hours) : signal_name(stop)));
    return stopped_exit_code;
  }

  // Result of a validation.
  struct ValidationOutcome {
    bool is_best = false;  // its loss is among the run.keep_best lowest
    bool stop_early = false;
  };
  // The first rank decides, and all ranks get its result. Collective if there are scores.
  ValidationOutcome record_validation(Index step, const std::vector<DomainScore>& scores) {
    if (scores.empty()) return {};
    const bool is_best = state_.validation.add(step, total_of(scores).loss(), config_.run.keep_best);
    const Index flags = world_.max(is_first_rank() ? (is_best ? 1 : 0) + (out_of_patience() ? 2 : 0) : 0);
    return {(flags & 1) != 0, (flags & 2) != 0};
  }

  // Returns true if the last train.patience validations have not lowered the loss. On the first
  // rank.
  bool out_of_patience() const {
    return is_first_rank() && config_.train.patience > 0 && state_.validation.since_lowest >= config_.train.patience;
  }

  std::string early_stop_text() const {
    const ValidationRecord& v = state_.validation;
    const fs::path lowest = checkpoints_of(dir_) / step_name(v.lowest_step);
    std::error_code error;
    const bool exists = v.lowest_step >= 0 && fs::exists(lowest / manifest_name, error);
    return fmt::format(
        "stopped early at step {} of {}: {} validations since step {} have not lowered the loss of {:.4f} "
        "(train.patience = {}){}. Raise train.patience to go on",
        trainer_.steps_done(), config_.train.steps, v.since_lowest, std::max<Index>(v.lowest_step, 0), v.lowest,
        config_.train.patience, exists ? fmt::format("; {} is the best checkpoint", lowest.string()) : "");
  }

  // Runs a step. If it diverges, the error names the checkpoint to go back to.
  StepResult step_or_advice() {
    try {
      return trainer_.step();
    } catch (const Diverged& e) {
      agree_on_errors(world_, [&] {
        const Index before = is_first_rank() && losses_known_ ? checkpoint_before_rise() : -1;
        if (before >= 0)
          fail("{}: {} is the newest before the loss rose: --run.resume=true --run.resume_step={}", e.what(),
               (checkpoints_of(dir_) / step_name(before)).string(), before);
      });
      throw;
    }
  }

  // Returns the newest checkpoint whose weights gave the loss of a step before the rise. Otherwise
  // the newest one written before the rise, or -1 if there is none or no rise. On the first rank.
  Index checkpoint_before_rise() const {
    if (rise_.begin() == 0) return -1;
    const fs::path checkpoints = checkpoints_of(dir_);
    const Index good = newest_before(checkpoints, rise_.begin() - 1);
    return good >= 0 ? good : newest_before(checkpoints, rise_.begin());
  }

  // The checkpoints to keep when the next one is written. On the first rank.
  Retention retention() {
    Retention out{config_.run.keep, config_.run.keep_every, {}};
    if (const Index before = checkpoint_before_trouble(); before >= 0) out.pinned.insert(before);
    for (const ValidationRecord::Entry& entry : state_.validation.best) out.pinned.insert(entry.step);
    return out;
  }

  // Returns the step of the checkpoint that the losses protect, whatever run.keep says; -1 if none.
  // Warns once about it. On the first rank.
  Index checkpoint_before_trouble() {
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

  // The enabled sinks, and the layers and domains that they may get.
  MetricsSinks sinks() const {
    MetricsSinks sinks{config_.log, state_.experts.layer_ids, {}};
    if (config_.train.validate_every > 0)
      for (const Domain& d : dataset_.domains()) sinks.domains.push_back(d.name);
    return sinks;
  }

  // Returns the scores on the validation text after this step. Empty if the step has no validation.
  // Collective.
  std::vector<DomainScore> validate(Index step) {
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
    return scores;
  }

  // Returns a signal that asked any rank to stop; 0 if there was none. Collective.
  int signal_everywhere() { return static_cast<int>(world_.max(stop_signal())); }

  // The same, or time_is_over if the clock of the first rank says so. Collective.
  int stop_reason_everywhere() {
    const bool over = is_first_rank() && time_limit_.must_stop(program_seconds());
    return static_cast<int>(world_.max(over ? time_is_over : stop_signal()));
  }

  // Locks the folder, so that no other run uses it.
  void lock_folder() {
    if (!is_first_rank()) return;
    std::error_code ec;
    fs::create_directories(dir_, ec);
    if (ec)
      throw_write_error(ec.value(),
                        fmt::format("run.dir = {} cannot be written ({}): check the path and its permissions",
                                    dir_.string(), ec.message()));
    lock_.emplace(dir_, lock_timeout, "run.dir", "choose another run.dir");
    const fs::path checkpoints = dir_ / "checkpoints";
    if (fs::exists(checkpoints) && access(checkpoints.c_str(), R_OK | W_OK | X_OK) != 0)
      bad_input("{} cannot be written ({}): check its permissions, or choose another run.dir", checkpoints.string(),
                std::strerror(errno));
  }

  // Starts a new run folder, or continues one and returns true. Overwrites nothing of an older run.
  bool prepare_folder() {
    agree_on_errors(world_, [&] { lock_folder(); });
    agree_on_errors(world_, [&] {
      std::error_code ec;
      bool has_run = false;
      for (const char* name : {"config.ini", "metrics.jsonl", "checkpoints"}) has_run |= fs::exists(dir_ / name, ec);
      if (has_run && !config_.run.resume)
        bad_input("{} already holds a run: continue it with --run.resume=true, or choose another run.dir",
                  dir_.string());
    });
    std::vector<std::string> warnings;
    fs::path path;
    if (config_.run.resume) path = resume_checkpoint(world_, dir_, config_.run.resume_step, &warnings);
    const bool resumed = !path.empty();
    fs::path init;
    if (!resumed && !config_.run.init_from.empty()) init = resolve_checkpoint(world_, config_.run.init_from, &warnings);
    print(warnings);
    if (const fs::path& from = resumed ? path : init; !from.empty()) check_same_checkpoint(world_, from);
    agree_on_errors(world_, [&] {
      if (resumed) check_same_model(path);
    });
    if (resumed)
      load(path);
    else if (!init.empty())
      start_from(init);
    else
      engine_.store().initialize(config_.train.seed);
    agree_on_errors(world_, [&] {
      if (is_first_rank() && config_.run.resume_step >= 0) print(abandon_newer(dir_, trainer_.steps_done()));
      if (!is_first_rank()) return;
      store_own_tokenizer(resumed ? path : init);
      attach_console_log(open_for_writing(dir_ / "train.log", "a"), start_text(config_, world_.size()));
      remove_unfinished(dir_ / "config.ini");  // the lock is held: no other process writes one
      write_file(dir_ / "config.ini", to_ini(config_));
    });
    return resumed;
  }

  // Copies the tokenizer to the run folder. `from`: the checkpoint that training starts from; empty
  // if there is none. If that run has a copy of the same tokenizer, it is preferred, since it has
  // more companion files.
  void store_own_tokenizer(const fs::path& from) const {
    const TokenizerIdentities own = parse_tokenizers(state_.tokenizer);
    if (const auto stored = from.empty() ? std::nullopt : find_stored_tokenizer(from, own)) {
      check_imported_tokenizer(*stored);
      store_tokenizer(*stored, dir_);
    } else {
      store_tokenizer(read_dataset_ini(config_.data.path), dir_);
    }
  }

  // Compares the tokenizer of the data with that of the checkpoint that training starts from.
  void check_data(const fs::path& checkpoint, const TrainState& saved_state) {
    data_warning_ = check_tokenizer(dataset_, checkpoint, saved_state, config_.data.force, "set data.force = true");
    if (state_.tokenizer.empty()) state_.tokenizer = to_text(tokenizers_of(checkpoint, saved_state));
  }

  void load(const fs::path& path) {
    TrainState saved_state;
    Config before;
    agree_on_errors(world_, [&] {
      load_checkpoint(path, engine_.store());
      saved_state = read_state(path);
      before = parse_config(saved_state.config, path.string());
      trainer_.set_progress(saved_state.step, saved_state.samples, saved_state.tokens);
      if (is_first_rank() && saved_state.experts.layers == state_.experts.layers &&
          saved_state.experts.experts == state_.experts.experts)
        state_.experts = saved_state.experts;
      state_.validation = saved_state.validation;
      const std::vector<Index> saved = steps_in(checkpoints_of(dir_));
      state_.validation.retain({saved.begin(), saved.end()});  // a user may have removed some
      if (!saved_state.router_bias.empty()) engine_.set_router_bias(saved_state.router_bias);
    });
    warn_of_data();
    std::vector<KeyDifference> changed = differences(config_, before, ResumePolicy::report), order;
    // data are identified by their digest
    for (const KeyDifference& d : differences(config_, before, ResumePolicy::reorders_samples))
      (d.key == "data.path" && !saved_state.dataset_digest.empty() ? changed : order).push_back(d);
    if (is_first_rank() && !order.empty())
      warn(fmt::format("the order of samples changes with {}: some may be seen twice, others not",
                       differences_text(order)));
    if (is_first_rank() && !saved_state.dataset_digest.empty() && saved_state.dataset_digest != dataset_.digest())
      warn(
          fmt::format("{} does not hold the data that {} was trained on (then in {}; its digest differs): some samples "
                      "may be seen twice, others not",
                      config_.data.path, path.string(), saved_state.dataset));
    if (options_.quiet) return;
    print(fmt::format("resumed from {} (step {})", path.string(), trainer_.steps_done()));
    std::vector<std::string> changes;
    for (const KeyDifference& d : changed) changes.push_back(fmt::format("{} {} -> {}", d.key, d.there, d.here));
    if (saved_state.layout != state_.layout)
      changes.push_back(fmt::format("layout {} -> {}", saved_state.layout, state_.layout));
    if (!changes.empty()) print("changed   " + join(changes));
  }

  // Starts from another run's weights; all other state is new.
  void start_from(const fs::path& path) {
    agree_on_errors(world_, [&] {
      const TrainState saved_state = read_state(path);
      check_data(path, saved_state);
      load_checkpoint(path, engine_.store(), Load::weights);
      if (config_.moe.bias_update_rate > 0 && !saved_state.router_bias.empty())
        engine_.set_router_bias(saved_state.router_bias);
      std::vector<std::string> warnings;
      const Config before = parse_config(saved_state.config, path.string(), {}, is_first_rank() ? &warnings : nullptr);
      print(warnings);
      std::vector<KeyDifference> other = differences(config_, before, ResumePolicy::must_match);
      for (const KeyDifference& d : differences(config_, before, ResumePolicy::report))
        for (const char* section : {"model.", "attention.", "moe."})
          if (d.key.starts_with(section)) other.push_back(d);
      if (is_first_rank() && !other.empty())
        warn(fmt::format("{} was trained with other settings: {}", path.string(), differences_text(other)));
    });
    warn_of_data();
    print(fmt::format("starts from the weights of {}", path.string()));
  }

  void check_same_model(const fs::path& checkpoint) {
    const TrainState saved_state = read_state(checkpoint);
    std::vector<std::string> warnings;
    const Config before =
        parse_config(saved_state.config, checkpoint.string(), {}, is_first_rank() ? &warnings : nullptr);
    print(warnings);
    const auto differ = differences(config_, before, ResumePolicy::must_match);
    if (!differ.empty())
      bad_input("{} holds another model ({}): choose another run.dir or the same model", dir_.string(),
                differences_text(differ));
    if (saved_state.vocab != engine_.vocab())
      bad_input("{} was trained with a vocabulary of {}, and {} has {}: set data.path to the same data", dir_.string(),
                saved_state.vocab, config_.model.vocab > 0 ? "model.vocab" : config_.data.path, engine_.vocab());
    if (!saved_state.router_bias.empty() && config_.moe.bias_update_rate == 0)
      bad_input(
          "{} has selection biases, which moe.bias_update_rate = 0 would take away: set it above 0 (1e-12 all but "
          "freezes them)",
          checkpoint.string());
    check_data(checkpoint, saved_state);
  }

  void announce() {
    if (!is_first_rank()) return;
    const Layout& layout = engine_.mesh().layout;
    print(all_config_warnings(config_, layout, samples_));
    if (options_.quiet) return;
    const MemoryPlan memory = plan_memory(config_, engine_.vocab(), layout, 0, engine_.backend());
    print(summary(config_, dataset_, samples_, layout, memory, engine_.backend().describe(), library_bytes_));
  }

  void save() {
    Retention retained;
    agree_on_errors(world_, [&] {
      if (!is_first_rank()) return;
      if (!lock_->held())
        fail(
            "{} was removed or replaced while it was trained in: nothing more is written there: start again in a "
            "folder of its own",
            dir_.string());
      metrics_->sync();  // the lines of its steps must be on the disk before a checkpoint counts
      retained = retention();
    });
    const double begin = progress_.elapsed();
    window_.close(trainer_.steps_done(), state_.experts);
    state_.step = trainer_.steps_done();
    state_.samples = trainer_.samples_done();
    state_.tokens = trainer_.tokens_done();
    state_.router_bias = engine_.router_bias();
    const PhaseGuard saving({"save of a checkpoint", -1, "", state_.step});
    for (const std::string& warning : save_checkpoint(world_, dir_, state_, engine_.store(), retained))
      warn_once(warning);
    time_limit_.add_save(progress_.elapsed() - begin);
    if (!options_.quiet)
      print(fmt::format("saved     {} in {}", (checkpoints_of(dir_) / step_name(state_.step)).string(),
                        seconds_text(progress_.elapsed() - begin)));
  }

  // Prints the path of the result and possible next commands, unless this start made no step.
  // first: the first step of this start.
  void report_end(Index first) {
    if (!is_first_rank() || options_.quiet || trainer_.steps_done() < first) return;
    RunEnd end;
    end.run = dir_;
    end.first_step = first;
    end.last_step = trainer_.steps_done();
    end.seconds = progress_.elapsed();
    end.totals = metrics_->totals();
    end.can_evaluate = dataset_.valid_tokens() > 0;
    end.has_experts = config_.moe.experts > 0;
    end.can_generate = !state_.tokenizer.empty();
    print(end_text(end));
  }

  void warn_of_data() const {
    if (is_first_rank() && !data_warning_.empty()) warn(data_warning_);
  }

  Comm& world_;
  RunOptions options_;
  Config config_;
  fs::path dir_;
  Dataset dataset_;
  SampleStream samples_;
  Engine engine_;
  Trainer trainer_;
  TrainState state_;
  // of check_data; printed after loading, so that it does not accompany an error
  std::string data_warning_;
  HistoryWindow window_;
  // On the first rank:
  std::unique_ptr<MetricsFile> metrics_;
  LossRise rise_;
  bool losses_known_ = true;  // false: metrics.jsonl lacks more losses than rise_ tolerates
  std::set<std::string> warned_;
  ProgressLine progress_{config_.train.steps, config_.run.log_every};
  TimeLimit time_limit_{config_.run.max_hours};
  std::optional<FolderLock> lock_;  // on the first rank
  const Index library_bytes_;
};

}  // namespace

void check_run_dir(const Config& config) {
  if (config.run.dir.empty()) bad_input("run.dir is not set: give a folder for this run");
}

int run_training(Comm& world, const Config& config, const RunOptions& options) {
  std::signal(SIGPIPE, SIG_IGN);  // a closed pipe for progress lines must not end the run
  const Layout layout = config.layout(options.ranks > 0 ? options.ranks : world.size());
  const int local = local_rank(world);
  std::unique_ptr<Backend> backend;
  Index vocab = 0;
  std::optional<Dataset> dataset;
  Config run_config = config;  // with the physical order of the experts
  agree_on_errors(world, [&] {
    check_config_for_layout(config, layout);
    run_config.moe.physical_to_logical = read_expert_map(config);
    // Everything that can fail on a single rank is tried before the first collective.
    check_run_dir(config);
    dataset = open_training_data(config);
    const SampleStream samples(*dataset, config.model.seq_len, config.train.seed);
    vocab = model_vocab(config, dataset->vocab());
    if (config.train.validate_every > 0 && dataset->valid_tokens() == 0)
      bad_input(
          "train.validate_every = {}, but {} has no validation text: set it to 0, or prepare the data with a "
          "--valid-fraction above 0",
          config.train.validate_every, config.data.path);
    if (vocab < layout.tp)
      bad_input("a vocabulary of {} cannot be split over parallel.tp = {} ranks: lower parallel.tp", vocab, layout.tp);
    if (options.machine_memory) return;  // this machine's devices do not matter
    backend = open_backend("run.backend", config.run.backend, local);
    check_config_for_backend("run.backend", config, *backend);
  });
  check_same_data(world, *dataset);
  check_rank_settings(world, {{"the order of moe.expert_map", order_text(run_config.moe.physical_to_logical)}},
                      "let all ranks read the same file moe.expert_map");
  // A dry run may be for more ranks than exist.
  const NodeCheck nodes = layout.ranks == world.size() ? check_nodes(world, layout.ranks_per_node) : NodeCheck{};
  if (nodes.order_helps) throw CollectiveError(2, nodes.problem);
  if (!nodes.problem.empty() && world.rank() == 0) warn(nodes.problem);
  const int sharing = backend ? agree_on_devices(world, *backend) : 1;
  if (options.dry_run) {
    agree_on_errors(world, [&] {
      MemoryPlan memory;
      if (options.machine_memory)
        memory = options.machine_memory(vocab);
      else
        // throws if training does not fit
        arena_bytes(config, vocab, layout, 0, *backend, sharing, false);
      if (world.rank() != 0) return;
      if (!options.machine_memory) memory = plan_memory(config, vocab, layout, 0, *backend);
      const SampleStream samples(*dataset, config.model.seq_len, config.train.seed);
      for (const std::string& text : all_config_warnings(config, layout, samples)) warn(text);
      fmt::print("{}\n", visible(summary(config, *dataset, samples, layout, memory,
                                         backend ? backend->describe() : options.machine, 0),
                                 "\n"));
    });
    return 0;
  }
  const std::string advice = memory_advice(config);
  const auto run = with_advice(advice, [&] {
    DeviceReservation reservation = warm_up_and_reserve(world, config, vocab, layout, *backend, sharing);
    return std::make_unique<Run>(world, run_config, options, layout, std::move(*dataset), std::move(backend),
                                 std::move(reservation));
  });
  const int code = abort_job_on_error(world, [&] { return with_advice(advice, [&] { return run->execute(); }); });
  // Lost progress lines do not fail a run: its result is its folder.
  if (const std::string why = output_error(); !why.empty())
    warn(fmt::format("some progress lines are lost ({}): {}/metrics.jsonl has every step", why, config.run.dir));
  if (const std::string why = console_log_error(); !why.empty())
    warn(fmt::format("{}/train.log lacks lines ({}): metrics.jsonl has every step", config.run.dir, why));
  return code;
}

}  // namespace sy
