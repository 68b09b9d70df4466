// Tests the order of attention's blocks by a model: each multiprocessor runs one block, and takes
// the next one when it has ended.
#include <gtest/gtest.h>

#include <functional>
#include <queue>
#include <set>
#include <tuple>
#include <vector>

#include "kernels/cuda/attention.h"

namespace sy::cuda::attention {
namespace {

// Returns the share of the multiprocessors' time that blocks of these costs use.
double used_share(const std::vector<int>& costs, std::size_t multiprocessors) {
  std::priority_queue<long, std::vector<long>, std::greater<>> free_at;
  for (std::size_t i = 0; i < multiprocessors; ++i) free_at.push(0);
  long sum = 0, end = 0;
  for (const int cost : costs) {
    const long done = free_at.top() + cost;
    free_at.pop();
    free_at.push(done);
    sum += cost;
    end = std::max(end, done);
  }
  return static_cast<double>(sum) / static_cast<double>(end) / static_cast<double>(multiprocessors);
}

TEST(BlockOrder, CoversEachTileOfEachHeadOnce) {
  constexpr int tiles = 5, sequences = 3, heads = 7, blocks = tiles * sequences * heads;
  std::set<std::tuple<int, int, int>> seen;
  for (int block = 0; block < blocks; ++block) {
    const BlockWork work = block_work(block, blocks, tiles, heads);
    EXPECT_TRUE(work.tile >= 0 && work.tile < tiles && work.b >= 0 && work.b < sequences && work.head >= 0 &&
                work.head < heads);
    seen.emplace(work.tile, work.b, work.head);
  }
  EXPECT_EQ(seen.size(), std::size_t{blocks});
}

// Causal attention over 4096 tokens: a tile of queries costs as much as it sees tiles of keys, and
// a tile of keys as much as tiles of queries see it.
TEST(BlockOrder, KeepsAllMultiprocessorsBusy) {
  struct Case {
    int tiles, sequences, heads;
  };
  for (const auto& [tiles, sequences, heads] :
       {Case{32, 1, 32}, Case{64, 1, 32}, Case{32, 1, 16}, Case{32, 1, 8}, Case{64, 1, 8}, Case{32, 2, 16}}) {
    const int blocks = tiles * sequences * heads;
    std::vector<int> costs;
    for (int block = 0; block < blocks; ++block) costs.push_back(tiles - block_work(block, blocks, tiles, heads).tile);
    EXPECT_GE(used_share(costs, 132), 0.97) << tiles << " tiles, " << sequences << " x " << heads << " heads";
  }
}

}  // namespace
}  // namespace sy::cuda::attention
