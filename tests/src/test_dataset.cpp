#include "src/data/dataset.h"

#include <gtest/gtest.h>

#include <cstring>
#include <functional>
#include <numeric>
#include <set>

#include "src/data/tokenizer.h"
#include "src/system/digest.h"
#include "tests/src/temp_folder.h"

namespace sy {
namespace {

template <class T>
void put(std::string& bytes, T value) {
  bytes.append(reinterpret_cast<const char*>(&value), sizeof value);
}

// An idx file as Megatron writes it, built here from the description of the format.
struct Idx {
  std::string magic = std::string("MMIDIDX\0\0", 9);
  std::uint64_t version = 1;
  std::uint8_t code = 8;
  std::vector<std::int32_t> lengths = {3, 1, 2};
  std::vector<std::int64_t> pointers = {0, 6, 8}, boundaries = {0, 1, 2, 3};
  std::string str() const {
    std::string s = magic;
    put(s, version);
    put(s, code);
    put<std::uint64_t>(s, lengths.size());
    put<std::uint64_t>(s, boundaries.size());
    for (auto x : lengths) put(s, x);
    for (auto x : pointers) put(s, x);
    for (auto x : boundaries) put(s, x);
    return s;
  }
};

template <class T>
std::string tokens_as(std::vector<int> ids) {
  std::string s;
  for (int id : ids) put(s, static_cast<T>(id));
  return s;
}

std::vector<std::int32_t> read_all(const IndexedTokens& t, Index vocab = 1 << 30) {
  std::vector<std::int32_t> ids(static_cast<std::size_t>(t.tokens()));
  t.read(0, vocab, ids);
  return ids;
}

std::string content(const std::filesystem::path& p) {
  return read_file(p);
}

TEST(IndexedWriter, WritesTheBytesOfMegatron) {
  const TempFolder folder;
  IndexedWriter writer(folder.path() / "x", 257);
  for (const std::vector<std::int32_t>& d : {std::vector<std::int32_t>{7, 8, 256}, {1}, {2, 3}}) writer.add(d);
  writer.finish();
  EXPECT_EQ(content(folder.path() / "x.idx"), Idx().str());
  EXPECT_EQ(content(folder.path() / "x.bin"), tokens_as<std::uint16_t>({7, 8, 256, 1, 2, 3}));
}

TEST(IndexedWriter, WidensTokensAtTheLimitOfMegatron) {
  const TempFolder folder;
  for (const auto& [vocab, bytes] : {std::pair<Index, std::uintmax_t>{65499, 2}, {65500, 4}, {200000, 4}}) {
    IndexedWriter writer(folder.path() / "x", vocab);
    writer.add(std::vector<std::int32_t>{static_cast<std::int32_t>(vocab) - 1});
    writer.finish();
    EXPECT_EQ(std::filesystem::file_size(folder.path() / "x.bin"), bytes) << vocab;
    EXPECT_EQ(read_all(IndexedTokens(folder.path() / "x"), vocab)[0], vocab - 1);
  }
}

TEST(IndexedWriter, WritesManyDocumentsAndNone) {
  const TempFolder folder;
  IndexedWriter none(folder.path() / "none", 10);
  none.finish();
  EXPECT_EQ(IndexedTokens(folder.path() / "none").documents(), 0);
  EXPECT_EQ(IndexedTokens(folder.path() / "none").tokens(), 0);

  const Index documents = 150001;  // more than one chunk of finish()
  IndexedWriter writer(folder.path() / "many", 70000);
  std::vector<std::int32_t> d;
  for (Index i = 0; i < documents; ++i) {
    d.assign(static_cast<std::size_t>(i % 3), static_cast<std::int32_t>(i % 70000));  // some empty
    writer.add(d);
  }
  writer.finish();
  const IndexedTokens t(folder.path() / "many");
  ASSERT_EQ(t.documents(), documents);
  EXPECT_EQ(t.tokens(), 150000);
  const Range r = t.document(140000);
  EXPECT_EQ(r.begin,
            139998 / 3 * 3 + 1);  // whole triples of 0 + 1 + 2 tokens, then 0 + 1
  EXPECT_EQ(r.size(), 140000 % 3);
  std::int32_t id[1];
  t.read(r.begin, 70000, id);
  EXPECT_EQ(id[0], 140000 % 70000);
  EXPECT_EQ(t.document(documents - 1).end, 150000);
}

TEST(IndexedTokens, ReadsEveryTokenType) {
  const TempFolder folder;
  const std::vector<int> ids = {0, 127, 3, 4, 5, 6};
  const std::pair<int, std::string> types[] = {{1, tokens_as<std::uint8_t>(ids)}, {2, tokens_as<std::int8_t>(ids)},
                                               {3, tokens_as<std::int16_t>(ids)}, {4, tokens_as<std::int32_t>(ids)},
                                               {5, tokens_as<std::int64_t>(ids)}, {8, tokens_as<std::uint16_t>(ids)}};
  for (const auto& [code, bin] : types) {
    Idx idx;
    idx.code = static_cast<std::uint8_t>(code);
    const std::int64_t bytes = static_cast<std::int64_t>(bin.size() / ids.size());
    idx.pointers = {0, 3 * bytes, 4 * bytes};
    folder.write("t.idx", idx.str());
    folder.write("t.bin", bin);
    const IndexedTokens t(folder.path() / "t");
    EXPECT_EQ(read_all(t), std::vector<std::int32_t>(ids.begin(), ids.end())) << code;
    std::int32_t two[2];
    t.read(2, 200, two);
    EXPECT_EQ(two[1], 4);
  }
}

TEST(IndexedTokens, ReadsDocumentsOfSeveralSequences) {
  const TempFolder folder;
  Idx idx;
  idx.boundaries = {0, 2, 2, 3};  // the second document is empty
  folder.write("t.idx", idx.str());
  folder.write("t.bin", tokens_as<std::uint16_t>({1, 2, 3, 4, 5, 6}));
  const IndexedTokens t(folder.path() / "t");
  ASSERT_EQ(t.documents(), 3);
  EXPECT_EQ(t.document(0).end, 4);
  EXPECT_EQ(t.document(1).size(), 0);
  EXPECT_EQ(t.document(2).begin, 4);
  EXPECT_EQ(t.document(2).end, 6);
}

TEST(IndexedTokens, ReadsSetsWithModes) {
  const TempFolder folder;
  folder.write("t.idx", Idx().str() + std::string("\0\1\0", 3));
  folder.write("t.bin", tokens_as<std::uint16_t>({1, 2, 3, 4, 5, 6}));
  const IndexedTokens t(folder.path() / "t");
  EXPECT_EQ(t.documents(), 3);
  EXPECT_EQ(read_all(t), (std::vector<std::int32_t>{1, 2, 3, 4, 5, 6}));
  EXPECT_EQ(t.document(1).begin, 3);
  EXPECT_EQ(t.document(2).end, 6);
  for (const char* more : {"ab", "abcd"}) {
    folder.write("t.idx", Idx().str() + more);
    EXPECT_BAD_INPUT(IndexedTokens(folder.path() / "t"), "truncated or damaged");
  }
}

// A file that is truncated while it is in use causes an error, and no signal.
TEST(IndexedTokens, ReportsAFileTruncatedWhileInUse) {
  const TempFolder folder;
  folder.write("t.idx", Idx().str());
  folder.write("t.bin", tokens_as<std::uint16_t>({1, 2, 3, 4, 5, 6}));
  const IndexedTokens t(folder.path() / "t");
  std::filesystem::resize_file(folder.path() / "t.bin", 8);
  std::int32_t ids[3];
  t.read(1, 10, ids);
  EXPECT_EQ(ids[2], 4);
  EXPECT_BAD_INPUT(t.read(2, 10, ids), "t.bin ends before byte 10: it was cut short");
  std::filesystem::resize_file(folder.path() / "t.idx", 50);
  EXPECT_BAD_INPUT(t.document(2), "t.idx ends before byte");
}

TEST(IndexedTokens, RejectsIdsBeyondTheVocabulary) {
  const TempFolder folder;
  Idx idx;
  folder.write("t.idx", idx.str());
  folder.write("t.bin", tokens_as<std::uint16_t>({1, 2, 3, 4, 900, 6}));
  const IndexedTokens t(folder.path() / "t");
  std::int32_t ids[3];
  EXPECT_NO_THROW(t.read(0, 5, ids));
  EXPECT_BAD_INPUT(t.read(2, 5, ids), "t.bin: token 4 is id 900");
  EXPECT_BAD_INPUT(t.read(1, 4, ids), "token 3 is id 4");  // ids are below vocab
  EXPECT_THROW(t.read(4, 1000, ids), std::logic_error);    // past the end

  idx.code = 3;
  folder.write("t.idx", idx.str());
  folder.write("t.bin", tokens_as<std::int16_t>({1, -2, 3, 4, 5, 6}));
  EXPECT_BAD_INPUT(IndexedTokens(folder.path() / "t").read(0, 5, ids), "token 1 is id -2");
}

TEST(IndexedTokens, RejectsDamagedFiles) {
  const TempFolder folder;
  const std::string bin = tokens_as<std::uint16_t>({1, 2, 3, 4, 5, 6});
  const auto expect = [&](const std::string& idx, const std::string& bin_content, const char* text) {
    folder.write("t.idx", idx);
    folder.write("t.bin", bin_content);
    EXPECT_BAD_INPUT(IndexedTokens(folder.path() / "t"), text);
  };
  const auto with = [](auto change) {
    Idx idx;
    change(idx);
    return idx.str();
  };
  expect("", bin, "not a Megatron index");
  expect("a text file that is long enough to hold a header", bin, "not a Megatron index");
  expect(with([](Idx& i) { i.magic[8] = 1; }), bin, "not a Megatron index");
  expect(with([](Idx& i) { i.version = 2; }), bin, "version 2");
  expect(with([](Idx& i) { i.code = 7; }), bin, "type 7");
  expect(with([](Idx& i) { i.pointers = {0, 8, 6}; }), bin, "sequence 1 begins at byte 8 instead of 6");
  expect(with([](Idx& i) { i.pointers = {2, 6, 8}; }), bin, "sequence 0 begins at byte 2");
  expect(with([](Idx& i) { i.lengths = {3, -1, 4}; }), bin, "length -1");
  expect(with([](Idx& i) { i.boundaries = {0, 2, 1, 3}; }), bin, "damaged");
  expect(with([](Idx& i) { i.boundaries = {1, 1, 2, 3}; }), bin, "damaged");
  expect(with([](Idx& i) { i.boundaries = {0, 1, 2, 4}; }), bin, "damaged");
  expect(with([](Idx& i) { i.boundaries = {0, 1, 1, 2}; }), bin, "damaged");
  expect(with([](Idx& i) { i.boundaries = {}; }), bin, "truncated");
  expect(Idx().str() + "x", bin, "truncated");
  for (const std::size_t keep : {std::size_t{33}, std::size_t{34}, std::size_t{60}, Idx().str().size() - 1})
    expect(Idx().str().substr(0, keep), bin, "t.idx");
  std::string huge = Idx().str();
  huge[18 + 7] = '\x7F';  // of the number of sequences
  expect(huge, bin, "truncated");
  expect(Idx().str(), bin.substr(0, 11), "t.bin has 11 bytes");
  expect(Idx().str(), bin + "xy", "t.bin has 14 bytes");
  expect(Idx().str(), "", "t.bin has 0 bytes");
  std::filesystem::remove(folder.path() / "t.bin");
  EXPECT_BAD_INPUT(IndexedTokens(folder.path() / "t"), "t.bin");
  std::filesystem::create_directory(folder.path() / "t.bin");
  EXPECT_BAD_INPUT(IndexedTokens(folder.path() / "t"), "not a regular file");
  std::filesystem::remove(folder.path() / "t.idx");
  EXPECT_BAD_INPUT(IndexedTokens(folder.path() / "t"), "t.idx");
}

// Writes two domains of 12 training and 5 validation tokens, and this dataset.ini.
void make_dataset(const TempFolder& folder, const std::string& ini) {
  for (const char* name : {"a", "b"}) {
    IndexedWriter train(folder.path() / (std::string(name) + ".train"), 300);
    train.add(std::vector<std::int32_t>(10, 7));
    train.add(std::vector<std::int32_t>(2, 8));
    train.finish();
    IndexedWriter valid(folder.path() / (std::string(name) + ".valid"), 300);
    valid.add(std::vector<std::int32_t>(5, 9));
    valid.finish();
  }
  folder.write("dataset.ini", ini);
}

TEST(Dataset, AcceptsAMinimalIni) {
  const TempFolder folder;
  make_dataset(folder, "# mine\n[dataset]\ntokenizer = bytes\ndomains = b, a  # order counts\n");
  const Dataset d(folder.path());
  EXPECT_EQ(d.vocab(), 257);
  EXPECT_EQ(d.tokenizer(), "bytes");
  ASSERT_EQ(d.domains().size(), 2u);
  EXPECT_EQ(d.domains()[0].name, "b");
  EXPECT_EQ(d.domains()[1].train_documents, 2);
  EXPECT_EQ(d.domains()[1].train_tokens, 12);
  EXPECT_EQ(d.domains()[1].train_bytes, 10);
  EXPECT_EQ(d.domains()[0].valid_bytes, 4);
  EXPECT_LT(d.domains()[0].weight, 0);
  EXPECT_EQ(d.open(1, SplitName::valid).tokens(), 5);

  make_dataset(folder,
               "[dataset]\ntokenizer = none\nvocab = 50257\ndomains = a\n[a]\nweight = 0.5\nvalid_bytes = 99\n");
  std::filesystem::remove(folder.path() / "a.valid.bin");
  EXPECT_BAD_INPUT(Dataset(folder.path()), "a.valid.bin");
  std::filesystem::remove(folder.path() / "a.valid.idx");
  const Dataset none(folder.path());
  EXPECT_EQ(none.vocab(), 50257);
  EXPECT_EQ(none.domains()[0].weight, 0.5);
  EXPECT_EQ(none.domains()[0].valid_tokens, 0);
  EXPECT_EQ(none.domains()[0].train_bytes, 0);  // unknown
  EXPECT_EQ(none.open(0, SplitName::valid).tokens(), 0);
}

// Older files keep their meaning: '#' begins a comment anywhere except in quotes.
TEST(Dataset, ParsesCommentsOfTheIni) {
  const TempFolder folder;
  make_dataset(folder,
               "[dataset]# all\r\ntokenizer = none#x\nvocab = 300# GPT\ndomains = a , b #\n\n[ a ] # one\nweight=2#\n"
               "[b]\nweight = 1\nvalid_bytes =\n");
  const Dataset d(folder.path());
  EXPECT_EQ(d.tokenizer(), "none");
  EXPECT_EQ(d.vocab(), 300);
  EXPECT_EQ(d.domains()[0].weight, 2);
  make_dataset(folder, "[dataset]\ntokenizer = sentencepiece\nmodel = m#n.model\ndomains = a\n");
  EXPECT_EQ(read_dataset_ini(folder.path()).model, folder.path() / "m");
  make_dataset(folder, "[dataset]\ntokenizer = sentencepiece\nmodel = \"m#n.model\"\ndomains = a\n");
  const DatasetDescription quoted = read_dataset_ini(folder.path());
  EXPECT_EQ(quoted.model, folder.path() / "m#n.model");
  folder.write("dataset.ini", to_ini(quoted));
  EXPECT_EQ(read_dataset_ini(folder.path()).model, quoted.model);
  EXPECT_NE(to_ini(quoted).find("\nformat_version = 1\n"), std::string::npos);
}

TEST(Dataset, NamesInvalidKeysAndFiles) {
  const TempFolder folder;
  EXPECT_BAD_INPUT(Dataset(folder.path() / "nowhere"), "nowhere");
  const std::string head = "[dataset]\ntokenizer = bytes\n";
  const std::pair<std::string, const char*> wrong[] = {
      {"", "dataset.tokenizer"},
      {"[dataset]\nformat_version = 4\ntokenizer = bytes\ndomains = a\n",
       "dataset.ini has format version 4, this program reads versions up to 3"},
      {"[dataset]\ntokenizer = words\ndomains = a\n", "words"},
      {"[dataset]\ntokenizer = sentencepiece\ndomains = a\n", "dataset.model"},
      {"[dataset]\ntokenizer = none\ndomains = a\n", "dataset.vocab"},
      {head, "dataset.domains"},
      {head + "domains = a,,b\n", "cannot name a domain"},
      {head + "domains = a/b\n", "a/b"},
      {head + "domains = dataset\n", "dataset"},
      {head + "domains = a,a\n", "twice"},
      {head + "domains = a\ndomains = b\n", "dataset.ini:4: dataset.domains is given twice"},
      {head + "domains = a\nvocab = many\n", "dataset.vocab = many"},
      {head + "domains = a\nvocab = -1\n", "dataset.vocab = -1"},
      {head + "domains = a\nvocab = 3000000000\n", "3000000000"},
      {head + "domains = a\n[a]\nwieght = 1\n", "a.wieght"},
      {head + "domains = a\n[b]\nweight = 1\n", "domains does not name b: add it there, or remove the section [b]"},
      {head + "domains = a\n[a]\nweight = -1\n", "a.weight"},
      {head + "domains = a\n[a]\nweight = nan\n", "a.weight"},
      {head + "domains = a\n[a]\nweight = inf\n", "a.weight"},
      {head + "domains = a\n[a]\nweight = 0\n", "every weight is 0"},
      {head + "domains = a,b\n[a]\nweight = 1\n", "1 of 2 domains have a weight"},
      {head + "domains = a\nno equals sign\n", "dataset.ini:4: 'no equals sign'"},
      {head + "domains = a\n[a]\ntrain_tokens = 13\n", "13"},
      {head + "domains = a\n[a]\nvalid_documents = 4\n", "a.valid.idx has 1 documents"},
      {head + "domains = a,c\n", "c.train.idx"},
  };
  for (const auto& [ini, text] : wrong) {
    make_dataset(folder, ini);
    EXPECT_BAD_INPUT(Dataset(folder.path()), text);
  }
}

// Writes the data set of make_dataset with all digests.
void make_digests(const TempFolder& folder) {
  make_dataset(folder, "[dataset]\ntokenizer = bytes\ndomains = a,b\n");
  DatasetDescription d = read_dataset_ini(folder.path());
  for (Domain& domain : d.domains) {
    domain.train_digests = digests_of(folder.path() / (domain.name + ".train"), false);
    domain.valid_digests = digests_of(folder.path() / (domain.name + ".valid"), false);
  }
  folder.write("dataset.ini", to_ini(d));
}

TEST(Dataset, DetectsDamage) {
  const TempFolder folder;
  make_digests(folder);
  EXPECT_NO_THROW(Dataset(folder.path()));
  for (const char* name : {"a.train.bin", "b.valid.bin"}) {
    make_digests(folder);
    std::string bytes = content(folder.path() / name);
    bytes[3] ^= 1;  // still a valid id
    folder.write(name, bytes);
    EXPECT_BAD_INPUT(Dataset(folder.path()), std::string(name).substr(0, 7));
    std::string problems;
    for (const DatasetFile& f : verify_dataset(folder.path()))
      if (!f.problem.empty()) problems += f.name;
    EXPECT_EQ(problems, name);
  }
  make_digests(folder);
  for (const char* name : {"b.valid.bin", "b.valid.idx"}) std::filesystem::remove(folder.path() / name);
  // Every domain of a data set with digests has validation text: it was lost.
  EXPECT_BAD_INPUT(Dataset(folder.path()), "b.valid.idx");
  EXPECT_NE(verify_dataset(folder.path()).back().problem, "");
  for (const char* wrong : {"train_sample = 12", "train_bin_sha256 = ABCD", "train_sha256 = 1"}) {
    make_dataset(folder, std::string("[dataset]\ntokenizer = bytes\ndomains = a\n[a]\n") + wrong + "\n");
    EXPECT_BAD_INPUT(Dataset(folder.path()), "a.train_");
  }
}

// Another rank gets the text of the rank that has checked the files.
TEST(Dataset, OpensFilesThatAnotherRankHasChecked) {
  const TempFolder folder;
  const std::string head = "[dataset]\ntokenizer = bytes\ndomains = b,a\n";
  for (const std::string& ini :
       {head, head + "[a]\nweight = 0.1\n[b]\nweight = 3e-7\nvalid_bytes = 99\n",
        std::string("[dataset]\ntokenizer = none\nvocab = 50257\nend_of_text = 7\ndomains = a\n")}) {
    make_dataset(folder, ini);
    for (const bool has_valid : {true, false}) {
      if (!has_valid)
        for (const char* name : {"a.valid.bin", "a.valid.idx"}) std::filesystem::remove(folder.path() / name);
      const Dataset first(folder.path());
      std::filesystem::remove(folder.path() / "dataset.ini");  // it is not read again
      const Dataset other(folder.path(), first.shared_text());
      EXPECT_EQ(other.digest(), first.digest());
      EXPECT_EQ(to_ini(other.description()), to_ini(first.description()));
      EXPECT_EQ(other.shared_text(), first.shared_text());
      for (int domain = 0; domain < std::ssize(first.domains()); ++domain)
        for (const SplitName split : {SplitName::train, SplitName::valid}) {
          const IndexedTokens tokens = other.open(domain, split), expected = first.open(domain, split);
          EXPECT_EQ(tokens.tokens(), expected.tokens());
          EXPECT_EQ(tokens.documents(), expected.documents());
          if (tokens.tokens() == 0) continue;
          EXPECT_EQ(read_all(tokens, 300), read_all(expected, 300));
        }
      folder.write("dataset.ini", ini);
    }
  }
  make_digests(folder);
  const Dataset first(folder.path());
  EXPECT_EQ(Dataset(folder.path(), first.shared_text()).digest(), first.digest());
  EXPECT_EQ(to_ini(Dataset(folder.path(), first.shared_text()).description()), to_ini(first.description()));
}

// A rank that did not check the files compares the counts alone, and does not read the tables.
TEST(Dataset, ComparesCountsOfFilesThatAnotherRankHasChecked) {
  const TempFolder folder;
  make_dataset(folder, "[dataset]\ntokenizer = bytes\ndomains = a,b\n");
  const std::string shared = Dataset(folder.path()).shared_text();
  const auto change = [&](const char* name, const std::function<void(std::string&)>& edit) {
    const std::string before = content(folder.path() / name);
    std::string bytes = before;
    edit(bytes);
    folder.write(name, bytes);
    return before;
  };
  // The first length follows the header of 34 bytes.
  const std::string index = change("a.train.idx", [](std::string& bytes) { bytes[34] ^= 1; });
  EXPECT_BAD_INPUT(Dataset(folder.path()), "sequence 1 begins at byte 20 instead of 22");
  EXPECT_NO_THROW(Dataset(folder.path(), shared));
  folder.write("a.train.idx", index.substr(0, index.size() - 1));
  EXPECT_BAD_INPUT(Dataset(folder.path(), shared), "a.train.idx has ");
  folder.write("a.train.idx", index);
  const std::string tokens = change("b.valid.bin", [](std::string& bytes) { bytes.resize(bytes.size() - 2); });
  EXPECT_BAD_INPUT(Dataset(folder.path(), shared),
                   "b.valid.{bin,idx} have 1 documents and 4 tokens, and rank 0 has 1 and 5");
  folder.write("b.valid.bin", tokens + '\0');
  EXPECT_BAD_INPUT(Dataset(folder.path(), shared), "b.valid.bin has 11 bytes, and a token has 2");
  std::filesystem::remove(folder.path() / "b.valid.bin");
  EXPECT_BAD_INPUT(Dataset(folder.path(), shared), "b.valid.bin");
}

TEST(Dataset, ComputesNumbersOfTheTokenizerOnce) {
  const TempFolder folder;
  make_dataset(folder, "[dataset]\ntokenizer = bytes\ndomains = a\n");
  const Dataset first(folder.path());
  const auto vocab = [](const Tokenizer& tokenizer) { return std::vector<Index>{tokenizer.vocab(), -1}; };
  const auto none = [](const Tokenizer&) { return std::vector<Index>{}; };
  const std::vector<Index> expected = {257, -1};
  EXPECT_EQ(first.tokenizer_numbers("vocab", vocab), expected);
  EXPECT_TRUE(first.tokenizer_numbers("none", none).empty());
  const Dataset copy = first, other(folder.path(), first.shared_text());
  std::filesystem::remove(folder.path() / "dataset.ini");
  for (const Dataset* dataset : {&first, &copy, &other}) {
    EXPECT_EQ(dataset->tokenizer_numbers("vocab", none), expected);
    EXPECT_TRUE(dataset->tokenizer_numbers("none", vocab).empty());
    EXPECT_BAD_INPUT(dataset->tokenizer_numbers("unknown", vocab), "dataset.ini");
  }
}

// A changed count would change the bits per byte of an evaluation.
TEST(Dataset, RejectsCountsWithoutTheirDigest) {
  const TempFolder folder;
  make_digests(folder);
  DatasetDescription d = read_dataset_ini(folder.path());
  d.domains[1].valid_bytes = 4243;
  const std::string text = to_ini(d);
  folder.write("dataset.ini", text);
  EXPECT_EQ(Dataset(folder.path()).domains()[1].valid_bytes, 4243);
  const auto changed = [&](const std::string& from, const std::string& to) {
    std::string other = text;
    other.replace(other.rfind(from), from.size(), to);
    folder.write("dataset.ini", other);
  };
  for (const char* to : {"valid_bytes = 4203", "train_bytes = 4243", ""}) {
    changed("valid_bytes = 4243", to);
    EXPECT_BAD_INPUT(Dataset(folder.path()), "the counts of [b] are not those that its counts_sha256 is of");
    EXPECT_BAD_INPUT(verify_dataset(folder.path()), "remove counts_sha256");
  }
  // A person may add weights, and may remove the digest in order to change a count.
  changed("[b]\n", "[b]\nweight = 2\n[a]\nweight = 1\n[b]\n");
  EXPECT_EQ(Dataset(folder.path()).domains()[1].weight, 2);
  changed("counts_sha256", "#");
  EXPECT_NO_THROW(Dataset(folder.path()));
}

TEST(Dataset, RejectsIdsAndDomainsWithoutTheirDigest) {
  const TempFolder folder;
  make_digests(folder);
  DatasetDescription d = read_dataset_ini(folder.path());
  d.tokenizer = "none";
  d.vocab = 300;
  const std::string text = to_ini(d);
  folder.write("dataset.ini", text);
  EXPECT_EQ(Dataset(folder.path()).vocab(), 300);
  const auto changed = [&](const std::string& from, const std::string& to) {
    std::string other = text;
    other.replace(other.find(from), from.size(), to);
    folder.write("dataset.ini", other);
  };
  const std::string names =
      text.substr(text.find("domains = "), text.find('\n', text.find("domains = ")) - text.find("domains = "));
  for (const auto& [from, to] : {std::pair<std::string, std::string>{"vocab = 300", "vocab = 257"},
                                 {"vocab = 300", "end_of_text = 3\nvocab = 300"},
                                 {names, "domains = b"},
                                 {names, "domains = b,a"},
                                 {names, names + ",c"}}) {
    changed(from, to);
    EXPECT_BAD_INPUT(Dataset(folder.path()), "[dataset] are not those that its ids_sha256 is of");
    EXPECT_BAD_INPUT(verify_dataset(folder.path()), "remove ids_sha256");
  }
  changed("ids_sha256", "#");
  EXPECT_NO_THROW(Dataset(folder.path()));
  // A person may add weights, and rename other files.
  changed("[b]\n", "[b]\nweight = 2\n[a]\nweight = 1\n[b]\n");
  EXPECT_EQ(Dataset(folder.path()).domains().size(), 2u);
}

TEST(Dataset, DigestFollowsTheContent) {
  const TempFolder folder, other;
  make_digests(folder);
  make_digests(other);
  const std::string digest = Dataset(folder.path()).digest();
  EXPECT_EQ(digest.size(), 64u);
  EXPECT_EQ(Dataset(other.path()).digest(), digest);  // in any folder
  // A dataset.ini without digests, written by hand: changes are noticed nevertheless.
  const std::string ini = "[dataset]\ntokenizer = bytes\ndomains = a,b\n";
  make_dataset(folder, ini);
  const std::string by_hand = Dataset(folder.path()).digest();
  EXPECT_EQ(Dataset(folder.path()).digest(), by_hand);
  std::set<std::string> digests = {by_hand};
  std::string bytes = content(folder.path() / "a.valid.bin");
  bytes[2] ^= 1;
  folder.write("a.valid.bin", bytes);
  EXPECT_TRUE(digests.insert(Dataset(folder.path()).digest()).second);
  make_dataset(folder, ini + "[a]\nweight = 1\n[b]\nweight = 2\n");
  EXPECT_TRUE(digests.insert(Dataset(folder.path()).digest()).second);
  make_dataset(folder, "[dataset]\ntokenizer = bytes\ndomains = b,a\n");
  EXPECT_TRUE(digests.insert(Dataset(folder.path()).digest()).second);
  make_dataset(folder, "[dataset]\ntokenizer = bytes\ndomains = a,b\n[a]\ntrain_tokens = 12\n");
  EXPECT_EQ(Dataset(folder.path()).digest(), by_hand);  // equal to the counts of the files
}

// Digest of the tokenizer: of its model, or of the word bytes. If the tokenizer is missing, it is
// the digest of its description in dataset.ini.
TEST(Dataset, ComputesTheDigestOfTheTokenizer) {
  const TempFolder folder;
  const auto digest = [&](const std::string& dataset) {
    folder.write("dataset.ini", "[dataset]\ndomains = a\nvocab = 9\n" + dataset);
    return tokenizer_sha256(read_dataset_ini(folder.path()));
  };
  const std::string bytes = to_hex(sha256("bytes")), model = to_hex(sha256("a model")), other(64, '7');
  folder.write("m", "a model");
  EXPECT_EQ(digest("tokenizer = bytes\n"), bytes);
  EXPECT_EQ(digest("tokenizer = none\n"), "");
  EXPECT_EQ(digest("tokenizer = none\ntokenizer_sha256 = " + other + "\n"), other);
  EXPECT_EQ(digest("tokenizer = sentencepiece\nmodel = m\n"), model);
  EXPECT_EQ(digest("tokenizer = sentencepiece\nmodel = m\nmodel_sha256 = " + model + "\n"), model);
  for (const char* tokenizer : {"tokenizer = bytes\n", "tokenizer = huggingface\nmodel = m\nmodel_sha256 = "})
    EXPECT_BAD_INPUT(digest(tokenizer + (tokenizer[12] == 'b' ? "" : model + "\n") + "tokenizer_sha256 = " + other),
                     "tokenizer_sha256 is not the digest of the tokenizer");
}

TEST(Dataset, RoundTripsTheIni) {
  const TempFolder folder;
  DatasetDescription d;
  d.tokenizer = "sentencepiece";
  d.model = "m.model";
  d.vocab = 1234;
  d.domains.resize(2);
  d.domains[0] = {"x-1", 1, 2, 3, 4, 5, 6, 0.25};
  d.domains[1] = {"Y_2", 7, 8, 9, 10, 11, 12, 3};
  d.model_sha256 = d.tokenizer_sha256 = std::string(64, '5');
  d.domains[0].train_digests.bin = std::string(64, 'a');
  d.domains[1].valid_digests.idx = std::string(64, 'b');
  d.domains[1].valid_digests.sample = std::string(64, '0');
  EXPECT_EQ(to_ini(d).find("unicode"), std::string::npos);
  d.unicode_versions = "PCRE2 14.0.0, ICU 15.0";
  folder.write("dataset.ini", to_ini(d));
  const DatasetDescription r = read_dataset_ini(folder.path());
  EXPECT_EQ(r.tokenizer, d.tokenizer);
  EXPECT_EQ(r.unicode_versions, d.unicode_versions);
  EXPECT_EQ(r.model, folder.path() / "m.model");
  EXPECT_EQ(r.vocab, 1234);
  ASSERT_EQ(r.domains.size(), 2u);
  EXPECT_EQ(r.domains[0].name, "x-1");
  EXPECT_EQ(r.domains[0].weight, 0.25);
  EXPECT_EQ(r.domains[1].train_documents, 7);
  EXPECT_EQ(r.domains[1].train_tokens, 8);
  EXPECT_EQ(r.domains[1].valid_documents, 9);
  EXPECT_EQ(r.domains[1].valid_tokens, 10);
  EXPECT_EQ(r.model_sha256, d.model_sha256);
  EXPECT_EQ(r.tokenizer_sha256, d.tokenizer_sha256);
  EXPECT_EQ(r.domains[0].train_digests.bin, d.domains[0].train_digests.bin);
  EXPECT_EQ(r.domains[0].train_digests.idx, "");
  EXPECT_EQ(r.domains[1].valid_digests.idx, d.domains[1].valid_digests.idx);
  EXPECT_EQ(r.domains[1].valid_digests.sample, d.domains[1].valid_digests.sample);
  EXPECT_EQ(r.domains[1].train_bytes, 11);
  EXPECT_EQ(r.domains[1].valid_bytes, 12);
}

}  // namespace
}  // namespace sy
