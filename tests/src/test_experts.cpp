#include "src/analyse/experts.h"

#include <gtest/gtest.h>

#include <cmath>

#include "tests/src/temp_folder.h"

namespace sy {
namespace {

ExpertHistory history(Index layers, Index experts, std::vector<std::int64_t> steps, std::vector<std::int64_t> routed,
                      std::vector<std::int64_t> dropped, std::vector<float> probability) {
  ExpertHistory h{layers, experts, std::move(steps), std::move(routed), std::move(dropped), std::move(probability), {}};
  for (Index l = 0; l < layers; ++l) h.layer_ids.push_back(2 * l + 1);
  return h;
}

std::vector<LayerLoad> all_loads(const ExpertHistory& h) {
  return layer_loads(h, 0, h.windows());
}

TEST(LayerLoads, MatchesHandComputedValues) {
  const auto loads = all_loads(history(1, 4, {10}, {6, 2, 0, 0}, {3, 0, 0, 0}, {0.5f, 0.25f, 0.125f, 0.125f}));
  ASSERT_EQ(loads.size(), 1u);
  const LayerLoad& l = loads[0];
  EXPECT_EQ(l.layer, 1);
  EXPECT_EQ(l.routed, 8);
  EXPECT_EQ(l.dropped, 3);
  EXPECT_DOUBLE_EQ(l.experts[0].share, 0.75);
  EXPECT_DOUBLE_EQ(l.experts[0].drop_rate, 0.5);
  EXPECT_EQ(l.experts[2].share, 0);
  EXPECT_EQ(l.experts[2].drop_rate, 0);  // nothing routed, so nothing dropped
  EXPECT_DOUBLE_EQ(l.experts[1].probability, 0.25);
  EXPECT_DOUBLE_EQ(l.drop_rate, 3.0 / 8);
  EXPECT_DOUBLE_EQ(l.max_over_mean, 3);  // 6 over a mean of 2
  EXPECT_DOUBLE_EQ(l.cv, std::sqrt((16 + 0 + 4 + 4) / 4.0) / 2);
  EXPECT_NEAR(l.entropy, 0.811278124459133 / 2, 1e-15);  // H(3/4, 1/4) bits over log2 4
  EXPECT_EQ(l.busiest(), 0);
  EXPECT_EQ(l.idlest(), 2);  // the lower of two equals
  EXPECT_DOUBLE_EQ(l.max_vio(), 2);
  EXPECT_EQ(l.dead, 2);
  EXPECT_EQ(l.overloaded, 1);
  EXPECT_DOUBLE_EQ(l.experts[0].probability_gap, 0.5 - 0.75);
  EXPECT_DOUBLE_EQ(l.experts[3].probability_gap, 0.125);
}

// A window whose steps had no finite probabilities does not count in their mean.
TEST(LayerLoads, LeavesOutUnknownProbabilities) {
  const float none = std::nanf("");
  const LayerLoad l = all_loads(history(1, 2, {10, 20}, {6, 2, 3, 1}, {0, 0, 0, 0}, {0.75f, 0.25f, none, none}))[0];
  EXPECT_EQ(l.routed, 12);
  EXPECT_DOUBLE_EQ(l.experts[0].probability, 0.75);
  EXPECT_DOUBLE_EQ(l.experts[1].probability, 0.25);
  const ExpertHistory unknown = history(1, 2, {10}, {6, 2}, {0, 0}, {none, none});
  const LayerLoad without = all_loads(unknown)[0];
  EXPECT_TRUE(std::isnan(without.experts[0].probability));
  EXPECT_TRUE(std::isnan(without.experts[1].probability_gap));
  EXPECT_TRUE(std::isnan(coarsen(unknown, 1).probability[0]));
}

// An expert is dead below a hundredth of an even share, and overloaded above twice an even share.
// Exactly at a bound it is neither.
TEST(LayerLoads, ClassifiesDeadAndOverloadedExperts) {
  const auto loads = [](std::vector<std::int64_t> routed) {
    const auto n = static_cast<Index>(routed.size());
    return all_loads(history(1, n, {1}, routed, std::vector<std::int64_t>(n, 0), std::vector<float>(n, 0.25f)))[0];
  };
  EXPECT_EQ(loads({200, 1, 99, 100}).dead, 0);  // an even share is 100
  EXPECT_EQ(loads({200, 1, 99, 100}).overloaded, 0);
  EXPECT_EQ(loads({2010, 9, 981, 1000}).dead, 1);  // an even share is 1,000
  EXPECT_EQ(loads({2010, 9, 981, 1000}).overloaded, 1);
  EXPECT_EQ(loads({0, 0, 0}).dead, 0);                               // no assignments at all
  EXPECT_DOUBLE_EQ(loads({2, 0}).experts[0].probability_gap, -0.5);  // probabilities as shares
}

TEST(LayerLoads, MeasuresBalanceAndCollapse) {
  const auto even = all_loads(history(1, 3, {1}, {5, 5, 5}, {0, 0, 0}, {0, 0, 0}))[0];
  EXPECT_DOUBLE_EQ(even.max_over_mean, 1);
  EXPECT_DOUBLE_EQ(even.cv, 0);
  EXPECT_NEAR(even.entropy, 1, 1e-15);
  const auto one = all_loads(history(1, 4, {1}, {0, 0, 8, 0}, {0, 0, 0, 0}, {0, 0, 0, 0}))[0];
  EXPECT_DOUBLE_EQ(one.max_over_mean, 4);
  EXPECT_DOUBLE_EQ(one.cv, std::sqrt(3.0));
  EXPECT_EQ(one.entropy, 0);
  EXPECT_EQ(one.busiest(), 2);
}

TEST(LayerLoads, SumsCountsAndAveragesProbabilities) {
  // [window 2][layer 2][expert 2]; layer 1 receives nothing in the first window.
  const ExpertHistory h = history(2, 2, {4, 8}, {1, 3, 0, 0, 6, 2, 1, 0}, {0, 1, 0, 0, 2, 0, 0, 0},
                                  {0.25f, 0.75f, 0.5f, 0.5f, 0.625f, 0.375f, 1, 0});
  const auto both = all_loads(h);
  EXPECT_EQ(both[0].experts[0].routed, 7);
  EXPECT_EQ(both[0].experts[1].dropped, 1);
  EXPECT_DOUBLE_EQ(both[0].experts[0].probability, (4 * 0.25 + 8 * 0.625) / 12);
  EXPECT_DOUBLE_EQ(both[1].experts[0].probability, 1);
  EXPECT_EQ(layer_loads(h, 1, 2)[0].experts[0].routed, 6);
  EXPECT_EQ(both[1].layer, 3);
}

TEST(LayerLoads, AcceptsZeroAssignments) {
  for (const LayerLoad& l :
       {all_loads(history(1, 2, {1}, {0, 0}, {0, 0}, {0, 0}))[0], all_loads(history(1, 2, {}, {}, {}, {}))[0]}) {
    EXPECT_EQ(l.max_over_mean, 1);
    EXPECT_EQ(l.cv, 0);
    EXPECT_EQ(l.entropy, 1);
    EXPECT_EQ(l.drop_rate, 0);
    EXPECT_EQ(l.experts[1].share, 0);
  }
}

TEST(LayerLoads, OneExpertIsBalanced) {
  const auto l = all_loads(history(1, 1, {1}, {9}, {3}, {1}))[0];
  EXPECT_EQ(l.max_over_mean, 1);
  EXPECT_EQ(l.entropy, 1);
  EXPECT_DOUBLE_EQ(l.drop_rate, 1.0 / 3);
}

TEST(LayerLoads, LargeCountsDoNotOverflow) {
  const std::int64_t n = std::int64_t{1} << 60;
  const auto l = all_loads(history(1, 2, {1}, {n, n}, {0, n}, {0.5f, 0.5f}))[0];
  EXPECT_DOUBLE_EQ(l.experts[0].share, 0.5);
  EXPECT_DOUBLE_EQ(l.drop_rate, 0.5);
}

TEST(Coarsen, KeepsTotalsAndLastSteps) {
  ExpertHistory h = history(1, 2, {}, {}, {}, {});
  for (Index w = 0; w < 7; ++w) {
    h.steps.push_back(10 * (w + 1));
    h.routed.insert(h.routed.end(), {w, 1});
    h.dropped.insert(h.dropped.end(), {0, w});
    h.probability.insert(h.probability.end(), {0.5f, 0.5f});
  }
  const ExpertHistory c = coarsen(h, 3);  // windows 0-1, 2-4, 5-6
  EXPECT_EQ(c.steps, (std::vector<std::int64_t>{20, 50, 70}));
  EXPECT_EQ(c.routed, (std::vector<std::int64_t>{1, 2, 9, 3, 11, 2}));
  EXPECT_EQ(c.dropped, (std::vector<std::int64_t>{0, 1, 0, 9, 0, 11}));
  EXPECT_EQ(c.layer_ids, h.layer_ids);
  EXPECT_EQ(first_step(c, 0), 1);
  EXPECT_EQ(first_step(c, 2), 51);
  EXPECT_EQ(coarsen(h, 7).routed, h.routed);
  EXPECT_EQ(coarsen(h, 1).routed, (std::vector<std::int64_t>{21, 7}));
  EXPECT_EQ(coarsen(history(1, 2, {}, {}, {}, {}), 5).windows(), 0);
}

// A run of 351 steps with a window every 50 steps. The last step alone would look like a collapse.
TEST(Coarsen, MergesShortWindows) {
  const auto steps = [](std::vector<std::int64_t> ends, Index most) {
    const std::size_t n = ends.size();
    ExpertHistory h = history(1, 1, std::move(ends), std::vector<std::int64_t>(n, 1), std::vector<std::int64_t>(n, 0),
                              std::vector<float>(n, 1));
    return coarsen(h, most).steps;
  };
  using Steps = std::vector<std::int64_t>;
  EXPECT_EQ(steps({50, 100, 150, 200, 250, 300, 350, 351}, 8), (Steps{50, 100, 150, 200, 250, 300, 351}));
  EXPECT_EQ(steps({50, 100, 150, 175}, 8), (Steps{50, 100, 150, 175}));  // half a window stays
  // A log line every 5 steps, and a checkpoint every 6.
  EXPECT_EQ(steps({5, 6, 10, 12, 13}, 8), (Steps{5, 10, 13}));
  EXPECT_EQ(steps({1, 100}, 8), (Steps{100}));
  EXPECT_EQ(steps({100, 101}, 8), (Steps{101}));
  EXPECT_EQ(steps({7}, 8), (Steps{7}));
  for (Index most = 1; most < 12; ++most) {
    const Steps found = steps({3, 5, 30, 31, 50, 80, 81, 82, 90, 100, 101}, most);
    EXPECT_LE(static_cast<Index>(found.size()), most);
    EXPECT_EQ(found.back(), 101);
  }
}

TEST(LastTenth, CountsStepsAndNotWindows) {
  const auto first = [](std::vector<std::int64_t> ends) {
    ExpertHistory h = history(1, 1, {}, {}, {}, {});
    h.steps = std::move(ends);
    return last_tenth(h);
  };
  EXPECT_EQ(first({50, 100, 150, 200, 250, 300, 350, 351}), 6);  // not the last step alone
  EXPECT_EQ(first({10, 20, 30, 40, 50, 60, 70, 80, 90, 100}), 9);
  EXPECT_EQ(first({10, 20, 30, 40, 50, 60, 70, 80, 90, 95, 100}), 9);
  EXPECT_EQ(first({4, 9, 14, 19}), 3);
  EXPECT_EQ(first({10, 11}), 0);
  EXPECT_EQ(first({10, 20, 25}), 1);  // a short window is not used alone
  EXPECT_EQ(first({7}), 0);
  EXPECT_EQ(first({}), 0);
}

TEST(SelectBlock, SelectsOneLayerOfEveryWindow) {
  const ExpertHistory h = history(2, 2, {4, 8}, {1, 2, 3, 4, 5, 6, 7, 8}, {0, 0, 1, 1, 0, 0, 2, 2},
                                  {.1f, .2f, .3f, .4f, .5f, .6f, .7f, .8f});
  const ExpertHistory one = select_block(h, 3);
  EXPECT_EQ(one.layers, 1);
  EXPECT_EQ(one.routed, (std::vector<std::int64_t>{3, 4, 7, 8}));
  EXPECT_EQ(one.dropped, (std::vector<std::int64_t>{1, 1, 2, 2}));
  EXPECT_EQ(one.probability, (std::vector<float>{.3f, .4f, .7f, .8f}));
  EXPECT_EQ(one.layer_ids, (std::vector<std::int64_t>{3}));
}

double js(std::vector<std::int64_t> p, std::vector<std::int64_t> q) {
  return js_divergence(p, q);
}

TEST(JsDivergence, MatchesHandComputedValues) {
  EXPECT_EQ(js({3, 1}, {6, 2}), 0);  // equal shares
  EXPECT_DOUBLE_EQ(js({5, 0, 0}, {0, 1, 1}), 1);
  // p = (1, 0), q = (1/2, 1/2), middle (3/4, 1/4):
  // 1/2 log2(4/3) + 1/2 (1/2 log2(2/3) + 1/2 log2 2)
  EXPECT_NEAR(js({7, 0}, {4, 4}), 0.311278124459133, 1e-14);
  EXPECT_DOUBLE_EQ(js({7, 0}, {4, 4}), js({4, 4}, {7, 0}));
  EXPECT_TRUE(std::isnan(js({0, 0}, {1, 2})));
  EXPECT_EQ(js({4}, {9}), 0);
}

constexpr const char* evaluation_text = R"({"step": 20, "tokens": 30, "loss": 2.5, "perplexity": 12.18,
  "bits_per_byte": null, "layers": [1, 3], "domains": [
  {"name": "a", "tokens": 10, "bytes": 11, "loss": 1, "perplexity": 2.7, "bits_per_byte": 1.4, "experts": [[4, 0], [1, 1]]},
  {"name": "b", "tokens": 10, "bytes": 12.0, "loss": 2, "perplexity": 7.4, "bits_per_byte": 2.8, "experts": [[0, 4], [1, 1]]},
  {"name": "c", "tokens": 10, "bytes": 13, "loss": 2, "perplexity": 7.4, "bits_per_byte": 2.8, "experts": [[2, 2], [2, 2]]}]})";

