// The state that the communicators of a rank carry.
#include "dist/rank_context.h"

#include <gtest/gtest.h>

#include "dist/mesh.h"
#include "dist/phase.h"

namespace sy {
namespace {

TEST(RankContext, IsSharedByTheCommunicatorsOfARank) {
  const auto context = std::make_shared<RankContext>();
  const auto self = make_comm_self(context), dry = make_comm_dry(4, 1, false, context);
  for (Comm* comm : {self.get(), dry.get()}) {
    EXPECT_EQ(&comm->rank_context(), context.get());
    EXPECT_EQ(&comm->split([](int rank) { return rank / 2; })->rank_context(), context.get());
  }
  const Mesh mesh = make_dry_mesh(*dry, {.ranks = 4, .tp = 2});
  for (const auto& [name, comm] : mesh.groups()) {
    if (comm) {
      EXPECT_EQ(&comm->rank_context(), context.get()) << name;
    }
  }
}

TEST(RankContext, HasItsOwnPhaseWaitAndTrace) {
  RankContext one, other;
  std::vector<TraceSpan> spans;
  one.trace_spans = &spans;
  {
    const ScopedStep step(one, 3);
    const ScopedPhase phase(one, "forward pass", 1), other_phase(other, "backward pass", 2);
    const ScopedBlock block(one.blocked, "a barrier");
    EXPECT_EQ(one.phase.read().describe(), " in the forward pass of layer 1, step 3");
    EXPECT_EQ(other.phase.read().describe(), " in the backward pass of layer 2");
    EXPECT_EQ(other.blocked.read().operation, nullptr);
  }
  ASSERT_EQ(spans.size(), 1u);
  EXPECT_STREQ(spans[0].name, "forward pass");
  EXPECT_STREQ(one.phase.current().name, "");
}

}  // namespace
}  // namespace sy
