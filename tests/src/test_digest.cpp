#include <gtest/gtest.h>
#include <sys/stat.h>

#include <fstream>

#include "src/system/digest.h"
#include "tests/src/checkpoint_fixture.h"

namespace sy {
namespace {

using namespace test;

// FIPS 180-2, appendix B, and the empty message.
TEST(Digest, MatchesKnownAnswers) {
  EXPECT_EQ(to_hex(sha256("")), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  EXPECT_EQ(to_hex(sha256("abc")), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  EXPECT_EQ(to_hex(sha256("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq")),
            "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
  EXPECT_EQ(to_hex(sha256(std::string(1000000, 'a'))),
            "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
}

TEST(Digest, ChecksumDetectsEveryBit) {
  std::string text(1000, 'x');
  const Checksum::Value whole = checksum(text.data(), text.size());
  Checksum chunked;
  for (std::size_t at = 0, n = 1; at < text.size(); at += n, n += 7)
    chunked.update(text.data() + at, std::min(n, text.size() - at));
  EXPECT_EQ(chunked.finish(), whole);
  EXPECT_NE(checksum(text.data(), 999), whole);
  EXPECT_NE(checksum("", 0), checksum("\0", 1));
  for (std::size_t bit = 0; bit < text.size() * 8; bit += 37) {
    const char flip = static_cast<char>(1 << bit % 8);
    text[bit / 8] ^= flip;
    EXPECT_NE(checksum(text.data(), text.size()), whole) << bit;
    text[bit / 8] ^= flip;
  }
}

TEST(Digest, IsEqualForChunksAndFiles) {
  std::string text;
  for (int i = 0; i < 3000000; ++i) text += static_cast<char>(i * 7 + i / 1000);
  Sha256 chunked;
  for (std::size_t at = 0, n = 0; at < text.size(); at += n, n = n * 3 + 1)
    chunked.update(text.data() + at, std::min(n, text.size() - at));
  EXPECT_EQ(chunked.finish(), sha256(text));

  const Folder folder;
  write_file(folder.path() / "file", text);
  EXPECT_EQ(sha256_file(folder.path() / "file"), sha256(text));
  write_file(folder.path() / "file", "");
  EXPECT_EQ(sha256_file(folder.path() / "file"), sha256(""));
}

TEST(Digest, SampledDigestCoversSizeEndsAndMiddle) {
  const Folder folder;
  const auto sampled = [&](const std::string& text) {
    write_file(folder.path() / "file", text);
    return sha256_sampled(folder.path() / "file");
  };
  // A small file is read completely, whatever its size.
  for (const std::size_t size : {1, 2, 16383, 16384, 16385, 40000, 262144}) {
    std::string text(size, 'x');
    const Digest before = sampled(text);
    EXPECT_EQ(sampled(text), before);
    EXPECT_NE(sampled(text + "x"), before);
    for (const std::size_t at : {std::size_t{0}, size / 3, size / 2, size - 1}) {
      std::string other = text;
      other[at] = 'y';
      EXPECT_NE(sampled(other), before) << at << " of " << size;
    }
  }
  EXPECT_NE(sampled(""), sampled("x"));
  std::string large(10 << 20, 'x');
  const Digest before = sampled(large);
  for (const std::size_t at : {std::size_t{0}, std::size_t{16383}, large.size() - 16384, large.size() - 1}) {
    std::string other = large;
    other[at] = 'y';
    EXPECT_NE(sampled(other), before) << at;
  }
  std::string middle = large;
  for (std::size_t i = 0; i < 1 << 20; ++i) middle[(4 << 20) + i] = 'y';  // longer than a gap
  EXPECT_NE(sampled(middle), before);
}

TEST(Digest, NamesUnreadableFiles) {
  const Folder folder;
  EXPECT_NE(error_of([&] { sha256_file(folder.path() / "none"); }).find("none: No such file"), std::string::npos);
  EXPECT_NE(error_of([&] { sha256_sampled(folder.path() / "none"); }).find("cannot read"), std::string::npos);
  EXPECT_NE(error_of([&] { sha256_sampled(folder.path()); }).find("cannot read"), std::string::npos);
  EXPECT_NE(error_of([&] { sha256_file(folder.path()); }).find("it is a folder"), std::string::npos);
}

TEST(Files, WriteReplacesAFileAtomically) {
  const Folder folder;
  const fs::path file = folder.path() / "file";
  write_file(file, "old");
  int points = 0;
  {
    const FaultScope count([&](std::string_view, const fs::path&) { ++points; });
    write_file(file, "old");
  }
  ASSERT_EQ(points, 4);
  for (int failing = 0; failing < points; ++failing) {
    write_file(file, "old");
    {
      int at = 0;
      const FaultScope fault([&](std::string_view what, const fs::path& path) {
        if (at++ == failing) fail("{} {}: no space", what, path.string());
      });
      EXPECT_NE(error_of([&] { write_file(file, "new"); }).find("1: "), std::string::npos);
    }
    // Only a failure of the last operation, after the rename, may leave the new content.
    EXPECT_EQ(read_file(file), failing + 1 < points ? "old" : "new");
    EXPECT_FALSE(fs::exists(file.string() + ".tmp"));
  }
  EXPECT_NE(error_of([&] { write_file(folder.path() / "no" / "file", "x"); }).find("No such file"), std::string::npos);
}

TEST(Files, WriteLeavesOtherFilesAlone) {
  const Folder folder;
  const fs::path file = folder.path() / "file", victim = folder.path() / "victim";
  std::ofstream(victim) << "precious";
  fs::create_symlink(victim, file.string() + ".tmp");
  std::ofstream(file.string() + ".tmp2") << "another's";
  write_file(file, "new");
  EXPECT_EQ(read_file(file), "new");
  EXPECT_FALSE(fs::is_symlink(file));
  EXPECT_EQ(read_file(victim), "precious");
  EXPECT_TRUE(fs::is_symlink(file.string() + ".tmp"));
  EXPECT_EQ(read_file(file.string() + ".tmp2"), "another's");
  EXPECT_FALSE(fs::exists(file.string() + ".tmp3"));
  {
    const FaultScope fault([&](std::string_view what, const fs::path&) {
      if (what == "sync") fail("injected");
    });
    EXPECT_EQ(error_of([&] { write_file(file, "newer"); }), "1: injected");
  }
  EXPECT_EQ(read_file(file), "new");
  EXPECT_EQ(read_file(file.string() + ".tmp2"), "another's");
  EXPECT_FALSE(fs::exists(file.string() + ".tmp3"));
}

// A FIFO, a device and a folder are refused at once, also through a link. A file above the size
// limit is refused, too.
TEST(Files, RejectsSpecialAndOversizedInputs) {
  const Folder folder;
  const fs::path fifo = folder.path() / "fifo", link = folder.path() / "link", large = folder.path() / "large";
  ASSERT_EQ(mkfifo(fifo.c_str(), 0600), 0);
  fs::create_symlink("/dev/zero", link);
  std::ofstream(large) << "x";
  fs::resize_file(large, 1 << 30);  // sparse
  const auto nothing = [](auto) {};
  for (const auto& [path, what] : {std::pair{fifo, "a FIFO"}, {link, "a device"}, {folder.path(), "a folder"}}) {
    const std::string error = fmt::format("2: cannot read {}: it is {}, not a regular file", path.string(), what);
    ASSERT_EQ(error_of([&] { read_file(path); }).find(error), 0u);
    ASSERT_EQ(error_of([&] { read_chunks(path, nothing); }).find(error), 0u);
    ASSERT_EQ(error_of([&] { read_lines(path, nothing); }).find(error), 0u);
    ASSERT_EQ(error_of([&] { sha256_file(path); }).find(error), 0u);
    ASSERT_EQ(error_of([&] { sha256_sampled(path); }).find(error), 0u);
  }
  EXPECT_NE(error_of([&] { read_file(large); }).find("it has more than 268435456 bytes"), std::string::npos);
  ASSERT_EQ(error_of([&] { read_file(folder.path() / "none"); }).find("2: cannot read "), 0u);
}

TEST(Files, ReadsLinesWithTheirEnds) {
  const Folder folder;
  const fs::path file = folder.path() / "file";
  std::string text = "one\n\n" + std::string((1 << 20) + 5, 'x') + "\ntorn";
  std::ofstream(file) << text;
  std::vector<std::string> lines;
  std::vector<Index> ends;
  read_lines(file, [&](const TextLine& line) {
    lines.emplace_back(line.text);
    ends.push_back(line.end);
    EXPECT_EQ(line.number, std::ssize(lines));
    EXPECT_EQ(line.whole, line.number < 4);
  });
  ASSERT_EQ(lines.size(), 4u);
  EXPECT_EQ(lines[0] + "|" + lines[1] + "|" + lines[3], "one||torn");
  EXPECT_EQ(std::ssize(lines[2]), (1 << 20) + 5);
  EXPECT_EQ(ends, (std::vector<Index>{4, 5, (1 << 20) + 11, (1 << 20) + 15}));

  // A line that is longer than any of ours allocates no memory.
  std::ofstream(file) << "a\n";
  fs::resize_file(file, max_line_bytes + 3);
  std::ofstream(file, std::ios::app) << "\nb\n";
  lines.clear();
  read_lines(file, [&](const TextLine& line) { lines.emplace_back(line.text); });
  EXPECT_EQ(lines, (std::vector<std::string>{"a", "", "b"}));
}

// Leftover names of killed processes block nothing. They are deleted once no process can be
// writing.
TEST(Files, IgnoresAndDeletesLeftovers) {
  const Folder folder;
  const fs::path file = folder.path() / "config.ini";
  for (int n = 1; n <= 120; ++n)
    std::ofstream(fmt::format("{}.tmp{}", file.string(), n > 1 ? std::to_string(n) : "")) << n;
  EXPECT_EQ(error_of([&] { write_file(file, "new"); }), "");
  EXPECT_EQ(read_file(file), "new");
  std::ofstream(file.string() + ".tmp-0123456789abcdef") << "left";
  std::ofstream(file.string() + ".tmp-mine") << "a person's";
  remove_unfinished(file);
  EXPECT_FALSE(fs::exists(file.string() + ".tmp-0123456789abcdef"));
  EXPECT_TRUE(fs::exists(file.string() + ".tmp-mine"));
  EXPECT_TRUE(fs::exists(file.string() + ".tmp7"));
}

TEST(Files, RenameExchangesFolders) {
  const Folder folder;
  const fs::path a = folder.path() / "a", b = folder.path() / "b";
  make_folders(a);
  write_file(a / "of_a", "");
  rename_folder(a, b);
  EXPECT_TRUE(fs::exists(b / "of_a"));
  EXPECT_FALSE(fs::exists(a));
  make_folders(a);
  rename_folder(a, b);
  EXPECT_TRUE(fs::exists(a / "of_a"));
  EXPECT_TRUE(fs::is_empty(b));
}

}  // namespace
}  // namespace sy