TEST(Evaluation, IsReadAndCompared) {
  const TempFolder folder;
  const Evaluation e = read_evaluation(folder.write("evaluation.json", evaluation_text));
  EXPECT_EQ(e.step, 20);
  EXPECT_TRUE(std::isnan(e.bits_per_byte));
  ASSERT_EQ(e.domains.size(), 3u);
  EXPECT_EQ(e.domains[1].bytes, 12);
  EXPECT_EQ(e.domains[2].experts[1][1], 2);

  const auto s = specialisation(e);
  ASSERT_EQ(s.size(), 2u);
  EXPECT_EQ(s[0].layer, 1);
  EXPECT_NEAR(s[0].mean, (1 + 2 * 0.311278124459133) / 3, 1e-14);
  EXPECT_DOUBLE_EQ(s[0].max, 1);
  EXPECT_EQ(s[0].domain_a + s[0].domain_b, "ab");
  EXPECT_EQ(s[1].mean, 0);
  EXPECT_EQ(select_block(e, 3).domains[0].experts, (std::vector<std::vector<std::int64_t>>{{1, 1}}));
  EXPECT_FALSE(e.masked);

  Evaluation one = e;
  one.domains.resize(1);
  EXPECT_TRUE(std::isnan(specialisation(one)[0].mean));
  EXPECT_EQ(specialisation(one)[0].domain_a, "");
}

