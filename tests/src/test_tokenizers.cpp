// Tokenizers of Hugging Face are compared with `tokenizers` (tests/golden/tokenizer_json.py). Wrong
// files are refused.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <ctime>
#include <fstream>
#include <sstream>
#include <thread>

#include "src/data/dataset.h"
#include "src/data/prepare.h"
#include "src/data/tokenizer.h"
#include "src/system/digest.h"
#include "src/tokenizers/normalizers.h"
#include "src/tokenizers/pre_tokenizers.h"
#include "src/tokenizers/regex.h"
#include "src/tokenizers/tokenizer_json.h"
#include "src/tokenizers/unicode.h"
#include "tests/src/temp_folder.h"

namespace sy {
namespace {

namespace fs = std::filesystem;

const Json& golden_tokenizers() {
  static const Json json = [] {
    std::stringstream text;
    text << std::ifstream(GOLDEN "/tokenizer_json.json").rdbuf();
    return Json::parse(text.str());
  }();
  return json;
}

const Json& golden_case(const std::string& name) {
  for (const Json& c : golden_tokenizers()["cases"])
    if (c["name"].get<std::string>() == name) return c;
  throw std::out_of_range(name);
}

// The tokenizer.json of a case.
Json file_of(const std::string& name) {
  const Json& c = golden_case(name);
  Json file = c["parts"], model = golden_tokenizers()["models"][c["model"].get<std::string>()];
  for (const auto& [key, value] : c["changes"].members()) model[key] = value;
  file["model"] = std::move(model);
  return file;
}

std::vector<std::string> golden_names() {
  std::vector<std::string> names;
  for (const Json& c : golden_tokenizers()["cases"]) names.push_back(c["name"].get<std::string>());
  return names;
}

using Ids = std::vector<std::int32_t>;
Ids ids_of(const TokenizerJson& tokenizer, std::string_view text) {
  Ids ids;
  tokenizer.encode(text, ids);
  return ids;
}
Ids to_ids(const Json& json) {
  Ids ids;
  for (const Json& id : json) ids.push_back(static_cast<std::int32_t>(id.get<std::int64_t>()));
  return ids;
}

std::string base64_of(std::string_view bytes) {
  constexpr std::string_view alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string text;
  std::uint32_t bits = 0;
  int count = 0;
  for (const char byte : bytes) {
    bits = bits << 8 | static_cast<unsigned char>(byte);
    for (count += 8; count >= 6; count -= 6) text += alphabet[bits >> (count - 6) & 63];
  }
  if (count > 0) text += alphabet[bits << (6 - count) & 63];
  return text;
}

// A normalizer that replaces "a". Its map has a trie of three units that are not 0: the root, the
// node of "a", and the value 0 of this (src/tokenizers/charsmap.cpp).
Json charsmap_of_a(const std::string& replacement) {
  std::vector<std::uint32_t> units(866);
  units[0] = 256 << 10;
  units[256 ^ 'a'] = 512 << 10 | 1 << 8 | 'a';
  const auto trie_bytes = static_cast<std::uint32_t>(units.size() * sizeof units[0]);
  std::string map(sizeof trie_bytes + trie_bytes, '\0');
  std::memcpy(map.data(), &trie_bytes, sizeof trie_bytes);
  std::memcpy(map.data() + sizeof trie_bytes, units.data(), trie_bytes);
  return {{"type", "Precompiled"}, {"precompiled_charsmap", base64_of(map + replacement + '\0')}};
}

class GoldenTokenizer : public testing::TestWithParam<std::string> {};

TEST_P(GoldenTokenizer, EqualsTheTokenizersLibrary) {
  const TempFolder folder;
  const Json& c = golden_case(GetParam());
  const TokenizerJson tokenizer(folder.write("tokenizer.json", file_of(GetParam()).dump()));
  ASSERT_GT(c["ids"].size(), 10u);
  for (std::size_t i = 0; i < c["ids"].size(); ++i) {
    const std::string text = golden_tokenizers()["texts"][i].get<std::string>();
    const Ids want = to_ids(c["ids"][i]);
    EXPECT_EQ(ids_of(tokenizer, text), want) << "text " << i << ": " << text;
    const Json& decoded = c["decoded"][i];
    EXPECT_EQ(as_utf8(tokenizer.decode(want)), decoded.is_null() ? text : decoded.get<std::string>()) << "text " << i;
  }
}

INSTANTIATE_TEST_SUITE_P(All, GoldenTokenizer, testing::ValuesIn(golden_names()),
                         [](const auto& test) { return test.param; });

TEST(TokenizerJson, DescribesItsTokens) {
  const TempFolder folder;
  const TokenizerJson t(folder.write("tokenizer.json", file_of("qwen2").dump()));
  EXPECT_EQ(t.vocab(), 523);
  EXPECT_EQ(t.find("<|im_start|>"), 520);
  EXPECT_EQ(t.find("<tool>"), 522);
  EXPECT_EQ(t.find("nothing of it"), -1);
  EXPECT_TRUE(t.is_special(520));
  EXPECT_FALSE(t.is_special(522));
  EXPECT_FALSE(t.is_special(5));
  EXPECT_EQ(t.unknown_id(), -1);
  EXPECT_EQ(t.decode({520, 0, 522}), "<tool>");
  EXPECT_THROW(t.decode({523}), std::logic_error);
  EXPECT_THROW(t.decode({-1}), std::logic_error);
  // Invalid UTF-8 counts as U+FFFD, once for each maximal part of a character. Decoding leaves
  // incomplete characters as they are.
  EXPECT_EQ(t.decode(ids_of(t, "a\xFF\xE2\x82z\xF0\x9F")), "a\xEF\xBF\xBD\xEF\xBF\xBDz\xEF\xBF\xBD");
  const Ids euro = ids_of(t, "\xE2\x82\xAC");
  ASSERT_EQ(euro.size(), 3u);
  EXPECT_EQ(t.decode({euro[0], euro[1]}), "\xE2\x82");
}

TEST(TokenizerJson, EncodesOnManyThreads) {
  const TempFolder folder;
  for (const char* name : {"llama3", "unigram_whole", "t5", "bert"}) {
    const TokenizerJson t(folder.write("tokenizer.json", file_of(name).dump()));
    const Json& c = golden_case(name);
    std::vector<std::thread> threads;
    std::atomic<int> wrong = 0;
    for (int thread = 0; thread < 4; ++thread)
      threads.emplace_back([&] {
        for (int round = 0; round < 20; ++round)
          for (std::size_t i = 0; i < c["ids"].size(); ++i)
            wrong += ids_of(t, golden_tokenizers()["texts"][i].get<std::string>()) != to_ids(c["ids"][i]);
      });
    for (std::thread& thread : threads) thread.join();
    EXPECT_EQ(wrong, 0) << name;
  }
}

// One endless word, or endless white space. Quadratic algorithms would take hours.
TEST(TokenizerJson, EncodesLongInputsInLinearTime) {
  const TempFolder folder;
  std::string letters, mixed, blanks(1 << 20, ' ');
  for (int i = 0; letters.size() < (1 << 20); ++i) letters += "wagonsexpertstrack"[i * 7 % 18];
  while (mixed.size() < (1 << 20)) mixed += "größer線路 ";
  for (const char* name : {"gpt2", "llama2", "unigram_whole", "t5", "clip", "added", "bert"}) {
    const TokenizerJson t(folder.write("tokenizer.json", file_of(name).dump()));
    for (const std::string& text : {letters, mixed, blanks, std::string(1 << 18, 'a')}) {
      const auto start = std::chrono::steady_clock::now();
      const Ids ids = ids_of(t, text);
      EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(30)) << name;
      EXPECT_LE(ids.size(), text.size() * 4 + 4) << name;
    }
  }
}

TEST(TokenizerJson, FindsManyAddedTokens) {
  const TempFolder folder;
  Json file = file_of("gpt2");
  for (int i = 0; i < 3000; ++i)
    file["added_tokens"].push_back({{"id", 520 + i}, {"content", fmt::format("<extra_{}>", i)}, {"special", true}});
  const TokenizerJson t(folder.write("tokenizer.json", file.dump()));
  EXPECT_EQ(ids_of(t, "<extra_7><extra_77><extra_2999>"), (Ids{527, 597, 3519}));
  EXPECT_EQ(t.vocab(), 3520);
}

TEST(TokenizerJson, RejectsInvalidFiles) {
  const TempFolder folder;
  const auto refused = [&](const std::string& content, const std::string& why) {
    const fs::path file = folder.write("tokenizer.json", content);
    const std::string message = MESSAGE_OF(InputError, TokenizerJson{file});
    EXPECT_TRUE(has(message, why)) << message << "\n  instead of: " << why;
    EXPECT_TRUE(has(message, file.string())) << message;
    EXPECT_LT(message.size(), 1000u + file.string().size());
  };
  const std::string whole = file_of("gpt2").dump();
  refused("", "no tokenizer.json");
  refused("these are words", "not JSON");
  for (std::size_t size = 1; size < whole.size(); size += whole.size() / 97) refused(whole.substr(0, size), "not JSON");
  refused("[1, 2]", "no tokenizer.json");
  refused("{}", "no key 'model'");
  refused("{\"model\": null}", "null");
  refused("{\"model\": {\"type\": 5}}", "'type': number where a string is expected");
  refused("{\"version\": \"2.0\", \"model\": {\"type\": \"BPE\"}}", "version 2.0");
  std::string deep;
  for (int i = 0; i < 100000; ++i) deep += "{\"normalizer\":";
  refused(deep, "deep");
  refused("{\"model\": \"\xFF\xFE\"}", "not JSON");

  // Changes the value at a path of keys, and expects this error.
  const auto changed = [&](const char* name, std::vector<std::string> path, const Json& value, const std::string& why) {
    Json file = file_of(name);
    Json* at = &file;
    for (const std::string& key : path) at = &(*at)[key];
    *at = value;
    refused(file.dump(), why);
  };
  changed("gpt2", {"model", "type"}, "WordLevel",
          "the model 'WordLevel' is not supported: switchyard has BPE, Unigram, WordPiece");
  changed("gpt2", {"model", "type"}, "WordLevel", "'WordLevel'");
  changed("gpt2", {"normalizer"}, Json{{"type", "Nmt"}}, "the normalizer 'Nmt' is not supported");
  changed("gpt2", {"pre_tokenizer"}, Json{{"type", "UnicodeScripts"}},
          "the pre_tokenizer 'UnicodeScripts' is not supported");
  changed("gpt2", {"decoder"}, Json{{"type", "CTC"}}, "the decoder 'CTC' is not supported");
  changed("gpt2", {"normalizer"}, Json{{"type", "Sequence"}, {"normalizers", Json::array({Json{{"type", "Bert"}}})}},
          ": the normalizer 'Bert'");
  Json nested = Json{{"type", "NFQ"}};
  for (int i = 0; i < 400; ++i) nested = Json{{"type", "Sequence"}, {"normalizers", Json::array({nested})}};
  changed("gpt2", {"normalizer"}, nested, ": the normalizer 'NFQ'");
  changed("gpt2", {"normalizer"}, Json{{"type", std::string(1 << 20, 'N')}}, "NNN...'");
  changed("gpt2", {"normalizer"}, Json{{"type", "Sequence"}}, "no key 'normalizers'");
  changed("gpt2", {"normalizer"}, "NFC", "string where an object");
  changed("gpt2", {"normalizer"}, Json{{"type", "Replace"}, {"pattern", "x"}, {"content", ""}}, "Replace");
  changed("gpt2", {"normalizer"}, Json{{"type", "Precompiled"}, {"precompiled_charsmap", "AAAA"}}, "damaged");
  changed("gpt2", {"normalizer"}, Json{{"type", "Precompiled"}, {"precompiled_charsmap", "////////"}}, "damaged");
  changed("gpt2", {"normalizer"}, Json{{"type", "Precompiled"}, {"precompiled_charsmap", "!"}}, "base64");
  changed("gpt2", {"normalizer"}, charsmap_of_a("x\xF0"), "damaged");  // no UTF-8
  const auto split_by = [](const char* expression, const char* behavior = "Isolated") {
    return Json{{"type", "Split"}, {"pattern", Json{{"Regex", expression}}}, {"behavior", behavior}, {"invert", false}};
  };
  for (const char* expression :
       {"(",     ")",         "[",           "a{2,1}",  "\\",    "(?<n",    "\\p{Nothing}", "[a&&]",
        "[&&b]", "[x[a&&b]]", "[a&&",        "[a[^b]]", "[\\W]", "\\Qa",    "(?(",          "x**",
        "\\u12", "[[:x",      "[[:graph:]]", "\\p{L",   "(?",    "(?<=a*)b"})
    changed("gpt2", {"pre_tokenizer"}, split_by(expression), "the regular expression");
  changed("gpt2", {"pre_tokenizer"}, split_by(std::string(1 << 20, 'x').c_str()),
          "xxx... cannot be used: it has 1048576 bytes");
  changed("gpt2", {"pre_tokenizer"}, split_by("a", "Between"), "the behavior 'Between'");
  changed("t5", {"pre_tokenizer", "replacement"}, "ab", "not one character");
  changed("t5", {"pre_tokenizer", "prepend_scheme"}, "last", "prepend_scheme 'last'");

  changed("gpt2", {"model", "vocab"}, Json::array(), "array where an object");
  changed("gpt2", {"model", "vocab"}, Json::object(), "is not in the vocabulary");
  changed("gpt2", {"model", "vocab", "a"}, "one", "string where a whole number");
  changed("gpt2", {"model", "vocab", "a"}, 1.5, "whole number");
  changed("gpt2", {"model", "vocab", "a"}, -1, "has the id -1");
  changed("gpt2", {"model", "vocab", "a"}, 3, "have the same id 3");
  changed("gpt2", {"model", "vocab", "a"}, 2000000000, "the largest id is 2000000000");
  changed("gpt2", {"model", "vocab", "a"}, std::int64_t{1} << 40, "the largest id is");
  changed("gpt2", {"model", "merges"}, Json::array({"a b c"}), "the merge 'a b c' is not two tokens");
  changed("gpt2", {"model", "merges"}, Json::array({std::string(1 << 20, 'q')}), "qqq...' is not two tokens");
  changed("gpt2", {"model", "merges"}, Json::array({"a"}), "the merge 'a' is not two tokens");
  changed("gpt2", {"model", "merges"}, Json::array({"qq a"}), "needs the token 'qq'");
  changed("gpt2", {"model", "merges"}, Json::array({"q Z"}), "needs the token 'qZ'");
  changed("gpt2", {"model", "merges"}, Json::array({Json::array({"a"})}), "a merge of 1 tokens");
  changed("gpt2", {"model", "merges"}, Json::array({5}), "a merge of 0 tokens");
  changed("gpt2", {"model", "dropout"}, 0.1, "dropout");
  changed("clip", {"model", "continuing_subword_prefix"}, "######", "lacks the prefix");
  const auto pair = [](const char* token, const Json& score) { return Json::array({token, score}); };
  changed("t5", {"model", "vocab"}, Json::array(), "unk_id 2 is none of 0 tokens");
  changed("t5", {"model", "unk_id"}, 100000, "unk_id 100000");
  changed("t5", {"model", "unk_id"}, -7, "unk_id -7");
  changed("t5", {"model", "vocab"}, Json::array({pair("a", 1), Json::array({"b"}), pair("c", 1)}), "an array of 1");
  changed("t5", {"model", "vocab"}, Json::array({pair("a", 1), pair("b", "c"), pair("d", 1)}), "a number");
  changed("t5", {"model", "vocab"}, Json::array({pair("a", 1), pair("a", 2), pair("b", 1)}), "'a' is there twice");

  const auto added = [](const char* content, const Json& id) {
    return Json::array({Json{{"content", content}, {"id", id}, {"special", true}}});
  };
  changed("gpt2", {"added_tokens"}, "all", "string where an array");
  changed("gpt2", {"added_tokens"}, added("<a>", "one"), "'id': string");
  changed("gpt2", {"added_tokens"}, added("<a>", -1), "far beyond");
  changed("gpt2", {"added_tokens"}, added("<a>", std::int64_t{1} << 62), "far beyond");
  changed("gpt2", {"added_tokens"}, added("<a>", 7), "its id 7 is that of");
  changed("gpt2", {"added_tokens"}, added("<|endoftext|>", 520), "its id is 520, and 0 in the vocabulary");
  changed("gpt2", {"added_tokens"}, Json::array({Json{{"id", 520}}}), "no key 'content'");
  const auto two = [&](const char* first, int id, const char* second, int other) {
    return Json::array({added(first, id).at(0), added(second, other).at(0)});
  };
  changed("gpt2", {"added_tokens"}, two("<a>", 520, "<b>", 520), "have the same id 520");
  changed("gpt2", {"added_tokens"}, two("<a>", 520, "<a>", 521), "'<a>' is there twice");
  EXPECT_BAD_INPUT(TokenizerJson{folder.path() / "absent.json"}, "absent.json");
}

TEST(TokenizerJson, RejectsTextsWithoutTokens) {
  const TempFolder folder;
  Json file = file_of("t5");
  file["model"]["unk_id"] = Json();
  const TokenizerJson no_unknown(folder.write("tokenizer.json", file.dump()));
  EXPECT_NO_THROW(ids_of(no_unknown, "the wagon"));
  EXPECT_BAD_INPUT(ids_of(no_unknown, "\xF0\x9F\x9A\x9D"), "no token for '\xF0\x9F\x9A\x9D'");

  file = file_of("bert_like");
  file["model"]["unk_token"] = "[MISSING]";
  const TokenizerJson lacks_it(folder.write("tokenizer.json", file.dump()));
  EXPECT_BAD_INPUT(ids_of(lacks_it, "\xF0\x9F\x9A\x9D"), "[MISSING]");
  file["model"]["unk_token"] = Json();
  const TokenizerJson leaves_out(folder.write("tokenizer.json", file.dump()));
  EXPECT_EQ(ids_of(leaves_out, "the \xF0\x9F\x9A\x9D"), ids_of(leaves_out, "the"));

  // The first files of BERT name no type of model.
  file = file_of("bert");
  file["model"]["unk_token"] = "[MISSING]";
  Json untyped = Json::object();
  for (const Json::Member& m : file["model"].members())
    if (m.name != "type") untyped.append(m.name, m.value);
  file["model"] = untyped;
  const TokenizerJson of_bert(folder.write("tokenizer.json", file.dump()));
  EXPECT_NO_THROW(ids_of(of_bert, "the wagons"));
  EXPECT_BAD_INPUT(ids_of(of_bert, "\xF0\x9F\x9A\x9D"), "cannot divide '\xF0\x9F\x9A\x9D' into tokens");
  EXPECT_BAD_INPUT(ids_of(of_bert, std::string(101, 'a')), "has no unknown token '[MISSING]'");

  // Texts that would grow without end.
  file = file_of("gpt2");
  const Json twice{{"type", "Replace"}, {"pattern", Json{{"String", "a"}}}, {"content", "aa"}};
  file["normalizer"] = Json{{"type", "Sequence"}, {"normalizers", Json::array(Json::Array(60, twice))}};
  const TokenizerJson grows(folder.write("tokenizer.json", file.dump()));
  EXPECT_NO_THROW(ids_of(grows, "b"));
  EXPECT_BAD_INPUT(ids_of(grows, "a"), "remove those that repeat");
  file = file_of("gpt2");
  file["decoder"] = Json{{"type", "Sequence"}, {"decoders", Json::array(Json::Array(60, twice))}};
  const TokenizerJson grows_back(folder.write("tokenizer.json", file.dump()));
  EXPECT_BAD_INPUT(grows_back.decode(ids_of(grows_back, "a")), "more than 4160 bytes");
  file = file_of("gpt2");
  file["pre_tokenizer"] =
      Json{{"type", "Sequence"},
           {"pretokenizers",
            Json::array(Json::Array(60, file_of("split_Isolated")["pre_tokenizer"]["pretokenizers"].at(1)))}};
  const TokenizerJson splits(folder.write("tokenizer.json", file.dump()));
  EXPECT_BAD_INPUT(ids_of(splits, "\n"), "remove those that repeat");

  file = file_of("gpt2");
  file["normalizer"] = charsmap_of_a(std::string(5000, 'x'));
  const TokenizerJson replaces(folder.write("tokenizer.json", file.dump()));
  EXPECT_NO_THROW(ids_of(replaces, "b"));
  EXPECT_BAD_INPUT(ids_of(replaces, "a"), "make more than 4160 bytes");

  // An expression that takes forever is aborted.
  file = file_of("gpt2");
  file["pre_tokenizer"] =
      Json{{"type", "Split"}, {"pattern", Json{{"Regex", "(a+a+)+[bc]"}}}, {"behavior", "Isolated"}, {"invert", false}};
  const TokenizerJson slow(folder.write("tokenizer.json", file.dump()));
  EXPECT_BAD_INPUT(ids_of(slow, std::string(60, 'a')), "(a+a+)+[bc] cannot be applied to a text of 60 bytes");
  // PCRE2 limits the work at each position of a text. At many positions, an expression may still
  // take forever.
  file["pre_tokenizer"]["pattern"]["Regex"] = "(?:a?){18}[bc]";
  const TokenizerJson slow_everywhere(folder.write("tokenizer.json", file.dump()));
  EXPECT_BAD_INPUT(ids_of(slow_everywhere, std::string(60'000, 'a')), "(?:a?){18}[bc] cannot be applied to a text");
  EXPECT_NO_THROW(ids_of(slow_everywhere, std::string(60, 'a')));
  // A token of many marks. Quadratic algorithms would take minutes.
  file = file_of("t5");
  std::string marks;
  for (int i = 0; i < 600'000; ++i) marks += "\xE2\x96\x81";
  const std::int32_t id = no_unknown.vocab();
  file["added_tokens"].push_back(Json{{"id", id}, {"content", marks}, {"special", false}, {"normalized", false}});
  const std::clock_t begin = std::clock();
  const TokenizerJson marked(folder.write("tokenizer.json", file.dump()));
  EXPECT_TRUE(marked.decode({id, id}) == std::string(600'000, ' '));  // the first loses its marks
  EXPECT_LT(static_cast<double>(std::clock() - begin) / CLOCKS_PER_SEC, 20);
}

TEST(TokenizerJson, UnigramResolvesTiesLikeTheTokenizersLibrary) {
  const TempFolder folder;
  const auto ids = [&](const char* vocab, const char* text) {
    const std::string file = R"({"model": {"type": "Unigram", "unk_id": 0, "vocab": )" + std::string(vocab) + "}}";
    return ids_of(TokenizerJson(folder.write("tokenizer.json", file)), text);
  };
  // In a tie, the segmentation that began first wins.
  EXPECT_EQ(ids(R"([["<unk>", 0], ["a", -1], ["b", -1], ["ab", -2]])", "ab"), Ids{3});
  // An unknown letter costs 10 more than the worst token.
  EXPECT_EQ(ids(R"([["<unk>", 0], ["a", 2], ["ab", -15]])", "ab"), Ids{2});
  EXPECT_EQ(ids(R"([["<unk>", 0], ["a", 13], ["ab", -15]])", "abb"), (Ids{1, 0}));
}

TEST(TokenizerJson, AcceptsGapsBetweenIds) {
  const TempFolder folder;
  Json file = file_of("gpt2");
  file["model"]["vocab"]["new"] = 700;
  const TokenizerJson t(folder.write("tokenizer.json", file.dump()));
  EXPECT_EQ(t.vocab(), 701);
  EXPECT_EQ(t.decode({600, 700}), "new");
}

// Expressions of Oniguruma and their form for PCRE2. The golden cases regex_* compare the matches.
TEST(Regex, ConvertsOnigurumaToPcre2) {
  for (const auto& [theirs, ours] : {std::pair{"a{2,3}+b", "(?:a{2,3})+b"},
                                     {"(ab){2}?", "(?:(ab){2})?"},
                                     {"\\p{N}{,3}", "\\p{N}{0,3}"},
                                     {"[ab]{1,2}+", "(?:[ab]{1,2})+"},
                                     {"a{x}", "a{x}"},
                                     {"(a(?i)b|c)d", "(a(?i:b|c))d"},
                                     {"(?m:.)(?i-m:x)", "(?s:.)(?i-s:x)"},
                                     {"(?<=a)(?!b)(?<n>c)(?>d)(?:e)", "(?<=a)(?!b)(?<n>c)(?>d)(?:e)"},
                                     {"[a[b-d]e]", "[ab-de]"},
                                     {"[a[b]-z]", "[ab\\-z]"},
                                     {"[]a]", "[\\]a]"},
                                     {"[a-f&&c[dx]&&[^d]]+", "(?:(?=[a-f])(?=[cdx])[^d])+"},
                                     {"[^]a&&[a]]", "(?:(?!(?=[\\]a])[a])(?s:.))"},
                                     {"[^[:alpha:]x]",
                                      "[^\\p{Alphabetic}\\x{363}-\\x{36F}\\x{C04}\\x{F82}\\x{F83}\\x{1DD3}-"
                                      "\\x{1DE6}\\x{11080}\\x{11081}x]"},
                                     {"\\s\\S[\\s]", "\\p{White_Space}\\P{White_Space}[\\p{White_Space}]"},
                                     {"\\p{L}\\p{^Lu}\\p{Greek}\\P{^Han}", "\\p{L}\\p{^Lu}\\p{sc:Greek}\\P{^sc:Han}"},
                                     {"\\h\\v\\u00e9", "[0-9a-fA-F]\\x0B\\x{00e9}"},
                                     {"'(?i:s|ll)|\\[\\(", "'(?i:s|ll)|\\[\\("}})
    EXPECT_EQ(to_pcre2(theirs), ours) << theirs;
}

// A long text is searched in steps, which must not change the matches.
TEST(Regex, FindsDistantMatches) {
  std::string text;
  std::vector<std::size_t> positions;
  for (Index i = 0; i < 60'000; ++i) {
    if (i * i % 1009 == 4 && i % 3 == 1) {
      positions.push_back(text.size());
      text += 'x';
    }
    text += "\xC3\xA9";
  }
  ASSERT_GT(positions.size(), 20u);
  for (const char* expression : {"x", "(?<=\xC3\xA9)x", "x(?=\xC3\xA9)", "(?<!x)x|y"}) {
    std::vector<Match> matches;
    Regex::of(expression).find(text, matches);
    ASSERT_EQ(matches.size(), positions.size()) << expression;
    for (std::size_t i = 0; i < positions.size(); ++i) EXPECT_EQ(matches[i].begin, positions[i]) << expression;
  }
  std::string letters;
  for (int i = 0; i < 400; ++i) letters += "\xC3\xA9";
  for (std::size_t at = 0; at < letters.size(); at += 2) {
    std::vector<Match> found;
    Regex::of("x").find(std::string(letters).insert(at, "x"), found);
    ASSERT_EQ(found.size(), 1u) << at;
    EXPECT_EQ(found[0].begin, at);
  }
  std::vector<Match> matches;
  Regex::of("\\Ax|x\\z|\\G\xC3\xA9|$").find(text, matches);
  ASSERT_FALSE(matches.empty());
  EXPECT_EQ(matches.size(),
            // \G matches up to the first x, and $ at the end.
            (positions.empty() ? 60'000 : positions.front() / 2) + 1);
}

// Combining letters are letters, whatever version of Unicode the library's tables have.
TEST(Regex, MatchesLettersOfUnicode16) {
  std::vector<Match> matches;
  Regex::of("[[:alpha:]]+").find("\u00DF\u036C \u05D5", matches);
  ASSERT_EQ(matches.size(), 2u);
  EXPECT_EQ(matches[0].end, 4u);
}

TEST(Unicode, DecodesAndEncodesUtf8) {
  const std::string text = "a\xC3\x9F\xE2\x82\xAC\xF0\x9F\x9A\x82";
  std::string again;
  for_each_character(text, [&](char32_t c, std::size_t, std::string_view) { append_character(again, c); });
  EXPECT_EQ(again, text);
  EXPECT_EQ(as_utf8(text), text);
  EXPECT_EQ(as_utf8("\xC0\x80"
                    "a\xE2\x82"),
            "\xEF\xBF\xBD\xEF\xBF\xBD"
            "a\xEF\xBF\xBD");
  EXPECT_EQ(normalized("e\xCC\x81", NormalForm::nfc), "\xC3\xA9");
  EXPECT_EQ(normalized("\xC3\xA9", NormalForm::nfd), "e\xCC\x81");
  EXPECT_EQ(normalized("\xEF\xAC\x81", NormalForm::nfkc), "fi");
  EXPECT_EQ(lower_case("\xC4\xB0ΑΣ"), "i\xCC\x87ασ");
}

// ---- the version of Unicode (tests/golden/unicode_classes.py) ----

// Every character of Unicode 16, in every kind of component. Each digest covers a block of 1024
// characters.
TEST(Unicode, EveryCharacterEqualsTheTokenizersLibrary) {
  const Json golden = Json::parse(read_file(GOLDEN "/unicode_classes.json"));
  std::vector<std::vector<std::string>> blocks;  // characters
  const Json& assigned = golden["assigned"];
  for (std::size_t i = 0, last = ~std::size_t{0}; i < assigned.size(); i += 2) {
    const auto first = static_cast<char32_t>(assigned[i].get<std::int64_t>());
    for (char32_t c = first; c <= first + static_cast<char32_t>(assigned[i + 1].get<std::int64_t>()); ++c) {
      if (c / 1024 != last) blocks.emplace_back();
      last = c / 1024;
      append_character(blocks.back().emplace_back(), c);
    }
  }
  ASSERT_GT(blocks.size(), 100u);
  ASSERT_GE(golden["cases"].size(), 18u);
  for (const Json& c : golden["cases"]) {
    const std::string name = c["name"].get<std::string>(), type = c["component"]["type"].get<std::string>();
    const bool divides = type == "Split" || type == "Digits" || type == "Punctuation" || type == "Whitespace";
    const auto divide = divides ? make_pre_tokenizer(c["component"]) : PreTokenizer();
    const auto normalize = divides ? Normalizer() : make_normalizer(c["component"]);
    std::istringstream digests(c["digests"].get<std::string>());
    for (const std::vector<std::string>& characters : blocks) {
      std::string text, want;
      for (const std::string& character : characters)
        text += divides ? "a" + character + " " + character + "1" : "a\u0345" + character + "\u0316\u0334 ";
      if (divides) {
        PreTokenizedText pre_tokenized{text, {{0, text.size(), true}}, max_output_bytes(text.size())};
        divide(pre_tokenized);
        text.clear();
        for (const PreTokenizedText::PreToken& pre_token : pre_tokenized.pre_tokens)
          text += fmt::format("{}{}", text.empty() ? "" : ",", pre_token.end - pre_token.begin);
      } else {
        NormalText made{text};
        normalize(made);
        text = made.text;
      }
      digests >> want;
      if (to_hex(sha256(text)).substr(0, 8) == want) continue;
      ADD_FAILURE() << name << ": another result from " << characters.front() << " on";
      break;
    }
  }
}

TEST(Unicode, SubstitutesKeepTheSizeOfACharacter) {
  EXPECT_EQ(stand_in(U'a'), U'a');
  EXPECT_EQ(stand_in(U'\U0001F600'), U'\U0001F600');
  EXPECT_NE(stand_in(U'\U0001FAE9'), U'\U0001FAE9');  // new in Unicode 16
  for (char32_t c = 0; c < 0x110000; ++c) {
    if (c >= 0xD800 && c < 0xE000) continue;
    std::string one, other;
    append_character(one, c);
    append_character(other, stand_in(c));
    ASSERT_EQ(one.size(), other.size()) << static_cast<std::uint32_t>(c);
    ASSERT_EQ(stand_in(stand_in(c)), stand_in(c)) << static_cast<std::uint32_t>(c);
  }
  // A character in an expression matches only itself.
  std::vector<Match> matches;
  Regex::of("\U0001FAE9|x").find("\U0001FAE8\U0001FAE9", matches);
  ASSERT_EQ(matches.size(), 1u);
  EXPECT_EQ(matches[0].begin, 4u);
}

// ---- tokenizers of data sets ----

TEST(HuggingFaceTokenizer, FindsTheEndOfText) {
  const TempFolder folder;
  const auto end_of = [&](const char* name, const std::string& config) {
    if (config.empty())
      fs::remove(folder.path() / "tokenizer_config.json");
    else
      folder.write("tokenizer_config.json", config);
    return load_huggingface(folder.write("tokenizer.json", file_of(name).dump()))->end_of_text();
  };
  EXPECT_EQ(end_of("qwen2", ""), 0);
  EXPECT_EQ(end_of("qwen2", "{}"), 0);
  EXPECT_EQ(end_of("qwen2", "{\"eos_token\": null}"), 0);
  EXPECT_EQ(end_of("qwen2", "{\"eos_token\": \"<|im_end|>\"}"), 521);
  EXPECT_EQ(end_of("qwen2", "{\"eos_token\": {\"content\": \"<|im_end|>\", \"special\": true}}"), 521);
  EXPECT_EQ(end_of("llama2", ""), 2);
  EXPECT_BAD_INPUT(end_of("qwen2", "{\"eos_token\": \"<nothing>\"}"), "the eos_token '<nothing>' is no token of");
  EXPECT_BAD_INPUT(end_of("qwen2", "{\"eos_token\": 5}"), "tokenizer_config.json: eos_token: number where a string");
  EXPECT_BAD_INPUT(end_of("qwen2", "{\"eos_token\""), "tokenizer_config.json: eos_token: not JSON");
  EXPECT_BAD_INPUT(end_of("bert_like", ""), "does not say which token ends a text: write {\"eos_token\": \"NAME\"}");
}

TEST(HuggingFaceTokenizer, CountsTheTextBytesOfIds) {
  const TempFolder folder;
  for (const auto& [name, known] : {std::pair{"gpt2", true},
                                    {"llama3", true},
                                    {"bloom", true},
                                    {"gemma", true},
                                    {"metaspace_never", false},  // bytes are not decoded
                                    {"roberta", false},          // a blank in front
                                    {"qwen2", false},            // NFC
                                    {"llama2", false},           // a blank in front
                                    {"unigram", false}}) {       // unknown letters
    const std::string which = std::string_view(name) == "unigram" ? "t5" : name;
    const auto t = load_huggingface(folder.write("tokenizer.json", file_of(which).dump()));
    for (const Json& json : golden_tokenizers()["texts"]) {
      const std::string text = json.get<std::string>();
      // Special tokens are no text. U+2581 counts as the blank that it represents.
      if (has(text, "<") || has(text, "\xE2\x96\x81")) continue;
      Ids ids;
      t->encode(text, ids);
      Index bytes = 0;
      bool all = true;
      for (const std::int32_t id : ids) {
        all &= t->text_bytes(id) >= 0;
        bytes += t->text_bytes(id);
      }
      EXPECT_EQ(all, known || ids.empty()) << name << ": " << text;
      if (known) {
        EXPECT_EQ(bytes, static_cast<Index>(text.size())) << name << ": " << text;
      }
    }
    EXPECT_EQ(t->text_bytes(t->end_of_text()), known ? 0 : -1) << name;
    EXPECT_LT(t->text_bytes(-1), 0);
    EXPECT_LT(t->text_bytes(static_cast<std::int32_t>(t->vocab())), 0);
  }
}

TEST(HuggingFaceTokenizer, IsCopiedWithTheDataSet) {
  const TempFolder folder;
  const std::string text = "The wagons don't wait: größer als 7, 線路。 <|im_end|>\n";
  PrepareOptions options;
  options.domains = {{"a", {folder.write("text", text)}}};
  options.valid_fraction = 0;
  options.output = folder.path() / "out";
  folder.write("model/tokenizer.json", file_of("qwen2").dump());
  for (const bool has_config : {true, false}) {
    if (has_config)
      folder.write("model/tokenizer_config.json", "{\"eos_token\": \"<|im_end|>\", \"more\": 1}");
    else
      fs::remove(folder.path() / "model/tokenizer_config.json");
    options.tokenizer = "hf:" + (folder.path() / (has_config ? "model" : "model/tokenizer.json")).string();
    const Dataset data = prepare(options, [](const PrepareProgress&) {}).dataset;
    EXPECT_EQ(data.tokenizer(), "huggingface");
    EXPECT_EQ(data.vocab(), 523);
    EXPECT_EQ(data.unicode_versions(), unicode_versions());
    const auto t = open_tokenizer(data.dir());
    EXPECT_EQ(t->end_of_text(), has_config ? 521 : 0);
    Ids want;
    t->encode(text, want);
    want.push_back(t->end_of_text());
    Ids got(want.size());
    ASSERT_EQ(data.domains()[0].train_tokens, static_cast<Index>(want.size()));
    data.open(0, SplitName::train).read(0, data.vocab(), got);
    EXPECT_EQ(got, want);
    EXPECT_EQ(t->decode(got), "The wagons don't wait: größer als 7, 線路。 \n");
    EXPECT_EQ(read_file(data.dir() / "tokenizer.json"), read_file(folder.path() / "model/tokenizer.json"));
    EXPECT_TRUE(has(read_file(data.dir() / "tokenizer_config.json"), has_config ? "more" : "<|endoftext|>"));
    options.overwrite = true;
  }

  // Files that have changed since the data set was made.
  const fs::path out = folder.path() / "out";
  folder.write("out/tokenizer_config.json", "{\"eos_token\": \"<|im_end|>\"}");
  EXPECT_BAD_INPUT(open_tokenizer(out), "documents that end with id 0, and the tokenizer ends them with 521");
  folder.write("out/tokenizer_config.json", "{\"eos_token\": \"<|endoftext|>\"}");
  EXPECT_NO_THROW(open_tokenizer(out));
  folder.write("out/tokenizer.json", file_of("gpt2").dump());
  EXPECT_BAD_INPUT(open_tokenizer(out), "tokenizer.json is not the model that dataset.ini describes");

  options.tokenizer = "hf:" + (folder.path() / "absent").string();
  EXPECT_BAD_INPUT(prepare(options, [](const PrepareProgress&) {}), "absent");
  options.tokenizer = "hf:" + folder.path().string();
  EXPECT_BAD_INPUT(prepare(options, [](const PrepareProgress&) {}), "tokenizer.json");
}

}  // namespace
}  // namespace sy
