#include "dist/fingerprints.h"

#include <gtest/gtest.h>

namespace sy {
namespace {

CollectiveFingerprint call(Index rank, const std::string& text) {
  CollectiveFingerprint fingerprint{rank, {}};
  text.copy(fingerprint.text, sizeof fingerprint.text - 1);
  return fingerprint;
}

TEST(Fingerprints, NamesTheFirstRankAndTheFirstMismatch) {
  const std::vector<Index> none(3 * 2 * 3);
  EXPECT_EQ(first_difference(std::vector{call(2, "a barrier"), call(5, "a barrier"), call(7, "a barrier")}, none), "");
  EXPECT_EQ(
      first_difference(std::vector{call(2, "a barrier"), call(5, "a barrier"), call(7, "a split into groups")}, none)
          .find("rank 2 is about to do a barrier, and rank 7 a split into groups: "),
      0u);
}

TEST(Fingerprints, ComparesSentWithExpectedRows) {
  const std::vector<CollectiveFingerprint> calls = {call(1, "an all-to-all"), call(4, "an all-to-all"),
                                                    call(6, "an all-to-all")};
  // Line of a rank: rows sent to ranks 0, 1, 2 of the group, and rows expected from them.
  std::vector<Index> rows = {0, 2, 3, 0, 5, 0,   //
                             5, 7, 0, 2, 7, 1,   //
                             0, 1, 9, 3, 0, 9};  //
  EXPECT_EQ(first_difference(calls, rows), "");
  rows[6 + 5] = 8;  // rank 4 expects more than rank 6 sends
  EXPECT_EQ(first_difference(calls, rows)
                .find("rank 6 is about to send 1 rows to rank 4, which expects 8, in an all-to-all: "),
            0u)
      << first_difference(calls, rows);
}

// A dry communicator has no peers to compare with.
TEST(Fingerprints, IgnoresADryCommunicator) {
  const auto dry = make_comm_dry(3, 1);
  EXPECT_NO_THROW(check_fingerprints(*dry, "an all-to-all", std::vector<Index>{1, 2, 3}, std::vector<Index>{3, 2, 0}));
}

}  // namespace
}  // namespace sy
