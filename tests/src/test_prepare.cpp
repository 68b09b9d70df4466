#include "src/data/prepare.h"

#include <gtest/gtest.h>
#include <omp.h>
#include <sys/resource.h>
#include <unistd.h>

#include <map>
#include <numeric>
#include <set>
#include <sstream>

#include "src/data/text.h"
#include "src/data/tokenizer.h"
#include "src/io/lock.h"
#include "src/system/digest.h"
#include "src/system/files.h"
#include "tests/src/temp_folder.h"

namespace sy {
namespace {

namespace fs = std::filesystem;

Prepared run(const PrepareOptions& options) {
  return prepare(options, [](const PrepareProgress&) {});
}

PrepareOptions options_for(const TempFolder& folder, std::vector<PrepareOptions::Source> domains,
                           double fraction = 0.2) {
  PrepareOptions o;
  o.domains = std::move(domains);
  o.valid_fraction = fraction;
  o.output = folder.path() / "out";
  return o;
}

// Texts of the documents of a split. Each document must end with end_of_text and contain no other
// one.
std::vector<std::string> texts_of(const Dataset& data, int domain, SplitName split) {
  const auto tokenizer = open_tokenizer(data.dir());
  const IndexedTokens tokens = data.open(domain, split);
  std::vector<std::string> texts;
  for (Index i = 0; i < tokens.documents(); ++i) {
    const Range r = tokens.document(i);
    std::vector<std::int32_t> ids(static_cast<std::size_t>(r.size()));
    tokens.read(r.begin, data.vocab(), ids);
    EXPECT_EQ(ids.back(), tokenizer->end_of_text());
    EXPECT_EQ(std::count(ids.begin(), ids.end(), tokenizer->end_of_text()), 1);
    texts.push_back(tokenizer->decode(ids));
  }
  return texts;
}

std::map<std::string, std::string> contents(const fs::path& folder) {
  std::map<std::string, std::string> files;
  for (const auto& entry : fs::directory_iterator(folder)) files[entry.path().filename()] = read_file(entry.path());
  return files;
}

TEST(Prepare, KeepsEveryDocumentOnceInOrder) {
  const TempFolder folder;
  for (int i = 0; i < 300; ++i) folder.write(fmt::format("in/{:03}", i), fmt::format("document {}\n", i));
  folder.write("in/empty", "");
  folder.write("two/x", "\xFF\xFE not text");
  folder.write("two/y", "y");
  PrepareOptions o =
      options_for(folder, {{"zz", {folder.path() / "in"}}, {"aa", {folder.path() / "two/x", folder.path() / "two/y"}}});
  o.binary = true;
  const Prepared prepared = run(o);
  const Dataset& data = prepared.dataset;
  ASSERT_EQ(data.domains().size(), 2u);
  EXPECT_EQ(data.domains()[0].name, "zz");  // order of the command line
  EXPECT_EQ(data.vocab(), 257);
  EXPECT_EQ(prepared.skipped.text(), "");

  std::set<std::string> all;
  Index documents[2] = {}, bytes[2] = {};
  for (const SplitName split : {SplitName::train, SplitName::valid}) {
    const auto texts = texts_of(data, 0, split);
    EXPECT_TRUE(std::is_sorted(texts.begin(), texts.end(), [](const std::string& a, const std::string& b) {
      return std::stoi(a.substr(9)) < std::stoi(b.substr(9));
    }));
    for (const std::string& text : texts) {
      EXPECT_TRUE(all.insert(text).second);
      bytes[split == SplitName::valid] += static_cast<Index>(text.size());
    }
    documents[split == SplitName::valid] = static_cast<Index>(texts.size());
  }
  EXPECT_EQ(all.size(), 300u);
  EXPECT_NEAR(static_cast<double>(documents[1]), 60, 25);  // 3.6 standard deviations
  const Domain& d = data.domains()[0];
  EXPECT_EQ(d.train_documents, documents[0]);
  EXPECT_EQ(d.valid_documents, documents[1]);
  EXPECT_EQ(d.train_bytes, bytes[0]);
  EXPECT_EQ(d.valid_bytes, bytes[1]);
  EXPECT_EQ(d.train_tokens, bytes[0] + documents[0]);
  EXPECT_EQ(d.valid_tokens, bytes[1] + documents[1]);
  EXPECT_FALSE(fs::exists(folder.path() / "out/prepare.tmp"));
  for (const auto& entry : fs::directory_iterator(folder.path() / "out"))
    EXPECT_FALSE(has(entry.path().filename(), ".tmp")) << entry.path();
}

TEST(Prepare, SplitDependsOnSeedAndTextOnly) {
  const TempFolder folder;
  for (int i = 0; i < 100; ++i) {
    folder.write(fmt::format("in/{:03}", i), fmt::format("document {}\n", i));
    folder.write(fmt::format("turned/{:03}", 99 - i), fmt::format("document {}\n", i));
    folder.write(fmt::format("other/{:03}", i), fmt::format("another {}\n", i));
  }
  PrepareOptions o = options_for(folder, {{"a", {folder.path() / "other"}}, {"b", {folder.path() / "in"}}});
  auto b = texts_of(run(o).dataset, 1, SplitName::valid);
  o.domains.erase(o.domains.begin());
  o.output = folder.path() / "out2";
  EXPECT_EQ(texts_of(run(o).dataset, 0, SplitName::valid), b);
  o.domains[0] = {"c", {folder.path() / "turned"}};
  o.output = folder.path() / "out3";
  auto turned = texts_of(run(o).dataset, 0, SplitName::valid);
  EXPECT_NE(turned, b);
  std::sort(turned.begin(), turned.end());
  std::sort(b.begin(), b.end());
  EXPECT_EQ(turned, b);
  o.seed = 2;
  o.output = folder.path() / "out4";
  auto other = texts_of(run(o).dataset, 0, SplitName::valid);
  std::sort(other.begin(), other.end());
  EXPECT_NE(other, b);
}

double valid_share(const Domain& d) {
  return static_cast<double>(d.valid_bytes) / static_cast<double>(d.train_bytes + d.valid_bytes);
}

// The fraction is one of bytes, for all lengths of documents.
TEST(Prepare, FillsValidationByBytes) {
  const TempFolder folder;
  const std::vector<std::vector<int>> corpora = {
      {3000, 20001}, {20001, 3000}, {100, 100, 100000}, {5000, 5000, 5000}, std::vector<int>(200, 40)};
  PrepareOptions o = options_for(folder, {{"a", {folder.path() / "in"}}});
  o.overwrite = true;
  for (const std::vector<int>& sizes : corpora) {
    fs::remove_all(folder.path() / "in");
    for (std::size_t i = 0; i < sizes.size(); ++i) {
      std::string text;
      while (static_cast<int>(text.size()) < sizes[i] - 20)
        text += fmt::format("document {} line {}\n", i, text.size());
      folder.write(fmt::format("in/{}", i), text + std::string(sizes[i] - text.size() - 1, 'x') + "\n");
    }
    for (const double fraction : {0.01, 0.05, 0.3, 0.5, 0.9})
      for (std::uint64_t seed = 0; seed < 6; ++seed) {
        o.valid_fraction = fraction;
        o.seed = seed;
        const Dataset data = run(o).dataset;
        const Domain& d = data.domains()[0];
        EXPECT_EQ(d.train_bytes + d.valid_bytes, std::accumulate(sizes.begin(), sizes.end(), Index{0}));
        // If a line end is near, the split may have an eighth more. If documents stay whole, it may
        // differ by a twentieth.
        EXPECT_GE(valid_share(d), 0.94 * fraction - 0.002) << sizes.size() << " documents, seed " << seed;
        EXPECT_LE(valid_share(d), 1.14 * fraction + 0.002) << sizes.size() << " documents, seed " << seed;
        // At most one document is split.
        EXPECT_LE(d.train_documents + d.valid_documents, static_cast<Index>(sizes.size()) + 1);
      }
  }
}

// Text of the validation split is never in the training split, even if files repeat it under other
// names.
TEST(Prepare, LeavesOutDuplicateFiles) {
  const TempFolder folder;
  std::string text, other;
  for (int i = 0; i < 400; ++i) text += fmt::format("line {} of the text\n", i);
  for (int i = 0; i < 300; ++i) other += fmt::format("line {} of the other\n", i);
  const fs::path file = folder.write("in/file", text), copy = folder.write("copy", text);
  const fs::path link = folder.path() / "link", hard = folder.path() / "hard", more = folder.write("more", other);
  fs::create_symlink(file, link);
  fs::create_hard_link(file, hard);
  using Sources = std::vector<PrepareOptions::Source>;
  const std::pair<Sources, Index> cases[] = {{{{"a", {file, file}}}, 1},
                                             {{{"a", {file, folder.path() / "in" / ".." / "in" / "file"}}}, 1},
                                             {{{"a", {folder.path() / "in", file, link, hard, copy}}}, 4},
                                             {{{"a", {file}}, {"b", {more, file}}}, 1},
                                             {{{"a", {file}}, {"b", {copy, more, link}}}, 2}};
  PrepareOptions o = options_for(folder, {});
  o.overwrite = true;
  for (const auto& [domains, copies] : cases)
    for (std::uint64_t seed = 0; seed < 4; ++seed) {
      o.domains = domains;
      o.seed = seed;
      const Prepared prepared = run(o);
      EXPECT_EQ(prepared.skipped.copies, copies);
      Index bytes = 0;
      std::string train;
      for (std::size_t d = 0; d < domains.size(); ++d) {
        bytes += prepared.dataset.domains()[d].train_bytes + prepared.dataset.domains()[d].valid_bytes;
        for (const std::string& t : texts_of(prepared.dataset, static_cast<int>(d), SplitName::train)) train += t;
      }
      EXPECT_EQ(bytes, static_cast<Index>(text.size() + (domains.size() > 1 ? other.size() : 0)));
      for (std::size_t d = 0; d < domains.size(); ++d)
        for (const std::string& t : texts_of(prepared.dataset, static_cast<int>(d), SplitName::valid))
          EXPECT_EQ(train.find(t), train.npos);
    }
  o.domains = {{"a", {file}}, {"b", {copy}}};
  EXPECT_BAD_INPUT(run(o), "domain b is empty: its files are copies");
}

// Equal documents of one file are in one split.
TEST(Prepare, KeepsEqualDocumentsInOneSplit) {
  const TempFolder folder;
  std::string lines;
  for (int i = 0; i < 600; ++i) lines += fmt::format("{{\"text\": \"document {}\"}}\n", i % 60);
  PrepareOptions o = options_for(folder, {{"a", {folder.write("f.jsonl", lines)}}}, 0.3);
  const Dataset data = run(o).dataset;
  const auto train = texts_of(data, 0, SplitName::train), valid = texts_of(data, 0, SplitName::valid);
  EXPECT_GT(valid.size(), 100u);
  for (const std::string& text : valid) EXPECT_EQ(std::count(train.begin(), train.end(), text), 0);
  EXPECT_EQ(std::set(valid.begin(), valid.end()).size() * 10, valid.size());
}

TEST(Prepare, ReadsJsonLinesByTheirKey) {
  const TempFolder folder;
  PrepareOptions o =
      options_for(folder, {{"a", {folder.write("f.jsonl", "{\"body\": \"one\"}\n{\"body\": \"two\"}\n")}}}, 0);
  EXPECT_BAD_INPUT(run(o), "f.jsonl: line 1 has no key 'text'");
  EXPECT_FALSE(fs::exists(o.output));
  o.text_key = "body";
  EXPECT_EQ(texts_of(run(o).dataset, 0, SplitName::train), (std::vector<std::string>{"one", "two"}));
}

TEST(Prepare, WritesDigestsOfTheFiles) {
  const TempFolder folder;
  PrepareOptions o = options_for(folder, {{"a", {folder.write("f", "first\nsecond\n")}}});
  run(o);
  const Domain d = read_dataset_ini(o.output).domains[0];
  EXPECT_EQ(d.train_digests.bin, to_hex(sha256_file(o.output / "a.train.bin")));
  EXPECT_EQ(d.train_digests.idx, to_hex(sha256_file(o.output / "a.train.idx")));
  EXPECT_EQ(d.valid_digests.bin, to_hex(sha256_file(o.output / "a.valid.bin")));
  EXPECT_EQ(d.valid_digests.sample, digests_of(o.output / "a.valid", true).sample);
  for (const DatasetFile& file : verify_dataset(o.output)) EXPECT_EQ(file.problem + file.sha256, file.expected);
}

TEST(Prepare, GivesBothSplitsText) {
  const TempFolder folder;
  for (const int documents : {2, 3, 5})
    for (const double fraction : {1e-6, 0.5, 1 - 1e-6})
      for (std::uint64_t seed = 0; seed < 8; ++seed) {
        const fs::path in = folder.path() / fmt::format("in{}", documents);
        for (int i = 0; i < documents; ++i) folder.write(fmt::format("in{}/{}", documents, i), std::to_string(i));
        PrepareOptions o = options_for(folder, {{"a", {in}}}, fraction);
        o.seed = seed;
        o.overwrite = true;
        const Domain d = run(o).dataset.domains()[0];
        EXPECT_GT(d.train_documents, 0);
        EXPECT_GT(d.valid_documents, 0);
        EXPECT_EQ(d.train_documents + d.valid_documents, documents);
      }
}

TEST(Prepare, SplitsASingleDocument) {
  const TempFolder folder;
  std::string text;
  for (int i = 0; i < 1000; ++i) text += fmt::format("line {}\n", i);
  PrepareOptions o = options_for(folder, {{"a", {folder.write("f", text)}}}, 0.1);
  o.overwrite = true;
  {
    const Dataset data = run(o).dataset;
    const auto train = texts_of(data, 0, SplitName::train), valid = texts_of(data, 0, SplitName::valid);
    ASSERT_EQ(train.size(), 1u);
    ASSERT_EQ(valid.size(), 1u);
    EXPECT_EQ(train[0] + valid[0], text);
    EXPECT_TRUE(train[0].ends_with("\n"));
    EXPECT_NEAR(static_cast<double>(valid[0].size()), 0.1 * static_cast<double>(text.size()), 10);
  }
  for (const auto& [small, train, valid] : {std::tuple{"ab", "a", "b"},
                                            {"a", "a", ""},
                                            {"\xE7\xB7\x9A", "\xE7\xB7\x9A", ""},
                                            {"x\xE7\xB7\x9A", "x", "\xE7\xB7\x9A"}}) {
    folder.write("f", small);
    for (const double fraction : {0.001, 0.5, 0.999}) {
      o.valid_fraction = fraction;
      const Dataset data = run(o).dataset;
      EXPECT_EQ(texts_of(data, 0, SplitName::train), std::vector<std::string>{train});
      EXPECT_EQ(texts_of(data, 0, SplitName::valid),
                *valid ? std::vector<std::string>{valid} : std::vector<std::string>{});
    }
  }
  o.valid_fraction = 0;
  folder.write("f", text);
  EXPECT_EQ(texts_of(run(o).dataset, 0, SplitName::train), std::vector<std::string>{text});
}

TEST(Prepare, SplitsALargeFile) {
  const TempFolder folder;
  std::string text;
  for (int i = 0; text.size() < 3 << 20; ++i) text += fmt::format("line {}\n{}", i, i % 20 ? "" : "\n");
  const Domain d = run(options_for(folder, {{"a", {folder.write("f", text)}}}, 0.2)).dataset.domains()[0];
  EXPECT_EQ(d.train_bytes + d.valid_bytes, static_cast<Index>(text.size()));
  const double share = static_cast<double>(d.valid_bytes) / static_cast<double>(text.size());
  EXPECT_NEAR(share, 0.2, 0.02);
}

std::string varied_text(int lines) {
  std::string text;
  for (int i = 0; i < lines; ++i)
    text += fmt::format("\twagon {} goes to track {}; größer als {}, その線路は{}番です\r\n\n", i, i * 7 % 31, i % 9,
                        i % 13);
  return text;
}

TEST(Prepare, TrainsATokenizerAndUsesIt) {
  const TempFolder folder;
  const std::string text = varied_text(500);
  PrepareOptions o = options_for(folder, {{"a", {folder.write("f", text)}}}, 0.1);
  o.tokenizer = "train-spm:350";
  const Dataset data = run(o).dataset;
  EXPECT_EQ(data.vocab(), 350);
  EXPECT_EQ(data.tokenizer(), "sentencepiece");
  EXPECT_EQ(texts_of(data, 0, SplitName::train)[0] + texts_of(data, 0, SplitName::valid)[0], text);
  EXPECT_LT(data.domains()[0].train_tokens, data.domains()[0].train_bytes * 2 / 3);

  const auto first = contents(o.output);
  o.output = folder.path() / "again";
  run(o);
  EXPECT_EQ(contents(o.output), first);

  o.tokenizer = "spm:" + (folder.path() / "out/tokenizer.model").string();
  o.output = folder.path() / "given";
  run(o);
  EXPECT_EQ(contents(o.output).at("a.train.bin"), first.at("a.train.bin"));
  EXPECT_EQ(contents(o.output).at("tokenizer.model"), first.at("tokenizer.model"));
}

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line, '\r');)
    if (const std::size_t begin = line.find_first_not_of("\n\t"); begin != line.npos)
      lines.push_back(line.substr(begin));
  return lines;
}