// A domain without text is in no pair: it is not alike the others.
TEST(Evaluation, LeavesOutPairsWithoutAssignments) {
  Evaluation e = parse_evaluation(evaluation_text, "evaluation.json");
  e.domains[1].experts[0] = {0, 0};
  e.domains[0].experts[1] = e.domains[2].experts[1] = {0, 0};
  const auto s = specialisation(e);
  EXPECT_NEAR(s[0].mean, 0.311278124459133, 1e-14);
  EXPECT_EQ(s[0].domain_a + s[0].domain_b, "ac");
  EXPECT_TRUE(std::isnan(s[1].mean));
  EXPECT_TRUE(std::isnan(s[1].max));
  EXPECT_EQ(s[1].domain_a + s[1].domain_b, "");
}

TEST(Evaluation, KnowsMaskedLosses) {
  std::string text = evaluation_text;
  text.insert(1, "\"scoring\": \"masked_tokens\", ");
  EXPECT_TRUE(parse_evaluation(text, "evaluation.json").masked);
}

TEST(Evaluation, ReadsPartialWindowsWithUnknownBytes) {
  const TempFolder folder;
  std::string text = evaluation_text;
  text.replace(text.find("\"step\""), 0, "\"windows\": 6, \"of\": 90, ");
  text.replace(text.find("\"bytes\": 11"), 11, "\"bytes\": null");
  const Evaluation e = read_evaluation(folder.write("evaluation.json", text));
  EXPECT_EQ(e.windows, 6);
  EXPECT_EQ(e.of, 90);
  EXPECT_EQ(e.domains[0].bytes, -1);
  // A file of an older version: all windows.
  EXPECT_EQ(read_evaluation(folder.write("evaluation.json", evaluation_text)).of, 0);
}

