#include "dist/node_groups.h"

#include <gtest/gtest.h>

namespace sy {
namespace {

// Returns "first last rank order_helps"; empty if no node is split.
std::string split(const std::vector<Index>& hosts, int ranks_per_node) {
  const auto found = find_split_node(hosts, ranks_per_node);
  if (!found) return "";
  return fmt::format("{} {} {} {}", found->first_rank, found->last_rank, found->rank, found->order_helps);
}

TEST(NodeGroups, AllowSeveralNodesOnOneHost) {
  EXPECT_EQ(split({7, 7, 7, 7}, 2), "");
  EXPECT_EQ(split({7, 7, 9, 9}, 2), "");
  EXPECT_EQ(split({7, 7, 7, 7, 9, 9}, 2), "");
  EXPECT_EQ(split({7, 9, 7, 9}, 1), "");
}

TEST(NodeGroups, ReportSplitNodesOfCyclicRanks) {
  EXPECT_EQ(split({7, 9, 7, 9}, 2), "0 1 1 true");
  EXPECT_EQ(split({7, 7, 9, 7, 7, 9}, 2), "2 3 3 true");
}

TEST(NodeGroups, ReportHostsWithTooFewRanks) {
  EXPECT_EQ(split({7, 7, 9, 9}, 4), "0 3 2 false");
  EXPECT_EQ(split({7, 7, 7, 9}, 2), "2 3 3 false");
}

}  // namespace
}  // namespace sy
