// The commit protocol of a checkpoint (docs/design/checkpoints.md), for any format.
#include <chrono>
#include <cstring>

#include "dist/runtime.h"
#include "src/io/checkpoint_formats.h"
#include "src/io/checkpoint_internal.h"
#include "src/io/checkpoint_saver.h"
#include "src/io/writer_thread.h"
#include "src/system/files.h"

namespace sy {

namespace fs = std::filesystem;

namespace {

// Files that one rank has written: its shard, and perhaps a linked index.
using RankFiles = std::vector<WrittenFile>;

// Returns the files of all ranks, by rank; on ranks other than 0 nothing. Collective.
std::vector<RankFiles> gather_files(Comm& world, const RankFiles& own) {
  std::vector<RankFiles> all;
  for (const std::string& bytes :
       world.gather({reinterpret_cast<const char*>(own.data()), own.size() * sizeof(WrittenFile)})) {
    RankFiles& files = all.emplace_back(bytes.size() / sizeof(WrittenFile));
    SY_ASSERT(bytes.size() == files.size() * sizeof(WrittenFile), "{} bytes of files' digests", bytes.size());
    std::memcpy(files.data(), bytes.data(), bytes.size());
  }
  return all;
}

Manifest manifest_of(const CheckpointFormat& format, Index step, const WrittenFile& index, const IndexPlan& plan,
                     std::span<const RankFiles> ranks) {
  Manifest manifest{step, {}};
  const auto add = [&](const std::string& name, const WrittenFile& file) {
    manifest.files.push_back({name, file.bytes, to_hex(file.sha256)});
  };
  add(format.index_name(), index);
  for (int number = 1; number <= plan.linked(); ++number)
    add(format.linked_index_name(number), ranks[static_cast<std::size_t>(plan.writer(number))].at(1));
  for (std::size_t rank = 0; rank < ranks.size(); ++rank)
    add(format.shard_name(static_cast<int>(rank)), ranks[rank].at(0));
  return manifest;
}

// Throws Failure if the manifest on the disk differs from the written text.
void check_manifest(const fs::path& dir, const Manifest& manifest) {
  std::string error;
  try {
    if (read_file(dir / manifest_name) == to_text(manifest)) return;
    error = "it is not what was written";
  } catch (const InputError& e) {
    error = e.what();
  }
  fail("{} cannot be read back: {}: look at the disk and its file system, or write elsewhere",
       (dir / manifest_name).string(), error);
}

// Throws Failure for a tensor with a value that is not finite.
[[noreturn]] void refuse_not_finite(const std::string& name, Index step) {
  fail(
      "{} holds values that are not finite at step {}: the training has diverged, and nothing was saved: go on "
      "from an older checkpoint (--run.resume=true) with a lower train.lr",
      name, step);
}

}  // namespace

// A save in progress. The writer has the files of this rank in the first phase, and on rank 0 the
// commit in the second one.
struct CheckpointSaver::Save {
  Save(const TrainState& s, const ShardContents& c) : state(s), contents(c) {}
  const CheckpointFormat& format = *checkpoint_formats().front();
  TrainState state;
  ShardContents contents;
  std::chrono::steady_clock::time_point begin = std::chrono::steady_clock::now();
  fs::path dir{};  // of the unfinished checkpoint
  IndexPlan plan{};
  int linked_index = 0;                 // number of the one that this rank writes; otherwise 0
  std::vector<std::string> mappings{};  // of all ranks, for the index that this rank writes
  WrittenFile index{};                  // on rank 0
  RankFiles files{};                    // of this rank, without the index
  std::vector<RankFiles> all_files{};   // by rank, on rank 0 in the second phase
  bool committing = false;
  bool committed = false;  // the folder has its final name
  Retention retention{};
  std::vector<std::string> warnings{};
  WriterThread writer{};

