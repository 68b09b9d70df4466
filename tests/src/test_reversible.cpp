// Reversible layers: their gradients are those of the same layers with stored activations, their
// activations do not grow with depth, and routers decide as in the forward pass.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "kernels/ops/elementwise.h"
#include "kernels/philox.h"
#include "src/families/settings.h"
#include "src/model/engine.h"
#include "src/model/load_balancing.h"
#include "src/train/memory.h"
#include "tests/src/temp_folder.h"

namespace sy {
namespace {

constexpr const char* reversible_text = R"(
[model]
d_model = 24
heads = 4
kv_heads = 2
d_ff = 40
seq_len = 16
position = none
[moe]
experts = 5
top_k = 2
d_ff = 20
every = 2
capacity_factor = 0.8
drop_order = probability
aux_loss = 0.1
z_loss = 0.01
[train]
micro_batch = 2
global_batch = 2
reversible = true
)";
constexpr Index stack_sequences = 2, stack_length = 16, stack_tokens = stack_sequences * stack_length, stack_width = 24;

Config with(std::vector<std::string> settings, Index layers) {
  settings.push_back(fmt::format("--model.layers={}", layers));
  return parse_config(reversible_text, "test", settings);
}

// ---- the layers alone ----

// A stack of layers with parameters, gradients and memory of its own.
struct Stack {
  explicit Stack(const Config& c) : config(c), specs(block_specs(c)), store(*device, params(c, specs), {}, {}, true) {
    for (const ParamSpec& param : store.specs()) {
      const View w = store.get(param.name).weight;
      const RandomStream random(11, param.name);
      // The router's logits of any two experts differ by little more than rounding.
      const bool tied = param.name.ends_with("router.weight");
      const RandomStream row(12, param.name);
      for (Index i = 0; i < w.elements(); ++i)
        w.f32()[i] =
            static_cast<float>(tied ? 0.3 * row.normal(i % stack_width) + 3e-8 * random.normal(i)
                                    : (param.init.kind == InitKind::ones ? 1.0 : 0.0) + 0.15 * random.normal(i));
      std::fill_n(store.get(param.name).grad.f32(), w.elements(), 0.0f);
    }
    store.packed_weights().refresh();
    batch.step = {{}, stack_sequences, 1};
  }
  static std::vector<ParamSpec> params(const Config& c, const std::vector<BlockSpec>& specs) {
    ParamList list(c.model);
    for (std::size_t i = 0; i < specs.size(); ++i) add_block_params(list, specs[i], static_cast<Index>(i));
    return list.specs;
  }
  SublayerContext sublayers() { return {store, rope, {}, counts}; }
  LayerContext layer() {
    LayerContext context{execution, batch, batch.decoder(), saved};
    if (count_moe(specs) > 0)
      context.load_balance = make_load_balance_state(context, count_moe(specs), config.moe.experts);
    return context;
  }
  void balance(const LayerContext& context) const {
    for (const BlockSpec& spec : specs)
      if (const MoeSpec* moe = spec.find<MoeSpec>())
        return load_balancing_loss(context, moe->router, context.load_balance, {});
  }
  View values(const char* name) {
    const View x = saved.f32({stack_tokens, stack_width});
    const RandomStream random(5, name);
    for (Index i = 0; i < stack_tokens * stack_width; ++i) x.f32()[i] = static_cast<float>(random.normal(i));
    return x;
  }
  Arena arena() {
    return Arena([this](Index bytes) { return device->allocate(bytes); });
  }

