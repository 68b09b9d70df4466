// Results of replays, ablations and placements are computed again by plain loops.
#include "src/analyse/routing.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "kernels/ops/elementwise.h"
#include "kernels/philox.h"
#include "src/analyse/placement.h"
#include "src/evaluate/ablate.h"
#include "src/evaluate/evaluate.h"
#include "tests/src/temp_folder.h"

namespace sy {
namespace {

constexpr Index routed_vocab = 11;

// Domains a and b, and one without validation text.
Dataset routing_dataset(const TempFolder& folder) {
  DatasetDescription description;
  description.tokenizer = "none";
  description.vocab = routed_vocab;
  const RandomStream random(7, "tokens");
  const std::vector<std::tuple<std::string, Index, Index>> domains = {{"a", 20, 23}, {"b", 20, 14}, {"empty", 20, 0}};
  Index n = 0;
  for (const auto& [name, train, valid] : domains) {
    for (const auto& [split, size] : {std::pair{".train", train}, std::pair{".valid", valid}}) {
      IndexedWriter writer(folder.path() / (name + split), routed_vocab);
      std::vector<std::int32_t> text;
      for (Index i = 0; i < size; ++i) text.push_back(static_cast<std::int32_t>(random.bits(n++) % routed_vocab));
      if (size > 0) writer.add(text);
      writer.finish();
    }
    description.domains.push_back({name, 1, train, valid > 0 ? 1 : 0, valid});
  }
  folder.write("dataset.ini", to_ini(description));
  return Dataset(folder.path());
}

Config routing_config(Index experts, Index top_k, const std::string& more = "") {
  return parse_config(fmt::format("[model]\nlayers = 2\nd_model = 8\nheads = 2\nseq_len = 5\n[moe]\nexperts = {}\n"
                                  "top_k = {}\nd_ff = 4\n{}\n[train]\nmicro_batch = 2\nglobal_batch = 4\n",
                                  experts, top_k, more),
                      "test");
}

struct RoutedModel {
  explicit RoutedModel(const Config& config)
      : self(make_comm_self()), engine(config, routed_vocab, make_cpu(), make_mesh(*self, {}), false) {
    engine.store().initialize(3);
    // Initial weights are so small that no expert would matter.
    for (Index l = 0; l < 2; ++l)
      for (const char* name : {"up", "down"})
        run(engine.device(),
            ops::Scale{.x = engine.store().get(fmt::format("layers.{}.moe.experts.{}.weight", l, name)).weight,
                       .factor = 20});
    engine.store().packed_weights().invalidate();
  }
  std::unique_ptr<Comm> self;
  Engine engine;
};

const Figure& figure(const Section& section, const std::string& name) {
  for (const Figure& f : section.figures)
    if (f.name == name) return f;
  throw std::runtime_error("no figure " + name);
}

// All records of a replay.
struct Recorded {
  std::vector<ReplayBatch> batches;
  std::vector<ReplayResult> found;
};
Recorded record(Engine& engine, const Dataset& dataset, const ReplayOptions& options, bool dropless = true) {
  Recorded out;
  for_replay_batches(dataset, engine.config(), options, [&](const ReplayBatch& batch) {
    out.batches.push_back(batch);
    out.found.push_back(replay(engine, batch, dropless, true));
  });
  return out;
}

void expect_same(double found, double of, double n, const std::string& what) {
  if (of == 0)
    EXPECT_TRUE(std::isnan(found)) << what;
  else
    EXPECT_NEAR(found, n / of, 1e-12) << what;
}

// Sizes: the usual one, one expert, all experts chosen, one choice.
class RoutingSizes : public testing::TestWithParam<std::pair<Index, Index>> {};
INSTANTIATE_TEST_SUITE_P(Routing, RoutingSizes,
                         testing::Values(std::pair<Index, Index>{4, 2}, std::pair<Index, Index>{1, 1},
                                         std::pair<Index, Index>{3, 3}, std::pair<Index, Index>{5, 1}));

TEST_P(RoutingSizes, MeasuresMatchCountedChoices) {
  const auto [E, k] = GetParam();
  const TempFolder folder;
  const Dataset dataset = routing_dataset(folder);
  RoutedModel model(routing_config(E, k)), second(routing_config(E, k));
  second.engine.store().initialize(4);
  for (const Index per_pass : {Index{1}, Index{3}}) {
    const Recorded r = record(model.engine, dataset, {0, per_pass}),
                   other = record(second.engine, dataset, {0, per_pass});
    RoutingShape shape{{0, 1}, {0, 1}, E, k, 5, {"a", "b", "empty"}, 3, {0.5, 1, 1.3}};
    shape.configured_factor = 0.8;
    RoutingMeasures measures(shape);
    for (std::size_t i = 0; i < r.batches.size(); ++i) {
      measures.add(r.batches[i], r.found[i]);
      measures.add_other(r.found[i], other.found[i]);
    }
    const Section s = measures.section([](std::int32_t id) { return std::to_string(id); });

    // One token after another.
    struct Token {
      Index domain, position, sequence;
      std::int32_t id, predicted;
      std::vector<std::vector<std::int32_t>> chosen, theirs;  // [layer][k]
    };
    std::vector<Token> tokens;
    Index sequences = 0;
    for (std::size_t i = 0; i < r.batches.size(); ++i) {
      const ReplayBatch& b = r.batches[i];
      for (Index t = 0; t < b.tokens(); ++t) {
        Token token{b.domain, t % b.seq_len, sequences + t / b.seq_len, b.ids[t], r.found[i].predicted[t], {}, {}};
        for (Index l = 0; l < 2; ++l) {
          const auto of = [&](const ReplayResult& from) {
            const auto at = from.layers[l].experts.begin() + t * k;
            return std::vector<std::int32_t>(at, at + k);
          };
          token.chosen.push_back(of(r.found[i]));
          token.theirs.push_back(of(other.found[i]));
        }
        tokens.push_back(token);
      }
      sequences += b.sequences;
    }
    ASSERT_EQ(tokens.size(), 22u + 13u);
    const auto chose = [&](const Token& t, Index l, Index e) {
      return std::count(t.chosen[l].begin(), t.chosen[l].end(), e);
    };
    for (Index l = 0; l < 2; ++l) {
      double same = 0, all = 0;
      for (const Token& t : tokens)
        for (std::int32_t e : t.theirs[l]) {
          same += static_cast<double>(chose(t, l, e));
          ++all;
        }
      expect_same(figure(s, "saturation").values[l], all, same, "saturation");
      for (Index i = 0; i < E; ++i) {
        for (Index d = 0; d < 3; ++d) {
          double n = 0, of = 0;
          for (const Token& t : tokens)
            if (t.domain == d) {
              ++of;
              n += static_cast<double>(chose(t, l, i));
            }
          expect_same(figure(s, "domain").values[(l * 3 + d) * E + i], of, n, "domain");
        }
        for (Index j = 0; j < E; ++j) {
          double n = 0, of = 0, path = 0, paths = 0;
          for (const Token& t : tokens) {
            of += static_cast<double>(chose(t, l, i));
            n += static_cast<double>(chose(t, l, i) * chose(t, l, j));
            paths += l == 0 && t.chosen[0][0] == i;
            path += l == 0 && t.chosen[0][0] == i && t.chosen[1][0] == j;
          }
          expect_same(figure(s, "coactivation").values[(l * E + i) * E + j], i == j ? 0 : of, n, "co-activation");
          expect_same(figure(s, "paths").values[(l * E + i) * E + j], paths, path, "paths");
        }
        for (Index p = 0; p < 5; ++p) {  // five positions are five ranges
          double n = 0, of = 0;
          for (const Token& t : tokens)
            if (t.position == p) {
              ++of;
              n += static_cast<double>(chose(t, l, i));
            }
          expect_same(figure(s, "position").values[(l * 5 + p) * E + i], of, n, "position");
        }
      }
      for (const bool predicted : {false, true}) {
        double sum = 0, known = 0;
        for (std::int32_t id = 0; id < routed_vocab; ++id) {
          std::vector<double> n(static_cast<std::size_t>(E));
          double of = 0;
          for (const Token& t : tokens) {
            if ((predicted ? t.predicted : t.id) != id) continue;
            ++of;
            for (Index e = 0; e < E; ++e) n[e] += static_cast<double>(chose(t, l, e));
          }
          if (of < 3) continue;
          ++known;
          sum += *std::max_element(n.begin(), n.end()) / of;
        }
        expect_same(figure(s, predicted ? "vocabulary_predicted" : "vocabulary_input").values[l], known, sum,
                    "vocabulary");
      }
      for (std::size_t f = 0; f < 4; ++f) {
        const double factor = std::vector{0.5, 1.0, 1.3, 0.8}[f];
        std::vector<double> dropped(3), of(3);
        for (Index q = 0; q < sequences; ++q) {
          std::vector<Index> assigned(static_cast<std::size_t>(E));
          Index length = 0;
          for (const Token& t : tokens) length += t.sequence == q;
          const double limit =
              std::max(1.0, std::ceil(factor * static_cast<double>(k * length) / static_cast<double>(E) - 1e-9));
          for (const Token& t : tokens)
            if (t.sequence == q)
              for (std::int32_t e : t.chosen[l]) {
                ++of[t.domain];
                dropped[t.domain] += static_cast<double>(++assigned[e]) > limit;
              }
        }
        if (f < 3)
          expect_same(figure(s, "capacity_drop_rate").values[l * 3 + static_cast<Index>(f)], of[0] + of[1],
                      dropped[0] + dropped[1], "drops");
        else
          for (Index d = 0; d < 3; ++d)
            expect_same(figure(s, "domain_drop_rate").values[l * 3 + d], of[d], dropped[d], "drops by domain");
      }
    }
  }
}

// A replay is an evaluation: it has the same loss and counts. With a capacity, the drops of the
// first router follow from its choices without a capacity, in every drop order.
TEST(Replay, EqualsEvaluation) {
  const TempFolder folder;
  const Dataset dataset = routing_dataset(folder);
  for (const char* order : {"token", "choice", "probability"})
    for (const char* scope : {"sequence", "rank"}) {
      const Config config = routing_config(
          4, 2, fmt::format("capacity_factor = 0.6\ndrop_order = {}\ncapacity_scope = {}", order, scope));
      RoutedModel model(config);
      const ReplayOptions options{0, 2};
      const auto scores = evaluate(model.engine, dataset, {2, 0, true}, [](Index, Index) {});
      const Recorded free = record(model.engine, dataset, options);
      std::vector<double> nats(3), tokens(3);
      std::vector<Index> routed(4);
      for (std::size_t i = 0; i < free.batches.size(); ++i) {
        nats[free.batches[i].domain] += free.found[i].nats;
        tokens[free.batches[i].domain] += static_cast<double>(free.batches[i].tokens());
        if (free.batches[i].domain == 0)
          for (std::int32_t e : free.found[i].layers[1].experts) ++routed[e];
        EXPECT_EQ(free.found[i].layers[0].dropped, 0);
      }
      for (std::size_t d = 0; d < 3; ++d) {
        EXPECT_NEAR(nats[d], scores[d].nats, 1e-9);
        EXPECT_EQ(tokens[d], static_cast<double>(scores[d].tokens));
      }
      EXPECT_EQ(routed, scores[0].experts[1]);

      const Recorded full = record(model.engine, dataset, options, false);
      RoutingShape shape{{0}, {0}, 4, 2, 5, {"a", "b", "empty"}, 8, {0.6}};
      shape.scope = config.moe.capacity_scope;
      RoutingMeasures measures(shape);
      Index dropped = 0, all = 0;
      for (std::size_t i = 0; i < free.batches.size(); ++i) {
        measures.add(free.batches[i], free.found[i]);
        dropped += full.found[i].layers[0].dropped;
        all += 2 * full.batches[i].tokens();
      }
      EXPECT_GT(dropped, 0);
      const Section s = measures.section([](std::int32_t) { return ""; });
      EXPECT_NEAR(figure(s, "capacity_drop_rate").values[0], static_cast<double>(dropped) / static_cast<double>(all),
                  1e-12);
    }
}

TEST(Replay, PredictsTheLikeliestId) {
  const TempFolder folder;
  const Dataset dataset = routing_dataset(folder);
  RoutedModel model(routing_config(4, 2));
  const Recorded r = record(model.engine, dataset, {1, 1});
  ASSERT_EQ(r.batches.size(), 2u);
  // Generation computes the same tokens one by one.
  Cache cache = model.engine.make_cache(1, 5, 1);
  for (Index t = 0; t < r.batches[0].tokens(); ++t) {
    const auto logits = model.engine.decode(cache, 0, 1, std::span(r.batches[0].ids).subspan(t, 1), true);
    EXPECT_EQ(r.found[0].predicted[t], std::max_element(logits.begin(), logits.end()) - logits.begin());
  }
}

// Masking an expert gives the loss of a model whose up projection of that expert is 0, so that the
// expert adds nothing.
TEST(Ablate, MaskingEqualsAModelWithoutTheExpert) {
  const TempFolder folder;
  const Dataset dataset = routing_dataset(folder);
  const Config config = routing_config(4, 2);
  RoutedModel model(config);
  const auto before = evaluate(model.engine, dataset, {2, 0, true}, [](Index, Index) {});
  Index calls = 0;
  const Ablation found = ablate(model.engine, dataset, {0, 1}, AblationMode::mask, {0, 1},
                                [&](Index done, Index total) { EXPECT_LE(++calls, total) << done; });
  EXPECT_EQ(calls, 8);
  const auto after = evaluate(model.engine, dataset, {2, 0, true}, [](Index, Index) {});
  // The masked experts are back.
  for (std::size_t d = 0; d < 3; ++d) EXPECT_EQ(before[d].nats, after[d].nats);
  EXPECT_NEAR(found.loss[0], before[0].loss(), 1e-12);
  EXPECT_NEAR(found.loss[3], total_of(before).loss(), 1e-12);
  EXPECT_TRUE(std::isnan(found.loss[2]));
  double largest = 0;
  for (Index l = 0; l < 2; ++l)
    for (Index e = 0; e < 4; ++e) {
      RoutedModel without(config);
      const View up = without.engine.store().get(fmt::format("layers.{}.moe.experts.up.weight", l)).weight;
      run(without.engine.device(), ops::Fill{.x = up.rows(e, 1), .value = 0});
      without.engine.store().packed_weights().invalidate();
      const auto scores = evaluate(without.engine, dataset, {2, 0, true}, [](Index, Index) {});
      for (std::size_t d = 0; d < 2; ++d) {
        EXPECT_NEAR(found.effects[l][e][d].change, scores[d].loss() - before[d].loss(), 1e-5) << l << " " << e;
        largest = std::max(largest, std::abs(found.effects[l][e][d].change));
      }
      EXPECT_NEAR(found.effects[l][e][3].change, total_of(scores).loss() - total_of(before).loss(), 1e-5);
      EXPECT_TRUE(std::isnan(found.effects[l][e][2].change));
      EXPECT_EQ(found.effects[l][e][3].windows, 5 + 3);
    }
  EXPECT_GT(largest, 1e-3);
}

// Tokens of the removed expert go to the experts with their next highest scores. Other tokens keep
// their experts.
TEST(Ablate, ReroutesTokensToTheNextBestExpert) {
  const TempFolder folder;
  const Dataset dataset = routing_dataset(folder);
  RoutedModel model(routing_config(5, 2, "bias_update_rate = 0.01"));
  std::vector<float> biases(10, 0.0f);
  biases[1] = 0.05f;
  model.engine.set_router_bias(biases);
  ReplayBatch batch;
  for_replay_batches(dataset, model.engine.config(), {1, 1}, [&](const ReplayBatch& b) {
    if (batch.ids.empty()) batch = b;
  });
  std::vector<float> logits;
  model.engine.set_routing_hook([&](const RoutingView& v) {
    if (logits.empty()) logits.assign(v.logits.f32(), v.logits.f32() + v.logits.elements());
  });
  model.engine.evaluate({1, 5, batch.ids, batch.targets}, true);
  for (Index e = 0; e < 5; ++e) {
    ReplayResult found;
    without_expert(model.engine, 0, e, AblationMode::reroute,
                   [&] { found = replay(model.engine, batch, true, false); });
    for (Index t = 0; t < 5; ++t) {
      double sum = 0;
      for (Index i = 0; i < 5; ++i) sum += std::exp(static_cast<double>(logits[t * 5 + i]));
      std::vector<std::pair<double, Index>> best;
      for (Index i = 0; i < 5; ++i)
        if (i != e) best.push_back({-(std::exp(static_cast<double>(logits[t * 5 + i])) / sum + biases[i]), i});
      std::sort(best.begin(), best.end());
      EXPECT_EQ(found.layers[0].experts[t * 2], best[0].second);
      EXPECT_EQ(found.layers[0].experts[t * 2 + 1], best[1].second);
    }
    EXPECT_EQ(model.engine.router_bias(), biases);
  }
}

TEST(Ablate, IntervalsMatchHandComputedValues) {
  // Windows of 4, 4 and 2 tokens. The mean change is 0.5 per token; the residuals are -1, 2 and -1.
  const LossChange c = loss_change({1, 4, 0}, {4, 4, 2});
  EXPECT_DOUBLE_EQ(c.change, 0.5);
  EXPECT_DOUBLE_EQ(c.error, std::sqrt(3.0 / 2 * 6) / 10);
  EXPECT_TRUE(std::isnan(loss_change({1}, {4}).error));
  EXPECT_DOUBLE_EQ(loss_change({1}, {4}).change, 0.25);
  EXPECT_TRUE(std::isnan(loss_change({}, {}).change));
}

LayerLoad load_of(std::vector<Index> routed) {
  LayerLoad l;
  l.layer = 3;
  for (Index n : routed) l.experts.push_back({n});
  return l;
}

TEST(Placement, AssignsTheLargestLoadsFirst) {
  const auto p = balance_placement({load_of({8, 7, 1, 0})}, 2)[0];
  EXPECT_EQ(p.before, (std::vector<Index>{15, 1}));
  EXPECT_EQ(p.after, (std::vector<Index>{8, 8}));
  EXPECT_EQ(p.physical_to_logical, (std::vector<Index>{0, 3, 1, 2}));
  EXPECT_DOUBLE_EQ(max_over_mean(p.before), 15.0 / 8);
  EXPECT_DOUBLE_EQ(max_over_mean(std::vector<Index>{0, 0}), 1);
  // A balanced placement stays unchanged.
  EXPECT_EQ(balance_placement({load_of({3, 1, 2, 2})}, 2)[0].physical_to_logical, (std::vector<Index>{0, 1, 2, 3}));
  EXPECT_BAD_INPUT(balance_placement({load_of({1, 2, 3})}, 2), "divide");
  EXPECT_BAD_INPUT(balance_placement({load_of({1, 2, 3})}, 0), "divide");
  const RandomStream random(5, "loads");
  for (Index trial = 0; trial < 50; ++trial) {
    std::vector<Index> loads;
    for (Index e = 0; e < 12; ++e) loads.push_back(static_cast<Index>(random.bits(trial * 12 + e) % 100));
    for (const Index ranks : {Index{1}, Index{2}, Index{3}, Index{6}, Index{12}}) {
      const auto q = balance_placement({load_of(loads)}, ranks)[0];
      EXPECT_EQ(std::set<Index>(q.physical_to_logical.begin(), q.physical_to_logical.end()).size(), 12u);
      EXPECT_LE(max_over_mean(q.after), max_over_mean(q.before));
      for (Index r = 0; r < ranks; ++r) {
        Index sum = 0;
        for (Index physical = r * 12 / ranks; physical < (r + 1) * 12 / ranks; ++physical)
          sum += loads[q.physical_to_logical[physical]];
        EXPECT_EQ(q.after[r], sum);
      }
    }
  }
}

}  // namespace
}  // namespace sy
