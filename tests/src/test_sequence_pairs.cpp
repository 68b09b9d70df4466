// Samples of encoder-decoders: span corruption, prefixes, and sources with targets.
#include "src/data/sequence_pairs.h"

#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <numeric>
#include <set>

#include "src/config/span_lengths.h"
#include "src/data/prepare.h"
#include "src/params/specs.h"
#include "tests/src/temp_folder.h"

namespace sy::sequence_pairs_test {
namespace {

Config config_of(std::vector<std::string> overrides) {
  overrides.insert(overrides.begin(), {"--model.kind=encoder_decoder", "--model.d_model=16", "--model.heads=2"});
  return parse_config("", "test", overrides);
}

const PairTokens tokens{.start = 5, .end = 1, .first_sentinel = 999, .sentinels = 100};

SampleBatch sample_of(const Config& config) {
  return SampleBatch(config, 1);
}

std::vector<std::int32_t> text_of(Index length) {
  std::vector<std::int32_t> text(static_cast<std::size_t>(length));
  std::iota(text.begin(), text.end(), 100);
  return text;
}

bool is_sentinel(std::int32_t id) {
  return id > 999 - 100 && id <= 999;
}

// Puts the hidden spans of the target in place of the source's sentinels.
std::vector<std::int32_t> restored(const SampleBatch& batch) {
  std::map<std::int32_t, std::vector<std::int32_t>> spans;
  std::int32_t last = -1;
  for (const std::int32_t id : batch.targets) {
    if (id < 0 || id == tokens.end) break;
    if (is_sentinel(id))
      last = id;
    else
      spans[last].push_back(id);
  }
  std::vector<std::int32_t> text;
  for (const std::int32_t id : batch.encoder_ids) {
    if (id < 0 || id == tokens.end) break;
    if (is_sentinel(id))
      text.insert(text.end(), spans[id].begin(), spans[id].end());
    else
      text.push_back(id);
  }
  return text;
}

TEST(SpanLengths, AreThoseOfT5) {
  // The lengths of T5's random_spans_helper: 568 tokens give 512 inputs and 114 targets.
  const SpanLengths t5 = span_lengths(568, 0.15, 3);
  EXPECT_EQ(t5.encoder, 512);
  EXPECT_EQ(t5.decoder, 114);
  EXPECT_EQ(t5.hidden, 85);
  EXPECT_EQ(t5.spans, 28);
  for (const Index length : {2, 3, 4, 5, 7, 100}) {
    for (const double density : {0.0, 0.15, 0.5, 1.0}) {
      const SpanLengths s = span_lengths(length, density, 3);
      EXPECT_GE(s.hidden, 1);
      EXPECT_LE(s.hidden, length - 1);
      EXPECT_GE(s.spans, 1);
      EXPECT_LE(s.spans, std::min(s.hidden, length - s.hidden));
    }
  }
}

TEST(SpanCorruption, HidesSpansThatTheTargetHas) {
  for (const Index length : {2, 3, 20, 101, 512}) {
    for (const char* rate : {"0.15", "0.5", "0.9"}) {
      const Config config = config_of({fmt::format("--model.seq_len={}", length),
                                       fmt::format("--train.mask_rate={}", rate), "--train.span_length=3"});
      const SequencePairs pairs(config, tokens);
      const std::vector<std::int32_t> text = text_of(length);
      const SpanLengths lengths = span_lengths(length, config.train.mask_rate, 3);
      for (const Index number : {0, 1, 77}) {
        SampleBatch batch = sample_of(config);
        pairs.make(text, number, batch[0]);
        EXPECT_EQ(restored(batch), text) << length << " " << rate;
        // Sentinels descend in both sequences, each once.
        for (const auto* ids : {&batch.encoder_ids, &batch.targets}) {
          std::vector<std::int32_t> found;
          std::ranges::copy_if(*ids, std::back_inserter(found), is_sentinel);
          ASSERT_EQ(std::ssize(found), lengths.spans);
          for (Index i = 0; i < lengths.spans; ++i) EXPECT_EQ(found[i], 999 - i);
        }
        // A text begins with a visible token, and ends with a hidden one.
        EXPECT_EQ(batch.encoder_ids[0], 100);
        EXPECT_EQ(batch.encoder_ids[lengths.encoder - 1], 1);
        EXPECT_EQ(batch.encoder_ids[lengths.encoder - 2], 999 - lengths.spans + 1);
        EXPECT_EQ(batch.targets[lengths.decoder - 1], 1);
        EXPECT_EQ(batch.targets[lengths.decoder - 2], 100 + length - 1);
        // The decoder reads the start token and the targets before each one.
        EXPECT_EQ(batch.ids[0], 5);
        for (Index i = 1; i < std::ssize(batch.ids); ++i)
          EXPECT_EQ(batch.ids[i], i < lengths.decoder ? batch.targets[i - 1] : -1) << i;
        for (Index i = lengths.encoder; i < std::ssize(batch.encoder_ids); ++i) EXPECT_EQ(batch.encoder_ids[i], -1);
        for (Index i = lengths.decoder; i < std::ssize(batch.targets); ++i) EXPECT_EQ(batch.targets[i], -1);
      }
    }
  }
}

// The choices depend on the seed and the number of the sample alone, and all divisions are equally
// likely.
TEST(SpanCorruption, IsAFunctionOfTheSample) {
  const Config config = config_of({"--model.seq_len=9", "--train.mask_rate=0.5", "--train.span_length=2"});
  const SequencePairs pairs(config, tokens);
  const auto sources = [&](const SequencePairs& of, Index number) {
    SampleBatch batch = sample_of(config);
    of.make(text_of(9), number, batch[0]);
    return batch.encoder_ids;
  };
  EXPECT_EQ(sources(pairs, 7), sources(pairs, 7));
  EXPECT_NE(sources(pairs.keyed(RandomStream(0, "other")), 3), sources(pairs, 3));
  // 5 hidden tokens (of 9 * 0.5, rounded) in 3 spans: 6 divisions; 4 visible ones in 3 parts: 3.
  std::map<std::vector<std::int32_t>, int> counts;
  constexpr int draws = 18000;
  for (Index number = 0; number < draws; ++number) ++counts[sources(pairs, number)];
  const SpanLengths lengths = span_lengths(9, 0.5, 2);
  const auto choose_two = [](Index n) { return n * (n - 1) / 2; };
  ASSERT_EQ(lengths.spans, 3);
  const Index expected = choose_two(lengths.hidden - 1) * choose_two(9 - lengths.hidden - 1);
  ASSERT_EQ(std::ssize(counts), expected);
  const double mean = static_cast<double>(draws) / static_cast<double>(expected);
  for (const auto& [source, n] : counts) EXPECT_NEAR(n, mean, 5 * std::sqrt(mean));
}

TEST(Prefix, EndsAtAnyToken) {
  const Config config = config_of({"--model.seq_len=6", "--train.objective=prefix"});
  const SequencePairs pairs(config, tokens);
  std::map<Index, int> counts;
  for (Index number = 0; number < 5000; ++number) {
    SampleBatch batch = sample_of(config);
    pairs.make(text_of(6), number, batch[0]);
    std::vector<std::int32_t> all;
    for (const auto* ids : {&batch.encoder_ids, &batch.targets})
      std::ranges::copy_if(*ids, std::back_inserter(all), [](std::int32_t id) { return id >= 100; });
    ASSERT_EQ(all, text_of(6));
    ++counts[std::ranges::count_if(batch.encoder_ids, [](std::int32_t id) { return id >= 100; })];
  }
  ASSERT_EQ(counts.size(), 5u);
  for (const auto& [length, n] : counts) {
    EXPECT_GE(length, 1);
    EXPECT_LE(length, 5);
    EXPECT_NEAR(n, 1000, 150);
  }
}

TEST(Seq2Seq, CutsLongSequences) {
  const Config config = config_of({"--train.objective=seq2seq", "--encoder.seq_len=4", "--decoder.seq_len=3"});
  const SequencePairs pairs(config, tokens);
  SampleBatch batch = sample_of(config);
  const std::vector<std::int32_t> source = {10, 11, 12, 13, 14}, target = {20};
  pairs.make(source, target, batch[0]);
  EXPECT_EQ(batch.encoder_ids, (std::vector<std::int32_t>{10, 11, 12, 1}));
  EXPECT_EQ(batch.targets, (std::vector<std::int32_t>{20, 1, -1}));
  EXPECT_EQ(batch.ids, (std::vector<std::int32_t>{5, 20, -1}));
}

// Sources and targets of a file become samples.
TEST(Seq2Seq, ReadsPreparedPairs) {
  const TempFolder temp;
  std::string lines;
  for (int i = 0; i < 40; ++i) lines += fmt::format("{{\"source\": \"s{0}\", \"target\": \"t{0}\"}}\n", i);
  temp.write("pairs.jsonl", lines);
  PrepareOptions options;
  options.domains.push_back({"toy", {temp.path() / "pairs.jsonl"}, false, true});
  options.valid_fraction = 0.25;
  options.output = temp.path() / "data";
  const Dataset data = prepare(options, [](const PrepareProgress&) {}).dataset;
  ASSERT_TRUE(data.domains()[0].pairs);
  const Config config = config_of({"--train.objective=seq2seq", "--model.seq_len=8"});
  EXPECT_EQ(with_special_tokens(config, data).model.start_token, 256);
  const SampleStream samples = training_samples(data, config);
  const auto optional_pairs = training_pairs(config, data);
  ASSERT_TRUE(optional_pairs);
  const EvalStream valid(data, 0, 8, 0, {}, nullptr, &*optional_pairs);
  EXPECT_EQ(samples.samples_per_epoch() + valid.windows(), 40);
  std::set<std::string> seen;
  const auto check = [&](const SampleBatch& batch) {
    std::string source, target;
    for (const std::int32_t id : batch.encoder_ids)
      if (id >= 0 && id < 256) source += static_cast<char>(id);
    for (const std::int32_t id : batch.targets)
      if (id >= 0 && id < 256) target += static_cast<char>(id);
    EXPECT_EQ(batch.ids[0], 256);
    EXPECT_EQ(source.substr(1), target.substr(1));
    EXPECT_EQ(source[0], 's');
    EXPECT_EQ(target[0], 't');
    seen.insert(source);
  };
  for (Index i = 0; i < SampleStream::mixing_block; ++i) {
    SampleBatch batch = sample_of(config);
    samples.read(i, batch[0]);
    check(batch);
  }
  for (Index i = 0; i < valid.windows(); ++i) {
    SampleBatch batch = sample_of(config);
    valid.read(i, batch[0]);
    check(batch);
  }
  EXPECT_EQ(seen.size(), 40u);
  EXPECT_BAD_INPUT(training_samples(data, config_of({"--model.sentinels=4"})), "sources and targets");
  EXPECT_BAD_INPUT(training_samples(data, parse_config("", "test")), "sources and targets");
}

TEST(Seq2Seq, RefusesLinesWithoutATarget) {
  for (const auto& [line, what] : {std::pair{R"({"source": "a"})", "line 2 has no target"},
                                   {R"({"target": "a"})", "line 2 has no source"},
                                   {R"({"source": "a", "target": ""})", "line 2 has no target"},
                                   {R"(["a", "b"])", "line 2 has no source"},
                                   {R"({"source")", "line 2"}}) {
    const TempFolder temp;
    temp.write("pairs.jsonl", fmt::format("{{\"source\": \"a\", \"target\": \"b\"}}\n{}\n", line));
    PrepareOptions options;
    options.domains.push_back({"toy", {temp.path() / "pairs.jsonl"}, false, true});
    options.output = temp.path() / "data";
    EXPECT_BAD_INPUT(prepare(options, [](const PrepareProgress&) {}), what);
  }
}

TEST(SpecialTokens, AreThoseOfTheDataOrOfTheModel) {
  const TempFolder temp;
  temp.write("a.txt", std::string(4000, 'x'));
  PrepareOptions options;
  options.domains.push_back({"text", {temp.path() / "a.txt"}});
  options.output = temp.path() / "data";
  const Dataset data = prepare(options, [](const PrepareProgress&) {}).dataset;
  EXPECT_BAD_INPUT(with_special_tokens(config_of({}), data), "no <extra_id_0>");
  const Config config = with_special_tokens(config_of({"--model.sentinels=20", "--model.seq_len=64"}), data);
  EXPECT_EQ(config.model.sentinel_token, 276);
  EXPECT_EQ(config.model.start_token, 256);
  EXPECT_EQ(model_vocab(config, data.vocab()), 277);
  EXPECT_BAD_INPUT(training_samples(data, config_of({"--model.sentinels=2", "--model.seq_len=64"})), "sentinels");
  EXPECT_BAD_INPUT(training_samples(data, config_of({"--train.objective=seq2seq"})), "texts without targets");
  // The samples of a text have the lengths of the configuration, and its last window may be short.
  const auto pairs = training_pairs(config, data);
  const EvalStream valid(data, 0, 64, 0, {}, nullptr, &*pairs);
  EXPECT_EQ(valid.windows(), ceil_div(data.domains()[0].valid_tokens, Index{64}));
  for (Index i = 0; i < valid.windows(); ++i) {
    SampleBatch batch = sample_of(config);
    valid.read(i, batch[0]);
    EXPECT_GE(std::ranges::count_if(batch.targets, [](std::int32_t id) { return id >= 0; }), 3);
  }
}

}  // namespace
}  // namespace sy::sequence_pairs_test
