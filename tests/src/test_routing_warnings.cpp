#include <gtest/gtest.h>

#include "src/text/strings.h"
#include "src/train/routing_warnings.h"

namespace sy {
namespace {

std::string added(RoutingWarnings& warnings, Index step, std::vector<std::vector<Index>> routed,
                  std::vector<std::vector<Index>> dropped) {
  return join(warnings.add(step, {std::move(routed), std::move(dropped)}), "\n");
}

TEST(RoutingWarnings, ReportMostAssignmentsDroppedOnce) {
  RoutingWarnings w(10, {"layer 0"});
  EXPECT_EQ(added(w, 20, {{50, 50}}, {{25, 25}}), "");  // half is not the majority
  EXPECT_EQ(added(w, 30, {{50, 50}}, {{26, 25}}).find("51 % of the assignments of steps 21 to 30 were dropped: "), 0u);
  EXPECT_EQ(added(w, 40, {{50, 50}}, {{50, 50}}), "");
}

TEST(RoutingWarnings, ReportDeadExpertsAgainOnlyIfTheyDouble) {
  const std::vector<std::vector<Index>> none(2, std::vector<Index>(4));
  RoutingWarnings w(0, {"layer 1", "decoder layer 3"});
  // There are too few assignments to judge, until those of earlier steps are added.
  EXPECT_EQ(added(w, 1, {{0, 50, 50, 50}, {50, 50, 50, 50}}, none), "");
  EXPECT_EQ(added(w, 2, {{0, 50, 50, 50}, {50, 50, 50, 50}}, none)
                .find("1 of 8 experts got no token in steps 1 to 2 "
                      "(layer 1: 1): "),
            0u);
  EXPECT_EQ(added(w, 3, {{0, 200, 100, 100}, {100, 100, 100, 100}}, none), "");
  EXPECT_EQ(added(w, 4, {{0, 200, 200, 0}, {200, 0, 100, 100}}, none)
                .find("3 of 8 experts got no token in step 4 "
                      "(layer 1: 2, decoder layer 3: 1): "),
            0u);
  EXPECT_EQ(added(w, 5, {{100, 100, 100, 100}, {100, 100, 100, 100}}, none), "");
}

}  // namespace
}  // namespace sy
