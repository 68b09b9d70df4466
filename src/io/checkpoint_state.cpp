// The training state in the index of a checkpoint: groups /state and /experts, /router/bias and
// /norm/averages.
#include <algorithm>
#include <limits>
#include <utility>

#include "src/io/checkpoint_formats.h"
#include "src/io/checkpoint_internal.h"

namespace sy {

namespace fs = std::filesystem;

namespace {

// Attribute of /state: the ValidationRecord, if there was a validation.
constexpr const char* validation_attribute = "validation";
// Attribute of /state: the NormHistory, if it is not empty.
constexpr const char* norms_attribute = "gradient_norms";

// A tensor of the training state, with its attributes.
struct SmallTensor {
  const char* name;
  Shape shape;
  DType dtype;
  const void* data;
  const char *dimensions, *unit, *meaning;
};

void write_tensor(CheckpointWriter& index, const SmallTensor& tensor) {
  index.write(tensor.name, tensor.shape, tensor.dtype, tensor.data);
  index.set(tensor.name, "dimensions", tensor.dimensions);
  index.set(tensor.name, "unit", tensor.unit);
  index.set(tensor.name, "meaning", tensor.meaning);
}

void write_experts(CheckpointWriter& index, const ExpertHistory& h) {
  const Shape windows{h.windows()}, counts{h.windows(), h.layers, h.experts}, layers{h.layers};
  SY_ASSERT(static_cast<Index>(h.routed.size()) == counts.elements() && h.dropped.size() == h.routed.size() &&
                h.probability.size() == h.routed.size() && static_cast<Index>(h.layer_ids.size()) == h.layers,
            "expert history of {}", counts.str());
  const SmallTensor tensors[] = {
      {"/experts/routed", counts, DType::i64, h.routed.data(), "window, layer, expert", "assignments",
       "assignments of tokens to each expert, before dropping"},
      {"/experts/dropped", counts, DType::i64, h.dropped.data(), "window, layer, expert", "assignments",
       "those of them that were dropped, since the expert was full"},
      {"/experts/probability", counts, DType::f32, h.probability.data(), "window, layer, expert", "1",
       "mean over tokens of the router's probability: the softmax of the logits, or with moe.aux_probability = score "
       "the scores divided by their sum"},
      {"/experts/steps", windows, DType::i64, h.steps.data(), "window", "steps", "the last step of each window"},
      {"/experts/layers", layers, DType::i64, h.layer_ids.data(), "layer", "1", "the block that each MoE layer is in"},
  };
  index.make_group("/experts");
  index.set("/experts", "meaning", "what the routers chose, summed over the steps of each window");
  index.set("/experts", "layers", h.layers);
  index.set("/experts", "experts", h.experts);
  for (const SmallTensor& tensor : tensors) write_tensor(index, tensor);
}

void write_router_bias(CheckpointWriter& index, const TrainState& state) {
  if (state.router_bias.empty()) return;
  const Shape shape{state.experts.layers, state.experts.experts};
  SY_ASSERT(static_cast<Index>(state.router_bias.size()) == shape.elements(), "router bias of {}", shape.str());
  write_tensor(index, {"/router/bias", shape, DType::f32, state.router_bias.data(), "layer, expert", "score",
                       "added to the scores for the selection of experts alone"});
}

void write_norm_averages(CheckpointWriter& index, const TrainState& state) {
  if (state.batch_norm_averages.empty()) return;
  SY_ASSERT(state.batch_norms > 0 && std::ssize(state.batch_norm_averages) % (2 * state.batch_norms) == 0,
            "{} running averages of {} batch norms", state.batch_norm_averages.size(), state.batch_norms);
  const Shape shape{state.batch_norms, 2, std::ssize(state.batch_norm_averages) / (2 * state.batch_norms)};
  write_tensor(
      index,
      {norm_averages_name, shape, DType::f32, state.batch_norm_averages.data(), "norm, mean or variance, column", "1",
       "running averages of each batch norm, in the order of the parameters, which evaluation and generation use"});
}

}  // namespace

void write_state(CheckpointWriter& index, const TrainState& state) {
  index.make_group("/state");
  index.set("/state", "meaning",
            "where training stands: step optimizer steps, on tokens tokens of samples samples; finite = 1: no value is "
            "NaN or infinite");
  index.set("/state", "format", checkpoint_format);
  index.set("/state", "step", state.step);
  index.set("/state", "tokens", state.tokens);
  index.set("/state", "samples", state.samples);
  index.set("/state", "seed", state.seed);
  index.set("/state", "vocab", state.vocab);
  index.set("/state", "config", state.config);
  index.set("/state", "dataset", state.dataset);
  if (!state.dataset_digest.empty()) index.set("/state", "dataset_digest", state.dataset_digest);
  if (!state.tokenizer.empty()) index.set("/state", "tokenizer", state.tokenizer);
  if (!state.unicode_versions.empty()) index.set("/state", "unicode_versions", state.unicode_versions);
  if (!state.provenance.empty()) index.set("/state", "provenance", state.provenance);
  index.set("/state", "layout", state.layout);
  if (!state.validation.empty()) index.set("/state", validation_attribute, to_text(state.validation));
  if (!state.norms.empty()) index.set("/state", norms_attribute, to_text(state.norms));
  if (state.rewarmup_after >= 0) index.set("/state", "rewarmup_after", state.rewarmup_after);
  index.set("/state", finite_attribute, std::int64_t{1});
  write_experts(index, state.experts);
  write_router_bias(index, state);
  write_norm_averages(index, state);
}

namespace {

// Throws InputError if `value` is not in [low, high]. Later computations rely on the range.
void check_range(const fs::path& step_dir, const char* what, Index value, Index low, Index high) {
  if (value < low || value > high)
    bad_input("{} has {} = {}, which cannot be: use another checkpoint", step_dir.string(), what, value);
}

template <class T>
void check_tensor(CheckpointReader& index, const std::string& name, const Shape& expected) {
  const TensorInfo tensor = index.tensor(name);
  if (tensor.shape != expected || tensor.dtype != DTypeOf<T>::value)
    bad_input("the checkpoint's {} is {} of {}, expected {} of {}", name, tensor.shape.str(), info(tensor.dtype).name,
              expected.str(), info(DTypeOf<T>::value).name);
}

template <class T>
std::vector<T> read_all(CheckpointReader& index, const std::string& name, const Shape& expected) {
  check_tensor<T>(index, name, expected);
  std::vector<T> values(static_cast<std::size_t>(expected.elements()));
  index.read_unsharded(name, full_box(expected), values.data());
  return values;
}

// Reads a few windows at a time and appends them one by one. Memory is thus bounded for a history
// of any size, which another version may have written.
ExpertHistory read_history(CheckpointReader& index, const fs::path& step_dir) {
  constexpr Index max_count = Index{1} << 53, chunk_bytes = Index{16} << 20;
  ExpertHistory h;
  h.layers = index.get<Index>("/experts", "layers");
  h.experts = index.get<Index>("/experts", "experts");
  check_range(step_dir, "MoE layers", h.layers, 0, 1 << 16);
  check_range(step_dir, "experts", h.experts, 0, 1 << 20);
  const auto steps = read_all<std::int64_t>(index, "/experts/steps", index.tensor("/experts/steps").shape);
  const Index windows = std::ssize(steps), row = h.layers * h.experts;
  const Shape counts{windows, h.layers, h.experts};
  check_tensor<std::int64_t>(index, "/experts/routed", counts);
  check_tensor<std::int64_t>(index, "/experts/dropped", counts);
  check_tensor<float>(index, "/experts/probability", counts);
  h.layer_ids = read_all<std::int64_t>(index, "/experts/layers", {h.layers});
  for (Index layer : h.layer_ids) check_range(step_dir, "a MoE layer", layer, 0, max_count);
  for (Index window = 0; window < windows; ++window)
    check_range(step_dir, "a window up to step", steps[window], window > 0 ? steps[window - 1] + 1 : 0, max_count);

  const Index chunk_windows = std::max<Index>(1, chunk_bytes / (std::max<Index>(1, row) * ExpertHistory::cell_bytes));
  std::vector<std::int64_t> r, d;
  std::vector<float> p;
  for (Index first = 0; first < windows; first += chunk_windows) {
    const Index n = std::min(chunk_windows, windows - first);
    const Box box{{first, 0, 0}, {n, h.layers, h.experts}};
    const auto read = [&](const char* name, auto& values) {
      values.resize(static_cast<std::size_t>(n * row));
      index.read_unsharded(name, box, values.data());
    };
    read("/experts/routed", r);
    read("/experts/dropped", d);
    read("/experts/probability", p);
    for (const auto& [values, what] : {std::pair{&r, "assignments"}, {&d, "dropped assignments"}})
      for (Index x : *values) check_range(step_dir, what, x, 0, max_count);
    for (Index w = 0; w < n; ++w) {
      const auto window = [&](const auto& values) { return std::span(values).subspan(w * row, row); };
      h.append(steps[first + w], window(r), window(d), window(p));
    }
  }
  return h;
}

// Reads TrainState::batch_norms and their averages.
void read_norm_averages(CheckpointReader& index, const fs::path& step_dir, TrainState& state) {
  if (!index.has(norm_averages_name)) return;
  const Shape shape = index.tensor(norm_averages_name).shape;
  if (shape.size() != 3 || shape[1] != 2 || shape.elements() == 0)
    bad_input("{} of {} is {}, not [norms, 2, columns]: use another checkpoint", norm_averages_name, step_dir.string(),
              shape.str());
  check_range(step_dir, "batch norms", shape[0], 1, 1 << 20);
  check_range(step_dir, "columns of a batch norm", shape[2], 1, 1 << 20);
  state.batch_norm_averages = read_all<float>(index, norm_averages_name, shape);
  state.batch_norms = shape[0];
  if (!all_finite(state.batch_norm_averages))
    bad_input("{} of {} is not finite: use another checkpoint", norm_averages_name, step_dir.string());
  for (Index i = 0; i < shape.elements(); ++i)
    if (i / shape[2] % 2 == 1 && state.batch_norm_averages[i] < 0)
      bad_input("{} of {} has a negative variance: use another checkpoint", norm_averages_name, step_dir.string());
}

std::string provenance_in(const CheckpointReader& index) {
  return index.has("/state", "provenance") ? index.get<std::string>("/state", "provenance") : "";
}

}  // namespace

std::string read_provenance(const fs::path& step_dir) {
  return provenance_in(*open_checkpoint(step_dir).reader);
}

TrainState read_state(const CheckpointFolder& folder) {
  const fs::path& step_dir = folder.path();
  const OpenCheckpoint checkpoint = open_checkpoint(folder);
  CheckpointReader& index = *checkpoint.reader;
  TrainState state;
  state.step = index.get<Index>("/state", "step");
  state.tokens = index.get<Index>("/state", "tokens");
  state.samples = index.get<Index>("/state", "samples");
  state.seed = index.get<std::uint64_t>("/state", "seed");
  state.vocab = index.get<Index>("/state", "vocab");
  state.config = index.get<std::string>("/state", "config");
  state.dataset = index.get<std::string>("/state", "dataset");
  if (index.has("/state", "dataset_digest")) state.dataset_digest = index.get<std::string>("/state", "dataset_digest");
  if (index.has("/state", "tokenizer")) state.tokenizer = index.get<std::string>("/state", "tokenizer");
  if (index.has("/state", "unicode_versions"))
    state.unicode_versions = index.get<std::string>("/state", "unicode_versions");
  state.provenance = provenance_in(index);
  state.layout = index.get<std::string>("/state", "layout");
  if (index.has("/state", validation_attribute))
    state.validation =
        parse_validation_record(index.get<std::string>("/state", validation_attribute), step_dir.string());
  if (index.has("/state", norms_attribute))
    state.norms = parse_norm_history(index.get<std::string>("/state", norms_attribute), step_dir.string());
  if (index.has("/state", "rewarmup_after")) {
    state.rewarmup_after = index.get<Index>("/state", "rewarmup_after");
    check_range(step_dir, "step of the re-warm-up", state.rewarmup_after, 0, state.step);
  }
  constexpr Index max_count = Index{1} << 53;
  check_range(step_dir, "step", state.step, checkpoint.manifest.step, checkpoint.manifest.step);
  check_range(step_dir, "step", state.step, 0, max_count);
  check_range(step_dir, "tokens", state.tokens, 0, max_count);
  check_range(step_dir, "samples", state.samples, 0, max_count);
  check_range(step_dir, "vocabulary", state.vocab, 0, std::numeric_limits<std::int32_t>::max());
  state.experts = read_history(index, step_dir);
  if (index.has("/router/bias"))
    state.router_bias = read_all<float>(index, "/router/bias", {state.experts.layers, state.experts.experts});
  if (!all_finite(state.router_bias))
    bad_input("/router/bias of {} is not finite: use another checkpoint", step_dir.string());
  read_norm_averages(index, step_dir, state);
  return state;
}

}  // namespace sy
