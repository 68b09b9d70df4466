// With several micro-batches in flight and several stages, gradients are bitwise those of one
// stage, one micro-batch after another.
#include <gtest/gtest.h>

#include <limits>
#include <numeric>

#include "kernels/ops/elementwise.h"
#include "src/model/engine.h"
#include "src/train/pipeline_schedule.h"

namespace sy {
namespace {

std::string letters(const std::vector<ScheduledPass>& passes) {
  std::string text;
  for (const auto& [direction, micro_batch] : passes)
    text += (direction == ScheduledPass::Direction::forward ? "F" : "B") + std::to_string(micro_batch) + " ";
  return text;
}

TEST(PipelineSchedule, IsFirstInFirstOutWithALimitInFlight) {
  EXPECT_EQ(letters(one_forward_one_backward(3, 1)), "F0 B0 F1 B1 F2 B2 ");
  EXPECT_EQ(letters(one_forward_one_backward(4, 2)), "F0 F1 B0 F2 B1 F3 B2 B3 ");
  EXPECT_EQ(letters(one_forward_one_backward(2, 5)), "F0 F1 B0 B1 ");
  EXPECT_EQ(letters(one_forward_one_backward(1, 1)), "F0 B0 ");
  EXPECT_EQ(letters(one_forward_one_backward(0, 2)), "");
}

constexpr const char* tied_moe = R"(
[model]
layers = 3
d_model = 12
heads = 4
kv_heads = 2
head_dim = 6
d_ff = 10
seq_len = 7
tie_embeddings = true
[moe]
experts = 5
first_dense = 1
capacity_factor = 0.8
d_ff = 9
)";
constexpr Index vocab = 11, sequences = 2, micro_batches = 4;

std::vector<std::int32_t> tokens(Index n, Index seed) {
  std::vector<std::int32_t> ids(static_cast<std::size_t>(n));
  const RandomStream draw(static_cast<std::uint64_t>(seed), "tokens");
  for (Index i = 0; i < n; ++i) ids[static_cast<std::size_t>(i)] = static_cast<std::int32_t>(draw.bits(i) % vocab);
  return ids;
}

struct Model {
  explicit Model(const Config& config, Index slots = 1)
      : self(make_comm_self()), engine(config, vocab, make_cpu(), make_mesh(*self, {}), true, {}, slots) {
    engine.store().initialize(3);
  }
  // Gradients by parameter name.
  std::map<std::string, std::vector<float>> gradients() {
    std::map<std::string, std::vector<float>> all;
    for (const ParamSpec& spec : engine.store().specs()) {
      const View g = engine.store().get(spec.name).grad;
      all[spec.name] = {g.f32(), g.f32() + g.elements()};
    }
    return all;
  }
  void clear_gradients_that_hold(float value) {
    ParamStore& store = engine.store();
    for (std::size_t g = 0; g < store.layout().groups.size(); ++g)
      run(engine.device(), ops::Fill{.x = store.buffers(g).grads, .value = value});
    store.clear_gradients();
  }
  std::unique_ptr<Comm> self;
  Engine engine;
};

TEST(Gradients, AreZeroIfNoGemmHasWrittenThem) {
  const Config config = parse_config(tied_moe, "test");
  Model model(config);
  const auto zero = model.gradients();
  model.clear_gradients_that_hold(3);
  EXPECT_FALSE(model.gradients() == zero);  // those of matrices only count as zero
  model.engine.store().finish_gradients();
  EXPECT_TRUE(model.gradients() == zero);
}

class PipelinedPasses : public testing::TestWithParam<std::vector<std::string>> {};

TEST_P(PipelinedPasses, MicroBatchesGiveTheSameGradients) {
  const Config config = parse_config(tied_moe, "test", GetParam());
  const Index S = config.model.seq_len;
  std::map<std::string, std::vector<float>> expected;
  Statistics found;
  for (const Index slots : {1, 2, 3, 7}) {
    Model model(config, slots);
    // The contents of memory do not matter when gradients are cleared.
    if (slots > 1) model.clear_gradients_that_hold(std::numeric_limits<float>::quiet_NaN());
    for (const auto& [direction, micro] : one_forward_one_backward(micro_batches, slots)) {
      const auto ids = tokens(sequences * S, micro), targets = tokens(sequences * S, 100 + micro);
      if (direction == ScheduledPass::Direction::forward)
        model.engine.forward(
            {sequences, S, ids, targets, sequences * S * micro_batches, sequences * micro_batches, micro_batches},
            micro % slots);
      else
        model.engine.backward(micro % slots);
    }
    const Statistics sums = model.engine.take_statistics();
    if (slots == 1) {
      expected = model.gradients();
      found = sums;
      EXPECT_NE(expected.at("layers.0.attention.q.weight").front(), 0.0f);
      continue;
    }
    EXPECT_TRUE(model.gradients() == expected) << slots << " in flight";
    EXPECT_EQ(sums.loss_sum, found.loss_sum);
    for (std::size_t layer = 0; layer < sums.layers.size(); ++layer) {
      EXPECT_EQ(sums.layers[layer].dropped, found.layers[layer].dropped);
      EXPECT_EQ(sums.layers[layer].aux_loss, found.layers[layer].aux_loss);
    }
    for (Index slot = 0; slot < slots; ++slot) EXPECT_EQ(model.engine.saved(slot).in_use(), 0);
  }
}

// The layers are split into two stages at every position. Each stage passes on x or its gradient.
TEST_P(PipelinedPasses, StagesGiveTheSameGradients) {
  const Config config = parse_config(tied_moe, "test", GetParam());
  const Index S = config.model.seq_len, T = sequences * S, layers = config.model.layers;
  const auto ids = tokens(T, 1), targets = tokens(T, 2);
  Model whole(config);
  std::vector<Index> whole_done;
  whole.engine.forward_backward({sequences, S, ids, targets, T, sequences, 1},
                                {[&](Index bucket) { whole_done.push_back(bucket); }, {}});

  for (Index cut = 1; cut < layers; ++cut) {
    Model model(config);
    Engine& engine = model.engine;
    const ExecutionContext context{engine.device(), engine.mesh(), engine.scratch(), config.dtype()};
    const RopeTables rope(engine.device(), block_specs(config), S);
    Stage first(config, engine.store(), {0, cut}, {}, rope), second(config, engine.store(), {cut, layers}, {}, rope);
    EXPECT_EQ(first.moe_layers() + second.moe_layers(), whole.engine.model().moe_layers());

    std::vector<std::int32_t> positions(static_cast<std::size_t>(T));
    for (Index i = 0; i < T; ++i) positions[static_cast<std::size_t>(i)] = static_cast<std::int32_t>(i % S);
    const double total = static_cast<double>(T);
    const TokenStream stream{.sequences = sequences,
                             .seq_len = S,
                             .ids = view_of(ids.data(), {T}),
                             .positions = view_of(positions.data(), {T}),
                             .rope_rows = view_of(positions.data(), {T})};
    const Batch batch{
        .streams = {stream}, .targets = view_of(targets.data(), {T}), .step = {view_of(&total, {1}), sequences, 1}};
    const auto slot = [&] {
      MicroBatchState s{Arena([&](Index bytes) { return engine.device().allocate(bytes); })};
      s.batch = batch;
      return s;
    };
    MicroBatchState a = slot(), b = slot();
    engine.store().packed_weights().refresh();
    std::vector<Index> done;
    const BackwardHooks hooks{[&](Index bucket) { done.push_back(bucket); }, {}};
    const View y = second.forward(context, b, first.forward(context, a, {}));
    const View d = context.temp(y.shape());
    second.backward(context, b, d, hooks);
    first.backward(context, a, d, hooks);
    EXPECT_TRUE(model.gradients() == whole.gradients()) << "cut at " << cut;
    EXPECT_EQ(done, whole_done);
  }
}

INSTANTIATE_TEST_SUITE_P(
    Models, PipelinedPasses,
    testing::Values(std::vector<std::string>{},
                    std::vector<std::string>{"--train.recompute=block", "--train.z_loss=0.1"},
                    std::vector<std::string>{"--moe.experts=0", "--model.tie_embeddings=false"},
                    std::vector<std::string>{"--model.pattern=local,global", "--attention.local.rope_theta=50",
                                             "--attention.global.position=none"},
                    std::vector<std::string>{"--model.norm_position=post", "--model.position=learned",
                                             "--model.embedding_norm=true", "--model.scale_embedding=true"},
                    std::vector<std::string>{"--moe.aux_scope=global_batch", "--moe.shared_experts=1"}));

}  // namespace
}  // namespace sy
