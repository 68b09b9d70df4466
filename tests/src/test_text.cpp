#include "src/data/text.h"

#include <gtest/gtest.h>

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

std::vector<Document> documents_of(const std::vector<fs::path>& paths) {
  std::vector<Document> documents;
  for_each_document(paths, [&](Document&& d) { documents.push_back(std::move(d)); });
  return documents;
}

TEST(Documents, SmallFilesAreWhole) {
  const TempFolder folder;
  for (const std::size_t size : {std::size_t{1}, piece_bytes, piece_bytes + 1, max_document_bytes}) {
    const auto documents = documents_of({folder.write("f", std::string(size, '\n'))});
    ASSERT_EQ(documents.size(), 1u) << size;
    EXPECT_EQ(documents[0].text.size(), size);
  }
  EXPECT_TRUE(documents_of({folder.write("f", "")}).empty());
}

TEST(Documents, LargeFilesAreCutAndNothingIsLost) {
  std::string lines, words, letters, bytes;
  for (int i = 0; lines.size() <= max_document_bytes; ++i)
    lines += fmt::format("line {} of the text{}\n", i, i % 13 ? "" : "\n");
  for (int i = 0; words.size() < 3 * max_document_bytes; ++i) words += fmt::format("word{} ", i);
  while (letters.size() <= max_document_bytes) letters += "\xE7\xB7\x9A";
  bytes.assign(max_document_bytes + 1, '\x9A');
  for (const std::string* big : {&lines, &words, &letters, &bytes}) {
    const std::string& text = *big;
    const TempFolder folder;
    const auto documents = documents_of({folder.write("big", text)});
    EXPECT_GT(documents.size(), text.size() / piece_bytes);
    std::string all;
    for (const Document& d : documents) {
      EXPECT_EQ(d.offset, static_cast<Index>(all.size()));
      EXPECT_LE(d.text.size(), piece_bytes);
      EXPECT_GT(d.text.size(), 0u);
      EXPECT_EQ(invalid_utf8(d.text).has_value(), big == &bytes);
      all += d.text;
    }
    EXPECT_TRUE(all == text);
  }
  // Blank lines are where this one is cut.
  const TempFolder folder;
  const auto documents = documents_of({folder.write("big", lines)});
  for (std::size_t i = 0; i + 1 < documents.size(); ++i) EXPECT_TRUE(documents[i].text.ends_with("\n\n"));
}

TEST(WalkFiles, SortedAndToAnyDepth) {
  const TempFolder folder;
  for (const char* name : {"b.txt", "a/z", "a/b/c", "a-b", "B"}) folder.write(name, name);
  std::vector<std::string> seen;
  const auto walk = [&](const fs::path& path) {
    seen.clear();
    return walk_files(path, [&](const fs::path& f, Index bytes) {
      seen.push_back(f.lexically_relative(folder.path()).string());
      EXPECT_EQ(bytes, static_cast<Index>(fs::file_size(f)));
    });
  };
  EXPECT_EQ(walk(folder.path()), 0);
  EXPECT_EQ(seen, (std::vector<std::string>{"B", "a/b/c", "a/z", "a-b", "b.txt"}));
  EXPECT_EQ(walk(folder.path() / "b.txt"), 0);
  EXPECT_EQ(seen, (std::vector<std::string>{"b.txt"}));
}

TEST(WalkFiles, LinksDoNotLoop) {
  const TempFolder folder;
  const auto file = folder.write("sub/f", "text");
  fs::create_directory_symlink(folder.path(), folder.path() / "sub" / "up");
  fs::create_directory_symlink("self", folder.path() / "self");
  fs::create_symlink("nothing", folder.path() / "broken");
  fs::create_symlink(file, folder.path() / "link");
  std::vector<std::string> seen;
  const auto add = [&](const fs::path& f, Index) { seen.push_back(f.filename().string()); };
  EXPECT_EQ(walk_files(folder.path(), add), 3);
  EXPECT_EQ(seen, (std::vector<std::string>{"link", "f"}));
  seen.clear();
  walk_files(folder.path() / "sub" / "up" / "sub", add);  // a linked folder that is named is walked
  EXPECT_EQ(seen, (std::vector<std::string>{"f"}));
  EXPECT_BAD_INPUT(walk_files(folder.path() / "self", add), "self");
  EXPECT_BAD_INPUT(walk_files(folder.path() / "absent", add), "absent");
  EXPECT_BAD_INPUT(walk_files("/dev/null", add), "neither a file nor a folder");
}

}  // namespace
}  // namespace sy
