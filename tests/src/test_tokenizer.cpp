#include "src/data/tokenizer.h"

#include <gtest/gtest.h>
#include <omp.h>

#include <condition_variable>
#include <iostream>
#include <mutex>

// The headers of SentencePiece use containers that they do not include.
#include <unordered_map>

#include <sentencepiece_trainer.h>

#include "src/data/dataset.h"
#include "src/system/digest.h"
#include "src/text/json.h"
#include "tests/src/temp_folder.h"

namespace sy {
namespace {

std::vector<std::string> some_lines() {
  std::vector<std::string> lines;
  for (int i = 0; i < 400; ++i)
    lines.push_back(
        fmt::format("  wagon {} goes to track {}; größer als {}, その線路は{}番です", i, i * 7 % 31, i % 9, i % 13));
  return lines;
}

class Sentences : public sentencepiece::SentenceIterator {
 public:
  explicit Sentences(std::vector<std::string> lines) : lines_(std::move(lines)) {}
  bool done() const override { return next_ == lines_.size(); }
  void Next() override { ++next_; }
  const std::string& value() const override { return lines_[next_]; }
  sentencepiece::util::Status status() const override { return {}; }

 private:
  std::vector<std::string> lines_;
  std::size_t next_ = 0;
};

std::unique_ptr<Tokenizer> trained(const TempFolder& folder, Index vocab = 350) {
  return load_sentencepiece(folder.write("t.model", train_sentencepiece(some_lines(), vocab)));
}

std::string round_trip(const Tokenizer& t, const std::string& text) {
  std::vector<std::int32_t> ids;
  t.encode(text, ids);
  for (const std::int32_t id : ids) {
    EXPECT_GE(id, 0);
    EXPECT_LT(id, t.vocab());
    EXPECT_NE(id, t.end_of_text());
  }
  return t.decode(ids);
}

// Encodes a text as its size. The first text waits until another thread has encoded one. Texts that
// begin with '!' are refused.
class WaitingTokenizer : public Tokenizer {
 public:
  Index vocab() const override { return 100; }
  int end_of_text() const override { return 0; }
  std::string decode(const std::vector<std::int32_t>&) const override { return {}; }
  Index text_bytes(std::int32_t) const override { return -1; }
  void encode(std::string_view text, std::vector<std::int32_t>& ids) const override {
    std::unique_lock lock(mutex_);
    ++texts_;
    changed_.notify_all();
    if (wait_ && texts_ == 1) together_ = changed_.wait_for(lock, std::chrono::seconds(30), [&] { return texts_ > 1; });
    if (text.starts_with('!')) bad_input("{} cannot be encoded", text);
    ids.push_back(static_cast<std::int32_t>(text.size()));
  }
  explicit WaitingTokenizer(bool wait) : wait_(wait) {}
  bool together() const { return together_; }

