// Reading parameters and optimizer state from a checkpoint of any layout.
#include <list>
#include <map>
#include <set>
#include <utility>

#include "src/io/checkpoint_formats.h"
#include "src/io/checkpoint_internal.h"
#include "src/params/attention_spec.h"
#include "src/params/lora.h"

namespace sy {

namespace fs = std::filesystem;

namespace {

bool is_adapter(std::string_view name) {
  return name.ends_with(".lora_a") || name.ends_with(".lora_b");
}

bool has_adapters(const std::vector<ParamSpec>& specs) {
  return std::ranges::any_of(specs, [](const ParamSpec& spec) { return spec.adapter.has_value(); });
}

// Throws InputError unless the checkpoint has exactly these parameters.
// - with_adapters: if false, adapters of LoRA are compared on neither side
// - with_indexers: if false, the checkpoint may lack the parameters of indexers
void compare_specs(const OpenCheckpoint& checkpoint, const fs::path& step_dir, const std::vector<ParamSpec>& specs,
                   bool with_adapters, bool with_indexers = true) {
  const std::string prefix = params_prefix;
  std::map<std::string, Shape> shapes;
  for (const std::string& name : checkpoint.reader->tensors("/params"))
    if (with_adapters || !is_adapter(name)) shapes[name.substr(prefix.size())] = checkpoint.reader->tensor(name).shape;
  std::vector<std::string> differences;
  for (const ParamSpec& spec : specs) {
    if (spec.adapter && !with_adapters) continue;
    const auto it = shapes.find(spec.name);
    if (it == shapes.end() && !with_indexers && is_of_indexer(spec.name)) continue;
    if (it == shapes.end()) {
      differences.push_back("it lacks " + spec.name + " " + spec.shape.str());
      continue;
    }
    if (it->second != spec.shape)
      differences.push_back(
          fmt::format("it has {} {}, this model has {}", spec.name, it->second.str(), spec.shape.str()));
    shapes.erase(it);
  }
  // A model without multi-token prediction leaves out the blocks that belong to it.
  std::set<std::string> left_out;
  for (const auto& [name, shape] : shapes)
    if (const auto at = name.find(".mtp."); at != name.npos) left_out.insert(name.substr(0, at + 1));
  std::erase_if(shapes, [&](const auto& entry) {
    const auto layer_end = entry.first.find('.', std::string_view("layers.").size());
    return layer_end != entry.first.npos && left_out.contains(entry.first.substr(0, layer_end + 1));
  });
  for (const auto& [name, shape] : shapes)
    differences.push_back(fmt::format("it has {} {}, this model has none", name, shape.str()));
  if (differences.empty()) {
    // The files must be large enough for the parameters before memory is allocated for these.
    Index bytes = 0;
    for (const Manifest::File& entry : checkpoint.manifest.files) bytes += entry.bytes;
    for (const ParamSpec& spec : specs)
      if ((with_adapters || !spec.adapter) && checkpoint.reader->has(prefix + spec.name))
        if ((bytes -= spec.shape.elements() * size_of(DType::f32)) < 0)
          bad_input("{} is smaller than its parameters: use another checkpoint", step_dir.string());
    return;
  }
  constexpr std::size_t shown = 5;
  std::string rest;
  if (differences.size() > shown) {
    rest = fmt::format("; and {} more", differences.size() - shown);
    differences.resize(shown);
  }
  bad_input("{} is of another model: {}{}: use the model section of its config.ini", step_dir.string(),
            fmt::join(differences, "; "), rest);
}

// A value source that names the shards that it reads.
class CheckpointSource : public ValueSource {
 public:
  // Adds the names of the shards that read() of this box opens.
  virtual void add_shards(const ParamSpec& spec, const Box& box, std::set<std::string>& shards) = 0;
};

// Values of one kind of tensor of a checkpoint: weights, or one kind of optimizer state.
class CheckpointValues final : public CheckpointSource {
 public:
  CheckpointValues(CheckpointReader& checkpoint, const fs::path& step_dir, std::string prefix)
      : checkpoint_(checkpoint), step_dir_(step_dir), prefix_(std::move(prefix)) {}

  void read(const ParamSpec& spec, const Box& box, std::span<float> values) override {
    const std::string name = tensor_of(spec);
    checkpoint_.read(name, box, values.data());
    if (!all_finite(values))
      bad_input("{} of {} holds values that are not finite: the training had diverged: use an older checkpoint", name,
                step_dir_.string());
  }
  void add_shards(const ParamSpec& spec, const Box& box, std::set<std::string>& shards) override {
    checkpoint_.add_files(tensor_of(spec), box, shards);
  }