// More documents than are encoded at the same time. Some of them are split.
TEST(Prepare, IsEqualForAnyNumberOfThreads) {
  const TempFolder folder;
  std::vector<fs::path> files;
  for (int i = 0; i < 18; ++i)
    files.push_back(folder.write(fmt::format("f{}", i), fmt::format("{} ", i) + varied_text(1500)));
  PrepareOptions o = options_for(folder, {{"a", files}});
  o.tokenizer = "spm:" + folder.write("t.model", train_sentencepiece(lines_of(varied_text(400)), 330)).string();
  o.overwrite = true;
  const int threads = omp_get_max_threads();
  std::map<std::string, std::string> first;
  for (const int n : {1, 3}) {
    omp_set_num_threads(n);
    const Domain domain = run(o).dataset.domains()[0];
    EXPECT_GT(domain.train_bytes + domain.valid_bytes, 3 << 19);  // several threads encode
    if (n == 1) first = contents(o.output);
    EXPECT_EQ(contents(o.output), first) << n;
  }
  omp_set_num_threads(threads);
}

TEST(Prepare, ReportsProgress) {
  const TempFolder folder;
  PrepareOptions o =
      options_for(folder, {{"a", {folder.write("f", varied_text(400))}}, {"b", {folder.write("g", varied_text(300))}}});
  o.tokenizer = "train-spm:330";
  std::vector<std::string> phases;
  Index bytes = 0, total = 0, rounds = 0;
  prepare(o, [&](const PrepareProgress& p) {
    if (phases.empty() || phases.back() != p.phase) phases.emplace_back(p.phase);
    EXPECT_EQ(p.unit, p.phase == "training the tokenizer" ? "rounds" : "bytes");
    if (p.unit == "rounds") rounds = p.done;
    bytes = p.done;
    total = p.total;
  });
  EXPECT_EQ(phases, (std::vector<std::string>{"reading", "sampling lines", "training the tokenizer", "encoding a",
                                              "encoding b"}));
  EXPECT_GT(rounds, 0);
  EXPECT_EQ(bytes, total);
  EXPECT_EQ(total, static_cast<Index>(varied_text(400).size() + varied_text(300).size()));
}

