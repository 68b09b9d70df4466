#include "src/data/text.h"

#include <gtest/gtest.h>
#include <zlib.h>
#include <zstd.h>

#include <random>

#include "src/data/stream.h"
#include "src/system/files.h"
#include "src/text/json.h"
#include "src/tokenizers/unicode.h"
#include "tests/src/temp_folder.h"

namespace sy {
namespace {

namespace fs = std::filesystem;

TEST(Utf8, FindsTheFirstBadByte) {
  const auto at = [](const std::string& s) { return invalid_utf8(s).value_or(-1); };
  for (const std::string good : {"", "abc\x7F", "\xC2\x80\xDF\xBF", "\xE0\xA0\x80\xED\x9F\xBF\xEE\x80\x80\xEF\xBF\xBF",
                                 "\xF0\x90\x80\x80\xF4\x8F\xBF\xBF"})
    EXPECT_EQ(at(good), -1);
  EXPECT_EQ(at(std::string("a\0b", 3)), -1);
  EXPECT_EQ(at("ab\xFF"), 2);
  EXPECT_EQ(at("ab\x80"), 2);        // a continuation alone
  EXPECT_EQ(at("\xC3\xA4\xC3"), 2);  // truncated
  EXPECT_EQ(at("\xE2\x82"), 0);
  EXPECT_EQ(at("\xC0\xAF"), 0);           // overlong
  EXPECT_EQ(at("\xE0\x9F\xBF"), 0);       // overlong
  EXPECT_EQ(at("x\xF0\x8F\xBF\xBF"), 1);  // overlong
  EXPECT_EQ(at("xy\xED\xA0\x80"), 2);     // a surrogate
  EXPECT_EQ(at("\xF4\x90\x80\x80"), 0);   // above 10FFFF
  EXPECT_EQ(at("\xF5\x80\x80\x80"), 0);
  EXPECT_EQ(at("gr\xF6\xDF"
               "er"),
            2);  // Latin-1
}

TEST(CutPoint, PrefersBlankLinesThenLinesThenCharacters) {
  EXPECT_EQ(cut_point("one\n\ntwo\nthree four", 2, 12), 5u);
  EXPECT_EQ(cut_point("one\n\ntwo\nthree four", 6, 12), 9u);
  EXPECT_EQ(cut_point("one\n\ntwo\nthree four", 10, 12), 12u);
  EXPECT_EQ(cut_point("one\n\ntwo", 2, 4), 4u);  // within a blank line: after its first line end
  EXPECT_EQ(cut_point("a\xE7\xB7\x9A\xE7\xB7\x9A", 1, 6), 4u);
  EXPECT_EQ(cut_point("a\xE7\xB7\x9A\xE7\xB7\x9A", 1, 7), 7u);
  EXPECT_EQ(cut_point("\xF0\x9F\x9A\x82", 0, 3), 0u);
  EXPECT_EQ(cut_point(std::string(20, '\x80'), 5, 10), 10u);  // not UTF-8: anywhere
  EXPECT_EQ(cut_point("", 0, 0), 0u);
}

// Compares with a search for the ends as texts.
TEST(CutPoint, IsTheLastEndWithinTheBounds) {
  std::mt19937_64 random(1);
  for (int i = 0; i < 2000; ++i) {
    std::string text(random() % 12, 'a');
    for (char& c : text) c = "\n\nab"[random() % 4];
    const std::size_t high = random() % (text.size() + 1), low = random() % (high + 1);
    const std::string_view before = std::string_view(text).substr(0, high);
    std::size_t expected = high;
    for (const std::string_view end : {"\n", "\n\n"})
      if (const std::size_t at = before.rfind(end); at != before.npos && at + end.size() >= low)
        expected = at + end.size();
    ASSERT_EQ(cut_point(text, low, high), expected) << text << "|" << low << " " << high;
  }
}

std::vector<Document> documents_of(const std::vector<fs::path>& paths) {
  std::vector<Document> documents;
  for_each_document(paths, {}, "text", [&](Document&& d) {
    documents.push_back(std::move(d));
    return true;
  });
  return documents;
}

TEST(Documents, KeepSmallFilesWhole) {
  const TempFolder folder;
  for (const std::size_t size : {std::size_t{1}, chunk_bytes, chunk_bytes + 1, max_document_bytes}) {
    const auto documents = documents_of({folder.write("f", std::string(size, '\n'))});
    ASSERT_EQ(documents.size(), 1u) << size;
    EXPECT_EQ(documents[0].text.size(), size);
  }
  EXPECT_TRUE(documents_of({folder.write("f", "")}).empty());
}

TEST(Documents, SplitLargeFilesWithoutLoss) {
  std::string lines, spaced, letters, bytes;
  for (int i = 0; lines.size() <= max_document_bytes; ++i)
    lines += fmt::format("line {} of the text{}\n", i, i % 13 ? "" : "\n");
  for (int i = 0; spaced.size() < 3 * max_document_bytes; ++i) spaced += fmt::format("word{} ", i);
  while (letters.size() <= max_document_bytes) letters += "\xE7\xB7\x9A";
  bytes.assign(max_document_bytes + 1, '\x9A');
  for (const std::string* big : {&lines, &spaced, &letters, &bytes}) {
    const std::string& text = *big;
    const TempFolder folder;
    const auto documents = documents_of({folder.write("big", text)});
    EXPECT_GT(documents.size(), text.size() / chunk_bytes);
    std::string all;
    for (const Document& d : documents) {
      EXPECT_EQ(d.offset, static_cast<Index>(all.size()));
      EXPECT_LE(d.text.size(), chunk_bytes);
      EXPECT_GT(d.text.size(), 0u);
      EXPECT_EQ(invalid_utf8(d.text).has_value(), big == &bytes);
      all += d.text;
    }
    EXPECT_TRUE(all == text);
  }
  // Documents are split at blank lines.
  const TempFolder folder;
  const auto documents = documents_of({folder.write("big", lines)});
  for (std::size_t i = 0; i + 1 < documents.size(); ++i) EXPECT_TRUE(documents[i].text.ends_with("\n\n"));
}

std::string gzip(const std::string& text) {
  std::string out(text.size() + 1000, '\0');
  z_stream z = {};
  EXPECT_EQ(deflateInit2(&z, 9, Z_DEFLATED, 16 + MAX_WBITS, 8, Z_DEFAULT_STRATEGY), Z_OK);
  z.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(text.data()));
  z.avail_in = static_cast<uInt>(text.size());
  z.next_out = reinterpret_cast<Bytef*>(out.data());
  z.avail_out = static_cast<uInt>(out.size());
  EXPECT_EQ(deflate(&z, Z_FINISH), Z_STREAM_END);
  out.resize(z.total_out);
  deflateEnd(&z);
  return out;
}

std::string zstd(const std::string& text) {
  std::string out(ZSTD_compressBound(text.size()), '\0');
  out.resize(ZSTD_compress(out.data(), out.size(), text.data(), text.size(), 3));
  return out;
}

std::string read_stream(const fs::path& path, std::size_t at_a_time) {
  const auto stream = open_stream(path);
  std::string text, buffer(at_a_time, '\0');
  while (const std::size_t n = stream->read(buffer)) text += buffer.substr(0, n);
  EXPECT_EQ(stream->read(buffer), 0u);
  return text;
}

TEST(Streams, DecompressAnyLength) {
  const TempFolder folder;
  std::string mixed, zeros(5 << 20, 'x');  // zeros: much text from few bytes
  for (Index i = 0; i < 100000; ++i) mixed += static_cast<char>(i * i / 7);
  for (const std::string& text : {mixed, zeros, std::string("a"), std::string()})
    for (const std::size_t at_a_time : {std::size_t{7}, std::size_t{4096}, std::size_t{3} << 20}) {
      if (text.size() > 1 << 20 && at_a_time < 100) continue;
      EXPECT_TRUE(read_stream(folder.write("f", text), at_a_time) == text);
      EXPECT_TRUE(read_stream(folder.write("f.gz", gzip(text)), at_a_time) == text);
      EXPECT_TRUE(read_stream(folder.write("f.zst", zstd(text)), at_a_time) == text);
      // Several streams in one file, as `cat` and parallel compressors write them.
      EXPECT_TRUE(read_stream(folder.write("f.gz", gzip("one") + gzip("") + gzip(text)), at_a_time) == "one" + text);
      EXPECT_TRUE(read_stream(folder.write("f.zst", zstd("one") + zstd("") + zstd(text)), at_a_time) == "one" + text);
    }
}

TEST(Streams, RejectTruncatedAndDamagedFiles) {
  const TempFolder folder;
  std::string text;
  for (int i = 0; i < 300; ++i) text += std::to_string(i * 7919 % 1000);
  for (const auto& [name, whole] : {std::pair{"f.gz", gzip(text)}, {"f.zst", zstd(text)}}) {
    for (std::size_t keep = 0; keep < whole.size(); keep += 13)
      EXPECT_BAD_INPUT(read_stream(folder.write(name, whole.substr(0, keep)), 100), "ends in the middle");
    EXPECT_BAD_INPUT(read_stream(folder.write(name, whole.substr(0, whole.size() - 1)), 100), name);
    EXPECT_BAD_INPUT(read_stream(folder.write(name, whole + whole.substr(0, 20)), 100), "ends in the middle");
    EXPECT_BAD_INPUT(read_stream(folder.write(name, "no such format"), 100), "or is damaged after 0 bytes");
    EXPECT_BAD_INPUT(read_stream(folder.write(name, whole + "garbage"), 100), "or is damaged after 8");
  }
  std::string flipped = gzip(text);
  flipped[flipped.size() - 6] ^= 1;  // a bit of the checksum
  EXPECT_BAD_INPUT(read_stream(folder.write("f.gz", flipped), 100), "is no gzip file, or is damaged");
  EXPECT_BAD_INPUT(open_stream(folder.path() / "none.gz"), "none.gz");
}

TEST(Documents, ReadJsonLines) {
  const TempFolder folder;
  const std::string lines =
      "{\"text\": \"one\\ntwo \\u00e4\"}\n\n  \r\n{\"id\": [1, {}], \"text\": \"three\"}\r\n{\"text\": "
      "\"\"}\n{\"text\": \"last\"}";
  for (const auto& [name, content] :
       {std::pair{"a.jsonl", lines}, {"a.jsonl.gz", gzip(lines)}, {"a.jsonl.zst", zstd(lines)}}) {
    const auto documents = documents_of({folder.write(name, content)});
    ASSERT_EQ(documents.size(), 3u) << name;
    EXPECT_EQ(documents[0].text, "one\ntwo ä");
    EXPECT_EQ(documents[1].text, "three");
    EXPECT_EQ(documents[1].line, 4);
    EXPECT_EQ(documents[2].text, "last");
  }
  // Lines of about the sizes in which files are read and split, and many short lines.
  std::string big, text;
  for (int i = 0; text.size() < 2 * max_document_bytes + 77; ++i) text += fmt::format("line {}\n", i);
  for (const std::size_t size : {max_document_bytes - 20, max_document_bytes, max_document_bytes + 1, text.size()})
    big += json_text({{"text", text.substr(0, size)}}, -1);
  for (int i = 0; i < 50000; ++i) big += "{\"text\":\"x\"}\n";
  const auto documents = documents_of({folder.write("big.jsonl", big)});
  std::string all;
  for (const Document& d : documents) all += d.text;
  EXPECT_EQ(documents[1].text.size(), max_document_bytes);
  EXPECT_LE(documents[2].text.size(), chunk_bytes);
  EXPECT_EQ(documents.back().line, 50004);
  EXPECT_TRUE(all == text.substr(0, max_document_bytes - 20) + text.substr(0, max_document_bytes) +
                         text.substr(0, max_document_bytes + 1) + text + std::string(50000, 'x'));
}

TEST(Documents, NameInvalidJsonLines) {
  const TempFolder folder;
  const std::string good = "{\"text\": \"good\"}\n\n";
  const std::pair<std::string, const char*> wrong[] = {
      {"{\"body\": \"x\"}", "f.jsonl: line 3 has no key 'text'"},
      {"{\"text\": 7}", "line 3: 'text' is of JSON type number"},
      {"{\"text\": null}", "line 3: 'text' is of JSON type null"},
      {"[\"text\"]", "line 3 is of JSON type array"},
      {"\"text\"", "line 3 is of JSON type string"},
      {"plain text", "line 3 is not JSON from its byte 0 on"},
      {"{\"text\": \"x\"} {\"text\": \"y\"}", "line 3 is not JSON from its byte 14 on"},
      {"{\"text\": \"x", "line 3 is not JSON"},
      {"{\"text\": \"\\ud800\"}", "line 3 is not JSON"},
      {"{\"text\": \"gr\xF6\xDF\"}", "line 3 is not UTF-8 from its byte 12 on"},
      {std::string("\0", 1), "line 3 is not JSON"},
      {std::string(max_json_line_bytes + 1, ' '), "line 3 has 64 MiB or more"}};
  for (const auto& [line, message] : wrong)
    EXPECT_BAD_INPUT(documents_of({folder.write("f.jsonl", good + line + "\n" + good)}), message);
  EXPECT_BAD_INPUT(documents_of({folder.write("f.jsonl.gz", gzip(good).substr(0, 20))}),
                   "f.jsonl.gz ends in the middle");
}

TEST(WalkFiles, VisitsFilesInOrderAtAnyDepth) {
  const TempFolder folder;
  for (const char* name : {"b.txt", "a/z", "a/b/c", "a-b", "B"}) folder.write(name, name);
  std::vector<std::string> seen;
  const auto walk = [&](const fs::path& path) {
    seen.clear();
    return walk_files(path, {},
                      [&](const fs::path& f) { seen.push_back(f.lexically_relative(folder.path()).string()); });
  };
  EXPECT_EQ(walk(folder.path()).text(), "");
  EXPECT_EQ(seen, (std::vector<std::string>{"B", "a/b/c", "a/z", "a-b", "b.txt"}));
  EXPECT_EQ(walk(folder.path() / "b.txt").text(), "");
  EXPECT_EQ(seen, (std::vector<std::string>{"b.txt"}));
}

TEST(WalkFiles, DoesNotFollowLinksInLoops) {
  const TempFolder folder;
  const auto file = folder.write("sub/f", "text");
  fs::create_directory_symlink(folder.path(), folder.path() / "sub" / "up");
  fs::create_directory_symlink("self", folder.path() / "self");
  fs::create_symlink("nothing", folder.path() / "broken");
  fs::create_symlink(file, folder.path() / "link");
  std::vector<std::string> seen;
  const auto add = [&](const fs::path& f) { seen.push_back(f.filename().string()); };
  fs::create_symlink("loop", folder.path() / "loop");
  EXPECT_EQ(walk_files(folder.path(), {}, add).special, 4);
  EXPECT_EQ(seen, (std::vector<std::string>{"link", "f"}));
  seen.clear();
  // A linked folder is walked if it is named.
  walk_files(folder.path() / "sub" / "up" / "sub", {}, add);
  EXPECT_EQ(seen, (std::vector<std::string>{"f"}));
  EXPECT_BAD_INPUT(walk_files(folder.path() / "self", {}, add), "self");
  EXPECT_BAD_INPUT(walk_files(folder.path() / "absent", {}, add), "absent");
  EXPECT_BAD_INPUT(walk_files("/dev/null", {}, add), "neither a file nor a folder");
}

// A file that cannot be looked up is an error: the data set would lack it without a word.
TEST(WalkFiles, RefusesFilesThatCannotBeLookedUp) {
  const TempFolder folder;
  folder.write("a.txt", "text");
  fs::create_symlink(std::string(300, 'x'), folder.path() / "link");  // a name that is too long
  EXPECT_BAD_INPUT(walk_files(folder.path(), {}, [](const fs::path&) {}), "leave it out with --exclude");
  EXPECT_EQ(walk_files(folder.path(), {.include = {}, .exclude = {"link"}}, [](const fs::path&) {}).filtered, 1);
}

TEST(FileType, DistinguishesMissingFilesFromFailedLookUps) {
  const TempFolder folder;
  const fs::path file = folder.write("file", "text"), loop = folder.path() / "loop", link = folder.path() / "link";
  fs::create_symlink("loop", loop);
  fs::create_symlink("file", link);
  EXPECT_TRUE(is_file(file) && is_file(link) && file_exists(link) && !is_folder(link));
  EXPECT_TRUE(is_folder(folder.path()) && !is_file(folder.path()));
  EXPECT_FALSE(is_file(link, Links::keep));
  EXPECT_TRUE(file_exists(loop, Links::keep));
  EXPECT_FALSE(file_exists(folder.path() / "absent"));
  EXPECT_FALSE(file_exists(file / "below"));
  EXPECT_BAD_INPUT(file_exists(loop), "cannot look up " + loop.string());
  EXPECT_BAD_INPUT(is_folder(folder.path() / std::string(300, 'x')), "File name too long");
}

// Globs select files in folders. A named file is read whatever its name is.
TEST(WalkFiles, AppliesGlobsAndSkipsHiddenNames) {
  const TempFolder folder;
  for (const char* name :
       {"a.txt", "b.md", ".hidden", ".git/objects/ab", "build/c.txt", "sub/build/d.txt", "sub/e.txt"})
    folder.write(name, name);
  std::vector<std::string> seen;
  const auto walk = [&](const fs::path& path, const FileFilter& filter) {
    seen.clear();
    return walk_files(path, filter,
                      [&](const fs::path& f) { seen.push_back(f.lexically_relative(folder.path()).string()); })
        .text();
  };
  using Names = std::vector<std::string>;
  EXPECT_EQ(walk(folder.path(), {}), "2 hidden files and folders");
  EXPECT_EQ(seen, (Names{"a.txt", "b.md", "build/c.txt", "sub/build/d.txt", "sub/e.txt"}));
  EXPECT_EQ(walk(folder.path(), {{"*.txt"}, {"build"}}),
            "2 hidden files and folders, 3 files and folders by --include and --exclude");
  EXPECT_EQ(seen, (Names{"a.txt", "sub/e.txt"}));
  walk(folder.path(), {{"*.md", "sub/*"}, {}});
  EXPECT_EQ(seen, (Names{"b.md", "sub/build/d.txt", "sub/e.txt"}));
  walk(folder.path(), {{}, {"sub/build", "?.md"}});
  EXPECT_EQ(seen, (Names{"a.txt", "build/c.txt", "sub/e.txt"}));
  EXPECT_EQ(walk(folder.path() / ".hidden", {{"*.txt"}, {".*"}}), "");
  EXPECT_EQ(seen, Names{".hidden"});
  EXPECT_EQ(walk(folder.path() / ".git", {}), "");
  EXPECT_EQ(seen, Names{".git/objects/ab"});
}

TEST(Utf8, FindsTheFirstBinaryByte) {
  using namespace std::string_view_literals;
  EXPECT_EQ(binary_byte("plain text, gr\xC3\xB6\xC3\x9F"
                        "er\n"),
            std::nullopt);
  EXPECT_EQ(binary_byte(""), std::nullopt);
  // At the beginning, in the middle and at the end of a group of eight bytes.
  for (Index at = 0; at < 20; ++at)
    for (const char byte : {'\0', '\xFF'}) {
      std::string text(20, 'x');
      text[static_cast<std::size_t>(at)] = byte;
      EXPECT_EQ(binary_byte(text), at);
    }
  EXPECT_EQ(binary_byte("a\0\xFF"sv), 1);
  EXPECT_EQ(binary_byte("a\xFF\0"sv), 1);
}

}  // namespace
}  // namespace sy
