// Beam search compared with the enumeration of all targets, and a model that reverses sentences.
#include "src/generate/beam_search.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "kernels/philox.h"
#include "src/train/distributed_optimizer.h"

namespace sy::beam_search_test {
namespace {

using Ids = std::vector<std::int32_t>;

constexpr Index V = 5;
constexpr std::int32_t start = 0, end_id = 1;

Config small(const std::vector<std::string>& more = {}) {
  std::vector<std::string> settings = {"--model.kind=encoder_decoder",
                                       "--model.layers=2",
                                       "--model.d_model=16",
                                       "--model.heads=2",
                                       "--model.d_ff=24",
                                       "--model.position=t5",
                                       "--train.objective=seq2seq",
                                       "--model.seq_len=8",
                                       "--moe.experts=3",
                                       "--moe.capacity_factor=0",
                                       "--model.init_std=0.6"};
  settings.insert(settings.end(), more.begin(), more.end());
  return parse_config("", "test", settings);
}

// Log-probabilities [targets + 1, V] after the start and after each token of a target.
std::vector<double> log_probabilities(Engine& engine, const Ids& source, const Ids& target) {
  Ids inputs{start};
  inputs.insert(inputs.end(), target.begin(), target.end());
  const std::vector<float> logits = engine.logits({.sequences = 1,
                                                   .seq_len = std::ssize(inputs),
                                                   .ids = inputs,
                                                   .targets = {},
                                                   .encoder_length = std::ssize(source),
                                                   .encoder_ids = source});
  std::vector<double> all;
  for (auto row = logits.begin(); row != logits.end(); row += V) {
    double sum = 0;
    for (Index i = 0; i < V; ++i) sum += std::exp(static_cast<double>(row[i]));
    for (Index i = 0; i < V; ++i) all.push_back(static_cast<double>(row[i]) - std::log(sum));
  }
  return all;
}

struct Best {
  Ids target;
  double score = -1e30;
};

// Visits all targets of up to `tokens` tokens, their end included.
void enumerate(Engine& engine, const Ids& source, Ids& target, double sum, Index tokens, double penalty, Best& best) {
  const auto score = [&](double of, Index n) { return of / std::pow(static_cast<double>(n), penalty); };
  if (std::ssize(target) == tokens) {
    if (const double s = score(sum, tokens); s > best.score) best = {target, s};
    return;
  }
  const std::vector<double> all = log_probabilities(engine, source, target);
  const double* const next = all.data() + std::ssize(target) * V;
  for (std::int32_t id = 0; id < V; ++id) {
    if (id == end_id) {
      if (const double s = score(sum + next[id], std::ssize(target) + 1); s > best.score) best = {target, s};
      continue;
    }
    target.push_back(id);
    enumerate(engine, source, target, sum + next[id], tokens, penalty, best);
    target.pop_back();
  }
}

TEST(BeamSearch, FindsTheBestOfAllTargets) {
  const Config config = small();
  const auto self = make_comm_self();
  Engine engine(config, V, make_cpu(), make_mesh(*self, Layout{}), false);
  std::map<std::size_t, int> lengths;
  for (const std::uint64_t seed : {1, 2, 3}) {
    engine.store().initialize(seed);
    for (const double penalty : {0.0, 1.0, 2.0}) {
      const std::vector<Ids> sources{{2, 3, 4, end_id}, {4, end_id}, {3, 3, 2, 2, 4, end_id}};
      const BeamOptions options{.beams = 200, .tokens = 3, .length_penalty = penalty, .start = start, .end = end_id};
      const std::vector<Continuation> found = search_targets(engine, sources, options);
      for (std::size_t i = 0; i < sources.size(); ++i) {
        Best best;
        Ids target;
        enumerate(engine, sources[i], target, 0, 3, penalty, best);
        EXPECT_EQ(found[i].added, best.target) << seed << " " << penalty << " " << i;
        ++lengths[best.target.size()];
      }
    }
  }
  EXPECT_GE(lengths.size(), 2u) << "the best targets must differ in length";
}

TEST(BeamSearch, WithOneBeamTakesTheLikeliestToken) {
  const Config config = small();
  const auto self = make_comm_self();
  Engine engine(config, V, make_cpu(), make_mesh(*self, Layout{}), false);
  engine.store().initialize(5);
  const std::vector<Ids> sources{{2, 3, 4, end_id}, {4, 4, end_id}};
  const std::vector<Continuation> found =
      search_targets(engine, sources, {.beams = 1, .tokens = 6, .start = start, .end = end_id});
  for (std::size_t i = 0; i < sources.size(); ++i) {
    Ids target;
    Finish finish = Finish::length;
    while (std::ssize(target) < 6) {
      const std::vector<double> all = log_probabilities(engine, sources[i], target);
      const auto next = all.end() - V;
      const auto id = static_cast<std::int32_t>(std::max_element(next, all.end()) - next);
      if (id == end_id) {
        finish = Finish::end_of_text;
        break;
      }
      target.push_back(id);
    }
    EXPECT_EQ(found[i].added, target);
    EXPECT_EQ(found[i].finish, finish);
  }
}

// A model with experts in both stacks learns to reverse sentences of 2 to 6 letters.
TEST(BeamSearch, ReversesSentences) {
  constexpr std::int32_t letters = 12, vocab = letters + 2;
  constexpr Index S = 8, B = 64, steps = 700;
  const Config config = parse_config(
      "", "test",
      {"--model.kind=encoder_decoder", "--model.layers=1", "--model.d_model=64", "--model.heads=4", "--model.d_ff=96",
       "--model.position=learned", "--train.objective=seq2seq", fmt::format("--model.seq_len={}", S), "--moe.experts=4",
       "--moe.top_k=2", "--moe.d_ff=64", "--model.tie_embeddings=true", "--train.lr=5e-3", "--train.warmup=0",
       "--train.schedule=constant", "--train.weight_decay=0"});
  const auto self = make_comm_self();
  Engine engine(config, vocab, make_cpu(), make_mesh(*self, Layout{}), true);
  engine.store().initialize(1);
  DistributedOptimizer optimizer(engine.mesh(), engine.store());
  const RandomStream random(4, "sentences");
  const auto sentence = [&](std::uint64_t number) {
    Ids ids;
    const std::uint64_t length = 2 + random.bits(number * 8) % 5;
    for (std::uint64_t i = 1; i <= length; ++i)
      ids.push_back(2 + static_cast<std::int32_t>(random.bits(number * 8 + i) % letters));
    return ids;
  };
  for (Index step = 1; step <= steps; ++step) {
    Ids sources(B * S, -1), ids(B * S, -1), targets(B * S, -1);
    Index counted = 0;
    for (Index b = 0; b < B; ++b) {
      Ids source = sentence(static_cast<std::uint64_t>(step * B + b)), target(source.rbegin(), source.rend());
      source.push_back(end_id);
      target.push_back(end_id);
      std::ranges::copy(source, sources.begin() + b * S);
      std::ranges::copy(target, targets.begin() + b * S);
      ids[b * S] = start;
      std::copy(target.begin(), target.end() - 1, ids.begin() + b * S + 1);
      counted += std::ssize(target);
    }
    engine.forward_backward({B, S, ids, targets, counted, B, 1, 0, {}, S, sources});
    optimizer.step(config.train, 5e-3 * std::min(1.0, 3.0 * static_cast<double>(steps - step) / steps), step);
  }
  constexpr std::size_t tested = 200;
  std::vector<Ids> sources;
  for (std::size_t i = 0; i < tested; ++i) {
    sources.push_back(sentence(10'000'000 + i));
    sources.back().push_back(end_id);
  }
  const std::vector<Continuation> found =
      search_targets(engine, sources, {.beams = 4, .tokens = S, .start = start, .end = end_id});
  std::size_t right = 0;
  for (std::size_t i = 0; i < tested; ++i)
    right +=
        found[i].added == Ids(sources[i].rbegin() + 1, sources[i].rend()) && found[i].finish == Finish::end_of_text;
  EXPECT_GE(right, tested * 99 / 100) << "of " << tested;
}

}  // namespace
}  // namespace sy::beam_search_test
