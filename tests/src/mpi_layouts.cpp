// The rule that protects the product: every layout against one rank, step by step.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "src/train/trainer.h"
#include "tests/mpi_world.h"
#include "tests/src/temp_folder.h"

namespace sy {
namespace {

using test::world;

constexpr const char* small = R"(
[model]
layers = 3
d_model = 24
heads = 4
kv_heads = 2
seq_len = 20
d_ff = 40
[moe]
experts = 8
top_k = 2
first_dense = 1
d_ff = 20
capacity_factor = 1.0
aux_loss = 0.05
z_loss = 0.01
[train]
steps = 20
global_batch = 8
micro_batch = 1
lr = 5e-3
min_lr = 1e-3
warmup = 4
)";

// Text with something to learn and something to tell apart: two domains of noisy repeated words, each on rank's own disk.
Dataset make_dataset(const TempFolder& folder) {
  DatasetDescription description;
  description.tokenizer = "none";
  description.vocab = 37;
  for (int d = 0; d < 2; ++d) {
    const RandomStream random(9, "domain " + std::to_string(d));
    const std::string name = "domain" + std::to_string(d);
    Index tokens = 0;
    for (const char* split : {".train", ".valid"}) {
      IndexedWriter writer(folder.path() / (name + split), description.vocab);
      for (int document = 0; document < 30; ++document) {
        std::vector<std::int32_t> ids;
        for (int i = 0; i < 71; ++i, ++tokens)
          ids.push_back(static_cast<std::int32_t>(random.bits(tokens) % 4 == 0 ? random.bits(tokens + 100000) % 37
                                                                              : (i * (d + 2) + document) % 17 + d * 20));
        writer.add(ids);
      }
      writer.finish();
    }
    description.domains.push_back({name, 30, 30 * 71, 30, 30 * 71});
  }
  folder.write("dataset.ini", to_ini(description));
  return Dataset(folder.path());
}

// The smallest gap that decided anything: between the last score chosen and the best one left out, and between the last
// weight kept by an expert of a sequence and the first one dropped (where weights decide who is dropped). Where it is
// within rounding, another order of summation may decide otherwise, and both are right.
double decision_gap(const Config& config, const RoutingView& r) {
  const Index T = r.logits.dim(0), E = r.logits.dim(1), k = r.experts.dim(1), S = config.model.seq_len;
  double gap = 1;
  for (Index t = 0; t < T && k < E; ++t) {
    std::vector<double> z(r.logits.f32() + t * E, r.logits.f32() + (t + 1) * E);
    std::sort(z.rbegin(), z.rend());  // scores rise with logits; gaps of logits are relative gaps of scores
    gap = std::min(gap, z[k - 1] - z[k]);
  }
  if (config.moe.drop_order != DropOrder::probability) return gap;
  for (Index first = 0; first < T; first += S)
    for (Index e = 0; e < E; ++e) {
      double kept = 2, dropped = -1;
      for (Index a = first * k; a < (first + S) * k; ++a)
        if (r.experts.i32()[a] == e)
          (r.keep.i32()[a] ? kept = std::min<double>(kept, r.weights.f32()[a])
                           : dropped = std::max<double>(dropped, r.weights.f32()[a]));
      gap = std::min(gap, kept - dropped);
    }
  return gap;
}

struct History {
  std::vector<StepResult> steps;
  std::vector<double> gaps;    // of each step, on this rank
  std::vector<float> weights;  // of the last step, all parameters whole, where this rank holds them
};

History train(Comm& comm, const Dataset& dataset, const Config& config) {
  const Layout layout{comm.size(), static_cast<int>(config.parallel.tp), static_cast<int>(config.parallel.ep),
                      static_cast<int>(config.parallel.etp)};
  check_config_for_layout(config, layout);
  Engine engine(config, dataset.vocab(), make_cpu(), make_mesh(comm, layout), true);
  engine.store().initialize(config.train.seed);
  const SampleStream samples(dataset, config.model.seq_len, config.train.seed);
  Trainer trainer(engine, samples);
  History history;
  engine.observe_routing([&](const RoutingView& r) {
    history.gaps.back() = std::min(history.gaps.back(), decision_gap(config, r));
  });
  for (Index i = 0; i < config.train.steps; ++i) {
    history.gaps.push_back(1);
    history.steps.push_back(trainer.step());
  }
  const View w = engine.store().buffers(GradGroup::replicated).weights;
  history.weights.assign(w.f32(), w.f32() + w.elements());
  return history;
}

// By how much scores differ between layouts after some steps of a model that learns fast.
constexpr double rounding = 3e-6;

struct Case {
  const char* name;
  std::vector<std::string> settings;
};

const Case cases[] = {
    {"token", {}},
    {"choice", {"--moe.drop_order=choice"}},
    {"probability", {"--moe.drop_order=probability"}},
    {"dropless", {"--moe.capacity_factor=0"}},
    {"tight_shared_sigmoid_bias",
     {"--moe.capacity_factor=0.5", "--moe.shared_experts=1", "--moe.score=sigmoid", "--moe.bias_rate=0.01"}},
    {"top1_every_second", {"--moe.top_k=1", "--moe.every=2", "--model.tie_embeddings=true"}},
};

class Layouts : public testing::TestWithParam<Case> {};

TEST_P(Layouts, GiveTheSameRoutingDropsAndLosses) {
  const TempFolder folder;
  const Dataset dataset = make_dataset(folder);
  const auto self = make_comm_self();
  const History one = train(*self, dataset, parse_config(small, "test", GetParam().settings));
  ASSERT_LT(one.steps.back().metrics.loss, one.steps.front().metrics.loss);

  const int n = world().size();
  for (int ep = 1; ep <= n; ep *= 2)
    for (const int micro_batch : {1, 2}) {
      auto settings = GetParam().settings;
      settings.push_back("--parallel.ep=" + std::to_string(ep));
      settings.push_back("--train.micro_batch=" + std::to_string(micro_batch));
      const History many = train(world(), dataset, parse_config(small, "test", settings));
      for (std::size_t i = 0; i < one.steps.size(); ++i) {
        const StepMetrics &a = one.steps[i].metrics, &b = many.steps[i].metrics;
        const std::string where = fmt::format("{} ranks, ep {}, micro-batch {}, step {}", n, ep, micro_batch, i + 1);
        const bool same = one.steps[i].routed == many.steps[i].routed && one.steps[i].dropped == many.steps[i].dropped &&
                          std::abs(a.grad_norm - b.grad_norm) < 1e-5 * a.grad_norm;
        const double gap = *std::min_element(one.gaps.begin(), one.gaps.begin() + static_cast<std::ptrdiff_t>(i) + 1);
        if (!same && gap < rounding) {
          if (world().rank() == 0)
            fmt::print("{}: two scores tie to within {:.1e}; compared up to here\n", where, gap);
          ASSERT_GT(i, 0u) << "the first step starts from equal weights";
          break;
        }
        ASSERT_EQ(one.steps[i].routed, many.steps[i].routed) << where;
        ASSERT_EQ(one.steps[i].dropped, many.steps[i].dropped) << where;
        ASSERT_NEAR(a.loss, b.loss, 1e-5 * a.loss) << where;
        ASSERT_NEAR(a.aux_loss, b.aux_loss, 1e-5 * a.aux_loss) << where;
        ASSERT_NEAR(a.z_loss, b.z_loss, 1e-5 * a.z_loss) << where;
        ASSERT_NEAR(a.grad_norm, b.grad_norm, 1e-5 * a.grad_norm) << where;
      }
    }
}

INSTANTIATE_TEST_SUITE_P(Drops, Layouts, testing::ValuesIn(cases), [](const auto& info) { return info.param.name; });

TEST(Layouts, TheSameLayoutIsBitwiseTheSame) {
  const TempFolder folder;
  const Dataset dataset = make_dataset(folder);
  const Config config = parse_config(small, "test", {"--parallel.ep=" + std::to_string(world().size())});
  const History a = train(world(), dataset, config), b = train(world(), dataset, config);
  for (std::size_t i = 0; i < a.steps.size(); ++i) {
    ASSERT_EQ(a.steps[i].metrics.loss, b.steps[i].metrics.loss);
    ASSERT_EQ(a.steps[i].metrics.grad_norm, b.steps[i].metrics.grad_norm);
  }
  ASSERT_EQ(a.weights, b.weights);
}

// `rank` scope is not invariant; it is what it says: each rank's micro-batch has its own capacity.
TEST(Layouts, RankScopeDropsByTheRanksMicroBatch) {
  const TempFolder folder;
  const Dataset dataset = make_dataset(folder);
  std::vector<std::string> settings = {"--moe.capacity_scope=rank", "--train.steps=3", "--moe.capacity_factor=0.5"};
  const int n = world().size();
  settings.push_back("--train.micro_batch=" + std::to_string(8 / n));
  settings.push_back("--parallel.ep=" + std::to_string(n));
  const History many = train(world(), dataset, parse_config(small, "test", settings));
  // One rank with the same micro-batches, one after the other, has the same scopes.
  settings.back() = "--parallel.ep=1";
  const auto self = make_comm_self();
  const History one = train(*self, dataset, parse_config(small, "test", settings));
  for (std::size_t i = 0; i < one.steps.size(); ++i) {
    ASSERT_EQ(one.steps[i].dropped, many.steps[i].dropped);
    ASSERT_GT(one.steps[i].metrics.dropped, 0);
    ASSERT_NEAR(one.steps[i].metrics.loss, many.steps[i].metrics.loss, 1e-5 * one.steps[i].metrics.loss);
  }
}

}  // namespace
}  // namespace sy
