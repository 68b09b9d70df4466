// Records of several ranks.
#include <gtest/gtest.h>

#include "dist/machine.h"
#include "src/provenance/provenance.h"
#include "tests/mpi_world.h"

namespace sy {
namespace {

using test::world;

TEST(ProvenanceRanks, GathersTextsOfAnyLength) {
  const auto text = [](int rank) {
    return std::string(static_cast<std::size_t>(3 * rank), 'a') + (rank > 1 ? " " : "");
  };
  const std::vector<std::string> texts = all_gather_texts(world(), text(world().rank()));
  ASSERT_EQ(std::ssize(texts), world().size());
  for (int rank = 0; rank < world().size(); ++rank) EXPECT_EQ(texts[rank], text(rank));
}

// Ranks of one machine are one host.
TEST(ProvenanceRanks, CollectsDistinctHosts) {
  const Json record = collect_provenance(world());
  EXPECT_EQ(record["ranks"], world().size());
  EXPECT_EQ(record["hosts"].dump(), "[\"" + host_name() + "\"]");
  EXPECT_EQ(record["processors"].size(), 1u);
}

}  // namespace
}  // namespace sy