TEST(Prepare, NamesInvalidOptionsAndInputs) {
  const TempFolder folder;
  const fs::path good = folder.write("good", "some text\n"), empty = folder.write("empty", "");
  const fs::path latin = folder.write("latin",
                                      "0123456789gr\xF6\xDF"
                                      "er");
  fs::create_directory(folder.path() / "nothing");
  const PrepareOptions base = options_for(folder, {{"a", {good}}});
  const auto expect = [&](auto change, const char* text) {
    PrepareOptions o = base;
    change(o);
    EXPECT_BAD_INPUT(run(o), text);
    EXPECT_FALSE(fs::exists(o.output)) << text;  // not even an empty folder
  };
  using O = PrepareOptions;
  expect([](O& o) { o.domains.clear(); }, "--domain");
  expect([](O& o) { o.domains[0].name = "a b"; }, "'a b'");
  expect([](O& o) { o.domains[0].name = "dataset"; }, "'dataset'");
  expect([](O& o) { o.domains.push_back(o.domains[0]); }, "domain a is given twice");
  for (const double f : {-0.1, 1.0, 2.0, std::nan("")}) expect([&](O& o) { o.valid_fraction = f; }, "--valid-fraction");
  expect([&](O& o) { o.domains[0].paths = {folder.path() / "absent"}; }, "absent");
  expect([&](O& o) { o.domains[0].paths = {empty}; }, "domain a is empty");
  expect([&](O& o) { o.domains[0].paths = {folder.path() / "nothing"}; }, "domain a is empty");
  expect([&](O& o) { o.domains.push_back({"b", {empty}}); }, "domain b is empty");
  expect([&](O& o) { o.domains[0].paths = {folder.path()}; }, "write elsewhere");
  expect([](O& o) { o.tokenizer = "words"; }, "choose bytes");
  expect([](O& o) { o.tokenizer = "train-spm:"; }, "train-spm:4096");
  expect([](O& o) { o.tokenizer = "train-spm:12x"; }, "train-spm:4096");
  expect([](O& o) { o.tokenizer = "train-spm:-5"; }, "train-spm:4096");
  expect([](O& o) { o.tokenizer = "train-spm:90000"; }, "largest possible");
  expect([&](O& o) { o.tokenizer = "spm:" + (folder.path() / "no.model").string(); }, "no.model");
  expect([&](O& o) { o.tokenizer = "spm:" + good.string(); }, "not a SentencePiece model");

  PrepareOptions o = base;
  o.output = good / "out";
  EXPECT_BAD_INPUT(run(o), "choose another --output");
  o.output = "";
  EXPECT_BAD_INPUT(run(o), "--output");

  // A named binary file is an error. The message says where it stops being text.
  const fs::path text = folder.write("text", varied_text(400));
  o = base;
  o.domains = {{"a", {text, latin}}};
  o.tokenizer = "train-spm:330";
  EXPECT_BAD_INPUT(run(o), "latin: byte 12 is not UTF-8, in line 1");
  o.domains[0].paths = {text};
  run(o);
  o.tokenizer = "spm:" + (o.output / "tokenizer.model").string();
  o.domains[0].paths = {text, latin};
  o.output = folder.path() / "out2";
  EXPECT_BAD_INPUT(run(o), "latin: byte 12 is not UTF-8");
  o.tokenizer = "bytes";
  EXPECT_BAD_INPUT(run(o), "latin: byte 12 is not UTF-8");
  o.domains[0].paths = {text, folder.write("nul", std::string("one\ntwo\0", 8))};
  EXPECT_BAD_INPUT(run(o), "nul: byte 7 is NUL, in line 2");
  o.binary = true;
  EXPECT_NO_THROW(run(o));
  o.tokenizer = "train-spm:330";
  EXPECT_BAD_INPUT(run(o), "--binary");
  o.binary = false;

  // The offset is that in the file, not in the chunk.
  folder.write("big", std::string(2 * max_document_bytes, 'x') + "\xFF");
  o.tokenizer = "spm:" + (folder.path() / "out/tokenizer.model").string();
  o.output = folder.path() / "out3";
  o.domains[0].paths = {folder.path() / "big"};
  EXPECT_BAD_INPUT(run(o), fmt::format("big: byte {} is", 2 * max_document_bytes));
}