 private:
  // Returns the name of the parameter's tensor. Throws InputError if it has another shape or type.
  std::string tensor_of(const ParamSpec& spec) const {
    std::string name = prefix_ + spec.name;
    const TensorInfo tensor = checkpoint_.tensor(name);
    if (tensor.shape != spec.shape || tensor.dtype != DType::f32)
      bad_input("{} of {} is {} of {}, expected {} of f32", name, step_dir_.string(), tensor.shape.str(),
                info(tensor.dtype).name, spec.shape.str());
    return name;
  }

  CheckpointReader& checkpoint_;
  fs::path step_dir_;
  std::string prefix_;
};

// Weights of a checkpoint with their adapters of LoRA added. Owns the open files.
class OpenedWeights final : public CheckpointSource {
 public:
  explicit OpenedWeights(const CheckpointFolder& folder)
      : checkpoint_(open_checkpoint(folder).reader),
        values_(*checkpoint_, folder.path(), params_prefix),
        config_(config_of_adapters(*checkpoint_, folder.path())) {}
  void read(const ParamSpec& spec, const Box& box, std::span<float> values) override {
    values_.read(spec, box, values);
    std::vector<std::vector<float>> adapter;  // A and B
    for (const auto& [matrix, its_box] : adapter_boxes(spec, box))
      values_.read(matrix, its_box, adapter.emplace_back(static_cast<std::size_t>(its_box.elements())));
    if (!adapter.empty())
      add_adapter(spec, box, config_->train.lora_rank, config_->train.lora_scale(), adapter[0], adapter[1], values);
  }
  void add_shards(const ParamSpec& spec, const Box& box, std::set<std::string>& shards) override {
    values_.add_shards(spec, box, shards);
    for (const auto& [matrix, its_box] : adapter_boxes(spec, box)) values_.add_shards(matrix, its_box, shards);
  }

 private:
  // Returns A and B of a weight's adapter, and their boxes that determine `box`. Empty if there is
  // no adapter.
  std::vector<std::pair<ParamSpec, Box>> adapter_boxes(const ParamSpec& spec, const Box& box) const {
    if (!config_ || !spec.matrix || !checkpoint_->has(params_prefix + lora_name(spec.name, LoraMatrix::a))) return {};
    const Index rank = config_->train.lora_rank;
    std::vector<std::pair<ParamSpec, Box>> boxes;
    for (const LoraMatrix matrix : {LoraMatrix::a, LoraMatrix::b})
      boxes.emplace_back(lora_spec(spec, matrix, rank, config_->train.lora_scale()), lora_box(spec, matrix, box, rank));
    return boxes;
  }

  // Returns the configuration of the run. Empty if the checkpoint has no adapters.
  static std::optional<Config> config_of_adapters(const CheckpointReader& checkpoint, const fs::path& step_dir) {
    if (std::ranges::none_of(checkpoint.tensors("/params"), is_adapter)) return {};
    Config config = parse_config(checkpoint.get<std::string>("/state", "config"), step_dir.string());
    if (config.train.lora_rank == 0)
      bad_input("{} has adapters, and its configuration has no train.lora_rank: use another checkpoint",
                step_dir.string());
    return config;
  }

  std::unique_ptr<CheckpointReader> checkpoint_;
  CheckpointValues values_;
  std::optional<Config> config_;
};

class AverageWeights final : public ValueSource {
 public:
  explicit AverageWeights(const std::vector<fs::path>& step_dirs) {
    for (const fs::path& step_dir : step_dirs) checkpoints_.emplace_back(step_dir);
  }
  void read(const ParamSpec& spec, const Box& box, std::span<float> values) override {
    std::vector<double> sums(values.size());
    for (OpenedWeights& checkpoint : checkpoints_) {
      checkpoint.read(spec, box, values);
      for (std::size_t i = 0; i < sums.size(); ++i) sums[i] += values[i];
    }
    for (std::size_t i = 0; i < sums.size(); ++i)
      values[i] = static_cast<float>(sums[i] / static_cast<double>(checkpoints_.size()));
  }

