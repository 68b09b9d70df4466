#include <algorithm>
#include <limits>
#include <map>

#include "src/io/checkpoint.h"
#include "src/io/checkpoint_parts.h"
#include "src/io/hdf5.h"
#include "src/io/manifest.h"

namespace sy {

namespace fs = std::filesystem;

namespace {

// Throws unless it is from `low` to `high`: what is counted and computed with it relies on that.
void check_range(const fs::path& step_dir, const char* what, Index value, Index low, Index high) {
  if (value < low || value > high)
    bad_input("{} has {} = {}, which cannot be: use another checkpoint", step_dir.string(), what, value);
}

template <class T>
std::vector<T> read_all(const Hdf5File& file, const std::string& name, const Shape& expected) {
  const Hdf5Dataset dataset = file.open_dataset(name);
  if (dataset.shape() != expected || dataset.dtype() != DTypeOf<T>::value)
    bad_input("the checkpoint's {} is {} of {}, expected {} of {}", name, dataset.shape().str(),
              info(dataset.dtype()).name, expected.str(), info(DTypeOf<T>::value).name);
  std::vector<T> values(static_cast<std::size_t>(expected.elements()));
  dataset.read(whole(expected), values.data());
  return values;
}

// Throws unless the checkpoint has exactly these parameters.
void compare_specs(const CheckpointReader& checkpoint, const fs::path& step_dir, const std::vector<ParamSpec>& specs) {
  const Hdf5File& file = checkpoint.index();
  const std::string prefix = tensor_kinds[0].prefix;
  std::map<std::string, Shape> theirs;
  for (const std::string& name : file.datasets("/params"))
    theirs[name.substr(prefix.size())] = file.open_dataset(name).shape();
  std::vector<std::string> differences;
  for (const ParamSpec& spec : specs) {
    const auto it = theirs.find(spec.name);
    if (it == theirs.end()) {
      differences.push_back("it lacks " + spec.name + " " + spec.shape.str());
      continue;
    }
    if (it->second != spec.shape)
      differences.push_back(
          fmt::format("it has {} {}, this model has {}", spec.name, it->second.str(), spec.shape.str()));
    theirs.erase(it);
  }
  for (const auto& [name, shape] : theirs)
    differences.push_back(fmt::format("it has {} {}, this model has none", name, shape.str()));
  if (differences.empty()) {
    // What they claim to hold is there, before memory is taken for it.
    Index bytes = 0;
    for (const Manifest::File& part : checkpoint.manifest().files) bytes += part.bytes;
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
  state.layout = file.get_string("/state", "layout");
  ExpertHistory& h = state.experts;
  h.layers = file.get_int("/experts", "layers");
  h.experts = file.get_int("/experts", "experts");
  constexpr Index most = Index{1} << 53;
  check_range(step_dir, "step", state.step, checkpoint.manifest().step, checkpoint.manifest().step);
  check_range(step_dir, "step", state.step, 0, most);
  check_range(step_dir, "tokens", state.tokens, 0, most);
  check_range(step_dir, "samples", state.samples, 0, most);
  check_range(step_dir, "vocabulary", state.vocab, 0, std::numeric_limits<std::int32_t>::max());
  check_range(step_dir, "MoE layers", h.layers, 0, 1 << 16);
  check_range(step_dir, "experts", h.experts, 0, 1 << 20);
  h.steps = read_all<std::int64_t>(file, "/experts/steps", file.open_dataset("/experts/steps").shape());
  const Shape counts{h.windows(), h.layers, h.experts};
  h.routed = read_all<std::int64_t>(file, "/experts/routed", counts);
  h.dropped = read_all<std::int64_t>(file, "/experts/dropped", counts);
  h.probability = read_all<float>(file, "/experts/probability", counts);
  h.layer_ids = read_all<std::int64_t>(file, "/experts/layers", {h.layers});
  for (Index window = 0; window < h.windows(); ++window)
    check_range(step_dir, "a window up to step", h.steps[window], window > 0 ? h.steps[window - 1] + 1 : 0, most);
  for (Index n : h.routed) check_range(step_dir, "assignments", n, 0, most);
  for (Index n : h.dropped) check_range(step_dir, "dropped assignments", n, 0, most);
  for (Index layer : h.layer_ids) check_range(step_dir, "a MoE layer", layer, 0, most);
  if (file.has("/router/bias")) state.router_bias = read_all<float>(file, "/router/bias", {h.layers, h.experts});
  if (!all_finite(state.router_bias))
    bad_input("/router/bias of {} is not finite: use another checkpoint", step_dir.string());
  return state;
}

void check_parameters(const fs::path& step_dir, const std::vector<ParamSpec>& specs) {
  compare_specs(CheckpointReader(step_dir), step_dir, specs);
}

void load_checkpoint(const fs::path& step_dir, ParamStore& store, Load what) {
  CheckpointReader checkpoint(step_dir);
  compare_specs(checkpoint, step_dir, store.specs());
  std::vector<float> host;
  // Reads run `local` of the placement's box, and hands it on in pieces.
  const auto load = [&](const Hdf5Dataset& dataset, const Placement& placement, Range local, const auto& put) {
    for (Index begin = local.begin; begin < local.end; begin += piece_elements) {
      const Range piece{begin, std::min(local.end, begin + piece_elements)};
      host.resize(static_cast<std::size_t>(piece.size()));
      float* out = host.data();
      for (const Box& box : global_boxes(placement, piece)) {
        checkpoint.read(dataset, box, out);
        out += box.elements();
      }
      if (!all_finite(host))
        bad_input("{} of {} holds values that are not finite: the training had diverged: use an older checkpoint",
                  dataset.name(), step_dir.string());
      put(piece);
    }
  };
  for (int g = 0; g < num_grad_groups; ++g) {
    const GroupLayout& group = store.layout().groups[g];
    std::vector<OwnedRun> whole_boxes;
    for (const Placement& p : group.placements) whole_boxes.push_back({&p, {0, p.box.elements()}, p.range()});
    const std::vector<OwnedRun> owned = owned_runs(group);
    for (const TensorKind& kind : tensor_kinds) {
      const View buffer = kind.buffer ? (store.buffers(static_cast<GradGroup>(g)).*kind.buffer).view() : View{};
      if (kind.buffer && (!buffer || what == Load::weights))
        continue;  // nothing is trained, or the weights alone are asked for
      for (const OwnedRun& run : kind.buffer ? owned : whole_boxes) {
        const std::string name = kind.prefix + run.placement->spec->name;
        const Hdf5Dataset dataset = checkpoint.index().open_dataset(name);
        if (dataset.shape() != run.placement->spec->shape || dataset.dtype() != DType::f32)
          bad_input("{} of {} is {} of {}, expected {} of f32", name, step_dir.string(), dataset.shape().str(),
                    info(dataset.dtype()).name, run.placement->spec->shape.str());
        load(dataset, *run.placement, run.local, [&](Range piece) {
          if (!kind.buffer) return store.set_values(*run.placement, piece.begin, host);
          const Index at = run.flat.begin - group.owned().begin + piece.begin - run.local.begin;
          store.backend().to_device(host.data(), buffer.rows(at, piece.size()));
        });
      }
    }
  }
}

}  // namespace sy
