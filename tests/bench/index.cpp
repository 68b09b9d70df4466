// Measures the CPU time in which ranks of a large job write the indexes of a checkpoint, and one
// reads its values.
//
//   bench_index [--ranks N] [--tp N] [--ep N] [--rank N] [--readers N] [--model FILE]
//               [--mappings N]
//
// The index is that of a job of N ranks, written here with the shards that the rank needs. The
// widths of the model are divided by 64, so that the shards are small. Its layers, experts and
// heads stay, so that the index has as many tensors and nearly as many mappings as before.
// --readers: number of ranks of the job that reads; 0: the same as wrote.
// --mappings: of a linked index; a large number gives one index that holds all.
#include <boost/program_options.hpp>
#include <ctime>
#include <filesystem>
#include <map>
#include <numeric>

#include "dist/comm.h"
#include "dist/file_activity.h"
#include "src/io/checkpoint_formats.h"
#include "src/io/checkpoint_internal.h"
#include "src/io/format/box_index.h"
#include "src/params/specs.h"
#include "src/params/values.h"
#include "src/system/digest.h"
#include "src/system/files.h"
#include "tests/bench/arguments.h"
#include "tests/src/temp_folder.h"

namespace sy::bench {
namespace {

namespace fs = std::filesystem;

// Returns the CPU time of this process, which other processes of the machine do not change.
double seconds_now() {
  return static_cast<double>(std::clock()) / CLOCKS_PER_SEC;
}

// Returns the boxes of the parameters that a rank owns, by name.
std::map<std::string, std::vector<Box>> boxes_of(const std::vector<ParamSpec>& specs, const Layout& layout, int rank) {
  std::map<std::string, std::vector<Box>> boxes;
  const FlatLayout flat = flat_layout(specs, layout, coord_of(layout, rank));
  for (const GroupLayout& group : flat.groups)
    for (const OwnedRange& range : owned_ranges(group))
      for (const Box& box : global_boxes(*range.slice, range.local)) boxes[range.slice->spec->name].push_back(box);
  return boxes;
}

int run(int argc, char** argv) {
  namespace po = boost::program_options;
  int ranks = 0, tp = 0, ep = 0, rank = 0, readers = 0;
  Index per_index = 0;
  std::string model;
  po::options_description options;
  options.add_options()("ranks", po::value(&ranks)->default_value(16384))("tp", po::value(&tp)->default_value(8))(
      "ep", po::value(&ep)->default_value(128))("rank", po::value(&rank)->default_value(4321))(
      "readers", po::value(&readers)->default_value(0))(
      "mappings", po::value(&per_index)->default_value(default_mappings_per_index))(
      "model", po::value(&model)->default_value("configs/models/deepseek-v3.ini"));
  po::variables_map values;
  if (!read_arguments(argc, argv, "bench_index",
                      "Measures how a large job writes its indexes and reads its checkpoint.", options, values))
    return 0;
  Config config = read_config(model, {});
  const Index vocab = config.model.vocab;
  for (Index* width : {&config.model.d_model, &config.model.head_dim, &config.model.kv_lora_rank,
                       &config.model.q_lora_rank, &config.model.d_ff, &config.moe.d_ff})
    *width = (*width + 63) / 64;
  config.model.qk_rope_head_dim = 2;
  config.model.v_head_dim = config.model.head_dim;
  const std::vector<ParamSpec> specs = param_specs(config, vocab);
  const std::vector<TensorKind> kinds = tensor_kinds(specs);
  const Layout writers{ranks, tp, ep, 1}, layout{readers > 0 ? readers : ranks, tp, ep, 1};
  const TempFolder folder;
  const fs::path dir = folder.path() / step_name(1);
  fs::create_directories(dir);
  TrainState state;
  state.step = 1;

  // Calls f(contents, writer) with the contents of each rank's shard.
  const auto for_writers = [&](auto f) {
    const auto read = [](const TensorKind&, const OwnedRange&, Index, std::span<float> to) {
      std::fill(to.begin(), to.end(), 1.f);
    };
    for (int writer = 0; writer < ranks; ++writer) {
      const FlatLayout flat = flat_layout(specs, writers, coord_of(writers, writer));
      f(ShardContents{specs, writers, flat, kinds, read}, writer);
    }
  };
  std::vector<Index> counts(specs.size());
  for_writers([&](const ShardContents& contents, int writer) {
    const std::vector<Index> own = count_mappings(contents, writer);
    for (std::size_t i = 0; i < own.size(); ++i) counts[i] += own[i];
  });
  const IndexPlan plan = plan_indexes(counts, ranks, per_index);

  const auto wanted = boxes_of(specs, layout, rank);
  std::vector<std::vector<std::string>> mappings(plan.params.size());  // of each index, by rank
  const CheckpointFormat& format = *checkpoint_formats().front();
  Manifest manifest{1, {}};
  const auto add_file = [&](const std::string& name, const WrittenFile& file) {
    manifest.files.push_back({name, file.bytes, to_hex(file.sha256)});
  };
  for_writers([&](const ShardContents& contents, int writer) {
    const std::vector<std::string> own = encode_mappings(contents, writer, plan);
    for (std::size_t i = 0; i < own.size(); ++i) mappings[i].push_back(own[i]);
    bool needs = false;
    for (const auto& [name, boxes] : boxes_of(specs, writers, writer))
      if (const auto at = wanted.find(name); at != wanted.end())
        for (const Box& a : boxes)
          for (const Box& b : at->second) needs |= overlap(a, b);
    add_file(format.shard_name(writer),
             needs ? write_shard(format, dir, state, contents, writer) : WrittenFile{Index{1} << 20, {}});
  });
  double slowest = 0;
  Index bytes = 0, most_received = 0;
  for (const std::vector<std::string>& received : mappings) {
    Index size = 0;
    for (const std::string& text : received) size += std::ssize(text);
    most_received = std::max(most_received, size);
  }
  for (int number = 1; number <= plan.linked(); ++number) {
    const std::vector<std::string>& received = mappings[static_cast<std::size_t>(number - 1)];
    const double begin = seconds_now();
    const WrittenFile linked = write_linked_index(format, dir, specs, kinds, plan, number, received);
    slowest = std::max(slowest, seconds_now() - begin);
    bytes += linked.bytes;
    add_file(format.linked_index_name(number), linked);
  }
  double started = seconds_now();
  const WrittenFile index = write_index(format, dir, state, specs, kinds, plan,
                                        plan.linked() ? std::vector<std::string>() : mappings.front());
  fmt::print("{} ranks, {} parameters, {} mappings: index of {:.1f} MB, written in {:.2f} s\n", ranks, specs.size(),
             std::accumulate(counts.begin(), counts.end(), Index{0}), static_cast<double>(index.bytes) / 1e6,
             seconds_now() - started);
  add_file(format.index_name(), index);
  fmt::print(
      "{} linked indexes of {:.1f} MB, the slowest written in {:.2f} s; a rank gets up to {:.2f} MB of mappings\n",
      plan.linked(), static_cast<double>(bytes) / 1e6, slowest, static_cast<double>(most_received) / 1e6);
  write_file(dir / manifest_name, to_text(manifest));

  const std::unique_ptr<Device> device = make_cpu();
  const std::unique_ptr<Comm> self = make_comm_self();
  ParamStore store(*device, specs, layout, coord_of(layout, rank), true);
  const CheckpointFolder checkpoint(*self, dir);
  started = seconds_now();
  const OpenCheckpoint opened = open_checkpoint(checkpoint);
  fmt::print("open: {:.3f} s\n", seconds_now() - started);
  started = seconds_now();
  check_parameters(checkpoint, specs);
  fmt::print("check_parameters: {:.3f} s\n", seconds_now() - started);
  started = seconds_now();
  const std::size_t shards = shards_to_load(store, Load::all, WeightRanges::owned)(checkpoint).size();
  fmt::print("shards_to_load: {:.3f} s, {} shards\n", seconds_now() - started, shards);
  const std::uint64_t before = file_activity().opened;
  started = seconds_now();
  load_checkpoint(checkpoint, store, Load::all, WeightRanges::owned);
  fmt::print("load_checkpoint: {:.3f} s, {} files opened\n", seconds_now() - started, file_activity().opened - before);
  return 0;
}

}  // namespace
}  // namespace sy::bench

int main(int argc, char** argv) {
  return sy::bench::exit_code_of("bench_index", argv, [&] { return sy::bench::run(argc, argv); });
}
