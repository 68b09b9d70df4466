#include <gtest/gtest.h>

#include <set>

#include "dist/shard.h"
#include "dist/token_dispatcher.h"

namespace sy {
namespace {

TEST(Mesh, MapsRanksToCoordinatesOneToOne) {
  for (const Layout l : {Layout{8, 2, 4, 1}, Layout{6, 1, 3, 2}, Layout{12, 3, 2, 2}, Layout{1}, Layout{4, 4, 4, 1}}) {
    std::set<std::pair<int, int>> dense;
    std::set<std::tuple<int, int, int>> expert;
    for (int r = 0; r < l.ranks; ++r) {
      const Coord c = coord_of(l, r);
      EXPECT_EQ(r, c.dp * l.tp + c.tp);
      EXPECT_EQ(r, (c.edp * l.ep + c.ep) * l.etp + c.etp);
      EXPECT_LT(c.tp, l.tp);
      EXPECT_LT(c.dp, l.dp());
      EXPECT_LT(c.edp, l.edp());
      dense.insert({c.dp, c.tp});
      expert.insert({c.edp, c.ep, c.etp});
    }
    EXPECT_EQ(dense.size(), static_cast<std::size_t>(l.ranks));
    EXPECT_EQ(expert.size(), static_cast<std::size_t>(l.ranks));
  }
}

TEST(Mesh, DetectsSizesThatDoNotDivideTheRanks) {
  EXPECT_FALSE((Layout{6, 4, 1, 1}.tp_divides()));
  EXPECT_TRUE((Layout{6, 4, 1, 1}.experts_divide()));
  EXPECT_FALSE((Layout{6, 1, 4, 1}.experts_divide()));
  EXPECT_TRUE((Layout{6, 1, 4, 1}.tp_divides()));
  EXPECT_FALSE((Layout{6, 1, 3, 4}.divides()));
  EXPECT_TRUE((Layout{6, 2, 3, 2}.divides()));
  // Products of these sizes exceed an int.
  for (const int many : {46341, 65536, 1 << 20, 1 << 30}) {
    EXPECT_FALSE((Layout{many, 1, many, many}.experts_divide())) << many;
    EXPECT_FALSE((Layout{4, 1, many, many}.divides())) << many;
    EXPECT_FALSE((Layout{many, 1, many, many, 8}.nodes_divide())) << many;
    EXPECT_EQ((Layout{many, 1, many, many}.edp()), 0) << many;
    EXPECT_TRUE((Layout{many, 1, many, 1}.divides())) << many;
  }
}

TEST(Axes, BehaveAsSets) {
  const Axes three = Axes(Axis::dp) | Axis::tp | Axis::etp;
  EXPECT_TRUE(Axes().empty());
  EXPECT_TRUE(Axes(Axis::none).empty());
  EXPECT_TRUE(three.has(Axis::tp));
  EXPECT_TRUE(three.has(Axis::none));
  EXPECT_FALSE(three.has(Axis::tp | Axis::ep));
  EXPECT_EQ(three - dense_grid, Axes(Axis::etp));
  EXPECT_EQ(three & expert_grid, Axes(Axis::etp));
  EXPECT_EQ(expert_grid.str(), "edp x ep x etp");
  EXPECT_EQ(Axes().str(), "");
  // The order of the flat buffers, and of the sums of the gradient norm, follows this order.
  EXPECT_LT(dense_grid, Axes(Axis::dp));
  EXPECT_LT(Axes(Axis::dp), Axes(Axis::tp));
  EXPECT_LT(Axes(Axis::tp), expert_grid);
  EXPECT_LT(expert_grid, Axes(Axis::edp));
  EXPECT_FALSE(Axes(Axis::dp) < Axes(Axis::dp));
}

TEST(Axes, BelongToOneGrid) {
  EXPECT_EQ(grid_of({}), dense_grid);
  EXPECT_EQ(grid_of(Axis::tp), dense_grid);
  EXPECT_EQ(grid_of(Axis::etp), expert_grid);
  EXPECT_THROW(grid_of(Axis::tp | Axis::ep), std::exception);
}

// The group along a set of axes has the ranks with equal coordinates along the grid's other axes,
// in rank order. Two different sets of axes may have the same ranks.
TEST(Mesh, GroupsRanksAlongSetsOfAxes) {
  const std::vector<Axis> axes = {Axis::dp, Axis::tp, Axis::edp, Axis::ep, Axis::etp};
  for (const Layout l : {Layout{12, 3, 2, 2}, Layout{12, 2, 3, 2}, Layout{12, 4, 3, 1}, Layout{30, 5, 3, 2},
                         Layout{6, 1, 6, 1}, Layout{6, 6, 1, 3}, Layout{9, 3, 3, 3}, Layout{1}})
    for (int mask = 0; mask < 32; ++mask) {
      Axes set;
      for (int i = 0; i < 5; ++i)
        if (mask & 1 << i) set = set | axes[i];
      if (!dense_grid.has(set) && !expert_grid.has(set)) continue;
      const Axes others = grid_of(set) - set;
      for (int me = 0; me < l.ranks; ++me) {
        const GroupRank mine = group_rank(l, coord_of(l, me), set), rest = group_rank(l, coord_of(l, me), others);
        EXPECT_EQ(mine.size * rest.size, l.ranks);
        int index = 0, size = 0;
        for (int r = 0; r < l.ranks; ++r) {
          if (group_rank(l, coord_of(l, r), others).index != rest.index) continue;
          index += r < me;
          ++size;
        }
        ASSERT_EQ(mine.size, size) << l.str() << " over " << set.str();
        ASSERT_EQ(mine.index, index) << l.str() << " over " << set.str() << ", rank " << me;
      }
    }
}

TEST(Shard, BlockRangesCoverWithoutOverlap) {
  for (Index n : {0, 1, 5, 16, 257})
    for (int num_blocks : {1, 2, 3, 7}) {
      Index at = 0;
      for (int i = 0; i < num_blocks; ++i) {
        const Range r = block_range(n, num_blocks, i);
        EXPECT_EQ(r.begin, at);
        at = r.end;
      }
      EXPECT_EQ(at, n);
    }
}

TEST(Shard, BoxesTileExpertTensors) {
  const Layout l{12, 3, 2, 2};
  const Shape shape{4, 2, 6, 5};
  const Split split{Axis::ep, Axis::none, Axis::etp};
  std::vector<int> owners(shape.elements());
  for (int r = 0; r < l.ranks; ++r) {
    if (coord_of(l, r).edp != 0) continue;
    const Box b = owned_box(shape, split, l, coord_of(l, r));
    for (Index i = 0; i < b.size[0]; ++i)
      for (Index j = 0; j < b.size[1]; ++j)
        for (Index k = 0; k < b.size[2]; ++k)
          for (Index m = 0; m < b.size[3]; ++m)
            ++owners[(((b.begin[0] + i) * 2 + b.begin[1] + j) * 6 + b.begin[2] + k) * 5 + b.begin[3] + m];
  }
  for (int n : owners) EXPECT_EQ(n, 1);
}

TEST(Shard, ReplicatesFewKvHeads) {
  const Layout l{4, 4, 1, 1};
  for (int r = 0; r < 4; ++r) {
    const Box b = owned_box({2, 8, 16}, {Axis::tp}, l, coord_of(l, r));
    EXPECT_EQ(b.begin[0], r / 2);
    EXPECT_EQ(b.size[0], 1);
  }
}

TEST(Shard, SumsGradientsOverUnsplitAxes) {
  EXPECT_EQ(summed_axes({}), Axis::dp | Axis::tp);
  EXPECT_EQ(summed_axes({Axis::none, Axis::tp}), Axis::dp);
  EXPECT_EQ(summed_axes({Axis::ep, Axis::none, Axis::etp}), Axis::edp);
  EXPECT_EQ(summed_axes({Axis::none, Axis::ep}), Axis::edp | Axis::etp);
  EXPECT_EQ(axes_of({Axis::ep, Axis::none, Axis::etp}), Axis::ep | Axis::etp);
}

// Checks every range of every small box, element by element.
TEST(Shard, SplitsRangesIntoOrderedBoxes) {
  for (const Shape& shape : {Shape{7}, Shape{3, 5}, Shape{2, 3, 4}, Shape{2, 1, 3, 2}, Shape{1, 1}, Shape{4, 0}}) {
    const Index n = shape.elements();
    for (Index begin = 0; begin <= n; ++begin)
      for (Index end = begin; end <= n; ++end) {
        std::vector<Index> seen;
        const auto boxes = boxes_of_range(shape, {begin, end});
        EXPECT_LE(static_cast<int>(boxes.size()), std::max(1, 2 * shape.size() - 1));
        for (const Box& b : boxes) {
          ASSERT_EQ(b.size.size(), shape.size());
          for (Index i = 0; i < b.elements(); ++i) {
            Index rest = i, at = 0, stride = 1;
            for (int d = shape.size() - 1; d >= 0; --d) {
              const Index x = b.begin[d] + rest % b.size[d];
              ASSERT_LT(x, shape[d]);
              at += x * stride;
              stride *= shape[d];
              rest /= b.size[d];
            }
            seen.push_back(at);
          }
        }
        ASSERT_EQ(static_cast<Index>(seen.size()), end - begin) << shape.str() << " " << begin << ".." << end;
        for (Index i = 0; i < end - begin; ++i) ASSERT_EQ(seen[i], begin + i);
      }
  }
}

TEST(Topology, CountsTheNodesOfExpertRanks) {
  const auto of = [](const Layout& l) {
    const Topology t = l.expert_topology();
    return std::pair{t.nodes, t.ranks_per_node};
  };
  EXPECT_EQ(of({8, 1, 8, 1}), (std::pair{1, 8}));  // not hierarchical
  EXPECT_EQ(of({8, 1, 8, 1, 2}), (std::pair{4, 2}));
  EXPECT_EQ(of({8, 2, 4, 2, 4}), (std::pair{2, 4}));
  EXPECT_EQ(of({16, 1, 4, 1, 2}), (std::pair{2, 2}));  // four groups, each on two nodes
  EXPECT_EQ(of({16, 1, 4, 1, 4}), (std::pair{1, 4}));  // on one node
  EXPECT_EQ(of({16, 1, 4, 1, 8}), (std::pair{1, 4}));  // two groups on each
  EXPECT_TRUE((Layout{16, 1, 4, 1, 8}.divides()));
  EXPECT_TRUE((Layout{8, 2, 2, 2, 2}.divides()));
  EXPECT_FALSE((Layout{8, 1, 8, 1, 3}.divides()));   // nodes of different sizes
  EXPECT_FALSE((Layout{12, 1, 6, 1, 4}.divides()));  // a group and a half on a node
  EXPECT_FALSE((Layout{8, 1, 2, 4, 2}.divides()));   // an expert on two nodes
  EXPECT_EQ((Layout{8, 1, 8, 1, 2}.short_name()), "tp 1 ep 8 etp 1 node 2");
  EXPECT_EQ((Layout{8, 1, 8, 1}.str()), "dp 8 tp 1 ep 8 etp 1 edp 1");
}

TEST(Topology, GroupsRanksWithinAndAcrossNodes) {
  const Layout layout{12, 1, 6, 1, 3};  // two groups on two nodes each
  for (int r = 0; r < 12; ++r) {
    const auto world = make_comm_dry(12, r);
    const Mesh mesh = make_mesh(*world, layout);
    EXPECT_EQ(mesh.intra_node->size(), 3);
    EXPECT_EQ(mesh.intra_node->rank(), r % 3);
    EXPECT_EQ(mesh.inter_node->size(), 2);
    EXPECT_EQ(mesh.inter_node->rank(), r / 3 % 2);
  }
  const auto world = make_comm_dry(12, 5);
  EXPECT_FALSE(make_mesh(*world, {12, 1, 6, 1, 6}).inter_node);
}

// Counts that a rank sends, as ops::DispatchLayout writes them: a row for each destination has the
// copies, then the assignments of each of its physical experts.
struct SentCounts {
  std::vector<std::int32_t> to_ranks, to_nodes = {};
};

// Returns the splits of a rank after the exchange of `sent`, the counts of each rank.
DispatchSplits exchanged(const std::vector<SentCounts>& sent, const ExpertPlacement& placement, Index E, int rank) {
  std::vector<std::int32_t> memory(static_cast<std::size_t>(DispatchCounts::elements(placement, E)));
  const DispatchCounts counts(placement, E, view_of(memory.data(), {std::ssize(memory)}));
  const auto copy = [](const std::vector<std::int32_t>& from, Index first, Index rows, View to, Index at) {
    const Index width = to.dim(1);
    std::copy_n(from.begin() + first * width, rows * width, to.i32() + at * width);
  };
  const Index P = std::ssize(sent), N = placement.topology.nodes, per_node = placement.topology.ranks_per_node;
  const Index node = placement.topology.node_of(rank), index = placement.topology.index_in_node(rank);
  copy(sent[rank].to_ranks, 0, P, counts.to_ranks, 0);
  for (Index r = 0; r < P; ++r) copy(sent[r].to_ranks, rank, 1, counts.from_ranks, r);
  for (Index n = 0; n < N && counts.to_nodes; ++n) {
    copy(sent[rank].to_nodes, n, 1, counts.to_nodes, n);
    copy(sent[n * per_node + index].to_nodes, node, 1, counts.from_peers, n);
    copy(sent[n * per_node + index].to_ranks, node * per_node, per_node, counts.of_peers, n * per_node);
  }
  return dispatch_splits(counts, placement.topology);
}

// Three ranks with two physical experts each.
TEST(TokenDispatcher, ComputesSplitsAndOffsets) {
  // Rank 0 has tokens with two experts of rank 1. Rank 1 has no tokens, and rank 2 receives none.
  const std::vector<SentCounts> sent = {
      {{2, 2, 1, 3, 1, 3, 0, 0, 0}}, {{0, 0, 0, 0, 0, 0, 0, 0, 0}}, {{4, 1, 4, 2, 0, 2, 0, 0, 0}}};
  std::vector<DispatchSplits> splits;
  for (int r = 0; r < 3; ++r) splits.push_back(exchanged(sent, ExpertPlacement({3, 1, 3, 1}, {}), 6, r));
  EXPECT_EQ(splits[0].hops[0].input_splits, (std::vector<Index>{2, 3, 0}));
  EXPECT_EQ(splits[0].hops[0].output_splits, (std::vector<Index>{2, 0, 4}));
  EXPECT_EQ(splits[1].hops[0].input_splits, (std::vector<Index>{0, 0, 0}));
  EXPECT_EQ(splits[1].hops[0].output_splits, (std::vector<Index>{3, 0, 2}));
  for (int r = 0; r < 3; ++r)
    for (int q = 0; q < 3; ++q) EXPECT_EQ(splits[r].hops[0].input_splits[q], splits[q].hops[0].output_splits[r]);
  EXPECT_EQ(splits[0].hops[0].num_sent, 5);
  EXPECT_EQ(splits[0].hops[0].num_received, 6);
  EXPECT_EQ(splits[2].hops[0].num_received, 0);
  EXPECT_EQ(splits[0].offsets, (std::vector<std::int32_t>{0, 3, 8}));
  EXPECT_EQ(splits[1].offsets, (std::vector<std::int32_t>{0, 1, 6}));
  EXPECT_EQ(splits[2].offsets, (std::vector<std::int32_t>{0, 0, 0}));
}

// Two etp shards of each of two ep ranks: both shards have the same rows, from all four ranks.
TEST(TokenDispatcher, GivesEtpShardsTheSameRows) {
  std::vector<SentCounts> sent;
  for (int r = 0; r < 4; ++r) sent.push_back({{r, r, 0, r, r, 0, 3, 1, 2 + r, 3, 1, 2 + r}});
  for (int rank = 0; rank < 4; ++rank) {
    const DispatchSplits splits = exchanged(sent, ExpertPlacement({4, 1, 2, 2}, {}), 4, rank);
    EXPECT_EQ(splits.hops[0].input_splits, (std::vector<Index>{rank, rank, 3, 3}));
    EXPECT_EQ(splits.hops[0].output_splits,
              (rank < 2 ? std::vector<Index>{0, 1, 2, 3} : std::vector<Index>{3, 3, 3, 3}));
    EXPECT_EQ(splits.offsets, (rank < 2 ? std::vector<std::int32_t>{0, 6, 6} : std::vector<std::int32_t>{0, 4, 18}));
  }
}

// Two nodes of two ranks with one physical expert each.
TEST(TokenDispatcher, ComputesHierarchicalSplits) {
  // A token of rank 0 has both experts of node 1. Copies of rank 1 stay on node 0. Rank 2 has none.
  const std::vector<SentCounts> sent = {{{1, 1, 0, 0, 1, 1, 2, 2}, {1, 1, 0, 2, 1, 2}},
                                        {{3, 3, 2, 2, 0, 0, 0, 0}, {3, 3, 2, 0, 0, 0}},
                                        {{0, 0, 0, 0, 0, 0, 0, 0}, {0, 0, 0, 0, 0, 0}},
                                        {{0, 0, 4, 4, 1, 1, 0, 0}, {4, 0, 4, 1, 1, 0}}};
  std::vector<DispatchSplits> splits;
  for (int r = 0; r < 4; ++r) splits.push_back(exchanged(sent, ExpertPlacement({4, 1, 4, 1, 2}, {}), 4, r));
  const auto internode = [&](int r) { return splits[r].hops[0]; };
  const auto intranode = [&](int r) { return splits[r].hops[1]; };
  EXPECT_EQ(internode(0).input_splits, (std::vector<Index>{1, 2}));  // to ranks 0 and 2
  EXPECT_EQ(internode(0).output_splits, (std::vector<Index>{1, 0}));
  EXPECT_EQ(internode(2).output_splits, (std::vector<Index>{2, 0}));
  EXPECT_EQ(internode(1).output_splits, (std::vector<Index>{3, 4}));  // from ranks 1 and 3
  EXPECT_EQ(internode(3).input_splits, (std::vector<Index>{4, 1}));
  // Rank 1 has received its own copies and those of rank 3.
  // It forwards three to rank 0 and six to itself.
  EXPECT_EQ(intranode(1).input_splits, (std::vector<Index>{3, 6}));
  EXPECT_EQ(intranode(0).output_splits, (std::vector<Index>{1, 3}));
  // Two tokens, one with both experts.
  EXPECT_EQ(intranode(2).input_splits, (std::vector<Index>{1, 2}));
  EXPECT_EQ(intranode(3).output_splits, (std::vector<Index>{2, 0}));
  EXPECT_EQ(intranode(3).input_splits, (std::vector<Index>{1, 0}));
  for (int r = 0; r < 4; ++r) {
    for (int q = 0; q < 2; ++q) {
      EXPECT_EQ(internode(r).input_splits[q], internode(q * 2 + r % 2).output_splits[r / 2]);
      EXPECT_EQ(intranode(r).input_splits[q], intranode(r / 2 * 2 + q).output_splits[r % 2]);
    }
    EXPECT_EQ(splits[r].hops.size(), 2u);
  }
  EXPECT_EQ(splits[1].offsets, (std::vector<std::int32_t>{0, 6}));
  EXPECT_EQ(splits[2].offsets, (std::vector<std::int32_t>{0, 2}));
}

}  // namespace
}  // namespace sy