TEST(Prepare, OverwritesOnlyIfRequested) {
  const TempFolder folder;
  PrepareOptions o = options_for(folder, {{"a", {folder.write("f", "first\nsecond\n")}}});
  run(o);
  folder.write("out/notes.txt", "mine");
  const auto before = contents(o.output);
  folder.write("f", "third\nfourth\n");
  EXPECT_BAD_INPUT(run(o), "--overwrite");
  EXPECT_EQ(contents(o.output), before);
  o.overwrite = true;
  run(o);
  EXPECT_NE(contents(o.output), before);
  EXPECT_EQ(contents(o.output).at("notes.txt"), "mine");

  // --overwrite does not replace a file that only looks like part of a data set, or one that the
  // existing data set does not have.
  folder.write("out/b.valid.bin", "precious");
  o.domains.push_back({"b", {folder.write("g", "another text\n")}});
  EXPECT_BAD_INPUT(run(o), "out/b.valid.bin exists, and is not of the data set");
  o.output = folder.path() / "other";
  folder.write("other/a.valid.bin", "precious");
  for (const bool overwrite : {false, true}) {
    o.overwrite = overwrite;
    EXPECT_BAD_INPUT(run(o), "other holds 'a.valid.bin', and is no data set");
  }
  for (const char* name : {"out/b.valid.bin", "other/a.valid.bin"})
    EXPECT_EQ(read_file(folder.path() / name), "precious");
}