TEST(Evaluation, NamesDamage) {
  const TempFolder folder;
  const std::string good = evaluation_text;
  const auto with = [&](const std::string& from, const std::string& to) {
    std::string text = good;
    return folder.write("evaluation.json", text.replace(text.find(from), from.size(), to));
  };
  EXPECT_BAD_INPUT(read_evaluation(folder.path() / "missing"), "missing");
  EXPECT_BAD_INPUT(read_evaluation(folder.write("evaluation.json", good.substr(0, 200))), "evaluation.json");
  EXPECT_BAD_INPUT(read_evaluation(folder.write("evaluation.json", "[]")), "evaluation.json");
  EXPECT_BAD_INPUT(read_evaluation(with("\"tokens\": 30", "\"tokens\": \"x\"")), "evaluation.json");
  EXPECT_BAD_INPUT(read_evaluation(with("[[2, 2], [2, 2]]", "[[2, 2]]")), "domain c");
  EXPECT_BAD_INPUT(read_evaluation(with("[[2, 2], [2, 2]]", "[[2, 2], [2]]")), "domain c");
  EXPECT_BAD_INPUT(read_evaluation(with("[[2, 2], [2, 2]]", "[[2, 2, 1], [2, 2, 1]]")), "domain c");
  EXPECT_BAD_INPUT(read_evaluation(with("[[2, 2], [2, 2]]", "[[2, 2], [2, -2]]")), "domain c");
}

}  // namespace
}  // namespace sy
