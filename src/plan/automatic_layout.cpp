#include "src/plan/automatic_layout.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <utility>
#include <vector>

#include "dist/runtime.h"
#include "src/config/layout.h"
#include "src/io/checkpoint.h"
#include "src/io/manifest.h"
#include "src/plan/plan.h"
#include "src/text/numbers.h"
#include "src/train/memory.h"

namespace sy {
namespace {

// A setting with which results depend on the layout, and the sizes that must stay.
struct LayoutDependence {
  const char* setting;
  bool of_experts;  // only models with experts depend on it
  bool (*is_set)(const Config::Model&, const Config::Moe&);
  bool keeps_product;  // true: dp * train.micro_batch; false: train.micro_batch and parallel.tp
};
constexpr LayoutDependence dependences[] = {
    {"model.norm = batchnorm", false,
     [](const Config::Model& m, const Config::Moe&) { return m.norm == NormKind::batchnorm; }, true},
    {"moe.capacity_scope = rank", true,
     [](const Config::Model&, const Config::Moe& e) {
       return e.capacity_factor > 0 && e.capacity_scope == CapacityScope::rank;
     },
     false},
    {"moe.aux_scope = micro_batch", true,
     [](const Config::Model&, const Config::Moe& e) { return e.aux_loss > 0 && e.aux_scope == AuxScope::micro_batch; },
     false},
    {"moe.aux_scope = global_batch", true,
     [](const Config::Model&, const Config::Moe& e) { return e.aux_loss > 0 && e.aux_scope == AuxScope::global_batch; },
     true},
};

std::vector<const LayoutDependence*> dependences_of(const Config& config) {
  std::vector<const LayoutDependence*> found;
  for (const LayoutDependence& d : dependences) {
    const auto depends = [&](const Config::Model& model, const Config::Moe& moe) {
      return (!d.of_experts || moe.experts > 0) && d.is_set(model, moe);
    };
    bool is_set = config.stacks.empty() && depends(config.model, config.moe);
    for (const Config::Kind& stack : config.stacks) is_set |= depends(stack.model, stack.moe);
    if (is_set) found.push_back(&d);
  }
  return found;
}

// Returns the micro-batch with these sizes of dp and tp; 0 if each one would change results.
Index micro_batch_for(const Config& config, Index dp, Index tp, const std::optional<EarlierLayout>& earlier) {
  if (!earlier) return config.train.micro_batch;
  const Index product = earlier->dp * earlier->micro_batch;
  std::vector<Index> sizes;
  for (Index size = std::max<Index>(1, product / dp); size >= 1; --size) sizes.push_back(size);
  sizes.push_back(earlier->micro_batch);
  const auto keeps_results = [&](Index size) {
    return std::ranges::all_of(dependences_of(config), [&](const LayoutDependence* d) {
      return d->keeps_product ? dp * size == product : size == earlier->micro_batch && tp == earlier->parallel.tp;
    });
  };
  const auto divides = [&](Index size) {
    return config.train.global_batch % (dp * size) == 0 &&
           std::ranges::all_of(config.train.batch_ramp.changes,
                               [&](const BatchRamp::Change& change) { return change.batch % (dp * size) == 0; });
  };
  for (const Index size : sizes)
    if (divides(size) && keeps_results(size)) return size;
  return 0;
}

// Returns the configuration with this layout.
Config with_layout(Config config, const Layout& layout) {
  for (const LayoutAxis& axis : layout_axes) config.parallel.*axis.configured = layout.*axis.size;
  return config;
}

// Returns the layouts with this tp that keep the keys that are not `auto`.
std::vector<Layout> layouts_with(const Config& config, Index vocab, int ranks, int tp, int ranks_per_node) {
  const Index node = config.parallel.ranks_per_node;
  std::vector<Layout> layouts;
  for (Layout layout : layouts_of(config, ranks, node == 0 ? ranks_per_node : 1)) {
    if (node > 0) layout.ranks_per_node = static_cast<int>(node);
    const bool keeps_keys = std::ranges::all_of(layout_axes, [&](const LayoutAxis& axis) {
      return config.parallel.*axis.configured == 0 || config.parallel.*axis.configured == layout.*axis.size;
    });
    if (layout.tp == tp && (vocab == 0 || vocab >= tp) && keeps_keys && layout_problem(config, layout).empty())
      layouts.push_back(layout);
  }
  return layouts;
}

// Returns the configuration with the layout and the micro-batch of the checkpoint. Empty if that
// layout has another number of ranks, or does not fit the keys or the machines.
std::optional<Config> with_earlier_layout(const Config& config, int ranks, int ranks_per_node,
                                          const std::optional<EarlierLayout>& earlier) {
  if (!earlier || earlier->dp * earlier->parallel.tp != ranks) return std::nullopt;
  const Index node = earlier->parallel.ranks_per_node;
  if (config.parallel.ranks_per_node == 0 && node > 1 && node != ranks_per_node) return std::nullopt;
  Config same = config;
  same.train.micro_batch = earlier->micro_batch;
  for (const LayoutAxis& axis : layout_axes) {
    Index& size = same.parallel.*axis.configured;
    if (size == 0) size = earlier->parallel.*axis.configured;
    if (size != earlier->parallel.*axis.configured) return std::nullopt;
  }
  if (!layout_problem(same, same.layout(ranks)).empty()) return std::nullopt;
  return same;
}

[[noreturn]] void refuse(const Config& config, int ranks, const std::optional<EarlierLayout>& earlier) {
  if (earlier)
    for (const LayoutDependence* d : dependences_of(config)) {
      const std::string sizes =
          d->keeps_product
              ? fmt::format("dp * train.micro_batch = {} * {}", earlier->dp, earlier->micro_batch)
              : fmt::format("train.micro_batch = {} and parallel.tp = {}", earlier->micro_batch, earlier->parallel.tp);
      bad_input(
          "{} makes results depend on {} of {}, and no layout of {} keeps them: resume on another number of ranks",
          d->setting, sizes, earlier->checkpoint, counted(ranks, "rank"));
    }
  check_config_for_layout(config, config.layout(ranks));
  bad_input("no layout of {} fits the keys of [parallel] that are not auto: set more of them to auto",
            counted(ranks, "rank"));
}

struct SizedConfig {
  Config config;
  bool keeps_product;
  double seconds;
};

}  // namespace

bool has_automatic_layout(const Config& config) {
  return std::ranges::any_of(layout_axes,
                             [&](const LayoutAxis& axis) { return config.parallel.*axis.configured == 0; });
}

Config choose_layout(const Config& config, Index vocab, int ranks, const Machine& machine, int ranks_per_node,
                     const std::optional<EarlierLayout>& earlier,
                     const std::function<void(const Config&)>& check_fits) {
  if (const std::optional<Config> same = with_earlier_layout(config, ranks, ranks_per_node, earlier)) try {
      check_fits(*same);
      return *same;
    } catch (const InputError&) {  // another layout may fit
    }
  std::vector<SizedConfig> choices;
  bool any_layout = false;
  for (int tp = 1; tp <= ranks; ++tp) {
    if (ranks % tp != 0) continue;
    const Index dp = ranks / tp;
    Config sized = config;
    sized.train.micro_batch = micro_batch_for(config, dp, tp, earlier);
    if (sized.train.micro_batch == 0) continue;
    const PlanOptions options{
        .machine = machine, .load = {}, .layouts = layouts_with(sized, vocab, ranks, tp, ranks_per_node)};
    if (options.layouts.empty()) continue;
    any_layout = true;
    const bool keeps = !earlier || dp * sized.train.micro_batch == earlier->dp * earlier->micro_batch;
    for (const Candidate& c : make_plan(sized, vocab, ranks, options).fitting)
      choices.push_back({with_layout(sized, c.layout), keeps, c.time->total()});
  }
  if (!any_layout) refuse(config, ranks, earlier);
  std::ranges::stable_sort(choices, [](const SizedConfig& a, const SizedConfig& b) {
    return std::pair(!a.keeps_product, a.seconds) < std::pair(!b.keeps_product, b.seconds);
  });
  std::string problem = fmt::format(
      "no layout of {} fits the memory of the machine {}: `switchyard plan` names settings "
      "that do",
      counted(ranks, "rank"), machine.name);
  for (const SizedConfig& choice : choices) try {
      check_fits(choice.config);
      return choice.config;
    } catch (const InputError& e) {
      problem = e.what();
    }
  bad_input("{}", problem);
}

std::optional<EarlierLayout> earlier_layout(const Config& config) {
  if (!config.run.resume || config.run.dir.empty()) return std::nullopt;
  const std::filesystem::path checkpoints = checkpoints_of(config.run.dir);
  std::vector<Index> steps = steps_in(checkpoints);
  std::ranges::sort(steps, std::greater());
  if (config.run.resume_step >= 0) steps = {config.run.resume_step};
  for (const Index step : steps) try {
      const std::filesystem::path path = checkpoints / step_name(step);
      const TrainState state = read_state(path);
      int dp = 0;
      if (std::sscanf(state.layout.c_str(), "dp %d", &dp) != 1 || dp <= 0) continue;
      const Config before = parse_config(state.config, path.string());
      return EarlierLayout{path.string(), dp, before.train.micro_batch, before.parallel};
    } catch (const std::exception&) {  // damaged: an older checkpoint has the same batch
    }
  return std::nullopt;
}

Machine typical_machine(const std::string& backend, int ranks_per_node) {
  Machine m;
  m.name = fmt::format("typical {}", backend);
  m.backend = backend;
  m.ranks_per_node = ranks_per_node;
  const bool cuda = backend == "cuda";
  // A GPU of 2022 with NVLink and InfiniBand; a core of 2022 with shared memory and Ethernet.
  m.peak_bf16 = cuda ? 900e12 : 50e9;
  m.peak_f32 = cuda ? 60e12 : 50e9;
  m.memory_bandwidth = cuda ? 3e12 : 5e9;
  m.overhead = cuda ? 4e-6 : 1e-6;
  m.products.points = m.grouped_products.points = {{16, 0.05}, {128, 0.3}, {1024, 0.7}};
  m.attention_forward.points = m.attention_backward.points = {{32, 0.15}, {128, 0.25}};
  m.node_latency = 2e-6;
  m.node_bandwidth = cuda ? 360e9 : 4e9;
  m.latency = cuda ? 5e-6 : 2e-5;
  m.bandwidth = cuda ? 45e9 : 1e9;
  return m;
}

Config resolve_automatic_layout(Comm& world, const Config& config, Index vocab, int ranks,
                                const std::optional<Machine>& machine) {
  std::unique_ptr<Device> device;
  int sharing = 1;
  if (!machine) {
    const int local = local_rank(world);
    agree_on_errors(world, [&] { device = open_device("run.backend", config.run.backend, local); });
    sharing = agree_on_devices(world, *device);
  }
  int per_node = static_cast<int>(world.max(ranks_sharing(world, "host")));
  // Ranks that a dry run only imagines share a machine, unless a key says otherwise.
  if (ranks > world.size())
    per_node = config.parallel.ranks_per_node > 1 ? static_cast<int>(config.parallel.ranks_per_node) : ranks;
  Config chosen = config;
  agree_on_errors(world, [&] {
    if (world.rank() != 0) return;
    const auto check_fits = [&](const Config& c) {
      if (device) arena_sizes(c, vocab, c.layout(ranks), 0, *device, sharing, false);
    };
    const Machine& used = machine ? *machine : typical_machine(std::string(device->name()), per_node);
    chosen = choose_layout(config, vocab, ranks, used, machine ? machine->node() : per_node, earlier_layout(config),
                           check_fits);
  });
  const auto from_rank_0 = [&](Index& value) { value = world.max(world.rank() == 0 ? value : 0); };
  for (const LayoutAxis& axis : layout_axes) from_rank_0(chosen.parallel.*axis.configured);
  from_rank_0(chosen.train.micro_batch);
  return chosen;
}

}  // namespace sy