// Overwriting deletes the files of the old data set that the new one lacks, and no others. This
// holds wherever the first attempt is interrupted.
TEST(Prepare, OverwriteReplacesTheDataSet) {
  const TempFolder folder;
  const fs::path text = folder.write("f", varied_text(400)), other = folder.write("g", varied_text(300));
  PrepareOptions old = options_for(folder, {{"old", {text}}, {"both", {other}}});
  old.tokenizer = "train-spm:330";
  PrepareOptions fresh = options_for(folder, {{"both", {text}}, {"new", {other}}});
  fresh.output = folder.path() / "fresh";
  run(fresh);
  auto expected = contents(fresh.output);
  expected["notes.txt"] = "mine";
  run(old);
  const auto before = contents(old.output);
  fresh.output = old.output;
  fresh.overwrite = true;
  bool finished = false;
  for (int allowed = 0; !finished; ++allowed) {
    ASSERT_LT(allowed, 1000);
    fs::remove_all(old.output);
    for (const auto& [name, content] : before) folder.write("out/" + name, content);
    folder.write("out/notes.txt", "mine");
    int left = allowed;
    file_activity().write_fault = [&](std::string_view, const fs::path& path) {
      if (left-- == 0) fail("injected at {}", path.string());
    };
    try {
      run(fresh);
      finished = true;
    } catch (const Failure&) {
    }
    file_activity().write_fault = nullptr;
    if (!finished) run(fresh);
    EXPECT_EQ(contents(fresh.output), expected) << "after " << allowed << " operations";
  }
}

