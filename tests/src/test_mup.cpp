// Maximal update parametrisation, compared with the published table.
#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "src/model/engine.h"
#include "src/params/specs.h"
#include "src/train/distributed_optimizer.h"

namespace sy {
namespace {

// A model whose widths all grow with d_model, as the theory assumes.
Config model(Index d_model, bool mup, std::vector<std::string> more = {}) {
  more.insert(more.end(), {fmt::format("--model.d_model={}", d_model), fmt::format("--model.heads={}", d_model / 8),
                           fmt::format("--model.d_ff={}", 2 * d_model), fmt::format("--moe.d_ff={}", d_model)});
  if (mup) more.insert(more.end(), {"--model.mup=true", "--model.mup_base_width=16"});
  return parse_config(
      "[model]\nlayers=2\nhead_dim=8\nseq_len=16\nbias=all\nnorm=layernorm\n[moe]\nexperts=4\ntop_k=2\nfirst_dense=1\n"
      "shared_experts=1\nshared_gate=true\nbias=true\ncapacity_factor=0\n[train]\nlr=0.01\nwarmup=0\nschedule=constant\n"
      "weight_decay=0\nclip=0\neps=1e-30\n",
      "test", more);
}

// Kinds of weights of Tensor Programs V (Yang et al., 2022), table 8, with Adam, and by which power
// of the width ratio their initial deviation and their learning rate grow.
struct Kind {
  double init, lr;
};
Kind kind_of(const ParamSpec& spec) {
  constexpr Kind input{0, 0}, hidden{-0.5, -1}, readout{-1, -1};
  const auto is = [&](const char* text) { return spec.name.find(text) != std::string::npos; };
  if (is("bias") || is("norm")) return input;
  if (is("embedding") || is("output.weight")) return input;  // the output has a multiplier
  if (is("router") || is("shared_gate")) return readout;     // it is table 3's form without one
  return hidden;
}

TEST(Mup, ScalesInitialValuesAsPublished) {
  constexpr double init_std = 0.02, ratio = 4;
  for (const ParamSpec& spec : param_specs(model(64, true), 37)) {
    if (spec.init.kind != InitKind::normal) continue;
    const bool residual = spec.name.ends_with("out.weight") || spec.name.ends_with("down.weight");
    const double expected = init_std / (residual ? 2 : 1) * std::pow(ratio, kind_of(spec).init);
    EXPECT_NEAR(spec.init.stddev, expected, 1e-12) << spec.name;
  }
  const std::vector<ParamSpec> same = param_specs(model(16, true), 37), plain = param_specs(model(16, false), 37);
  for (std::size_t i = 0; i < same.size(); ++i) EXPECT_EQ(same[i].init.stddev, plain[i].init.stddev) << same[i].name;
}

std::vector<std::int32_t> random_ids(Index n, Index from) {
  std::vector<std::int32_t> ids;
  for (Index i = 0; i < n; ++i) ids.push_back(static_cast<std::int32_t>((from + i * i) % 37));
  return ids;
}

struct Trained {
  explicit Trained(const Config& c)
      : config(c), self(make_comm_self()), engine(config, 37, make_cpu(), make_mesh(*self, {}), true) {
    engine.store().initialize(config.train.seed);
    optimizer = std::make_unique<DistributedOptimizer>(engine.mesh(), engine.store());
  }
  // Returns the loss before the step.
  double step(Index number) {
    const std::vector<std::int32_t> ids = random_ids(64, 1), targets = random_ids(64, 2);
    engine.forward_backward({4, 16, ids, targets, 64, 4, 1});
    optimizer->step(config.train, config.train.lr, number);
    return engine.take_statistics().loss_sum / 64;
  }
  std::vector<float> weights(const std::string& name) {
    const View w = engine.store().get(name).weight;
    return {w.f32(), w.f32() + w.elements()};
  }
  Config config;
  std::unique_ptr<Comm> self;
  Engine engine;
  std::unique_ptr<DistributedOptimizer> optimizer;
};

// The first step of AdamW without eps moves each element by the learning rate. Elements with a
// gradient of 0 stay.
TEST(Mup, ScalesLearningRatesAsPublished) {
  Trained t(model(64, true));
  std::map<std::string, std::vector<float>> before;
  for (const ParamSpec& spec : t.engine.store().specs()) before[spec.name] = t.weights(spec.name);
  t.step(1);
  for (const ParamSpec& spec : t.engine.store().specs()) {
    double most = 0;
    const std::vector<float> after = t.weights(spec.name);
    for (std::size_t i = 0; i < after.size(); ++i)
      most = std::max(most, std::abs(static_cast<double>(after[i]) - before[spec.name][i]));
    const double expected = 0.01 * std::pow(4, kind_of(spec).lr);
    EXPECT_NEAR(most, expected, 1e-4 * expected + 1e-6) << spec.name;
  }
}

// A few steps lower the loss alike at every width. In the standard parametrisation, the result
// depends on the width.
TEST(Mup, MakesTheFirstStepsAlikeAtEveryWidth) {
  const auto fall = [](Index width, bool mup) {
    Trained t(model(width, mup));
    const double first = t.step(1);
    t.step(2);
    t.step(3);
    return first - t.step(4);
  };
  const double narrow = fall(32, true), wide = fall(256, true);
  EXPECT_GT(narrow, 0.05);
  EXPECT_NEAR(wide, narrow, 0.3 * narrow);
  EXPECT_GT(std::abs(fall(256, false) - fall(32, false)), 2 * std::abs(wide - narrow));
}

}  // namespace
}  // namespace sy
