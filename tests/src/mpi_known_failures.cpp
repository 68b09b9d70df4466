// Known failures of other trainers (docs/reliability/known-failures.md). Every layout of up to the
// launched number of ranks is compared with one rank. The gradient of every parameter is compared,
// and a run that is resumed on another layout.
#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <optional>

#include "src/config/layout.h"
#include "src/io/checkpoint.h"
#include "src/train/trainer.h"
#include "tests/mpi_world.h"
#include "tests/src/box_index.h"
#include "tests/src/two_domains.h"

namespace sy {
namespace {

using test::world;

// A model that all layouts of `ranks` ranks divide. Heads and experts are a multiple of the ranks.
// One layer is dense and two are MoE layers. A step has two micro-batches.
Config known_failure_config(int ranks, std::vector<std::string> settings) {
  constexpr int heads[] = {0, 4, 4, 6, 4, 5, 6, 7, 8};
  const int h = heads[ranks];
  for (const auto& [key, value] : {std::pair{"model.d_model", 4 * h},
                                   {"model.heads", h},
                                   {"model.kv_heads", h % 4 == 0 ? 2 : h},
                                   {"model.d_ff", 3 * h},
                                   {"model.seq_len", 2 * h},
                                   {"moe.experts", h},
                                   {"moe.d_ff", 2 * h},
                                   {"train.global_batch", 2 * ranks},
                                   {"train.micro_batch", ranks}})
    settings.insert(settings.begin(), fmt::format("--{}={}", key, value));
  return parse_config(R"(
[model]
layers = 3
[moe]
top_k = 2
first_dense = 1
shared_experts = 1
aux_loss = 0.05
z_loss = 0.01
[train]
z_loss = 0.001
schedule = constant
min_lr = 0
warmup = 0
weight_decay = 0
)",
                      "test", settings);
}

struct KnownFailure {
  const char* name;
  std::vector<std::string> settings;
  bool idle = false;  // a selection bias sends every token to the first two experts
};

// The gradient is scaled to this norm, so that each element shows the norm, too.
constexpr double clip = 1e-4;
// With eps = 1, AdamW's first step moves a weight by lr * g / (|g| + 1): lr * g for gradients as
// small as these. The large rate moves weights by much more than their size. The rounding of the
// sum is then at most that of the gradient.
const std::vector<std::string> shows_gradients = {"--train.steps=1", "--train.eps=1", "--train.lr=1e10",
                                                  fmt::format("--train.clip={}", clip)};
const KnownFailure known_failures[] = {
    {"drops_and_balance_of_sequences", {"--moe.capacity_factor=0.7"}},
    {"balance_of_the_global_batch", {"--moe.capacity_factor=0", "--moe.aux_scope=global_batch"}},
    {"experts_without_tokens", {"--moe.capacity_factor=0", "--moe.bias_update_rate=1e-9"}, true},
    // Together with latent_attention, these have every optional parameter of a model.
    {"optional_parameters",
     {"--moe.capacity_factor=0.7",
      "--model.head_dim=12",
      "--model.bias=all",
      "--model.norm=layernorm",
      "--model.norm_position=both",
      "--model.position=learned",
      "--model.embedding_norm=true",
      "--model.output_bias=true",
      "--model.tie_embeddings=true",
      "--model.pattern=head, whole, layernorm",
      "--attention.head.qk_norm=head",
      "--attention.whole.qk_norm=whole",
      "--attention.whole.position=t5",
      "--attention.layernorm.qk_norm=head_layernorm",
      "--model.attention_sinks=true",
      "--attention.layernorm.position=t5",
      "--model.t5_shared=false",
      "--moe.shared_gate=true",
      "--moe.bias=true",
      "--moe.router_bias=true",
      "--moe.choice=noisy",
      "--moe.noise=1",
      "--moe.learned_noise=true"}},
    {"latent_attention",
     {"--moe.capacity_factor=0", "--moe.aux_scope=global_batch", "--model.kv_heads=0", "--model.kv_lora_rank=6",
      "--model.q_lora_rank=5", "--model.qk_rope_head_dim=2", "--model.v_head_dim=3", "--model.pattern=rope, buckets*2",
      "--attention.rope.attention_sinks=true", "--attention.buckets.position=t5"}},
};

std::string known_failure_name(const testing::TestParamInfo<KnownFailure>& info) {
  return info.param.name;
}

using Values = std::map<std::string, std::vector<float>>;  // this rank's slice of each parameter

struct Trainee {
  Engine engine;
  SampleStream samples;
  Trainer trainer;
  Trainee(Comm& comm, const Layout& layout, const Dataset& dataset, const Config& config, bool idle)
      : engine(config, dataset.vocab(), make_cpu(), make_mesh(comm, layout), true),
        samples(dataset, config.model.seq_len, config.train.seed, config.data),
        trainer(engine, samples) {
    engine.store().initialize(config.train.seed);
    const Coord coord = coord_of(layout, comm.rank());
    for (const ParamSpec& spec : engine.store().specs()) {
      const View w = engine.store().get(spec.name).weight;
      const Box box = owned_box(spec.shape, spec.split, layout, coord);
      const RandomStream random(3, spec.name);
      // Initial weights hide errors. Gradients of experts are too small to be missed in the norm.
      // Gradients of the weights of attention scores are a millionth, so that the rounding of
      // others shows in them. Biases of 0 would not show that each rank adds them, instead of one.
      const bool constant = spec.init.kind != InitKind::normal;
      for (Index i = 0; i < w.elements(); ++i) {
        const auto at = static_cast<std::uint64_t>(test::whole_index(spec.shape, box, i, spec.physical_to_logical));
        if (constant)
          w.f32()[i] += 0.1f * static_cast<float>(random.normal(at));
        else
          w.f32()[i] *= 3;
      }
    }
    engine.store().packed_weights().invalidate();
    std::vector<float> bias = engine.router_bias();
    for (std::size_t i = 0; idle && i < bias.size(); ++i)
      bias[i] = static_cast<Index>(i) % config.moe.experts < 2 ? 100.0f : 0.0f;
    engine.set_router_bias(bias);
  }
  Values weights() {
    Values values;
    for (const ParamSpec& spec : engine.store().specs()) {
      const View w = engine.store().get(spec.name).weight;
      values[spec.name].assign(w.f32(), w.f32() + w.elements());
    }
    return values;
  }
};

// Communicator of the first `ranks` ranks of the world; nullptr on the other ranks.
std::unique_ptr<Comm> first_of_world(int ranks) {
  auto shard = world().split([&](int rank) { return rank < ranks ? 0 : 1; });
  return world().rank() < ranks ? std::move(shard) : nullptr;
}

// Largest difference of a parameter's updates between a layout and one rank, relative to the norm
// of the latter. The maximum is over all parameters and ranks. The returned name is this rank's.
std::pair<double, std::string> farthest(Comm& comm, const Config& config, const Layout& layout, const Values& before,
                                        const Values& one, const Values& many) {
  std::pair<double, std::string> most{0, ""};
  for (const ParamSpec& spec : param_specs(config, 37)) {
    const Box box = owned_box(spec.shape, spec.split, layout, coord_of(layout, comm.rank()));
    const std::vector<float>&start = before.at(spec.name), &whole = one.at(spec.name), &shard = many.at(spec.name);
    EXPECT_EQ(static_cast<Index>(shard.size()), box.elements()) << spec.name;
    double norm = 0, difference = 0;
    for (std::size_t i = 0; i < whole.size(); ++i) norm += std::pow(static_cast<double>(whole[i]) - start[i], 2);
    for (Index i = 0; i < box.elements(); ++i) {
      const Index w = test::whole_index(spec.shape, box, i, spec.physical_to_logical);
      difference += std::pow(static_cast<double>(shard[i]) - whole[w], 2);
    }
    EXPECT_GT(norm, 0) << spec.name;
    const double far = std::sqrt(comm.sum(difference) / norm);
    if (!(far <= most.first)) most = {far, spec.name};
  }
  return most;
}

// Norm of the update of all parameters.
double moved(const Values& before, const Values& after) {
  double squares = 0;
  for (const auto& [name, values] : after)
    for (std::size_t i = 0; i < values.size(); ++i)
      squares += std::pow(static_cast<double>(values[i]) - before.at(name)[i], 2);
  return std::sqrt(squares);
}

// Every layout of `ranks` ranks, also with nodes of several ranks if experts then lie on several
// nodes.
std::vector<Layout> all_layouts(int ranks) {
  std::vector<Layout> layouts;
  for (int i = 0; i < ranks * ranks * ranks * ranks; ++i) {
    const auto number = [&](int by) { return i / by % ranks + 1; };
    const Layout layout{ranks, number(ranks * ranks * ranks), number(ranks * ranks), number(ranks), number(1)};
    if (layout.divides() && (layout.ranks_per_node == 1 || layout.expert_topology().nodes > 1))
      layouts.push_back(layout);
  }
  return layouts;
}

Config on_layout(Config config, const Layout& layout) {
  config.parallel = {layout.tp, layout.ep, layout.etp, layout.ranks_per_node};
  config.train.micro_batch = config.train.global_batch / layout.dp() / 2;
  return config;
}

class KnownFailures : public testing::TestWithParam<KnownFailure> {};

TEST_P(KnownFailures, GradientsEqualOneRankOnEveryLayout) {
  const TempFolder folder;
  const Dataset dataset = test::make_dataset(folder);
  const auto self = make_comm_self();
  auto settings = GetParam().settings;
  settings.insert(settings.end(), shows_gradients.begin(), shows_gradients.end());
  int compared = 0;
  double worst = 0;
  for (int ranks = 1; ranks <= world().size(); ++ranks) {
    const auto comm = first_of_world(ranks);
    if (!comm) continue;
    const Config config = known_failure_config(ranks, settings);
    // The scope of the load-balancing loss must be the same sequences on every layout. If it is one
    // sequence, layouts have micro-batches of one sequence, which tensor-parallel ranks share. One
    // rank has micro-batches of as many sequences as there are ranks.
    const bool one_by_one = config.moe.aux_scope == AuxScope::sequence;
    Trainee alone(*self, {}, dataset, config, GetParam().idle);
    const Values before = alone.weights();
    const StepResult a = alone.trainer.step();
    const Values one = alone.weights();
    ASSERT_GT(a.metrics.grad_norm, 2 * clip);
    ASSERT_NEAR(moved(before, one), config.train.lr * clip, 1e-4 * config.train.lr * clip) << "the norm is not of all";
    ASSERT_EQ(a.metrics.dropped > 0, config.moe.capacity_factor > 0);
    for (const Layout& layout : all_layouts(ranks)) {
      Config here = on_layout(config, layout);
      if (one_by_one) here.train.micro_batch = 1;
      check_config_for_layout(here, layout);
      Trainee many(*comm, layout, dataset, here, GetParam().idle);
      const StepResult b = many.trainer.step();
      ASSERT_EQ(a.routed, b.routed) << layout.str();
      ASSERT_EQ(a.dropped, b.dropped) << layout.str();
      for (const double StepMetrics::*number :
           {&StepMetrics::loss, &StepMetrics::aux_loss, &StepMetrics::z_loss, &StepMetrics::grad_norm})
        ASSERT_NEAR(a.metrics.*number, b.metrics.*number, 1e-5 * a.metrics.*number) << layout.str();
      for (const auto& layer : b.routed)
        for (std::size_t e = 2; GetParam().idle && e < layer.size(); ++e) ASSERT_EQ(layer[e], 0) << layout.str();
      const auto [far, name] = farthest(*comm, here, layout, before, one, many.weights());
      ASSERT_LE(far, 1e-5) << layout.str() << ": the gradient of " << name;
      worst = std::max(worst, far);
      ++compared;
    }
  }
  if (world().rank() == 0)
    fmt::print("{} layouts, gradients within {:.1e} of their parameter's norm\n", compared, worst);
}

// The first step runs on one layout, and the second on the next layout of the list.
TEST(KnownFailuresOfResuming, ResumeRestoresMomentsOnEveryLayout) {
  const TempFolder folder;
  const Dataset dataset = test::make_dataset(folder);
  const auto self = make_comm_self();
  double worst = 0;
  for (int ranks = 1; ranks <= world().size(); ++ranks) {
    const auto comm = first_of_world(ranks);
    if (!comm) continue;
    // eps is small enough for the second moment to matter, and large enough to suppress the noise
    // of small gradients. The second step moves weights by much more than their size, as above. The
    // first step must not, since the second one starts from its weights.
    Config config = known_failure_config(ranks, {"--moe.capacity_factor=0", "--train.steps=2", "--train.eps=0.1",
                                                 "--train.lr=0.1", "--train.clip=0", "--train.schedule=wsd"});
    config.train.min_lr = 1e10;  // the rate of the last step
    Trainee alone(*self, {}, dataset, config, false);
    const Values before = alone.weights();
    alone.trainer.step();
    const StepResult a = alone.trainer.step();
    const Values one = alone.weights();
    const std::vector<Layout> layouts = all_layouts(ranks);
    for (std::size_t l = 0; l < layouts.size(); ++l) {
      const Layout &writer = layouts[l], &reader = layouts[(l + 1) % layouts.size()];
      const auto on = [&](const Layout& layout) {
        return Trainee(*comm, layout, dataset, on_layout(config, layout), false);
      };
      char run[256] = {};
      std::optional<TempFolder> owner;
      if (comm->rank() == 0) owner.emplace().path().string().copy(run, sizeof run - 1);
      comm->broadcast(view_of(reinterpret_cast<std::uint8_t*>(run), {sizeof run}), 0);
      {
        Trainee first = on(writer);
        first.trainer.step();
        TrainState state;
        state.step = 1;
        state.samples = first.trainer.samples_done();
        state.tokens = first.trainer.tokens_done();
        state.config = to_ini(config);
        save_checkpoint(*comm, run, state, first.engine.store(), {});
      }
      Trainee second = on(reader);
      const auto path = resolve_checkpoint(*comm, run, nullptr);
      load_checkpoint(path, second.engine.store());
      const TrainState state = read_state(path);
      second.trainer.set_progress(state.step, state.samples, state.tokens);
      const StepResult b = second.trainer.step();
      const std::string where = writer.str() + ", then " + reader.str();
      ASSERT_NEAR(a.metrics.loss, b.metrics.loss, 1e-5 * a.metrics.loss) << where;
      const auto [far, name] = farthest(*comm, config, reader, before, one, second.weights());
      ASSERT_LE(far, 1e-5) << where << ": " << name;
      worst = std::max(worst, far);
      comm->barrier();
    }
  }
  if (world().rank() == 0) fmt::print("parameters within {:.1e} of the norm of what they have moved by\n", worst);
}

INSTANTIATE_TEST_SUITE_P(Cases, KnownFailures, testing::ValuesIn(known_failures), known_failure_name);

}  // namespace
}  // namespace sy
