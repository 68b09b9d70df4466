// Every optimizer on every layout of the launched number of ranks. Gradients are random numbers.
// The weights are compared with one process in double precision, also after a resume on another
// layout.
#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <optional>

#include "kernels/bf16.h"
#include "src/config/layout.h"
#include "src/io/checkpoint.h"
#include "src/numerics/reference/all.h"
#include "src/params/values.h"
#include "src/train/distributed_optimizer.h"
#include "tests/mpi_world.h"
#include "tests/src/box_index.h"
#include "tests/src/temp_folder.h"

namespace sy {
namespace {

using reference::Numbers;

// The direction of Muon for one matrix x: [rows, columns].
Numbers muon_direction(Index rows, Index columns, Numbers x) {
  const Index n = std::min(rows, columns);
  const bool tall = rows > columns;
  const double norm = std::sqrt(reference::dot(x, x));
  for (double& value : x) value /= norm + 1e-7;
  for (int k = 0; k < 5; ++k) {
    const Numbers square = reference::gemm({tall, !tall}, n, n, std::max(rows, columns), x, x);
    Numbers polynomial = reference::gemm({}, n, n, n, square, square);
    for (std::size_t i = 0; i < square.size(); ++i) polynomial[i] = -4.7750 * square[i] + 2.0315 * polynomial[i];
    const Numbers product = tall ? reference::gemm({}, rows, columns, n, x, polynomial)
                                 : reference::gemm({}, rows, columns, n, polynomial, x);
    for (std::size_t i = 0; i < x.size(); ++i) x[i] = 3.4445 * x[i] + product[i];
  }
  const double scale = 0.2 * std::sqrt(static_cast<double>(std::max(rows, columns)));
  for (double& value : x) value *= scale;
  return x;
}
using test::world;

constexpr Index optimizer_vocab = 24, optimizer_steps = 5;
constexpr double optimizer_lr = 0.01;

// Fused kv heads of odd sizes, which ranges cut anywhere, experts, and matrices of every kind.
// Layouts of 3 and 6 ranks divide it, too.
Config optimizer_config(const std::string& optimizer, const std::vector<std::string>& settings) {
  std::vector<std::string> overrides = {"--train.optimizer=" + optimizer};
  overrides.insert(overrides.end(), settings.begin(), settings.end());
  return parse_config(R"(
[model]
layers = 2
d_model = 24
heads = 24
kv_heads = 2
head_dim = 2
d_ff = 48
seq_len = 24
bias = true
[moe]
experts = 24
first_dense = 1
top_k = 2
d_ff = 24
shared_experts = 1
shared_gate = true
[train]
global_batch = 24
micro_batch = 1
clip = 3
weight_decay = 0.1
momentum = 0.8
muon_momentum = 0.7
)",
                      "test", overrides);
}

// Gradient of element i of a parameter.
double drawn_gradient(const ParamSpec& spec, Index step, Index i) {
  return static_cast<float>(RandomStream(static_cast<std::uint64_t>(step), spec.name).normal(i) * 0.1);
}

// Trains whole parameters in double precision.
std::map<std::string, Numbers> trained_weights(const Config& config, const std::vector<ParamSpec>& specs) {
  const Config::Train& t = config.train;
  std::map<std::string, Numbers> weights, first, second;
  InitialValues initial(1);
  for (const ParamSpec& spec : specs) {
    std::vector<float> values(static_cast<std::size_t>(spec.shape.elements()));
    initial.read(spec, full_box(spec.shape), values);
    weights[spec.name] = Numbers(values.begin(), values.end());
    first[spec.name] = second[spec.name] = Numbers(values.size(), 0.0);
  }
  // The state of the rule as memory holds it.
  const auto round = [&](Numbers& state) {
    if (config.moment_dtype() == DType::f32) return;
    for (double& x : state) x = float_of_bf16(bf16_of_float(static_cast<float>(x)));
  };
  for (Index step = 1; step <= optimizer_steps; ++step) {
    std::map<std::string, Numbers> gradients;
    double squares = 0;
    for (const ParamSpec& spec : specs) {
      Numbers& g = gradients[spec.name];
      for (Index i = 0; i < spec.shape.elements(); ++i) g.push_back(drawn_gradient(spec, step, i));
      squares += reference::dot(g, g);
    }
    const double coefficient = std::min(1.0, t.clip / std::sqrt(squares));
    for (const ParamSpec& spec : specs) {
      Numbers &w = weights[spec.name], &m = first[spec.name], &g = gradients[spec.name];
      const double decay = spec.decays ? t.weight_decay : 0;
      if (update_rule(spec.optimizer).name == "adamw") {
        ops::AdamW desc{};
        desc.beta1 = static_cast<float>(t.beta1);
        desc.beta2 = static_cast<float>(t.beta2);
        desc.eps = static_cast<float>(t.eps);
        desc.weight_decay = static_cast<float>(decay);
        const auto s = static_cast<double>(step);
        reference::adamw(desc, coefficient, {optimizer_lr, 1 - std::pow(t.beta1, s), 1 - std::pow(t.beta2, s)}, g, w, m,
                         second[spec.name]);
        round(m);
        round(second[spec.name]);
        continue;
      }
      const bool muon = update_rule(spec.optimizer).name == "muon";
      Numbers direction = reference::momentum_update(muon ? t.muon_momentum : t.momentum, coefficient, g, m);
      if (!muon) direction = m;
      round(m);
      if (muon) {
        const int stack_dims = spec.matrix->stack_dims, row_dims = spec.matrix->row_dims;
        Index matrices = 1, rows = 1, columns = 1;
        for (int d = 0; d < spec.shape.size(); ++d)
          (d < stack_dims ? matrices : d < stack_dims + row_dims ? rows : columns) *= spec.shape[d];
        for (Index k = 0; k < matrices; ++k) {
          const auto begin = direction.begin() + k * rows * columns;
          const Numbers update = muon_direction(rows, columns, {begin, begin + rows * columns});
          std::copy(update.begin(), update.end(), begin);
        }
      }
      reference::apply_update(optimizer_lr, decay, direction, w);
    }
  }
  return weights;
}

// Parameters and optimizer of this rank.
struct OptimizerRank {
  Config config;
  std::unique_ptr<Device> device = make_device(test::tested_device.backend);
  Mesh mesh;
  std::optional<ParamStore> store;
  std::optional<DistributedOptimizer> optimizer;

