// A small model with odd sizes. The value of each element follows from its name and index.
#pragma once

#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "src/io/checkpoint_formats.h"
#include "src/io/checkpoint_internal.h"
#include "src/io/manifest.h"
#include "src/system/digest.h"
#include "src/system/files.h"
#include "tests/src/box_index.h"
#include "tests/src/temp_folder.h"

namespace sy {

// Calls f(contents, rank) with the contents of each rank's shard, without values.
inline void for_contents(const std::vector<ParamSpec>& specs, const Layout& layout,
                         const std::function<void(const ShardContents&, int rank)>& f) {
  for (int rank = 0; rank < layout.ranks; ++rank) {
    const FlatLayout flat = flat_layout(specs, layout, coord_of(layout, rank));
    f({specs, layout, flat, tensor_kinds(specs), {}}, rank);
  }
}

inline IndexPlan index_plan_of(const std::vector<ParamSpec>& specs, const Layout& layout, Index per_index) {
  std::vector<Index> counts(specs.size());
  for_contents(specs, layout, [&](const ShardContents& contents, int rank) {
    const std::vector<Index> own = count_mappings(contents, rank);
    for (std::size_t i = 0; i < own.size(); ++i) counts[i] += own[i];
  });
  return plan_indexes(counts, layout.ranks, per_index);
}

// Writes an index with all kinds of tensors of a training, and its linked indexes.
inline WrittenFile write_index(const CheckpointFormat& format, const std::filesystem::path& dir,
                               const TrainState& state, const std::vector<ParamSpec>& specs, const Layout& layout,
                               Index per_index = default_mappings_per_index) {
  const IndexPlan plan = index_plan_of(specs, layout, per_index);
  std::vector<std::vector<std::string>> mappings(plan.params.size());
  for_contents(specs, layout, [&](const ShardContents& contents, int rank) {
    const std::vector<std::string> own = encode_mappings(contents, rank, plan);
    for (std::size_t i = 0; i < own.size(); ++i) mappings[i].push_back(own[i]);
  });
  const std::vector<TensorKind> kinds = tensor_kinds(specs);
  for (int number = 1; number <= plan.linked(); ++number)
    write_linked_index(format, dir, specs, kinds, plan, number, mappings[static_cast<std::size_t>(number - 1)]);
  return write_index(format, dir, state, specs, kinds, plan,
                     plan.linked() ? std::vector<std::string>() : mappings.front());
}

}  // namespace sy

