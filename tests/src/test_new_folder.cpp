#include "src/io/new_folder.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "kernels/check.h"
#include "src/io/lock.h"
#include "src/system/files.h"
#include "tests/src/temp_folder.h"

namespace sy {
namespace {

namespace fs = std::filesystem;

struct NewFolderTest : testing::Test {
  fs::path target() const { return temp.path() / "out"; }
  fs::path staging() const { return temp.path() / "out.tmp"; }
  void make() const {
    NewFolder folder(target(), "export");
    folder.open();
    write_file(folder.staging() / "file", "new");
    folder.commit();
  }
  void expect_made() const {
    EXPECT_EQ(names_in_folder(target()), "file ");
    EXPECT_EQ(read_file(target() / "file"), "new");
    EXPECT_FALSE(fs::exists(staging()));
  }
  static std::string names_in_folder(const fs::path& folder) {
    std::string names;
    for (const auto& entry : fs::directory_iterator(folder)) names += entry.path().filename().string() + " ";
    return names;
  }
  TempFolder temp;
};

TEST_F(NewFolderTest, AppearsAtCommit) {
  NewFolder folder(target() / "", "export");
  folder.open();
  write_file(folder.staging() / "file", "new");
  EXPECT_FALSE(fs::exists(target()));
  folder.commit();
  expect_made();
}

TEST_F(NewFolderTest, IsRemovedWithoutACommit) {
  {
    NewFolder folder(target(), "export");
    folder.open();
    write_file(folder.staging() / "file", "new");
  }
  EXPECT_EQ(names_in_folder(temp.path()), "");
}

TEST_F(NewFolderTest, KeepsForeignFiles) {
  temp.write("out.tmp/thesis.txt", "mine");
  EXPECT_BAD_INPUT(make(), "no export of this version left it there");
  EXPECT_EQ(read_file(staging() / "thesis.txt"), "mine");
  fs::rename(staging(), temp.path() / "elsewhere");
  fs::create_directory_symlink(temp.path() / "elsewhere", staging());
  EXPECT_BAD_INPUT(make(), "no export of this version left it there");
  EXPECT_EQ(read_file(staging() / "thesis.txt"), "mine");
  fs::remove(staging());
  temp.write("out.tmp", "a file");
  EXPECT_BAD_INPUT(make(), "no export of this version left it there");
  EXPECT_EQ(read_file(staging()), "a file");
  fs::remove(staging());
  temp.write("out/thesis.txt", "mine");
  EXPECT_BAD_INPUT(make(), "is there already");
  EXPECT_EQ(names_in_folder(target()), "thesis.txt ");
}

// A killed training leaves the lock file, too. So did an export of a version without the note.
TEST_F(NewFolderTest, KeepsARunOfThisName) {
  fs::create_directory(staging());
  const auto lock_file = [&](const std::string& note) {
    const FolderLock lock(staging(), std::chrono::milliseconds(0), "run.dir", "", FolderLock::default_stale_after,
                          note);
    return read_file(staging() / lock_name);
  };
  for (const std::string& text : {lock_file(""), lock_file("staging folder other.tmp"), std::string()}) {
    temp.write("out.tmp/checkpoints/step-00000001/manifest.json", "{}");
    temp.write("out.tmp/switchyard.lock", text);
    EXPECT_BAD_INPUT(make(), "it may hold a run");
    EXPECT_EQ(read_file(staging() / "checkpoints" / "step-00000001" / "manifest.json"), "{}");
  }
}

// A renamed staging folder is a result, even if its name ends with ".tmp".
TEST_F(NewFolderTest, KeepsAResultOfThisName) {
  std::string text;
  {
    NewFolder folder(staging(), "export");
    folder.open();
    text = read_file(folder.staging() / lock_name);
    write_file(folder.staging() / "file", "result");
    folder.commit();
  }
  temp.write("out.tmp/switchyard.lock", text);  // killed after the rename
  EXPECT_BAD_INPUT(make(), "is in the way");
  EXPECT_EQ(read_file(staging() / "file"), "result");
}

// A killed process leaves its files and its lock behind.
TEST_F(NewFolderTest, ReplacesLeftoversOfAKilledProcess) {
  std::string text;
  {
    NewFolder folder(target(), "export");
    folder.open();
    text = read_file(staging() / lock_name);
  }
  temp.write("out.tmp/switchyard.lock", text);
  temp.write("out.tmp/old", "old");
  temp.write("mine", "mine");
  fs::create_symlink(temp.path() / "mine", staging() / "link");
  make();
  expect_made();
  EXPECT_EQ(read_file(temp.path() / "mine"), "mine");
  fs::remove_all(target());
  fs::create_directory(staging());  // killed before it had the lock
  make();
  expect_made();
  fs::remove_all(target());
  temp.write("out.tmp/switchyard.lock", "");  // killed before it had written the lock
  make();
  expect_made();
  fs::remove_all(target());
  // Killed while it wrote the lock over a longer one.
  temp.write("out.tmp/switchyard.lock", text + "0\nstaging folder out.tmp\n");
  temp.write("out.tmp/old", "old");
  make();
  expect_made();
}

// A power loss may lose any change that was not synced. The folder with a file in it always has its
// mark, the lock file: it is synced before the first file appears, and removed after the last one.
TEST_F(NewFolderTest, HasItsMarkOnTheDisk) {
  std::vector<std::string> calls;
  const auto called = [&](const std::string& call) { return std::ranges::find(calls, call) - calls.begin(); };
  file_activity().write_fault = [&](std::string_view call, const fs::path& path) {
    calls.push_back(fmt::format("{} {}", call, path.lexically_relative(temp.path()).string()));
  };
  {
    NewFolder folder(target(), "export");
    folder.open();
    EXPECT_LT(called("sync out.tmp/switchyard.lock"), called("sync out.tmp"));
    EXPECT_EQ(calls.back(), "sync out.tmp");
    write_file(folder.staging() / "file", "new");
    calls.clear();
  }
  EXPECT_EQ(calls, (std::vector<std::string>{"remove out.tmp/file", "sync out.tmp"}));
  calls.clear();
  std::optional<NewFolder> folder(std::in_place, target(), "export");
  folder->open();
  bool has_lock_file = false;
  file_activity().write_fault = [&](std::string_view call, const fs::path& path) {
    if (call == "sync" && path == temp.path()) has_lock_file = fs::exists(target() / lock_name);
  };
  folder->commit();
  file_activity().write_fault = nullptr;
  EXPECT_TRUE(has_lock_file) << "the name is on the disk before the mark goes";
  EXPECT_EQ(names_in_folder(target()), "");
}

// After a failed sync at the end, the folder stays, and so does one that another process makes.
TEST_F(NewFolderTest, RemovesNothingAfterTheRename) {
  file_activity().write_fault = [&](std::string_view call, const fs::path& path) {
    if (call != "sync" || path != temp.path()) return;
    temp.write("out.tmp/file", "of another process");
    file_activity().write_fault = nullptr;
    fail("a failed sync");
  };
  EXPECT_THROW(make(), Failure);
  EXPECT_EQ(names_in_folder(target()), "file ");
  EXPECT_EQ(read_file(staging() / "file"), "of another process");
}

TEST_F(NewFolderTest, RejectsASecondProcess) {
  NewFolder first(target(), "export");
  first.open();
  write_file(first.staging() / "file", "new");
  {
    NewFolder second(target(), "export");
    EXPECT_BAD_INPUT(second.open(), "is in use by");
  }
  EXPECT_EQ(read_file(staging() / "file"), "new");
  NewFolder late(temp.path() / "late", "export");
  late.open();
  temp.write("late/thesis.txt", "mine");  // written while the folder was being made
  EXPECT_BAD_INPUT(late.commit(), "is there already");
  first.commit();
  expect_made();
  EXPECT_EQ(names_in_folder(temp.path() / "late"), "thesis.txt ");
}

}  // namespace
}  // namespace sy
