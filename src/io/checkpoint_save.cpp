// The commit protocol of a checkpoint (docs/design/checkpoints.md), for any format.
#include <array>
#include <cstring>

#include "dist/runtime.h"
#include "src/io/checkpoint.h"
#include "src/io/checkpoint_formats.h"
#include "src/io/checkpoint_internal.h"
#include "src/system/files.h"

namespace sy {

namespace fs = std::filesystem;

namespace {

// Gathers the shards of all ranks, by rank. Collective.
std::vector<WrittenFile> gather_shards(Comm& world, const WrittenFile& own) {
  static_assert(sizeof(WrittenFile) % sizeof(Index) == 0);
  constexpr Index entry_size = sizeof(WrittenFile) / sizeof(Index);
  std::array<Index, entry_size> entry;
  std::vector<Index> entries(static_cast<std::size_t>(world.size() * entry_size));
  std::memcpy(entry.data(), &own, sizeof own);
  world.all_gather(view_of(entry.data(), {entry_size}), view_of(entries.data(), {world.size() * entry_size}));
  std::vector<WrittenFile> shards(static_cast<std::size_t>(world.size()));
  std::memcpy(shards.data(), entries.data(), entries.size() * sizeof(Index));
  return shards;
}

Manifest manifest_of(const CheckpointFormat& format, Index step, const WrittenFile& index,
                     std::span<const WrittenFile> shards) {
  Manifest manifest{step, {}};
  const auto add = [&](const std::string& name, const WrittenFile& file) {
    manifest.files.push_back({name, file.bytes, to_hex(file.sha256)});
  };
  add(format.index_name(), index);
  for (std::size_t rank = 0; rank < shards.size(); ++rank) add(format.shard_name(static_cast<int>(rank)), shards[rank]);
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

// The protocol of saving, on all ranks.
std::vector<std::string> save(Comm& world, const fs::path& run_dir, const TrainState& state,
                              const ShardContents& contents, const Retention& retention) {
  const CheckpointFormat& format = *checkpoint_formats().front();
  const bool lead = world.rank() == 0;
  const fs::path checkpoints = checkpoints_of(run_dir), final_dir = checkpoints / step_name(state.step);
  fs::path dir;
  bool committed = false;
  try {
    Index number = 0;  // names a new folder: an old one may remain, with files of the user
    agree_on_errors(world, [&] {
      if (!lead) return;
      make_folders(checkpoints);
      sync_folder(run_dir);
      remove_leftovers(checkpoints);  // the call after saving returns the warnings
      number = free_number(checkpoints, state.step);
      dir = unfinished_path(checkpoints, state.step, number);
      make_folders(dir);
    });
    dir = unfinished_path(checkpoints, state.step, world.max(number));

    WrittenFile own{};
    agree_on_errors(world, [&] { own = write_shard(format, dir, state, contents, world.rank()); });
    const std::vector<WrittenFile> shards = gather_shards(world, own);

    agree_on_errors(world, [&] {
      if (!lead) return;
      const WrittenFile index = write_index(format, dir, state, contents.specs, contents.layout, contents.kinds);
      const Manifest manifest = manifest_of(format, state.step, index, shards);
      write_file(dir / manifest_name, to_text(manifest));
      check_manifest(dir, manifest);
      sync_folder(dir);
      rename_folder(dir, final_dir);
      committed = true;
      sync_folder(checkpoints);
    });
  } catch (const CollectiveError&) {
    if (lead && !committed && !dir.empty()) {
      try {
        remove_leftovers(checkpoints);
      } catch (const Error&) {  // the next save tries again
      }
    }
    throw;
  }

  std::vector<std::string> warnings;
  if (lead) {
    try {
      warnings = remove_leftovers(checkpoints);  // includes the replaced final_dir, if any
    } catch (const Error& e) {
      warnings.push_back(e.what());
    }
    for (std::string& problem : prune_checkpoints(checkpoints, state.step, retention))
      warnings.push_back(std::move(problem));
  }
  return warnings;
}

}  // namespace

std::vector<std::string> save_checkpoint(Comm& world, const fs::path& run_dir, const TrainState& state,
                                         ParamStore& store, const Retention& retention) {
  store.finish_all_gather();  // a parameter all-gather may be in flight
  agree_on_errors(world, [&] {
    std::string name = first_not_finite(store, world.rank());
    if (name.empty() && !all_finite(state.router_bias)) name = "/router/bias";
    if (!name.empty())
      fail(
          "{} holds values that are not finite at step {}: the training has diverged, and nothing was saved: go on "
          "from an older checkpoint (--run.resume=true) with a lower train.lr",
          name, state.step);
  });
  return save(world, run_dir, state, shard_contents(store), retention);
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
  save(world, run_dir, state, {specs, layout, flat, {tensor_kinds(specs).front()}, read}, {});
}

}  // namespace sy