namespace sy::test {

namespace fs = std::filesystem;

inline std::vector<ParamSpec> odd_specs() {
  const auto spec = [](std::string name, Shape shape, Split split, bool joined = false, std::vector<Index> order = {}) {
    return ParamSpec{std::move(name), shape, split, {}, {}, joined, {}, std::move(order)};
  };
  const std::vector<Index> order = {4, 5, 1, 0, 3, 2};  // neighbouring experts, together and apart
  constexpr Axis none = Axis::none, tp = Axis::tp, ep = Axis::ep, etp = Axis::etp;
  return {spec("embedding.weight", {67, 29}, {none, none}),
          spec("layers.0.norm.weight", {5}, {none}),
          spec("layers.0.attention.q.weight", {6, 3, 29}, {tp, none, none}),
          spec("layers.0.attention.k.weight", {1, 3, 29}, {tp, none, none}, true),  // replicated
          spec("layers.0.attention.v.weight", {2, 3, 29}, {tp, none, none}, true),
          spec("layers.0.attention.out.weight", {29, 18}, {none, tp}),
          spec("layers.0.moe.router.weight", {6, 29}, {none, none}),
          spec("layers.0.moe.experts.gate_up.weight", {6, 7, 29}, {ep, etp, none}, false, order),
          spec("layers.0.moe.experts.down.weight", {6, 29, 7}, {ep, none, etp}, false, order),
          spec("layers.0.tiny", {1}, {none}),
          spec("layers.10.norm.weight", {3, 2, 2, 5}, {none, none, none, none})};
}

// Value of element `index` (row-major) of the whole tensor "/params/...", "/optimizer/m/..." or
// "/optimizer/v/...".
inline float expected_value(const std::string& tensor, Index index) {
  std::uint64_t x = std::hash<std::string>{}(tensor) + 0x9e3779b97f4a7c15u * static_cast<std::uint64_t>(index + 1);
  x = (x ^ (x >> 31)) * 0xbf58476d1ce4e5b9u;
  x ^= x >> 29;
  return static_cast<float>(static_cast<double>(x % 2000003) / 1000.0 - 1000.0);
}

// Calls f(tensor name, index in the whole tensor, address) for every element of the store.
inline void for_each_element(ParamStore& store, const std::function<void(const std::string&, Index, float*)>& f) {
  for (std::size_t g = 0; g < store.layout().groups.size(); ++g) {
    const GroupLayout& group = store.layout().groups[g];
    const Range owned = group.owned();
    for (const TensorKind& kind : tensor_kinds(store.specs())) {
      const bool state = !kind.state.empty();
      const std::optional<std::size_t> index = kind.state_index(group.optimizer);
      const std::vector<Tensor>& tensors = store.buffers(g).state;
      if (state && (!index || tensors.empty())) continue;
      const View buffer = state ? tensors[*index].view() : store.buffers(g).weights.view();
      for (const ParamSlice& p : group.slices)
        for (Index i = 0; i < p.box.elements(); ++i) {
          const Index flat = p.offset + i;
          if (state && (flat < owned.begin || flat >= owned.end)) continue;
          f(kind.prefix + p.spec->name, whole_index(p.spec->shape, p.box, i, p.spec->physical_to_logical),
            buffer.f32() + flat - (state ? owned.begin : 0));
        }
    }
  }
}

inline void fill(ParamStore& store) {
  for_each_element(store, [](const std::string& name, Index i, float* x) { *x = expected_value(name, i); });
}

// Number of elements that differ, in any bit, from the values of fill().
inline Index wrong_elements(ParamStore& store) {
  Index wrong = 0;
  for_each_element(store, [&](const std::string& name, Index i, float* x) {
    const float expected = expected_value(name, i);
    wrong += std::memcmp(&expected, x, sizeof expected) != 0;
  });
  return wrong;
}

inline TrainState example_state(Index step) {
  TrainState state;
  state.step = step;
  state.tokens = step * 1000;
  state.samples = step * 10;
  state.seed = 0xfedcba9876543210u;
  state.config = "[model]\nlayers = 11\n# ÄÖ 日本\n";
  state.vocab = 67;
  state.dataset = "/data/größe";
  state.dataset_digest = std::string(64, 'd');
  state.tokenizer = "huggingface " + std::string(64, 'a') + ", sentencepiece " + std::string(64, 'b');
  state.layout = "dp 1 tp 1 ep 1 etp 1 edp 1";
  ExpertHistory& h = state.experts;
  h.layers = 2;
  h.experts = 3;
  h.layer_ids = {0, 10};
  for (Index window = 0; window < 4; ++window) {
    h.steps.push_back(window * 5 + 4);
    for (Index i = 0; i < 6; ++i) {
      h.routed.push_back((Index{1} << 40) + window * 100 + i);
      h.dropped.push_back(window + i);
      h.probability.push_back(0.125f * static_cast<float>(i) + static_cast<float>(window));
    }
  }
  state.router_bias = {0.5f, -0.25f, 0, 1e-7f, 3, -4};
  return state;
}

using Folder = TempFolder;

// Names of the files of a checkpoint in the format that is written.
inline const CheckpointFormat& written_format() {
  return *checkpoint_formats().front();
}
constexpr const char* index_name = "index.h5";
inline std::string shard_name(int rank) {
  return written_format().shard_name(rank);
}

// Writes manifest.json for the files of the folder.
inline void seal(const fs::path& step_dir, Index step) {
  fs::remove(step_dir / manifest_name);
  Manifest manifest{step, {}};
  for (const auto& entry : fs::directory_iterator(step_dir))
    manifest.files.push_back(
        {entry.path().filename().string(), static_cast<Index>(entry.file_size()), to_hex(sha256_file(entry.path()))});
  write_file(step_dir / manifest_name, to_text(manifest));
}

// Writes a checkpoint as the ranks of `layout` would write it, from this process alone.
inline fs::path write_as(const fs::path& run_dir, const Layout& layout, TrainState state,
                         const std::vector<ParamSpec>& specs = odd_specs(),
                         Index per_index = default_mappings_per_index) {
  const Index step = state.step;
  const fs::path dir = checkpoints_of(run_dir) / step_name(step);
  fs::create_directories(dir);
  const std::unique_ptr<Device> device = make_cpu();
  state.layout = layout.str();
  for (int rank = 0; rank < layout.ranks; ++rank) {
    ParamStore store(*device, specs, layout, coord_of(layout, rank), true);
    fill(store);
    write_shard(written_format(), dir, state, shard_contents(store), rank);
  }
  write_index(written_format(), dir, state, specs, layout, per_index);
  seal(dir, step);
  return dir;
}

inline fs::path write_as(const fs::path& run_dir, const Layout& layout, Index step) {
  return write_as(run_dir, layout, example_state(step));
}

// Writes it with linked indexes, which hold few parameters each.
constexpr Index few_mappings = 7;
inline fs::path write_linked(const fs::path& run_dir, const Layout& layout, Index step) {
  return write_as(run_dir, layout, example_state(step), odd_specs(), few_mappings);
}

// Exit code and message of the Error that f throws ("2: ..."); empty if it throws none.
inline std::string error_of(const std::function<void()>& f) {
  try {
    f();
  } catch (const Error& e) {
    return std::to_string(e.exit_code()) + ": " + e.what();
  }
  return "";
}

// Sets the fault hook, and resets it at the end of the scope.
struct FaultScope {
  using Fault = decltype(FileActivity::write_fault);
  explicit FaultScope(Fault fault) { file_activity().write_fault = std::move(fault); }
  ~FaultScope() { file_activity().write_fault = nullptr; }
};

inline std::string joined(const std::vector<std::string>& lines) {
  return fmt::format("{}", fmt::join(lines, "\n"));
}

inline std::vector<fs::path> files_in(const fs::path& dir) {
  std::vector<fs::path> files;
  for (const auto& entry : fs::directory_iterator(dir)) files.push_back(entry.path());
  std::sort(files.begin(), files.end());
  return files;
}

// Training on one rank, which saves with the real protocol.
struct SingleRank {
  std::unique_ptr<Device> device = make_cpu();
  std::unique_ptr<Comm> world = make_comm_self();
  ParamStore store{*device, odd_specs(), Layout{}, coord_of(Layout{}, 0), true};
  SingleRank() { fill(store); }
  std::vector<std::string> save(const fs::path& run, Index step, Index keep = 0) {
    return save_checkpoint(*world, run, example_state(step), store, {.keep = keep});
  }
};

}  // namespace sy::test
