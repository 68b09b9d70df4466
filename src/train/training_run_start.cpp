// The start of a training run: a new folder, or one that is resumed.
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "dist/file_readers.h"
#include "dist/runtime.h"
#include "src/data/run_tokenizer.h"
#include "src/families/export.h"
#include "src/io/manifest.h"
#include "src/params/lora.h"
#include "src/provenance/provenance.h"
#include "src/system/files.h"
#include "src/system/new_folders.h"
#include "src/text/strings.h"
#include "src/train/run_texts.h"
#include "src/train/training_run.h"

namespace sy {

namespace fs = std::filesystem;

namespace {

// Time in which an ended run should release its folder. Under load, ranks outlive mpirun by a
// second or two.
constexpr std::chrono::seconds lock_timeout(5);

// Formats differences as "KEY: A here, B there".
std::string differences_text(const std::vector<KeyDifference>& differences) {
  std::vector<std::string> texts;
  for (const KeyDifference& d : differences)
    texts.push_back(fmt::format("{}: {} here, {} there", d.key, d.here, d.there));
  return join(texts);
}

// Returns the changes of the blend in the first `steps` steps, and the samples since each.
std::vector<std::pair<Index, std::vector<BlendSchedule::Weight>>> past_blends(const Config& config, Index steps) {
  std::vector<std::pair<Index, std::vector<BlendSchedule::Weight>>> blends;
  const Config::Train& t = config.train;
  for (const auto& [step, weights] : config.data.blend_schedule.changes)
    if (step <= steps) blends.emplace_back(t.samples_before(steps + 1) - t.samples_before(step), weights);
  return blends;
}

// Throws InputError if a run without a checkpoint must have had one: its checkpoints are elsewhere,
// and a training from the first step would overwrite its metrics.
void check_nothing_was_saved(const fs::path& run) {
  if (!file_exists(run / "config.ini")) return;
  // The second checkpoint begins after the first one is complete.
  const Index every = read_config(run / "config.ini", {}).run.checkpoint_every, reached = last_step(run);
  if (every == 0 || reached <= 2 * every) return;
  bad_input(
      "{} has trained {} steps, with a checkpoint every {}, but {} holds none: restore that folder, or choose another "
      "run.dir; to begin anew in this one, remove its metrics.jsonl",
      run.string(), reached, counted(every, "step"), checkpoints_of(run).string());
}

}  // namespace

void TrainingRun::lock_folder() {
  if (!is_first_rank()) return;
  if (const std::error_code ec = try_make_synced_folders(dir_))
    throw_write_error(ec.value(), fmt::format("run.dir = {} cannot be written ({}): check the path and its permissions",
                                              dir_.string(), ec.message()));
  lock_.emplace(dir_, lock_timeout, "run.dir", "choose another run.dir");
  const fs::path checkpoints = dir_ / "checkpoints";
  if (file_type(checkpoints, Links::keep) != fs::file_type::not_found && !is_folder(checkpoints))
    bad_input("{} is not a folder, or it links to a missing one: restore the folder, or choose another run.dir",
              checkpoints.string());
  if (file_exists(checkpoints) && access(checkpoints.c_str(), R_OK | W_OK | X_OK) != 0)
    bad_input("{} cannot be written ({}): check its permissions, or choose another run.dir", checkpoints.string(),
              std::strerror(errno));
}

NeededShards TrainingRun::shards_to_read(Load what) {
  return shards_to_load(engine_.store(), what, read_ranges);
}

bool TrainingRun::prepare_folder() {
  agree_on_errors(world_, [&] { lock_folder(); });
  const bool reads = reads_itself(world_, dir_);
  agree_on_errors(world_, [&] {
    if (!reads) return;
    bool has_run = false;
    for (const char* name : {"config.ini", "metrics.jsonl", "checkpoints"}) has_run |= file_exists(dir_ / name);
    if (has_run && !config_.run.resume)
      bad_input("{} already holds a run: continue it with --run.resume=true, or choose another run.dir", dir_.string());
  });
  std::vector<std::string> warnings;
  CheckpointFolder checkpoint = fs::path();
  if (config_.run.resume)
    checkpoint = resume_checkpoint(world_, dir_, config_.run.resume_step, &warnings, shards_to_read(Load::all));
  const bool resumed = !checkpoint.path().empty();
  if (!resumed && !config_.run.init_from.empty())
    checkpoint = resolve_checkpoint(world_, config_.run.init_from, &warnings, shards_to_read(Load::weights));
  const fs::path& from = checkpoint.path();
  print(warnings);
  agree_on_errors(world_, [&] {
    if (resumed)
      check_same_model(checkpoint);
    else if (is_first_rank())
      check_nothing_was_saved(dir_);
    if (from.empty() && config_.train.lora_rank > 0)
      bad_input("train.lora_rank = {} trains adapters of a model that exists: set run.init_from to its run",
                config_.train.lora_rank);
  });
  if (resumed)
    load(checkpoint);
  else if (!from.empty())
    start_from(checkpoint);
  else
    engine_.store().initialize(config_.train.seed);
  agree_on_errors(world_, [&] {
    if (is_first_rank() && config_.run.resume_step >= 0) print(abandon_newer(dir_, trainer_.steps_done()));
    if (!is_first_rank()) return;
    store_own_tokenizer(from);
    attach_console_log(open_for_writing(dir_ / "train.log", "a"), start_text(config_, world_.size()));
    remove_unfinished(dir_ / "config.ini");  // the lock is held: no other process writes one
    write_file(dir_ / "config.ini", to_ini(config_));
    record_start();
  });
  return resumed;
}

void TrainingRun::record_start() const {
  if (state_.provenance.empty()) return;
  const fs::path file = dir_ / provenance_name;
  const std::string earlier = file_exists(file) ? read_file(file) : "";
  Json line{{"first_step", trainer_.steps_done() + 1}};
  const Json record = parse_record(state_.provenance);
  for (const Json::Member& member : record.members()) line.append(member.name, member.value);
  write_file(file, earlier + json_text(line, -1));
}

void TrainingRun::store_own_tokenizer(const fs::path& from) const {
  const TokenizerIdentities own = parse_tokenizers(state_.tokenizer);
  if (const auto stored = from.empty() ? std::nullopt : find_stored_tokenizer(from, own)) {
    check_imported_tokenizer(*stored);
    store_tokenizer(*stored, dir_);
  } else {
    store_tokenizer(read_dataset_ini(config_.data.path), dir_);
  }
  store_chat_template(read_dataset_ini(config_.data.path), dir_);
}

void TrainingRun::check_data(const fs::path& checkpoint, const TrainState& saved_state) {
  if (!is_first_rank()) return;  // the other ranks use neither result
  data_warning_ = check_tokenizer(dataset_, checkpoint, saved_state, config_.data.force, "set data.force = true");
  if (state_.tokenizer.empty()) state_.tokenizer = to_text(tokenizers_of(checkpoint, saved_state));
}

void TrainingRun::load(const CheckpointFolder& checkpoint) {
  const fs::path& path = checkpoint.path();
  TrainState saved_state;
  Config before;
  agree_on_errors(world_, [&] {
    load_checkpoint(checkpoint, engine_.store(), Load::all, read_ranges);
    saved_state = read_state(checkpoint);
    before = parse_config(saved_state.config, path.string());
    trainer_.set_progress(saved_state.step, saved_state.samples, saved_state.tokens);
    if (!config_.data.blend_schedule.changes.empty())
      samples_ = training_samples(dataset_, config_, saved_state.step, saved_state.samples);
    if (is_first_rank() && saved_state.experts.layers == state_.experts.layers &&
        saved_state.experts.experts == state_.experts.experts)
      state_.experts = saved_state.experts;
    if (config_.train.rewarmup > 0)
      state_.rewarmup_after =
          config_.train.rewarmup == before.train.rewarmup ? saved_state.rewarmup_after : saved_state.step;
    trainer_.set_rewarmup(state_.rewarmup_after);
    trainer_.set_norms(saved_state.norms);
    state_.validation = saved_state.validation;
    // Rank 0 alone decides by it which checkpoints stay.
    const std::vector<Index> saved = is_first_rank() ? steps_in(checkpoints_of(dir_)) : std::vector<Index>{};
    state_.validation.retain({saved.begin(), saved.end()});  // a user may have removed some
    if (!saved_state.router_bias.empty()) engine_.set_router_bias(saved_state.router_bias);
    engine_.set_batch_norm_averages(saved_state.batch_norm_averages);
  });
  gather_weights(engine_.mesh(), engine_.store());
  warn_of_data();
  std::vector<KeyDifference> changed = differences(config_, before, ResumePolicy::report), order;
  // data are identified by their digest
  for (const KeyDifference& d : differences(config_, before, ResumePolicy::reorders_samples))
    (d.key == "data.path" && !saved_state.dataset_digest.empty() ? changed : order).push_back(d);
  if (is_first_rank() && past_blends(config_, saved_state.step) != past_blends(before, saved_state.step))
    warn(
        fmt::format("the blends before step {} had other samples than those of data.blend_schedule, "
                    "train.global_batch and train.batch_ramp now: some samples may be seen twice, others not",
                    saved_state.step + 1));
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

// The hashes of model.attention = lsh are drawn from train.seed, unless they were imported.
void TrainingRun::check_hash_seed(const fs::path& checkpoint, const Config& before) const {
  if (config_.num_lsh_layers() > 0 && config_.lsh_rotations.empty() && config_.train.seed != before.train.seed)
    bad_input(
        "train.seed = {}: the hashes of model.attention = lsh follow it, and {} has {}: set train.seed = {}, or the "
        "model is another",
        config_.train.seed, checkpoint.string(), before.train.seed, before.train.seed);
}

void TrainingRun::start_from(const CheckpointFolder& checkpoint) {
  const fs::path& path = checkpoint.path();
  agree_on_errors(world_, [&] {
    const TrainState saved_state = read_state(checkpoint);
    check_data(path, saved_state);
    // Adapters, and indexers that the checkpoint may lack.
    if (config_.train.lora_rank > 0 || config_.num_indexers() > 0) engine_.store().initialize(config_.train.seed);
    load_checkpoint(checkpoint, engine_.store(), Load::weights, read_ranges);
    if (config_.moe.bias_update_rate > 0 && !saved_state.router_bias.empty())
      engine_.set_router_bias(saved_state.router_bias);
    if (!saved_state.batch_norm_averages.empty()) engine_.set_batch_norm_averages(saved_state.batch_norm_averages);
    std::vector<std::string> warnings;
    const Config before = parse_config(saved_state.config, path.string(), {}, is_first_rank() ? &warnings : nullptr);
    print(warnings);
    check_hash_seed(path, before);
    std::vector<KeyDifference> other =
        differences(without_lora(config_), without_lora(before), ResumePolicy::must_match);
    for (const KeyDifference& d : differences(config_, before, ResumePolicy::report))
      for (const char* section : {"model.", "attention.", "moe."})
        if (d.key.starts_with(section)) other.push_back(d);
    if (is_first_rank() && !other.empty())
      warn(fmt::format("{} was trained with other settings: {}", path.string(), differences_text(other)));
  });
  gather_weights(engine_.mesh(), engine_.store());
  warn_of_data();
  print(fmt::format("starts from the weights of {}", path.string()));
}

void TrainingRun::check_same_model(const CheckpointFolder& checkpoint) {
  const fs::path& path = checkpoint.path();
  const TrainState saved_state = read_state(checkpoint);
  std::vector<std::string> warnings;
  const Config before = parse_config(saved_state.config, path.string(), {}, is_first_rank() ? &warnings : nullptr);
  print(warnings);
  const auto differ = differences(config_, before, ResumePolicy::must_match);
  if (!differ.empty())
    bad_input("{} holds another model ({}): choose another run.dir or the same model", dir_.string(),
              differences_text(differ));
  if (saved_state.vocab != engine_.vocab())
    bad_input("{} was trained with a vocabulary of {}, and {} has {}: set data.path to the same data", dir_.string(),
              saved_state.vocab, config_.model.vocab > 0 ? "model.vocab" : config_.data.path, engine_.vocab());
  check_hash_seed(path, before);
  if (!saved_state.router_bias.empty() && config_.moe.bias_update_rate == 0)
    bad_input(
        "{} has selection biases, which moe.bias_update_rate = 0 would take away: set it above 0 (1e-12 all but "
        "freezes them)",
        path.string());
  check_data(path, saved_state);
}

void TrainingRun::warn_of_data() const {
  if (is_first_rank() && !data_warning_.empty()) warn(data_warning_);
}

}  // namespace sy