 private:
  std::list<OpenedWeights> checkpoints_;
};

// Throws InputError unless the checkpoint has the optimizer state of all parameters.
void check_state(const CheckpointReader& reader, const fs::path& step_dir, const std::vector<ParamSpec>& specs,
                 const std::vector<TensorKind>& kinds) {
  if (!reader.has("/optimizer"))
    bad_input("{} holds weights alone, and no optimizer's state: start a run from it with --run.init_from={}",
              step_dir.string(), step_dir.string());
  for (const TensorKind& kind : kinds)
    for (const ParamSpec& spec : specs)
      if (const std::string name = kind.prefix + spec.name; kind.covers(spec) && !reader.has(name))
        bad_input(
            "{} is of another optimizer, as it lacks {}: set train.optimizer as in its config.ini, or start a run from "
            "its weights with --run.init_from={}",
            step_dir.string(), name, step_dir.string());
}

// Calls visit(source, kind, range) for each range of a tensor that the rank of the store reads.
// load_checkpoint() documents the arguments and the errors. `visit` must not keep the source.
void for_each_range(
    const CheckpointFolder& folder, const ParamStore& store, Load what, WeightRanges ranges,
    const std::function<void(CheckpointSource& source, const TensorKind& kind, const OwnedRange& range)>& visit) {
  const fs::path& step_dir = folder.path();
  const OpenCheckpoint checkpoint = open_checkpoint(folder);
  const bool has_state = what == Load::all && store.training();
  // A training may start from a model without indexers.
  const bool new_indexers = what == Load::weights && store.training();
  compare_specs(checkpoint, step_dir, store.specs(), has_state, !new_indexers);
  const std::vector<TensorKind> kinds = tensor_kinds(store.specs());
  if (has_state) check_state(*checkpoint.reader, step_dir, store.specs(), kinds);
  const auto is_read = [&](const ParamSpec& spec) {
    return has_state || (!spec.adapter && (!new_indexers || !is_of_indexer(spec.name) ||
                                           checkpoint.reader->has(params_prefix + spec.name)));
  };
  std::unique_ptr<CheckpointSource> weights;
  if (has_state)
    weights = std::make_unique<CheckpointValues>(*checkpoint.reader, step_dir, params_prefix);
  else
    weights = std::make_unique<OpenedWeights>(folder);
  for (const GroupLayout& group : store.layout().groups)
    for (const OwnedRange& range : weight_ranges(group, ranges))
      if (is_read(*range.slice->spec)) visit(*weights, kinds.front(), range);
  if (!has_state) return;
  for (const TensorKind& kind : kinds) {
    CheckpointValues values(*checkpoint.reader, step_dir, kind.prefix);
    for (const GroupLayout& group : store.layout().groups) {
      if (group.frozen || !kind.state_index(group.optimizer)) continue;
      for (const OwnedRange& range : owned_ranges(group)) visit(values, kind, range);
    }
  }
}

}  // namespace

void check_parameters(const CheckpointFolder& folder, const std::vector<ParamSpec>& specs) {
  compare_specs(open_checkpoint(folder), folder.path(), specs, has_adapters(specs));
}

std::unique_ptr<ValueSource> checkpoint_weights(const CheckpointFolder& folder) {
  return std::make_unique<OpenedWeights>(folder);
}

std::unique_ptr<ValueSource> average_weights(const std::vector<fs::path>& step_dirs) {
  return std::make_unique<AverageWeights>(step_dirs);
}

void load_checkpoint(const CheckpointFolder& folder, ParamStore& store, Load what, WeightRanges ranges) {
  for_each_range(folder, store, what, ranges,
                 [&](CheckpointSource& source, const TensorKind& kind, const OwnedRange& range) {
                   const ParamSlice& slice = *range.slice;
                   const GroupLayout& group = store.layout().groups[slice.group];
                   const std::optional<std::size_t> state = kind.state_index(group.optimizer);
                   read_values(source, slice, range.local, [&](Index first, std::span<const float> chunk) {
                     if (!state) return store.set_values(slice, first, chunk);
                     const Index at = range.flat.begin - group.owned().begin + first - range.local.begin;
                     store.set_state(slice.group, *state, at, chunk);
                   });
                 });
}

NeededShards shards_to_load(const ParamStore& store, Load what, WeightRanges ranges) {
  return [&store, what, ranges](const CheckpointFolder& folder) {
    std::set<std::string> shards;
    for_each_range(folder, store, what, ranges,
                   [&](CheckpointSource& source, const TensorKind&, const OwnedRange& range) {
                     for (const Box& box : global_boxes(*range.slice, range.local))
                       source.add_shards(*range.slice->spec, box, shards);
                   });
    return shards;
  };
}

}  // namespace sy