  Config config;
  std::vector<BlockSpec> specs;
  std::unique_ptr<Comm> self = make_comm_self();
  std::unique_ptr<Device> device = make_cpu();
  Mesh mesh = make_mesh(*self, {});
  ParamStore store;
  RopeTables rope{*device, specs, stack_length};
  Arena saved = arena(), scratch = arena();
  ExecutionContext execution{*device, mesh, scratch, DType::f32};
  SublayerCounts counts;
  Batch batch{.streams = {{.sequences = stack_sequences, .seq_len = stack_length, .ids = {}, .positions = {}}},
              .targets = {},
              .step = {}};
};

struct StackResult {
  std::vector<float> y, dx;
};

std::vector<float> copied_floats(ConstView v) {
  return {v.f32(), v.f32() + v.elements()};
}

StackResult run_reversible(Stack& stack) {
  ReversibleStack layers(ReversibleOutput::mean);
  for (std::size_t i = 0; i < stack.specs.size(); ++i)
    layers.add(stack.specs[i], static_cast<Index>(i), stack.sublayers());
  const View x = stack.values("x"), d = stack.values("d");
  const LayerContext layer = stack.layer();
  ReversibleStack::Saved saved;
  std::vector<std::size_t> order;
  const View y = layers.forward(layer, x, saved, [&](std::size_t i) { order.push_back(i); });
  StackResult result{copied_floats(y), {}};
  stack.balance(layer);
  layers.backward(layer, d, saved, [&](std::size_t i) { order.push_back(i); });
  stack.store.finish_gradients();
  result.dx = copied_floats(d);
  std::vector<std::size_t> expected(stack.specs.size());
  std::iota(expected.begin(), expected.end(), std::size_t{0});
  expected.insert(expected.end(), expected.rbegin(), expected.rend());
  EXPECT_EQ(order, expected);
  return result;
}

// The same function, with all activations stored: each branch keeps what its forward saved, and
// each stream has memory of its own.
StackResult run_stored(Stack& stack) {
  struct Layer {
    ResidualBranch f, g;
    ResidualBranch::Saved of_f, of_g;
  };
  std::vector<Layer> layers;
  const SublayerContext context = stack.sublayers();
  for (std::size_t i = 0; i < stack.specs.size(); ++i) {
    const BlockSpec& spec = stack.specs[i];
    const std::string prefix = layer_prefix(static_cast<Index>(i));
    // The router of a layer counts in order.
    ResidualBranch f(spec.norm, spec.groups[0].branches[0], context, prefix);
    layers.push_back({std::move(f), ResidualBranch(spec.norm, spec.groups[1].branches[0], context, prefix), {}, {}});
  }
  View x1 = stack.values("x"), x2 = x1;
  const View d1 = stack.values("d"), d2 = stack.saved.f32({stack_tokens, stack_width});
  const LayerContext layer = stack.layer();
  for (Layer& l : layers) {
    const View y1 = layer.save({stack_tokens, stack_width}), y2 = layer.save({stack_tokens, stack_width});
    l.f.forward(layer, x2, x1, y1, l.of_f, l.of_f);
    l.g.forward(layer, y1, x2, y2, l.of_g, l.of_g);
    x1 = y1;
    x2 = y2;
  }
  StackResult result;
  for (Index i = 0; i < stack_tokens * stack_width; ++i) result.y.push_back((x1.f32()[i] + x2.f32()[i]) * 0.5f);
  stack.balance(layer);
  run(*stack.device, ops::Scale{.x = d1, .factor = 0.5f});
  run(*stack.device, ops::Copy{.x = d1, .y = d2});
  for (std::size_t i = layers.size(); i-- > 0;) {
    layers[i].g.backward(layer, d2, layers[i].of_g, d1);
    layers[i].f.backward(layer, d1, layers[i].of_f, d2);
  }
  stack.store.finish_gradients();
  for (Index i = 0; i < stack_tokens * stack_width; ++i) result.dx.push_back(d1.f32()[i] + d2.f32()[i]);
  return result;
}

// Returns the largest difference of two tensors, divided by the largest element.
double difference(ConstView a, ConstView b) {
  double size = 1e-30, most = 0;
  for (Index i = 0; i < a.elements(); ++i) {
    size = std::max(size, std::abs(static_cast<double>(b.f32()[i])));
    most = std::max(most, std::abs(static_cast<double>(a.f32()[i]) - b.f32()[i]));
  }
  return most / size;
}

void expect_equal_gradients(const std::vector<std::string>& settings, Index layers, double bound) {
  SCOPED_TRACE((settings.empty() ? "" : settings[0]) + fmt::format(", {} layers", layers));
  Stack reversible(with(settings, layers)), stored(with(settings, layers));
  StackResult a = run_reversible(reversible), b = run_stored(stored);
  EXPECT_TRUE(a.y == b.y) << "the forward passes differ";
  const auto view = [](std::vector<float>& v) { return view_of(v.data(), {stack_tokens * stack_width}); };
  double most = difference(view(a.dx), view(b.dx));
  for (const ParamSpec& spec : stored.store.specs())
    most = std::max(most, difference(reversible.store.get(spec.name).grad, stored.store.get(spec.name).grad));
  EXPECT_LT(most, bound);
  fmt::print("{} layers: largest relative difference of a gradient {:.1e}\n", layers, most);
}

TEST(Reversible, GradientsAreThoseOfStoredActivations) {
  for (const Index layers : {4, 16, 64}) expect_equal_gradients({"--moe.experts=0"}, layers, 1e-4);
  expect_equal_gradients({"--moe.experts=0", "--model.norm_position=both", "--model.norm=layernorm", "--model.bias=all",
                          "--model.residual_scale=0.7", "--model.qk_norm=whole"},
                         6, 1e-4);
  expect_equal_gradients({"--moe.experts=0", "--model.norm_position=output", "--model.position=alibi"}, 6, 1e-4);
}

// With scores that nearly tie, inputs that differ by rounding would choose other experts.
TEST(Reversible, RoutersDecideAsInTheForwardPass) {
  for (const Index layers : {4, 16, 64}) expect_equal_gradients({"--moe.every=2"}, layers, 1e-4);
  expect_equal_gradients({"--moe.score=sigmoid", "--moe.shared_experts=1", "--moe.drop_order=token", "--moe.every=1",
                          "--moe.experts=6", "--moe.groups=3", "--moe.topk_groups=2"},
                         8, 1e-4);
}

// ---- the whole model ----

struct Memory {
  Index saved, scratch;
};

Memory memory_of(const Config& config) {
  const auto self = make_comm_self();
  Engine engine(config, 37, make_cpu(), make_mesh(*self, {}), true);
  engine.store().initialize(3);
  std::vector<std::int32_t> ids(stack_tokens);
  for (Index i = 0; i < stack_tokens; ++i) ids[i] = static_cast<std::int32_t>(i * i % 37);
  engine.forward_backward({stack_sequences, stack_length, ids, ids, stack_tokens, stack_sequences, 1});
  EXPECT_EQ(engine.saved().in_use() + engine.scratch().in_use(), 0);
  const Memory memory{engine.saved().peak(), engine.scratch().peak()};
  const MemoryPlan plan = plan_memory(config, 37, {}, 0, *make_cpu());
  EXPECT_EQ(plan.saved, memory.saved);
  EXPECT_EQ(plan.scratch, memory.scratch);
  return memory;
}

TEST(Reversible, ActivationsDoNotGrowWithDepth) {
  const std::vector<std::string> dense = {"--moe.experts=0"},
                                 ordinary = {"--moe.experts=0", "--train.reversible=false"};
  const Memory four = memory_of(with(dense, 4));
  for (const Index layers : {16, 64}) {
    const Memory more = memory_of(with(dense, layers));
    EXPECT_EQ(more.saved, four.saved) << layers;
    EXPECT_EQ(more.scratch, four.scratch) << layers;
  }
  EXPECT_GT(memory_of(with(ordinary, 64)).saved, 20 * four.saved);
}

// Layers with experts keep the decisions of their routers, and the sums of the load-balancing loss.
TEST(Reversible, OnlyRoutingGrowsWithDepth) {
  const std::vector<std::string> dropless = {"--moe.capacity_factor=0", "--moe.every=1"};
  const auto aligned = [](Index bytes) { return (bytes + Arena::alignment - 1) / Arena::alignment * Arena::alignment; };
  const auto routing = [&](Index layers) {
    const Index E = 5, k = 2, segments = stack_sequences;
    return 2 * aligned(layers * stack_tokens * k * 4) + 3 * aligned(layers * segments * E * 4) +
           aligned(layers * E * 4) + aligned(layers * 8);
  };
  const Memory four = memory_of(with(dropless, 4));
  for (const Index layers : {16, 64})
    EXPECT_EQ(memory_of(with(dropless, layers)).saved - four.saved, routing(layers) - routing(4)) << layers;
}

TEST(Reversible, RefusesSettingsThatItExcludes) {
  for (const auto& [setting, why] :
       {std::pair<std::vector<std::string>, std::string>{
            {"--model.norm_position=post"},
            "model.norm_position = post with train.reversible = true: a norm of the "
            "residual stream cannot be undone: set it to pre, both or output"},
        {{"--model.norm_position=residual"},
         "model.norm_position = residual with train.reversible = true: a norm of "
         "the residual stream cannot be undone: set it to pre, both or output"},
        {{"--model.parallel_block=true"},
         "model.parallel_block = true with train.reversible = true: attention and FFN "
         "need a stream each: set it to false"},
        {{"--model.mtp_depth=1"},
         "model.mtp_depth = 1 with train.reversible = true: its modules are not reversible: set it to 0"},
        {{"--train.recompute=norms"},
         "train.recompute = norms with train.reversible = true: all activations of a layer "
         "are computed again: set it to none"},
        {{"--run.dtype=bf16"},
         "run.dtype = bf16 with train.reversible = true: bf16 is too coarse to compute inputs "
         "from outputs: set it to f32"},
        {{"--model.kind=encoder_decoder", "--train.objective=seq2seq"},
         "model.kind = encoder_decoder with train.reversible = true: its layers are not reversible: set it to decoder "
         "or encoder"}})
    EXPECT_EQ(MESSAGE_OF(InputError, with(setting, 2)), "command line: " + why);
}

// No family has reversible layers of this kind: an export would be another model.
TEST(Reversible, CannotBeExported) {
  const Json llama{{"model_type", "llama"}, {"architectures", Json::array({"LlamaForCausalLM"})}};
  const std::string message = MESSAGE_OF(
      InputError,
      config_json(family_of(llama), with({"--moe.experts=0", "--model.position=rope", "--model.vocab=37"}, 2), Json()));
  EXPECT_NE(message.find("train.reversible = true (it would be false)"), std::string::npos) << message;
}

}  // namespace
}  // namespace sy
