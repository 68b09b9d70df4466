#include <algorithm>
#include <array>
#include <cstring>
#include <optional>

#include "dist/runtime.h"
#include "src/io/checkpoint.h"
#include "src/io/checkpoint_internal.h"
#include "src/io/hdf5.h"
#include "src/io/manifest.h"
#include "src/system/files.h"

namespace sy {

namespace fs = std::filesystem;

namespace {

// Returns true if a lower rank holds the same box: the next lower rank along an axis that
// splits the parameter.
bool lower_rank_holds(const ParamSlice& slice, const Layout& layout, const Coord& coord) {
  constexpr std::pair<Axis, int Coord::*> axes[] = {
      {Axis::tp, &Coord::tp}, {Axis::ep, &Coord::ep}, {Axis::etp, &Coord::etp}};
  const Split& split = slice.spec->split;
  for (const auto& [axis, index] : axes) {
    if (coord.*index == 0 || std::find(split.begin(), split.end(), axis) == split.end()) continue;
    Coord below = coord;
    --(below.*index);
    const Box box = owned_box(slice.spec->shape, split, layout, below);
    if (box.begin == slice.box.begin && box.size == slice.box.size) return true;
  }
  return false;
}

void write_experts(Hdf5File& file, const ExpertHistory& h) {
  const Shape windows{h.windows()}, counts{h.windows(), h.layers, h.experts}, layers{h.layers};
  SY_ASSERT(static_cast<Index>(h.routed.size()) == counts.elements() && h.dropped.size() == h.routed.size() &&
                h.probability.size() == h.routed.size() && static_cast<Index>(h.layer_ids.size()) == h.layers,
            "expert history of {}", counts.str());
  struct Row {
    const char* name;
    Shape shape;
    DType dtype;
    const void* data;
    const char *dimensions, *unit, *meaning;
  };
  const Row rows[] = {
      {"/experts/routed", counts, DType::i64, h.routed.data(), "window, layer, expert", "assignments",
       "assignments of tokens to each expert, before dropping"},
      {"/experts/dropped", counts, DType::i64, h.dropped.data(), "window, layer, expert", "assignments",
       "those of them that were dropped, since the expert was full"},
      {"/experts/probability", counts, DType::f32, h.probability.data(), "window, layer, expert", "1",
       "mean over tokens of the router's softmax"},
      {"/experts/steps", windows, DType::i64, h.steps.data(), "window", "steps", "the last step of each window"},
      {"/experts/layers", layers, DType::i64, h.layer_ids.data(), "layer", "1", "the block that each MoE layer is in"},
  };
  file.make_group("/experts");
  file.set("/experts", "meaning", "what the routers chose, summed over the steps of each window");
  file.set("/experts", "layers", h.layers);
  file.set("/experts", "experts", h.experts);
  for (const Row& row : rows) {
    file.write(row.name, row.shape, row.dtype, row.data);
    file.set(row.name, "dimensions", row.dimensions);
    file.set(row.name, "unit", row.unit);
    file.set(row.name, "meaning", row.meaning);
  }
}

void write_state(Hdf5File& file, const TrainState& state) {
  file.make_group("/state");
  file.set("/state", "meaning",
           "where training stands: step optimizer steps, on tokens tokens of samples samples; finite = 1: no value is "
           "NaN or infinite");
  file.set("/state", "format", checkpoint_format);
  file.set("/state", "step", state.step);
  file.set("/state", "tokens", state.tokens);
  file.set("/state", "samples", state.samples);
  file.set("/state", "seed", state.seed);
  file.set("/state", "vocab", state.vocab);
  file.set("/state", "config", state.config);
  file.set("/state", "dataset", state.dataset);
  if (!state.dataset_digest.empty()) file.set("/state", "dataset_digest", state.dataset_digest);
  if (!state.tokenizer.empty()) file.set("/state", "tokenizer", state.tokenizer);
  if (!state.unicode_versions.empty()) file.set("/state", "unicode_versions", state.unicode_versions);
  file.set("/state", "layout", state.layout);
  if (!state.validation.empty()) file.set("/state", validation_attribute, to_text(state.validation));
  file.set("/state", finite_attribute, std::int64_t{1});
  write_experts(file, state.experts);
  if (state.router_bias.empty()) return;
  const Shape shape{state.experts.layers, state.experts.experts};
  SY_ASSERT(static_cast<Index>(state.router_bias.size()) == shape.elements(), "router bias of {}", shape.str());
  file.write("/router/bias", shape, DType::f32, state.router_bias.data());
  file.set("/router/bias", "dimensions", "layer, expert");
  file.set("/router/bias", "unit", "score");
  file.set("/router/bias", "meaning", "added to the scores for the selection of experts alone");
}

// Attributes of the parameters whose names end with `suffix`: facts that shapes do not show.
struct TensorNote {
  std::string_view suffix;
  const char *dimensions, *meaning;
};
constexpr const char* rotation =
    "in layers whose position is rope, the first rope_fraction of each head is rotated, by halves: row i of the rotated "
    "ones with row i + half of them; where rope_pairs is interleaved, by neighbours: row 2i with row 2i + 1. Where there is "
    "a kv_lora_rank, the first qk_rope_head_dim of a query and the shared part of keys, k_rope, take the place of heads, and "
    "k.weight makes what is not rotated";
constexpr const char* gating = "where there are two halves, the FFN is gated: [gate, linear], act(gate x) * (linear x)";
constexpr TensorNote tensor_notes[] = {
    {".q.weight", "head, out, in", rotation},
    {".k.weight", "kv head, out, in", rotation},
    {".v.weight", "kv head, out, in", ""},
    {".k_rope.weight", "out, in", rotation},
    {"_down.weight", "out, in", "makes a latent, which q_latent_norm or kv_latent_norm normalises"},
    {".q.bias", "head, out", rotation},
    {".k.bias", "kv head, out", rotation},
    {".v.bias", "kv head, out", ""},
    {".attention.out.weight", "out, head, in", ""},
    {".router.weight", "expert, in", ""},
    {".router.noise.weight", "expert, in", ""},
    {".experts.up.weight", "expert, half, out, in", gating},
    {".experts.down.weight", "expert, out, in", ""},
    {".mlp.up.weight", "half, out, in", gating},
    {".mlp.up.bias", "half, out", gating},
    {".mlp.down.weight", "out, in", ""},
    {".shared.up.weight", "half, out, in", gating},
    {".shared.down.weight", "out, in", ""},
    {"embedding.weight", "token, out", ""},
    {"position.weight", "position, out", ""},
    {"output.weight", "token, in", ""},
    {"output.bias", "token", ""},
};

static_assert(sizeof(WrittenFile) % sizeof(Index) == 0);

// Closes, hashes and verifies a file. It is verified after hashing: if the file changes in between,
// verify() fails, or later the digest does.
WrittenFile finish(Hdf5File& file, const fs::path& path) {
  file.close();
  std::error_code error;
  const auto bytes = fs::file_size(path, error);
  if (error) fail("cannot read {}: {}", path.string(), error.message());
  WrittenFile written{static_cast<Index>(bytes), {}};
  try {
    written.sha256 = sha256_file(path);
  } catch (const InputError& e) {  // the file is not the user's, so this is a failure
    fail("{}", e.what());
  }
  file.verify();
  return written;
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

}  // namespace

std::vector<OwnedRange> shard_ranges(const FlatLayout& flat, const Layout& layout, const Coord& coord) {
  std::vector<OwnedRange> ranges;
  for (const GroupLayout& group : flat.groups)
    for (const OwnedRange& range : owned_ranges(group))
      if (!lower_rank_holds(*range.slice, layout, coord)) ranges.push_back(range);
  return ranges;
}

namespace {

// Visits the values that a rank writes. Calls begin(name, elements) for each range of a tensor,
// then chunk(first, values) for each chunk of it.
template <class Begin, class Chunk>
void for_shard(const ShardContents& contents, int rank, Begin begin, Chunk chunk) {
  const std::vector<OwnedRange> ranges = shard_ranges(contents.flat, contents.layout, coord_of(contents.layout, rank));
  std::vector<float> host;
  for (const TensorKind& kind : contents.kinds)
    for (const OwnedRange& range : ranges) {
      begin(kind.prefix + range.slice->spec->name, range.flat.size());
      for (Index done = 0; done < range.flat.size(); done += chunk_elements) {
        host.resize(static_cast<std::size_t>(std::min(chunk_elements, range.flat.size() - done)));
        contents.read(kind, range, done, host);
        chunk(done, host);
      }
    }
}

}  // namespace

ShardContents shard_contents(const ParamStore& store) {
  store.backend().synchronize();
  const auto read = [&store](const TensorKind& kind, const OwnedRange& range, Index begin, std::span<float> values) {
    if (!kind.buffer) return store.get_values(*range.slice, range.local.begin + begin, values);
    const std::size_t group = range.slice->group;
    const Index first = range.flat.begin - store.layout().groups[group].owned().begin;
    const View buffer = (store.buffers(group).*kind.buffer).view();
    store.backend().to_host(buffer.rows(first + begin, static_cast<Index>(values.size())), values.data());
  };
  return {store.specs(), store.mesh_layout(), store.layout(), tensor_kinds, read};
}

WrittenFile write_shard(const fs::path& path, const TrainState& state, const ShardContents& contents, int rank) {
  Hdf5File file = Hdf5File::create(path);
  file.set("/", "step", state.step);
  file.set("/", "rank", static_cast<std::int64_t>(rank));
  file.set("/", "layout", contents.layout.str());
  std::optional<Hdf5Dataset> dataset;
  for_shard(
      contents, rank,
      [&](const std::string& name, Index elements) {
        if (dataset) dataset->close();
        dataset = file.create(name, {elements}, DType::f32);
      },
      [&](Index first, const std::vector<float>& values) {
        dataset->write({{first}, {static_cast<Index>(values.size())}}, values.data());
      });
  if (dataset) dataset->close();
  return finish(file, path);
}

std::string first_not_finite(const ParamStore& store, int rank) {
  std::string name, found;
  for_shard(
      shard_contents(store), rank, [&](const std::string& tensor, Index) { name = tensor; },
      [&](Index, const std::vector<float>& values) {
        if (found.empty() && !all_finite(values)) found = name;
      });
  return found;
}

WrittenFile write_index(const fs::path& path, const TrainState& state, const std::vector<ParamSpec>& specs,
                        const Layout& layout, std::span<const TensorKind> kinds) {
  std::vector<std::vector<Hdf5VirtualMapping>> mappings(specs.size());
  for (int rank = 0; rank < layout.ranks; ++rank) {
    const Coord coord = coord_of(layout, rank);
    const FlatLayout flat = flat_layout(specs, layout, coord);
    for (const OwnedRange& range : shard_ranges(flat, layout, coord)) {
      Index at = 0;  // offset in the shard's dataset
      for (const Box& box : global_boxes(*range.slice, range.local)) {
        const Range source{at, at + box.elements()};
        mappings[static_cast<std::size_t>(range.slice->spec - specs.data())].push_back(
            {shard_name(rank), range.local.size(), source, box});
        at = source.end;
      }
    }
  }
  Hdf5File file = Hdf5File::create(path);
  write_state(file, state);
  for (const TensorKind& kind : kinds) {
    for (std::size_t i = 0; i < specs.size(); ++i)
      file.create_virtual(kind.prefix + specs[i].name, specs[i].shape, mappings[i]);
    const std::string group(kind.prefix, std::strlen(kind.prefix) - 1);
    file.make_group(group);
    file.set(group, "meaning", kind.meaning);
  }
  for (const ParamSpec& spec : specs)
    for (const TensorNote& note : tensor_notes)
      if (spec.name.ends_with(note.suffix))
        for (const auto& [key, text] : {std::pair{"dimensions", note.dimensions}, {"meaning", note.meaning}})
          if (*text) file.set(tensor_kinds[0].prefix + spec.name, key, text);
  return finish(file, path);
}

namespace {

// The protocol of saving, on all ranks.
std::vector<std::string> save(Comm& world, const fs::path& run_dir, const TrainState& state,
                              const ShardContents& contents, const Retention& retention) {
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

    WrittenFile mine{};
    agree_on_errors(world, [&] { mine = write_shard(dir / shard_name(world.rank()), state, contents, world.rank()); });
    constexpr Index entry_size = sizeof(WrittenFile) / sizeof(Index);
    std::vector<Index> all(static_cast<std::size_t>(world.size() * entry_size));
    std::array<Index, entry_size> own;
    std::memcpy(own.data(), &mine, sizeof mine);
    world.all_gather(view_of(own.data(), {entry_size}), view_of(all.data(), {world.size() * entry_size}));

    agree_on_errors(world, [&] {
      if (!lead) return;
      Manifest manifest{state.step, {}};
      const auto add = [&](const std::string& name, const WrittenFile& file) {
        manifest.files.push_back({name, file.bytes, to_hex(file.sha256)});
      };
      add(index_name, write_index(dir / index_name, state, contents.specs, contents.layout, contents.kinds));
      for (int rank = 0; rank < world.size(); ++rank) {
        WrittenFile shard;
        std::memcpy(&shard, all.data() + rank * entry_size, sizeof shard);
        add(shard_name(rank), shard);
      }
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
  save(world, run_dir, state, {specs, layout, flat, std::span(tensor_kinds).first(1), read}, {});
}

}  // namespace sy
