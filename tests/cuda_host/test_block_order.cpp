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

// The same for the gradients of keys and values, where the cost grows with the query heads of a
// block. Without splits, 4 kv heads have 128 blocks and use half of the multiprocessors' time.
TEST(BlockOrder, SplitsQueryHeadsIfKvHeadsAreFew) {
  struct Case {
    int tiles, kv_heads, heads_per_kv, splits;
  };
  for (const auto& [tiles, kv_heads, heads_per_kv, splits] :
       {Case{32, 4, 8, 4}, Case{32, 8, 4, 2}, Case{32, 2, 16, 8}, Case{32, 1, 71, 9}, Case{64, 8, 4, 1}}) {
    EXPECT_EQ(head_splits(tiles * kv_heads, heads_per_kv), splits);
    const int blocks = tiles * kv_heads * splits;
    std::vector<int> costs;
    for (int block = 0; block < blocks; ++block) {
      const BlockWork work = block_work(block, blocks, tiles, kv_heads * splits);
      const int split = work.head / kv_heads;
      costs.push_back((tiles - work.tile) *
                      (first_of_split(split + 1, splits, heads_per_kv) - first_of_split(split, splits, heads_per_kv)));
    }
    EXPECT_GE(used_share(costs, 132), 0.97) << tiles << " tiles, " << kv_heads << " x " << heads_per_kv << " heads";
  }
}

TEST(BlockOrder, GivesEachQueryHeadToOneSplit) {
  for (const int heads_per_kv : {1, 2, 3, 8, 71})
    for (int blocks = 1; blocks < 300; blocks += 13) {
      const int splits = head_splits(blocks, heads_per_kv);
      ASSERT_TRUE(splits >= 1 && splits <= heads_per_kv);
      EXPECT_EQ(first_of_split(0, splits, heads_per_kv), 0);
      EXPECT_EQ(first_of_split(splits, splits, heads_per_kv), heads_per_kv);
      for (int split = 0; split < splits; ++split) {
        const int begin = first_of_split(split, splits, heads_per_kv),
                  end = first_of_split(split + 1, splits, heads_per_kv);
        EXPECT_LT(begin, end);
        for (int head = begin; head < end; ++head) EXPECT_EQ(split_of(head, splits, heads_per_kv), split);
      }
    }
  EXPECT_EQ(head_splits(0, 8), 1);
}

}  // namespace
}  // namespace sy::cuda::attention
