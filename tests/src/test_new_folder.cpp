#include "src/io/new_folder.h"

#include <gtest/gtest.h>

#include "kernels/check.h"
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
  EXPECT_BAD_INPUT(make(), "this program did not leave it there");
  EXPECT_EQ(read_file(staging() / "thesis.txt"), "mine");
  fs::rename(staging(), temp.path() / "elsewhere");
  fs::create_directory_symlink(temp.path() / "elsewhere", staging());
  EXPECT_BAD_INPUT(make(), "this program did not leave it there");
  EXPECT_EQ(read_file(staging() / "thesis.txt"), "mine");
  fs::remove(staging());
  temp.write("out.tmp", "a file");
  EXPECT_BAD_INPUT(make(), "this program did not leave it there");
  EXPECT_EQ(read_file(staging()), "a file");
  fs::remove(staging());
  temp.write("out/thesis.txt", "mine");
  EXPECT_BAD_INPUT(make(), "is there already");
  EXPECT_EQ(names_in_folder(target()), "thesis.txt ");
}

// A killed process leaves its files and its lock behind.
TEST_F(NewFolderTest, ReplacesLeftoversOfAKilledProcess) {
  temp.write("out.tmp/switchyard.lock", "");
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
