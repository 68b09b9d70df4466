// The tests run on one machine, whose first rank is rank 0.
#include <gtest/gtest.h>

#include "dist/errors.h"
#include "dist/file_readers.h"
#include "tests/mpi_world.h"

namespace sy::test {
namespace {

namespace fs = std::filesystem;

TEST(FileReaders, AreRankZeroAndRanksWithAnotherPath) {
  const bool first = world().rank() == 0, last = world().rank() == world().size() - 1;
  EXPECT_EQ(reads_itself(world(), "a/file"), first);
  // Another spelling of the same path.
  EXPECT_EQ(reads_itself(world(), last ? fs::absolute("a/file") : fs::path("a/file")), first);
  EXPECT_EQ(reads_itself(world(), last ? "b/file" : "a/file"), first || last);
}

TEST(FileReaders, SendTheTextOfRankZero) {
  const int rank = world().rank(), last_rank = world().size() - 1;
  int calls = 0;
  const auto read = [&] {
    ++calls;
    return fmt::format("line 1\nof rank {}", rank);
  };
  EXPECT_EQ(read_for_all_ranks(world(), "a", read), "line 1\nof rank 0");
  EXPECT_EQ(calls, rank == 0 ? 1 : 0);
  calls = 0;
  EXPECT_EQ(read_for_all_ranks(world(), rank == last_rank ? "b" : "a", read),
            fmt::format("line 1\nof rank {}", rank == last_rank ? last_rank : 0));
  EXPECT_EQ(calls, rank == 0 || rank == last_rank ? 1 : 0);
  EXPECT_EQ(read_for_all_ranks(world(), "a", [] { return std::string(); }), "");
}

TEST(FileReaders, ShareTheError) {
  const int last_rank = world().size() - 1;
  // The last rank has another path, and it alone fails.
  for (const int faulty : {0, last_rank}) try {
      const fs::path path = world().rank() == last_rank ? "b" : "a";
      read_for_all_ranks(world(), path, [&]() -> std::string {
        if (world().rank() == faulty) bad_input("rank {} cannot read its file", faulty);
        return "text";
      });
      ADD_FAILURE() << "no error of rank " << faulty;
    } catch (const CollectiveError& e) {
      EXPECT_EQ(e.exit_code(), 2);
      EXPECT_EQ(std::string(e.what()), fmt::format("rank {} cannot read its file", faulty));
    }
}

TEST(FileReaders, CompareTexts) {
  EXPECT_TRUE(equal_on_all_ranks(world(), ""));
  EXPECT_TRUE(equal_on_all_ranks(world(), std::string("a\0b", 3)));
  for (int other = 0; other < world().size(); ++other)
    EXPECT_EQ(equal_on_all_ranks(world(), world().rank() == other ? "text" : "texts"), world().size() == 1);
}

}  // namespace
}  // namespace sy::test