// The names of all files are on the disk before dataset.ini appears: a power loss may not leave it
// without one of them.
TEST(Prepare, SyncsTheNamesOfFilesBeforeTheirDescription) {
  const TempFolder folder;
  folder.write("text", "a train leaves\n");
  const fs::path output = folder.path() / "out";
  PrepareOptions options;
  options.domains = {{"a", {folder.path() / "text"}}};
  options.tokenizer = "bytes";
  options.output = output;
  std::vector<std::string> calls;
  file_activity().write_fault = [&](std::string_view call, const fs::path& path) {
    calls.push_back(fmt::format("{} {}", call, path.lexically_relative(output).string()));
  };
  run(options);
  file_activity().write_fault = nullptr;
  const auto description = std::ranges::find(calls, "write dataset.ini.tmp");
  const auto last_file = std::find(calls.rbegin(), calls.rend(), "rename a.train.idx");
  ASSERT_TRUE(description != calls.end() && last_file != calls.rend());
  EXPECT_NE(std::find(last_file.base(), description, "sync ."), description);
}

// Binary files in folders are left out and counted, wherever their first binary byte is.
TEST(Prepare, LeavesOutBinaryFilesOfFolders) {
  const TempFolder folder;
  for (int i = 0; i < 50; ++i) folder.write(fmt::format("clean/{}", i), fmt::format("document {}\n", i));
  fs::copy(folder.path() / "clean", folder.path() / "in");
  folder.write("in/.git/objects/ab", "hidden\n");
  folder.write("in/deep/photo", std::string("\x89PNG\r\n\x1A\n\0\0\0\rIHDR", 16));
  folder.write("in/late", std::string(2 * max_document_bytes, 'x') + "\xFF");
  folder.write("in/cut", std::string("text\xC3", 5));
  PrepareOptions o = options_for(folder, {{"a", {folder.path() / "clean"}}});
  o.output = folder.path() / "expected";
  run(o);
  auto expected = contents(o.output);
  o.domains[0].paths = {folder.path() / "in"};
  o.output = folder.path() / "out";
  const Prepared prepared = run(o);
  EXPECT_EQ(prepared.skipped.binary, 3);
  EXPECT_EQ(prepared.skipped.hidden, 1);
  EXPECT_EQ(prepared.first_binary, (folder.path() / "in/cut").string());
  auto written = contents(o.output);
  const std::string ini = written["dataset.ini"];
  for (auto* files : {&written, &expected}) files->erase("dataset.ini");
  EXPECT_EQ(written, expected);
  EXPECT_TRUE(has(ini, "# Left out: 3 binary files, 1 hidden file or folder\n"));
  // This holds with any tokenizer.
  o.output = folder.path() / "pieces";
  o.domains[0].paths.push_back(folder.write("f", varied_text(400)));
  o.tokenizer = "train-spm:330";
  EXPECT_EQ(run(o).skipped.binary, 3);
  o.domains[0].paths = {folder.path() / "in/deep"};
  o.output = folder.path() / "none";
  EXPECT_BAD_INPUT(run(o), "domain a is empty: its files are binary");
  EXPECT_FALSE(fs::exists(o.output));
}