  OptimizerRank(const Config& c, const Layout& layout)
      : config(c), mesh(on_device(make_mesh(world(), layout), *device)) {
    join_kv_replicas(mesh, config.model.kv_heads);
    store.emplace(*device, param_specs(config, optimizer_vocab), layout, mesh.coord, true);
    store->initialize(1);
    optimizer.emplace(mesh, *store);
  }

  // Returns true if a lower rank of tp holds the same kv heads.
  bool is_replica(const ParamSpec& spec) const {
    for (int d = 0; d < spec.shape.size(); ++d)
      if (spec.split[d] == Axis::tp && num_replicas(spec.shape[d], mesh.layout.tp) > 1)
        return mesh.kv_replicas->rank() > 0;
    return false;
  }

  // The first rank that holds an element has its whole gradient; the others have zeros.
  void step(Index number) {
    store->finish_gradients();
    for (const GroupLayout& group : store->layout().groups)
      for (const ParamSlice& slice : group.slices) {
        std::vector<float> g(static_cast<std::size_t>(slice.box.elements()));
        if (group.shard == 0 && !is_replica(*slice.spec))
          for (Index i = 0; i < std::ssize(g); ++i)
            g[i] = static_cast<float>(
                drawn_gradient(*slice.spec, number, test::whole_index(slice.spec->shape, slice.box, i)));
        device->to_device(g.data(), store->get(slice.spec->name).grad);
      }
    optimizer->step(config.train, optimizer_lr, number);
    store->finish_all_gather();
  }

