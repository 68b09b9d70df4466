// Masked language modelling: the chosen tokens, and a model that learns to predict them.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>

#include "src/data/masking.h"
#include "src/evaluate/evaluate.h"
#include "src/evaluate/fill_mask.h"
#include "src/evaluate/logits.h"
#include "src/train/trainer.h"
#include "tests/src/temp_folder.h"
#include "tests/src/two_domains.h"

namespace sy {
namespace {

constexpr std::int32_t hidden_token = 50;
constexpr Index ids_below = 50;

// A sample whose token i has the id i % 40, and is its own target.
SampleBatch own_targets(Index tokens) {
  SampleBatch batch(tokens, {}, 1);
  for (Index i = 0; i < tokens; ++i) batch.ids[static_cast<std::size_t>(i)] = static_cast<std::int32_t>(i % 40);
  batch.targets = batch.ids;
  return batch;
}

Config::Train rates(double rate, double mask_share, double random_share) {
  Config::Train train;
  train.mask_rate = rate;
  train.mask_token_share = mask_share;
  train.mask_random_share = random_share;
  return train;
}

TEST(TokenMasking, HasTheConfiguredRates) {
  for (const auto& [rate, mask_share, random_share] :
       {std::tuple{0.15, 0.8, 0.1}, {0.3, 1.0, 0.0}, {0.5, 0.0, 1.0}, {1.0, 0.25, 0.25}, {0.0, 0.8, 0.1}}) {
    constexpr Index n = 40000;
    SampleBatch batch = own_targets(n);
    const std::vector<std::int32_t> before = batch.ids;
    TokenMasking(rates(rate, mask_share, random_share), hidden_token, ids_below).apply(batch[0], 0);
    double chosen = 0, masked = 0, changed = 0;
    std::vector<double> counts(ids_below);
    for (std::size_t i = 0; i < before.size(); ++i) {
      if (batch.targets[i] < 0) {
        ASSERT_EQ(batch.ids[i], before[i]);
        continue;
      }
      ASSERT_EQ(batch.targets[i], before[i]);
      ++chosen;
      masked += batch.ids[i] == hidden_token;
      if (batch.ids[i] == hidden_token || batch.ids[i] == before[i]) continue;
      ++changed;
      ASSERT_LT(batch.ids[i], ids_below);
      ++counts[static_cast<std::size_t>(batch.ids[i])];
    }
    const auto near = [](double got, double trials, double p) {
      EXPECT_LE(std::abs(got - trials * p), 5 * std::sqrt(trials * p * (1 - p))) << p;
    };
    near(chosen, n, rate);
    near(masked, chosen, mask_share);
    // A random token is the token itself in one of ids_below cases.
    near(changed, chosen, random_share * (ids_below - 1.0) / ids_below);
    if (changed > 1000) {
      EXPECT_GT(*std::ranges::min_element(counts), 0.5 * changed / ids_below);
      EXPECT_LT(*std::ranges::max_element(counts), 1.5 * changed / ids_below);
    }
  }
}

// The choice of a token depends on its index and on the seed, and on nothing else.
TEST(TokenMasking, IsAFunctionOfTheIndexAndTheSeed) {
  const TokenMasking masking(rates(0.3, 0.8, 0.1), hidden_token, ids_below);
  SampleBatch whole = own_targets(400), halves = whole;
  masking.apply(whole[0], 1200);
  SampleBatch first(160, {}, 1), second(240, {}, 1);
  std::copy_n(halves.ids.begin(), 160, first.ids.begin());
  std::copy_n(halves.ids.begin() + 160, 240, second.ids.begin());
  first.targets = first.ids;
  second.targets = second.ids;
  masking.apply(first[0], 1200);
  masking.apply(second[0], 1360);
  first.ids.insert(first.ids.end(), second.ids.begin(), second.ids.end());
  first.targets.insert(first.targets.end(), second.targets.begin(), second.targets.end());
  EXPECT_EQ(first.ids, whole.ids);
  EXPECT_EQ(first.targets, whole.targets);
  Config::Train other = rates(0.3, 0.8, 0.1);
  other.seed = 2;
  TokenMasking(other, hidden_token, ids_below).apply(halves[0], 1200);
  EXPECT_NE(halves.targets, whole.targets);
}

// Tokens that no loss counts, such as padding, stay as they are.
TEST(TokenMasking, LeavesTokensWithoutATarget) {
  SampleBatch batch = own_targets(200);
  for (std::size_t i = 0; i < batch.ids.size(); i += 3) batch.targets[i] = batch.ids[i] = -1;
  TokenMasking(rates(1, 1, 0), hidden_token, ids_below).apply(batch[0], 0);
  for (std::size_t i = 0; i < batch.ids.size(); ++i) {
    EXPECT_EQ(batch.ids[i], i % 3 == 0 ? -1 : hidden_token);
    EXPECT_EQ(batch.targets[i] >= 0, i % 3 != 0);
  }
}

// A data set of the byte tokenizer.
// A data set of bytes. valid: its validation text; the training text if empty.
Dataset text_data(const TempFolder& folder, const std::string& text, const std::string& valid = "") {
  DatasetDescription description;
  description.tokenizer = "bytes";
  description.vocab = 257;
  description.end_of_text = 256;
  const auto write = [&](const char* split, const std::string& of_split) {
    IndexedWriter writer(folder.path() / (std::string("a") + split), description.vocab);
    std::vector<std::int32_t> ids;
    for (const char c : of_split) ids.push_back(static_cast<unsigned char>(c));
    ids.push_back(256);
    writer.add(ids);
    writer.finish();
    return std::ssize(ids);
  };
  const Index train = write(".train", text), held_out = write(".valid", valid.empty() ? text : valid);
  description.domains.push_back({"a", 1, train, 1, held_out, train - 1, held_out - 1});
  folder.write("dataset.ini", to_ini(description));
  return Dataset(folder.path());
}

Config encoder_of(const TempFolder& folder, std::vector<std::string> more = {}) {
  more.insert(more.begin(), {"--model.kind=encoder", "--model.layers=2", "--model.d_model=16", "--model.heads=2",
                             "--model.seq_len=16", "--train.global_batch=8", "--train.micro_batch=4",
                             "--data.path=" + folder.path().string()});
  return parse_config("", "test", more);
}

TEST(TokenMasking, ChoosesRunsOfLettersTogether) {
  std::string text;
  for (int i = 0; i < 400; ++i) text += "ab, \xC3\xA4 longer 42x! ";
  const TempFolder folder;
  const Dataset data = text_data(folder, text);
  const Config config = encoder_of(folder, {"--train.mask_whole_words=true", "--model.seq_len=100"});
  const SampleStream samples = training_samples(data, config);
  const auto is_letter = [](std::int32_t id) { return id < 256 && (std::isalnum(id) || id >= 128); };
  Index runs = 0, chosen = 0;
  for (Index sample = 0; sample < 50; ++sample) {
    SampleBatch batch(100, {}, 1), plain(100, {}, 1);
    samples.read(sample, batch[0]);
    SampleStream(data, 100, 1).read(sample, plain[0]);  // the same windows, not masked
    for (std::size_t i = 1; i < batch.ids.size(); ++i) {
      const bool inside = is_letter(plain.ids[i - 1]) && is_letter(plain.ids[i]);
      if (inside) {
        EXPECT_EQ(batch.targets[i] >= 0, batch.targets[i - 1] >= 0) << sample << " " << i;
      }
      runs += !inside;
      chosen += !inside && batch.targets[i] >= 0;
      if (batch.targets[i] >= 0) {
        EXPECT_EQ(batch.targets[i], plain.ids[i]);
      }
    }
  }
  EXPECT_NEAR(static_cast<double>(chosen) / static_cast<double>(runs), 0.15, 0.03);
}

// Packed and masked documents: targets are the tokens themselves, also the first of a document.
TEST(SampleStream, MasksTokensWithinDocuments) {
  const TempFolder folder;
  const Dataset data = test::make_dataset(folder);
  for (const char* documents : {"join", "mask", "pack"}) {
    SCOPED_TRACE(documents);
    const Config config = encoder_of(folder, {"--train.mask_rate=0.5", std::string("--data.documents=") + documents});
    const SampleStream samples = training_samples(data, config),
                       plain(data, config.model.seq_len, config.train.seed, config.data);
    EXPECT_TRUE(samples.ignores_targets());
    Index chosen = 0, tokens = 0, first = 0;
    for (Index i = 0; i < 300; ++i) {
      SampleBatch got(config.model.seq_len, config.data, 1), want = got;
      EXPECT_EQ(samples.read(i, got[0]), plain.read(i, want[0]));
      EXPECT_EQ(got.document_start, want.document_start);
      for (std::size_t t = 0; t < got.ids.size(); ++t) {
        tokens += want.ids[t] >= 0;
        chosen += got.targets[t] >= 0;
        if (got.targets[t] >= 0) {
          ASSERT_EQ(got.targets[t], want.ids[t]);
          first += !got.document_start.empty() && got.document_start[t] == static_cast<std::int32_t>(t);
        } else {
          ASSERT_EQ(got.ids[t], want.ids[t]);
        }
      }
    }
    EXPECT_NEAR(static_cast<double>(chosen) / static_cast<double>(tokens), 0.5, 0.03);
    EXPECT_EQ(first > 0, config.data.documents != Documents::join);
  }
}

TEST(EvalStream, HasTheSameMasksInEveryRun) {
  const TempFolder folder;
  const Dataset data = test::make_dataset(folder);
  const auto read = [&](const std::vector<std::string>& settings) {
    const Config config = encoder_of(folder, settings);
    const auto masking = training_masking(config, data);
    const EvalStream stream(data, 1, 16, 0, config.data, &*masking);
    SampleBatch all(16, config.data, stream.windows());
    for (Index i = 0; i < stream.windows(); ++i) stream.read(i, all[i]);
    return all;
  };
  const SampleBatch one = read({});
  EXPECT_TRUE(one == read({"--train.seed=9"}));
  EXPECT_FALSE(one == read({"--train.mask_rate=0.4"}));
  const Index chosen = std::ranges::count_if(one.targets, [](std::int32_t id) { return id >= 0; });
  EXPECT_NEAR(static_cast<double>(chosen) / static_cast<double>(one.targets.size()), 0.15, 0.03);
}

TEST(MaskToken, IsThatOfTheDataUnlessItIsSet) {
  const TempFolder folder;
  const Dataset data = test::make_dataset(folder);  // 37 ids, without a tokenizer
  const Config encoder = with_mask_token(encoder_of(folder), data);
  EXPECT_EQ(encoder.model.mask_token, 37);
  EXPECT_EQ(training_vocab(encoder_of(folder)), 38);
  EXPECT_EQ(with_mask_token(encoder_of(folder, {"--model.mask_token=5"}), data).model.mask_token, 5);
  EXPECT_EQ(training_vocab(encoder_of(folder, {"--model.mask_token=5"})), 37);
  EXPECT_EQ(with_mask_token(parse_config("", "test"), data).model.mask_token, -1);
  EXPECT_THROW(model_vocab(encoder_of(folder, {"--model.mask_token=40", "--model.vocab=40"}), 37), InputError);
}

// A text of a period of 5 letters: the hidden letter follows from its neighbours.
TEST(Encoder, LearnsToFillMasks) {
  std::string text;
  for (int i = 0; i < 600; ++i) text += "abcde";
  const TempFolder folder;
  const Dataset data = text_data(folder, text);
  Config config = encoder_of(folder, {"--train.steps=120", "--train.lr=1e-2", "--train.warmup=20",
                                      "--train.mask_rate=0.3", "--model.segments=2", "--model.output_transform=true",
                                      "--moe.experts=4", "--moe.d_ff=32", "--model.d_model=32"});
  config = with_mask_token(config, data);
  ASSERT_EQ(config.model.mask_token, 257);
  const auto self = make_comm_self();
  Engine engine(config, 258, make_cpu(), make_mesh(*self, Layout{}), true);
  engine.store().initialize(1);
  const SampleStream samples = training_samples(data, config);
  Trainer trainer(engine, samples);
  double loss = 0;
  while (trainer.steps_done() < config.train.steps) loss = trainer.step().metrics.loss;
  EXPECT_LT(loss, 2);  // at first ln 258 = 5.6

  const auto score = [&](bool hide_each, Index per_pass) {
    return evaluate(engine, data, {.windows_per_pass = per_pass, .max_windows = 11, .hide_each = hide_each},
                    [](Index, Index) {})
        .front();
  };
  const DomainScore masked = score(false, 8), each = score(true, 8), again = score(true, 3);
  EXPECT_LT(masked.loss(), 2);
  EXPECT_EQ(each.tokens, 11 * 16);
  EXPECT_LT(masked.tokens, each.tokens / 2);
  EXPECT_LT(each.perplexity(), 5);
  EXPECT_NEAR(again.nats, each.nats, 1e-5 * each.nats);

  // The same, token by token.
  const EvalStream stream(data, 0, 16);
  double nats = 0;
  for (Index i = 0; i < 11; ++i) {
    SampleBatch window(16, {}, 1);
    stream.read(stream.spread(i, 11), window[0]);
    for (std::size_t t = 0; t < 16; ++t) {
      std::vector<std::int32_t> hidden = window.ids;
      hidden[t] = 257;
      const std::vector<float> logits = sequence_logits(engine, hidden, [](Index, Index) {});
      const std::span<const float> row = std::span(logits).subspan(t * 258, 258);
      double sum = 0;
      for (const float z : row) sum += std::exp(static_cast<double>(z));
      nats += std::log(sum) - row[static_cast<std::size_t>(window.ids[t])];
    }
  }
  EXPECT_NEAR(each.nats, nats, 1e-4 * nats);

  const auto bytes = make_byte_tokenizer();
  const std::vector<std::int32_t> ids = encode_masked(*bytes, 257, "abc[MASK]eabc<mask>eabc");
  EXPECT_EQ(std::ranges::count(ids, 257), 2);
  EXPECT_EQ(ids.size(), 13U);
  const auto fillings = fill_mask(engine, ids, 257, 257, 3);
  ASSERT_EQ(fillings.size(), 2U);
  for (const auto& of_mask : fillings) {
    ASSERT_EQ(of_mask.size(), 3U);
    EXPECT_TRUE(of_mask[0].id >= 'a' && of_mask[0].id <= 'e');
    EXPECT_GE(of_mask[0].probability, of_mask[1].probability);
    EXPECT_GE(of_mask[1].probability, of_mask[2].probability);
    EXPECT_LE(of_mask[0].probability + of_mask[1].probability + of_mask[2].probability, 1.0001);
  }
}

// A text of four names in a random order. A unigram model knows how often each byte occurs in the
// training text.
TEST(Encoder, FillsMasksOfHeldOutTextBetterThanAUnigramModel) {
  const auto random_text = [](std::uint64_t seed, int count) {
    const char* const all[] = {"router", "expert", "token", "gate"};
    std::string text;
    for (int i = 0; i < count; ++i) {
      seed = seed * 6364136223846793005U + 1442695040888963407U;
      text += std::string(all[(seed >> 33) % std::size(all)]) + ' ';
    }
    return text;
  };
  const std::string text = random_text(1, 500), held_out = random_text(2, 100);
  const TempFolder folder;
  const Dataset data = text_data(folder, text, held_out);
  Config config = encoder_of(folder, {"--train.steps=200", "--train.lr=1e-2", "--train.warmup=20", "--moe.experts=4",
                                      "--moe.d_ff=32", "--model.d_model=32"});
  config = with_mask_token(config, data);
  const auto self = make_comm_self();
  Engine engine(config, 258, make_cpu(), make_mesh(*self, Layout{}), true);
  engine.store().initialize(1);
  const SampleStream samples = training_samples(data, config);
  Trainer trainer(engine, samples);
  while (trainer.steps_done() < config.train.steps) trainer.step();

  // Each byte of the held-out text is hidden alone.
  const EvalStream stream(data, 0, 16);
  const Index windows = stream.windows();
  const DomainScore score =
      evaluate(engine, data, {.windows_per_pass = 8, .max_windows = windows, .hide_each = true}, [](Index, Index) {
      }).front();
  double unigram_nats = 0;
  for (const char c : held_out)
    unigram_nats -= std::log(static_cast<double>(std::ranges::count(text, c)) / static_cast<double>(text.size()));
  const double unigram_loss = unigram_nats / static_cast<double>(held_out.size());
  EXPECT_GT(score.tokens, std::ssize(held_out) * 9 / 10);
  EXPECT_GT(unigram_loss, 2);
  EXPECT_LT(score.loss(), unigram_loss / 2) << "a unigram model has " << unigram_loss;
  RecordProperty("loss", std::to_string(score.loss()));
  RecordProperty("unigram", std::to_string(unigram_loss));
}

}  // namespace
}  // namespace sy