  void write_files(int rank) {
    files = {write_shard(format, dir, state, contents, rank)};
    if (rank == 0) index = write_index(format, dir, state, contents.specs, contents.kinds, plan, mappings);
    if (linked_index > 0)
      files.push_back(write_linked_index(format, dir, contents.specs, contents.kinds, plan, linked_index, mappings));
  }
  void commit(const fs::path& run_dir, const std::function<void()>& before_commit) {
    const fs::path checkpoints = checkpoints_of(run_dir);
    if (before_commit) before_commit();
    const Manifest manifest = manifest_of(format, state.step, index, plan, all_files);
    write_file(dir / manifest_name, to_text(manifest));
    check_manifest(dir, manifest);
    sync_folder(dir);
    sync_folder(run_dir);
    rename_folder(dir, checkpoints / step_name(state.step));
    committed = true;
    sync_folder(checkpoints);
    // The checkpoint is complete: a folder that cannot be looked up or removed stays.
    const auto warn_of = [&](const auto& removal) {
      try {
        for (std::string& problem : removal()) warnings.push_back(std::move(problem));
      } catch (const Error& e) {
        warnings.push_back(e.what());
      }
    };
    warn_of([&] { return remove_leftovers(checkpoints); });  // includes the replaced folder, if any
    warn_of([&] { return prune_checkpoints(checkpoints, state.step, retention); });
  }
};

CheckpointSaver::CheckpointSaver(Comm& world, fs::path run_dir, bool asynchronous, std::function<void()> before_commit)
    : world_(world),
      run_dir_(std::move(run_dir)),
      asynchronous_(asynchronous),
      before_commit_(std::move(before_commit)) {}

CheckpointSaver::~CheckpointSaver() = default;

void CheckpointSaver::start(const TrainState& state, ParamStore& store) {
  SY_ASSERT(!in_progress(), "a save is in progress");
  store.finish_all_gather();  // a parameter all-gather may be in flight
  const ShardContents contents = shard_contents(store);
  ShardCopy copy;
  agree_on_errors(world_, [&] {
    const Index elements = asynchronous_ ? shard_elements(contents, world_.rank()) : 0;  // to copy
    if (elements > copy_elements_) {
      copy_.reset();
      copy_ = std::make_unique_for_overwrite<float[]>(static_cast<std::size_t>(elements));
      copy_elements_ = elements;
    }
    copy = copy_shard(contents, world_.rank(), copy_.get());
    std::string name = copy.not_finite;
    if (name.empty() && !all_finite(state.router_bias)) name = "/router/bias";
    if (name.empty() && !all_finite(state.batch_norm_averages)) name = norm_averages_name;
    if (!name.empty()) refuse_not_finite(name, state.step);
  });
  start(state, asynchronous_ ? copied_contents(contents, copy_.get(), copy.sum) : contents);
}

void CheckpointSaver::start(const TrainState& state, const ShardContents& contents) {
  SY_ASSERT(!in_progress(), "a save is in progress");
  save_ = std::make_unique<Save>(state, contents);
  try {
    make_folder();
    gather_mappings();
    agree_on_errors(world_, [&] {
      save_->writer.start([save = save_.get(), rank = world_.rank()] { save->write_files(rank); }, asynchronous_);
    });
  } catch (const CollectiveError&) {
    abandon();
    throw;
  }
}

// Each rank keeps the mappings of the index that it writes, and no others.
void CheckpointSaver::gather_mappings() {
  const ShardContents& contents = save_->contents;
  std::vector<Index> counts = count_mappings(contents, world_.rank());
  world_.all_reduce(view_of(counts.data(), {std::ssize(counts)}));
  const IndexPlan& plan = save_->plan = plan_indexes(counts, world_.size(), contents.mappings_per_index);
  const std::vector<std::string> own = encode_mappings(contents, world_.rank(), plan);
  if (!plan.linked()) save_->mappings = world_.gather(own.front());
  for (int number = 1; number <= plan.linked(); ++number) {
    const int writer = plan.writer(number);
    std::vector<std::string> mappings = world_.gather(own[static_cast<std::size_t>(number - 1)], writer);
    if (world_.rank() != writer) continue;
    save_->linked_index = number;
    save_->mappings = std::move(mappings);
  }
}

void CheckpointSaver::abandon() {
  const bool committed = save_->committed;
  save_ = nullptr;  // waits for the writer
  if (world_.rank() != 0 || committed) return;
  try {
    remove_leftovers(checkpoints_of(run_dir_));
  } catch (const Error&) {  // the next save tries again
  }
}

// Rank 0 names a new folder: an old one may remain, with files of the user.
void CheckpointSaver::make_folder() {
  const fs::path checkpoints = checkpoints_of(run_dir_);
  Index number = 0;
  agree_on_errors(world_, [&] {
    if (world_.rank() != 0) return;
    make_folders(checkpoints);
    remove_leftovers(checkpoints);  // the call after the commit returns the warnings
    number = free_number(checkpoints, save_->state.step);
    make_folders(unfinished_path(checkpoints, save_->state.step, number));
  });
  save_->dir = unfinished_path(checkpoints, save_->state.step, world_.max(number));
}

std::optional<SavedCheckpoint> CheckpointSaver::poll(const RetentionPolicy& retention) {
  if (!in_progress()) return {};
  const Index own_state = !save_->writer.done() ? 1 : save_->writer.failed() ? 2 : 0;  // 1: writing
  if (world_.max(own_state) == 1) return {};
  return advance(retention);
}

SavedCheckpoint CheckpointSaver::finish(const RetentionPolicy& retention) {
  SY_ASSERT(in_progress(), "no save is in progress");
  std::optional<SavedCheckpoint> saved;
  while (!saved) saved = advance(retention);
  return std::move(*saved);
}

std::optional<SavedCheckpoint> CheckpointSaver::advance(const RetentionPolicy& retention) {
  Save& save = *save_;
  try {
    agree_on_errors(world_, [&] { save.writer.wait(); });
    if (save.committing) {
      const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - save.begin;
      SavedCheckpoint saved{save.state.step, seconds.count(), std::move(save.warnings)};
      save_ = nullptr;
      return saved;
    }
    save.all_files = gather_files(world_, save.files);
    save.committing = true;
    agree_on_errors(world_, [&] {
      if (world_.rank() != 0) return;
      save.retention = retention(save.state);
      save.writer.start([this, &save] { save.commit(run_dir_, before_commit_); }, asynchronous_);
    });
  } catch (const CollectiveError&) {
    abandon();
    throw;
  }
  return {};
}

std::vector<std::string> save_checkpoint(Comm& world, const fs::path& run_dir, const TrainState& state,
                                         ParamStore& store, const Retention& retention) {
  CheckpointSaver saver(world, run_dir, false);
  saver.start(state, store);
  return saver.finish([&](const TrainState&) { return retention; }).warnings;
}

void save_weights(Comm& world, const fs::path& run_dir, const TrainState& state, const std::vector<ParamSpec>& specs,
                  ValueSource& source, const std::function<void(Index, Index)>& progress) {
  const Layout layout{world.size()};
  const FlatLayout flat = flat_layout(specs, layout, coord_of(layout, world.rank()));
  Index done = 0;
  const Index total = flat.owned_elements();
  const auto read = [&](const TensorKind&, const OwnedRange& range, Index begin, std::span<float> values) {
    const Index first = range.local.begin + begin;
    float* to = values.data();
    for (const Box& box : global_boxes(*range.slice, {first, first + static_cast<Index>(values.size())})) {
      const auto elements = static_cast<std::size_t>(box.elements());
      source.read(*range.slice->spec, box, {to, elements});
      to += elements;
    }
    done += static_cast<Index>(values.size());
    progress(done, total);
  };
  CheckpointSaver saver(world, run_dir, false);
  saver.start(state, ShardContents{specs, layout, flat, {tensor_kinds(specs).front()}, read});
  saver.finish([](const TrainState&) { return Retention{}; });
}

}  // namespace sy