TEST(Prepare, RejectsASecondProcess) {
  const TempFolder folder;
  const PrepareOptions o = options_for(folder, {{"a", {folder.write("f", "first\nsecond\n")}}});
  fs::create_directory(o.output);
  {
    const FolderLock lock(o.output, std::chrono::seconds(0), "--output", "");
    EXPECT_BAD_INPUT(run(o), ", process " + std::to_string(getpid()));
  }
  EXPECT_NO_THROW(run(o));
}

// If prepare stops before any write, rename or sync, the folder holds the old data set, the new
// one, or none. It never holds a mixture.
TEST(Prepare, LeavesNoMixtureIfInterrupted) {
  for (const bool existing : {false, true}) {
    bool finished = false;
    for (int allowed = 0; !finished; ++allowed) {
      ASSERT_LT(allowed, 1000);
      const TempFolder folder;
      PrepareOptions o = options_for(folder, {{"a", {folder.write("f", "old one\nold two\n")}}});
      if (existing) run(o);
      folder.write("f", "the new one\nthe new two\n");
      o.overwrite = existing;
      int left = allowed;
      file_activity().write_fault = [&](std::string_view, const fs::path& path) {
        if (left-- == 0) fail("injected at {}", path.string());
      };
      try {
        run(o);
        finished = true;
      } catch (const Failure&) {
      }
      file_activity().write_fault = nullptr;
      if (fs::exists(o.output / "dataset.ini")) {
        const Dataset data(o.output);
        const std::string text = texts_of(data, 0, SplitName::train)[0] + texts_of(data, 0, SplitName::valid)[0];
        EXPECT_TRUE(text == "the new one\nthe new two\n" || (existing && !finished && text == "old one\nold two\n"))
            << text;
      } else {
        EXPECT_FALSE(finished);
      }
      EXPECT_FALSE(fs::exists(o.output / "prepare.tmp"));
      // The command can then be repeated. It needs --overwrite only if there is a data set.
      o.overwrite = fs::exists(o.output / "dataset.ini");
      EXPECT_EQ(run(o).dataset.domains()[0].train_documents, 1);
    }
  }
}