  // The largest difference from the expected weights, relative to the largest weight of the
  // parameter.
  std::pair<double, std::string> farthest(const std::map<std::string, Numbers>& expected) const {
    std::pair<double, std::string> worst;
    for (const GroupLayout& group : store->layout().groups)
      for (const ParamSlice& slice : group.slices) {
        const Numbers& want = expected.at(slice.spec->name);
        double largest = 0, difference = 0;
        for (double w : want) largest = std::max(largest, std::abs(w));
        std::vector<float> got(static_cast<std::size_t>(slice.box.elements()));
        device->to_host(store->get(slice.spec->name).weight, got.data());
        for (Index i = 0; i < std::ssize(got); ++i)
          difference =
              std::max(difference, std::abs(got[i] - want[test::whole_index(slice.spec->shape, slice.box, i)]));
        worst = std::max(worst, {difference / largest, slice.spec->name});
      }
    return worst;
  }
};

struct OptimizerCase {
  const char *name, *optimizer;
  std::vector<std::string> settings = {};
};
struct OptimizerLayouts : testing::TestWithParam<OptimizerCase> {};

TEST_P(OptimizerLayouts, MatchOneProcessAndResumeOnAnother) {
  const Config config = optimizer_config(GetParam().optimizer, GetParam().settings);
  const std::vector<ParamSpec> specs = param_specs(config, optimizer_vocab);
  const std::map<std::string, Numbers> expected = trained_weights(config, specs);
  const std::vector<Layout> layouts = layouts_of(config, world().size());
  double worst = 0;
  for (std::size_t l = 0; l < layouts.size(); ++l) {
    char run[256] = {};
    std::optional<TempFolder> owner;
    if (world().rank() == 0) owner.emplace().path().string().copy(run, sizeof run - 1);
    world().broadcast(view_of(reinterpret_cast<std::uint8_t*>(run), {sizeof run}), 0);
    const auto check = [&](const OptimizerRank& rank, const std::string& where) {
      const auto [far, name] = rank.farthest(expected);
      ASSERT_LE(far, config.moment_dtype() == DType::f32 ? 1e-6 : 2e-4) << where << ": " << name;
      worst = std::max(worst, far);
    };
    OptimizerRank first(config, layouts[l]);
    for (Index step = 1; step <= optimizer_steps; ++step) {
      first.step(step);
      if (step != 3) continue;
      TrainState state;
      state.step = step;
      state.config = to_ini(config);
      save_checkpoint(world(), run, state, *first.store, {});
    }
    check(first, layouts[l].str());

    const Layout& other = layouts[(l + 1) % layouts.size()];
    OptimizerRank second(config, other);
    load_checkpoint(resolve_checkpoint(world(), run, nullptr), *second.store);
    for (Index step = 4; step <= optimizer_steps; ++step) second.step(step);
    check(second, layouts[l].str() + ", then " + other.str());
    world().barrier();
  }
  if (world().rank() == 0) fmt::print("{} layouts, weights within {:.1e} of the largest one\n", layouts.size(), worst);
}

const OptimizerCase optimizer_cases[] = {
    {"adamw", "adamw"},
    {"sgd", "sgd"},
    {"muon", "muon"},
    {"sgd_bf16", "sgd", {"--train.moment_dtype=bf16"}},
    {"adamw_bf16", "adamw", {"--train.moment_dtype=bf16"}},
    {"muon_bf16", "muon", {"--train.moment_dtype=bf16"}},
    {"muon_latent",
     "muon",
     {"--model.kv_heads=0", "--model.bias=mlp", "--model.kv_lora_rank=10", "--model.q_lora_rank=7",
      "--model.qk_rope_head_dim=2", "--model.v_head_dim=3"}},
};
INSTANTIATE_TEST_SUITE_P(Cases, OptimizerLayouts, testing::ValuesIn(optimizer_cases),
                         [](const auto& test) { return std::string(test.param.name); });

}  // namespace
}  // namespace sy
