#include <algorithm>
#include <cmath>
#include <map>

#include "dist/runtime.h"
#include "src/io/checkpoint.h"
#include "src/io/checkpoint_parts.h"
#include "src/io/hdf5.h"
#include "src/io/manifest.h"

namespace sy {

namespace fs = std::filesystem;

namespace {

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

// Throws unless the checkpoint has exactly the parameters of the store.
void compare_specs(const Hdf5File& file, const fs::path& step_dir, const std::vector<ParamSpec>& specs) {
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
  if (differences.empty()) return;
  constexpr std::size_t shown = 5;
  std::string rest;
  if (differences.size() > shown) {
    rest = fmt::format("; and {} more", differences.size() - shown);
    differences.resize(shown);
  }
  bad_input("{} is of another model: {}{}: use the model section of its config.ini", step_dir.string(),
            fmt::join(differences, "; "), rest);
}

[[noreturn]] void holds_nan(const fs::path& step_dir, const std::string& name, const Hdf5Dataset& dataset) {
  for (const std::string& file : dataset.sources()) {
    std::error_code error;
    if (!fs::exists(step_dir / file, error))
      bad_input("{} of {} holds NaN, since {} is missing: use another checkpoint", name, step_dir.string(), file);
  }
  bad_input("{} of {} holds NaN: the training had diverged: use an older checkpoint", name, step_dir.string());
}

}  // namespace

Hdf5File open_index(const fs::path& step_dir) {
  const auto problems = file_problems(step_dir, read_manifest(step_dir), CheckFiles::sizes);
  if (!problems.empty()) bad_input("{}: use another checkpoint", fmt::join(problems, "; "));
  return Hdf5File::open(step_dir / index_name);
}

fs::path resolve_checkpoint(Comm& world, const fs::path& step_or_run, std::vector<std::string>* warnings) {
  std::string found;
  agree(world, [&] {
    if (world.rank() == 0) found = resolve_checkpoint(step_or_run, warnings).string();
  });
  found.resize(static_cast<std::size_t>(world.max(static_cast<Index>(found.size()))));
  world.broadcast(view_of(reinterpret_cast<std::uint8_t*>(found.data()), {static_cast<Index>(found.size())}), 0);
  return found;
}

TrainState read_state(const fs::path& step_dir) {
  const Hdf5File file = open_index(step_dir);
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
  h.steps = read_all<std::int64_t>(file, "/experts/steps", file.open_dataset("/experts/steps").shape());
  const Shape counts{h.windows(), h.layers, h.experts};
  h.routed = read_all<std::int64_t>(file, "/experts/routed", counts);
  h.dropped = read_all<std::int64_t>(file, "/experts/dropped", counts);
  h.probability = read_all<float>(file, "/experts/probability", counts);
  h.layer_ids = read_all<std::int64_t>(file, "/experts/layers", {h.layers});
  if (file.has("/router/bias")) state.router_bias = read_all<float>(file, "/router/bias", {h.layers, h.experts});
  return state;
}

void load_checkpoint(const fs::path& step_dir, ParamStore& store) {
  const Hdf5File file = open_index(step_dir);
  compare_specs(file, step_dir, store.specs());
  std::vector<float> host;
  // Reads run `local` of the placement's box, and hands it on in pieces.
  const auto load = [&](const Hdf5Dataset& dataset, const std::string& name, const Placement& placement, Range local,
                        const auto& put) {
    for (Index begin = local.begin; begin < local.end; begin += piece_elements) {
      const Range piece{begin, std::min(local.end, begin + piece_elements)};
      host.resize(static_cast<std::size_t>(piece.size()));
      float* out = host.data();
      for (const Box& box : global_boxes(placement, piece)) {
        dataset.read(box, out);
        out += box.elements();
      }
      if (std::any_of(host.begin(), host.end(), [](float x) { return std::isnan(x); }))
        holds_nan(step_dir, name, dataset);
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
      if (kind.buffer && !buffer) continue;  // a store that does not train has no optimizer state
      for (const OwnedRun& run : kind.buffer ? owned : whole_boxes) {
        const std::string name = kind.prefix + run.placement->spec->name;
        const Hdf5Dataset dataset = file.open_dataset(name);
        if (dataset.shape() != run.placement->spec->shape || dataset.dtype() != DType::f32)
          bad_input("{} of {} is {} of {}, expected {} of f32", name, step_dir.string(), dataset.shape().str(),
                    info(dataset.dtype()).name, run.placement->spec->shape.str());
        load(dataset, name, *run.placement, run.local, [&](Range piece) {
          if (!kind.buffer) return store.set_values(*run.placement, piece.begin, host);
          const Index at = run.flat.begin - group.owned().begin + piece.begin - run.local.begin;
          store.backend().to_device(host.data(), buffer.rows(at, piece.size()));
        });
      }
    }
  }
}

}  // namespace sy