// A killed process leaves its folder and unfinished files behind. The next process deletes them.
TEST(Prepare, DeletesLeftoversOfAKilledProcess) {
  for (const char* unfinished : {"prepare.replaced", "dataset.ini"}) {
    const TempFolder folder;
    folder.write("out/prepare.tmp/a.train.bin", "junk");
    folder.write(fmt::format("out/{}.tmp-0123456789abcdef", unfinished), "half");
    // It is there before dataset.ini is written.
    if (std::string(unfinished) == "dataset.ini") folder.write("out/prepare.replaced", "dataset.ini\na.train.bin\n");
    const PrepareOptions o = options_for(folder, {{"a", {folder.write("f", "first\nsecond\n")}}});
    EXPECT_NO_THROW(run(o));
    for (const auto& entry : fs::directory_iterator(folder.path() / "out"))
      EXPECT_FALSE(has(entry.path().filename(), ".tmp")) << entry.path();
  }
}

#ifndef SWITCHYARD_SANITIZED  // the sanitizer's own memory exceeds the limit
TEST(Prepare, UsesBoundedMemory) {
  const auto peak = [] {
    rusage usage;
    ::getrusage(RUSAGE_SELF, &usage);
    return usage.ru_maxrss;  // KiB; never decreases
  };
  const TempFolder folder;
  PrepareOptions o = options_for(folder, {{"a", {folder.path() / "in"}}});
  o.overwrite = true;
  std::string text;
  for (int i = 0; text.size() < 4 << 20; ++i) text += fmt::format("line {}\n", i);
  folder.write("in/0", text);
  run(o);
  const long before = peak();
  for (int i = 1; i < 16; ++i) folder.write(fmt::format("in/{}", i), std::to_string(i) + text);
  EXPECT_EQ(run(o).skipped.copies, 0);
  EXPECT_LT(peak() - before, 16 << 10);  // although the text has 60 MiB more
}
#endif

}  // namespace
}  // namespace sy
