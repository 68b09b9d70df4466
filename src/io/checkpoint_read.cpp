#include <algorithm>
#include <limits>
#include <map>
#include <optional>
#include <utility>

#include "src/io/checkpoint.h"
#include "src/io/checkpoint_internal.h"
#include "src/io/hdf5.h"
#include "src/io/manifest.h"

namespace sy {

namespace fs = std::filesystem;

namespace {

// Throws InputError if `value` is not in [low, high]. Later computations rely on the range.
void check_range(const fs::path& step_dir, const char* what, Index value, Index low, Index high) {
  if (value < low || value > high)
    bad_input("{} has {} = {}, which cannot be: use another checkpoint", step_dir.string(), what, value);
}

template <class T>
Hdf5Dataset open_as(const Hdf5File& file, const std::string& name, const Shape& expected) {
  Hdf5Dataset dataset = file.open_dataset(name);
  if (dataset.shape() != expected || dataset.dtype() != DTypeOf<T>::value)
    bad_input("the checkpoint's {} is {} of {}, expected {} of {}", name, dataset.shape().str(),
              info(dataset.dtype()).name, expected.str(), info(DTypeOf<T>::value).name);
  return dataset;
}

template <class T>
std::vector<T> read_all(const Hdf5File& file, const std::string& name, const Shape& expected) {
  const Hdf5Dataset dataset = open_as<T>(file, name, expected);
  std::vector<T> values(static_cast<std::size_t>(expected.elements()));
  dataset.read(full_box(expected), values.data());
  return values;
}

// Reads a few windows at a time and appends them one by one. Memory is thus bounded for a history
// of any size, which another version may have written.
ExpertHistory read_history(const Hdf5File& file, const fs::path& step_dir) {
  constexpr Index max_count = Index{1} << 53, chunk_bytes = Index{16} << 20;
  ExpertHistory h;
  h.layers = file.get_int("/experts", "layers");
  h.experts = file.get_int("/experts", "experts");
  check_range(step_dir, "MoE layers", h.layers, 0, 1 << 16);
  check_range(step_dir, "experts", h.experts, 0, 1 << 20);
  const auto steps = read_all<std::int64_t>(file, "/experts/steps", file.open_dataset("/experts/steps").shape());
  const Index windows = std::ssize(steps), row = h.layers * h.experts;
  const Shape counts{windows, h.layers, h.experts};
  const Hdf5Dataset routed = open_as<std::int64_t>(file, "/experts/routed", counts);
  const Hdf5Dataset dropped = open_as<std::int64_t>(file, "/experts/dropped", counts);
  const Hdf5Dataset probability = open_as<float>(file, "/experts/probability", counts);
  h.layer_ids = read_all<std::int64_t>(file, "/experts/layers", {h.layers});
  for (Index layer : h.layer_ids) check_range(step_dir, "a MoE layer", layer, 0, max_count);
  for (Index window = 0; window < windows; ++window)
    check_range(step_dir, "a window up to step", steps[window], window > 0 ? steps[window - 1] + 1 : 0, max_count);

  const Index chunk_windows = std::max<Index>(1, chunk_bytes / (std::max<Index>(1, row) * ExpertHistory::cell_bytes));
  std::vector<std::int64_t> r, d;
  std::vector<float> p;
  for (Index first = 0; first < windows; first += chunk_windows) {
    const Index n = std::min(chunk_windows, windows - first);
    const Box box{{first, 0, 0}, {n, h.layers, h.experts}};
    const auto read = [&](const Hdf5Dataset& from, auto& to) {
      to.resize(static_cast<std::size_t>(n * row));
      from.read(box, to.data());
    };
    read(routed, r);
    read(dropped, d);
    read(probability, p);
    for (const auto& [values, what] : {std::pair{&r, "assignments"}, {&d, "dropped assignments"}})
      for (Index x : *values) check_range(step_dir, what, x, 0, max_count);
    for (Index w = 0; w < n; ++w) {
      const auto window = [&](const auto& values) { return std::span(values).subspan(w * row, row); };
      h.append(steps[first + w], window(r), window(d), window(p));
    }
  }
  return h;
}

// Throws InputError unless the checkpoint has exactly these parameters.
void compare_specs(const CheckpointReader& checkpoint, const fs::path& step_dir, const std::vector<ParamSpec>& specs) {
  const Hdf5File& file = checkpoint.index();
  const std::string prefix = tensor_kinds[0].prefix;
  std::map<std::string, Shape> shapes;
  for (const std::string& name : file.datasets("/params"))
    shapes[name.substr(prefix.size())] = file.open_dataset(name).shape();
  std::vector<std::string> differences;
  for (const ParamSpec& spec : specs) {
    const auto it = shapes.find(spec.name);
    if (it == shapes.end()) {
      differences.push_back("it lacks " + spec.name + " " + spec.shape.str());
      continue;
    }
    if (it->second != spec.shape)
      differences.push_back(
          fmt::format("it has {} {}, this model has {}", spec.name, it->second.str(), spec.shape.str()));
    shapes.erase(it);
  }
  for (const auto& [name, shape] : shapes)
    differences.push_back(fmt::format("it has {} {}, this model has none", name, shape.str()));
  if (differences.empty()) {
    // The files must be large enough for the parameters before memory is allocated for these.
    Index bytes = 0;
    for (const Manifest::File& entry : checkpoint.manifest().files) bytes += entry.bytes;
    for (const ParamSpec& spec : specs)
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

// Values of one kind of tensor of a checkpoint: weights, m or v.
class CheckpointValues final : public ValueSource {
 public:
  CheckpointValues(CheckpointReader& checkpoint, const fs::path& step_dir, std::string prefix)
      : checkpoint_(checkpoint), step_dir_(step_dir), prefix_(std::move(prefix)) {}

  void read(const ParamSpec& spec, const Box& box, std::span<float> values) override {
    const std::string name = prefix_ + spec.name;
    if (!dataset_ || dataset_->name() != name) dataset_ = checkpoint_.index().open_dataset(name);
    if (dataset_->shape() != spec.shape || dataset_->dtype() != DType::f32)
      bad_input("{} of {} is {} of {}, expected {} of f32", name, step_dir_.string(), dataset_->shape().str(),
                info(dataset_->dtype()).name, spec.shape.str());
    checkpoint_.read(*dataset_, box, values.data());
    if (!all_finite(values))
      bad_input("{} of {} holds values that are not finite: the training had diverged: use an older checkpoint", name,
                step_dir_.string());
  }

 private:
  CheckpointReader& checkpoint_;
  fs::path step_dir_;
  std::string prefix_;
  std::optional<Hdf5Dataset> dataset_;  // the one that was read last
};

}  // namespace

TrainState read_state(const fs::path& step_dir) {
  CheckpointReader checkpoint(step_dir);
  const Hdf5File& file = checkpoint.index();
  TrainState state;
  state.step = file.get_int("/state", "step");
  state.tokens = file.get_int("/state", "tokens");
  state.samples = file.get_int("/state", "samples");
  state.seed = file.get_unsigned("/state", "seed");
  state.vocab = file.get_int("/state", "vocab");
  state.config = file.get_string("/state", "config");
  state.dataset = file.get_string("/state", "dataset");
  if (file.has("/state", "dataset_digest")) state.dataset_digest = file.get_string("/state", "dataset_digest");
  if (file.has("/state", "tokenizer")) state.tokenizer = file.get_string("/state", "tokenizer");
  if (file.has("/state", "unicode_versions")) state.unicode_versions = file.get_string("/state", "unicode_versions");
  state.layout = file.get_string("/state", "layout");
  if (file.has("/state", validation_attribute))
    state.validation = parse_validation_record(file.get_string("/state", validation_attribute), step_dir.string());
  constexpr Index max_count = Index{1} << 53;
  check_range(step_dir, "step", state.step, checkpoint.manifest().step, checkpoint.manifest().step);
  check_range(step_dir, "step", state.step, 0, max_count);
  check_range(step_dir, "tokens", state.tokens, 0, max_count);
  check_range(step_dir, "samples", state.samples, 0, max_count);
  check_range(step_dir, "vocabulary", state.vocab, 0, std::numeric_limits<std::int32_t>::max());
  state.experts = read_history(file, step_dir);
  if (file.has("/router/bias"))
    state.router_bias = read_all<float>(file, "/router/bias", {state.experts.layers, state.experts.experts});
  if (!all_finite(state.router_bias))
    bad_input("/router/bias of {} is not finite: use another checkpoint", step_dir.string());
  return state;
}

void check_parameters(const fs::path& step_dir, const std::vector<ParamSpec>& specs) {
  compare_specs(CheckpointReader(step_dir), step_dir, specs);
}

namespace {

// Weights of a checkpoint; owns the open files.
class OpenedWeights final : public ValueSource {
 public:
  explicit OpenedWeights(const fs::path& step_dir)
      : checkpoint_(step_dir), values_(checkpoint_, step_dir, tensor_kinds[0].prefix) {}
  void read(const ParamSpec& spec, const Box& box, std::span<float> values) override {
    values_.read(spec, box, values);
  }

 private:
  CheckpointReader checkpoint_;
  CheckpointValues values_;
};

}  // namespace

std::unique_ptr<ValueSource> checkpoint_weights(const fs::path& step_dir) {
  return std::make_unique<OpenedWeights>(step_dir);
}

void load_checkpoint(const fs::path& step_dir, ParamStore& store, Load what) {
  CheckpointReader checkpoint(step_dir);
  compare_specs(checkpoint, step_dir, store.specs());
  CheckpointValues weights(checkpoint, step_dir, tensor_kinds[0].prefix);
  store.fill(weights);
  if (what == Load::weights) return;
  for (const TensorKind& kind : tensor_kinds) {
    if (!kind.buffer) continue;
    CheckpointValues values(checkpoint, step_dir, kind.prefix);
    for (std::size_t g = 0; g < store.layout().groups.size(); ++g) {
      const GroupLayout& group = store.layout().groups[g];
      const View buffer = (store.buffers(g).*kind.buffer).view();
      if (!buffer) continue;  // not training
      if (!checkpoint.index().has("/optimizer"))
        bad_input("{} holds weights alone, and no optimizer's state: start a run from it with --run.init_from={}",
                  step_dir.string(), step_dir.string());
      for (const OwnedRange& range : owned_ranges(group))
        read_values(values, *range.slice, range.local, [&](Index first, std::span<const float> chunk) {
          const Index at = range.flat.begin - group.owned().begin + first - range.local.begin;
          store.backend().to_device(chunk.data(), buffer.rows(at, static_cast<Index>(chunk.size())));
        });
    }
  }
}

}  // namespace sy