 private:
  const bool wait_;
  mutable std::mutex mutex_;
  mutable std::condition_variable changed_;
  mutable int texts_ = 0;
  mutable bool together_ = false;
};

TEST(EncodeTexts, UsesAllThreadsAndKeepsOrder) {
  const int threads = omp_get_max_threads();
  const std::vector<std::string_view> texts = {"a", "bcd", "", "ef"};
  for (const int n : {1, 2, 5}) {
    omp_set_num_threads(n);
    const WaitingTokenizer tokenizer(n > 1);
    EXPECT_EQ(encode_texts(tokenizer, texts), (std::vector<std::vector<std::int32_t>>{{1}, {3}, {0}, {2}}));
    EXPECT_EQ(tokenizer.together(), n > 1);
    // The reported error is that of the first text in order.
    EXPECT_BAD_INPUT(encode_texts(WaitingTokenizer(false), {"a", "!second", "b", "!fourth"}), "!second cannot");
  }
  omp_set_num_threads(threads);
}

TEST(ByteTokenizer, IdsAreTheBytes) {
  const auto t = make_byte_tokenizer();
  EXPECT_EQ(t->vocab(), 257);
  EXPECT_EQ(t->end_of_text(), 256);
  std::vector<std::int32_t> ids = {5};
  t->encode(std::string("a\xFF\0z", 4), ids);
  EXPECT_EQ(ids, (std::vector<std::int32_t>{5, 'a', 255, 0, 'z'}));  // appended
  EXPECT_EQ(t->decode({'a', 256, 'b'}), "ab");
  EXPECT_EQ(t->decode({}), "");
  EXPECT_THROW(t->decode({257}), std::logic_error);
  std::string all;
  for (int i = 0; i < 256; ++i) all += static_cast<char>(i);
  EXPECT_EQ(round_trip(*t, all), all);
}

TEST(SentencePiece, RoundTripsText) {
  const TempFolder folder;
  const auto t = trained(folder);
  EXPECT_EQ(t->vocab(), 350);
  const std::string texts[] = {"",
                               " ",
                               "   leading, trailing   ",
                               "a\n\n\tb\r\n  c\n",
                               "\n",
                               "größer als 7",
                               "その線路は7番です",
                               "unseen: \xF0\x9F\x9A\x82 \xCE\xA9 \x7F \x01",
                               std::string("nul \0 inside", 12),
                               "\xE2\x96\x81",
                               "a\xE2\x96\x81\xE2\x96\x81 b \xE2\x96\x81",
                               "<unk></s><s><0x41>",
                               "e\xCC\x81 \xEF\xAC\x81 \xC2\xA0\xE3\x80\x80\xEF\xBB\xBF."};
  for (const std::string& text : texts) EXPECT_EQ(round_trip(*t, text), text);
}

// Bytes of the ids of a text; -1 if those of an id are unknown.
Index text_bytes(const Tokenizer& t, const std::string& text) {
  std::vector<std::int32_t> ids;
  t.encode(text, ids);
  ids.push_back(t.end_of_text());
  Index sum = 0;
  for (const std::int32_t id : ids) {
    if (t.text_bytes(id) < 0) return -1;
    sum += t.text_bytes(id);
  }
  return sum;
}

TEST(Tokenizers, CountTheTextBytesOfIds) {
  const TempFolder folder;
  const auto bytes = make_byte_tokenizer(), trained_model = trained(folder);
  for (const std::string& text : {std::string(), std::string("  two  blanks "), some_lines()[7],
                                  std::string("\xE2\x96\x81 größer\t線\n"), std::string("\xF0\x9F\x9A\x82")}) {
    EXPECT_EQ(text_bytes(*bytes, text), static_cast<Index>(text.size()));
    EXPECT_EQ(text_bytes(*trained_model, text), static_cast<Index>(text.size())) << text;
  }
  EXPECT_LT(bytes->text_bytes(300), 0);
  EXPECT_LT(trained_model->text_bytes(-1), 0);
  EXPECT_LT(trained_model->text_bytes(350), 0);

  // Models that change the text, like most models of other authors.
  for (const auto& [option, value] : {std::pair{"normalization_rule_name", "nmt_nfkc"},
                                      {"add_dummy_prefix", "true"},
                                      {"remove_extra_whitespaces", "true"},
                                      {"byte_fallback", "false"}}) {
    std::unordered_map<std::string, std::string> options = {{"model_type", "unigram"},
                                                            {"vocab_size", "350"},
                                                            {"hard_vocab_limit", "false"},
                                                            {"byte_fallback", "true"},
                                                            {"normalization_rule_name", "identity"},
                                                            {"add_dummy_prefix", "false"},
                                                            {"remove_extra_whitespaces", "false"},
                                                            {"minloglevel", "2"}};
    options[option] = value;
    std::string model;
    Sentences lines(some_lines());
    ASSERT_TRUE(sentencepiece::SentencePieceTrainer::Train(options, &lines, &model).ok());
    EXPECT_EQ(text_bytes(*load_sentencepiece(folder.write("other.model", model)), " Ａ  wagon "), -1) << option;
  }
}

TEST(SentencePiece, UsesTokensLongerThanBytes) {
  const TempFolder folder;
  const auto t = trained(folder);
  std::vector<std::int32_t> ids;
  const std::string text = some_lines()[17];
  t->encode(text, ids);
  EXPECT_LT(ids.size(), text.size() * 2 / 3);
}

TEST(SentencePiece, TrainsDeterministically) {
  EXPECT_EQ(train_sentencepiece(some_lines(), 340), train_sentencepiece(some_lines(), 340));
}

TEST(SentencePiece, ReportsTrainingRounds) {
  std::vector<std::pair<Index, Index>> rounds;
  std::streambuf* const printed = std::cerr.rdbuf();
  const std::string model =
      train_sentencepiece(some_lines(), 340, [&](Index done, Index total) { rounds.emplace_back(done, total); });
  EXPECT_EQ(std::cerr.rdbuf(), printed);
  ASSERT_GE(rounds.size(), 2u);
  for (std::size_t i = 0; i < rounds.size(); ++i) {
    EXPECT_EQ(rounds[i].first, static_cast<Index>(i) + 1);
    EXPECT_GE(rounds[i].second, rounds[i].first);
  }
  EXPECT_EQ(rounds.back().first, rounds.back().second);
  EXPECT_EQ(model, train_sentencepiece(some_lines(), 340));
}

TEST(SentencePiece, NamesTheVocabularyLimits) {
  const std::string large = MESSAGE_OF(InputError, train_sentencepiece(some_lines(), 50000));
  const std::size_t at = large.find("largest possible vocabulary is ");
  ASSERT_NE(at, std::string::npos) << large;
  const Index most = std::stol(large.substr(at + 31));
  EXPECT_NO_THROW(train_sentencepiece(some_lines(), most));
  EXPECT_THROW(train_sentencepiece(some_lines(), most + 1), InputError);

  const std::string small = MESSAGE_OF(InputError, train_sentencepiece(some_lines(), 100));
  const std::size_t need = small.find("alone need ");
  ASSERT_NE(need, std::string::npos) << small;
  EXPECT_THROW(train_sentencepiece(some_lines(), std::stol(small.substr(need + 11)) - 1), InputError);
  EXPECT_NO_THROW(train_sentencepiece(some_lines(), std::stol(small.substr(need + 11)) + 1));

  EXPECT_BAD_INPUT(train_sentencepiece({}, 300), "cannot train");
}

TEST(SentencePiece, RejectsInvalidModels) {
  const TempFolder folder;
  EXPECT_BAD_INPUT(load_sentencepiece(folder.path() / "absent.model"), "absent.model");
  EXPECT_BAD_INPUT(load_sentencepiece(folder.write("text.model", "this is a text\n")), "not a SentencePiece model");
  EXPECT_BAD_INPUT(load_sentencepiece(folder.write("empty.model", "")), "not a SentencePiece model");
  const std::string model = train_sentencepiece(some_lines(), 340);
  EXPECT_BAD_INPUT(load_sentencepiece(folder.write("half.model", model.substr(0, model.size() / 2))),
                   "not a SentencePiece model");
}

// A Unigram model gets a tokenizer.json that gives the same ids. For other models no file is
// written.
TEST(SentencePiece, ConvertsToTokenizerJson) {
  const TempFolder folder;
  const auto model = trained(folder);
  ASSERT_TRUE(write_sentencepiece_as_json(folder.path() / "t.model", folder.path()));
  const auto json = load_huggingface(folder.path() / "tokenizer.json");
  EXPECT_EQ(json->vocab(), model->vocab());
  EXPECT_EQ(json->end_of_text(), model->end_of_text());
  std::string all;
  for (const std::string& line : some_lines()) all += line + "\n\t";
  for (const std::string& text : {all, std::string("größer 🚂 а́ 線路\r\n  x"), std::string(" "), std::string()}) {
    std::vector<std::int32_t> expected, ids;
    model->encode(text, expected);
    json->encode(text, ids);
    EXPECT_EQ(ids, expected);
    EXPECT_EQ(json->decode(ids), text);
  }
  const Json config = Json::parse(read_file(folder.path() / "tokenizer_config.json"));
  EXPECT_EQ(config.at("tokenizer_class"), Json("PreTrainedTokenizerFast"));
  EXPECT_EQ(config.at("eos_token"), Json("</s>"));
  EXPECT_FALSE(config.contains("bos_token"));
  EXPECT_EQ(sentencepiece_begin_of_text(folder.path() / "t.model"), -1);

  using Options = std::unordered_map<std::string, std::string>;
  const Options unigram{
      {"model_type", "unigram"}, {"vocab_size", "330"}, {"byte_fallback", "true"}, {"minloglevel", "2"}};
  const auto made = [&](const Options& more) {
    Options options = unigram;
    for (const auto& [key, value] : more) options[key] = value;
    Sentences sentences(some_lines());
    std::string content;
    const auto status = sentencepiece::SentencePieceTrainer::Train(options, &sentences, &content);
    EXPECT_TRUE(status.ok()) << status.ToString();
    const TempFolder other;
    return write_sentencepiece_as_json(other.write("m.model", content), other.path()) ==
                   std::filesystem::exists(other.path() / "tokenizer.json")
               ? std::filesystem::exists(other.path() / "tokenizer_config.json")
               : -1;
  };
  // With a blank before each text.
  EXPECT_EQ(made({{"normalization_rule_name", "identity"}, {"remove_extra_whitespaces", "false"}}), 1);
  EXPECT_EQ(made({{"normalization_rule_name", "identity"}}), 0);
  EXPECT_EQ(made({{"normalization_rule_name", "nfkc"}, {"remove_extra_whitespaces", "false"}}), 0);
  EXPECT_EQ(
      made({{"model_type", "bpe"}, {"normalization_rule_name", "identity"}, {"remove_extra_whitespaces", "false"}}), 0);
}

TEST(OpenTokenizer, VerifiesTheDigestOfTheModel) {
  const TempFolder folder;
  trained(folder);
  DatasetDescription d;
  d.tokenizer = "sentencepiece";
  d.model = "t.model";
  d.vocab = 350;
  d.domains.resize(1);
  d.domains[0].name = "a";
  d.model_sha256 = to_hex(sha256_file(folder.path() / "t.model"));
  folder.write("dataset.ini", to_ini(d));
  EXPECT_EQ(open_tokenizer(folder.path())->vocab(), 350);
  folder.write("t.model", train_sentencepiece(some_lines(), 351));
  EXPECT_BAD_INPUT(open_tokenizer(folder.path()), "t.model is not the model that dataset.ini describes");
}

TEST(OpenTokenizer, FollowsDatasetIni) {
  const TempFolder folder;
  EXPECT_BAD_INPUT(open_tokenizer(folder.path()), "dataset.ini");
  folder.write("dataset.ini", "[dataset]\ntokenizer = bytes\ndomains = a\n");
  EXPECT_EQ(open_tokenizer(folder.path())->vocab(), 257);
  folder.write("dataset.ini", "[dataset]\ntokenizer = sentencepiece\nmodel = t.model\ndomains = a\n");
  EXPECT_BAD_INPUT(open_tokenizer(folder.path()), "t.model");
  trained(folder, 345);
  EXPECT_EQ(open_tokenizer(folder.path())->vocab(), 345);
  folder.write("dataset.ini", "[dataset]\ntokenizer = none\nvocab = 9\ndomains = a\n");
  EXPECT_BAD_INPUT(open_tokenizer(folder.path()), "tokenizer = none");
}

}  // namespace
}  // namespace sy
