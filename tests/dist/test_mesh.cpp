#include <gtest/gtest.h>

#include <set>

#include "dist/exchange.h"
#include "dist/shard.h"

namespace sy {
namespace {

TEST(Mesh, CoordinatesAreABijectionAndFold) {
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

TEST(Mesh, WhatDoesNotDivideTheRanks) {
  EXPECT_FALSE((Layout{6, 4, 1, 1}.tp_divides()));
  EXPECT_TRUE((Layout{6, 4, 1, 1}.experts_divide()));
  EXPECT_FALSE((Layout{6, 1, 4, 1}.experts_divide()));
  EXPECT_TRUE((Layout{6, 1, 4, 1}.tp_divides()));
  EXPECT_FALSE((Layout{6, 1, 3, 4}.divides()));
  EXPECT_TRUE((Layout{6, 2, 3, 2}.divides()));
}

TEST(Axes, AreSets) {
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
  // The flat buffers, and with them the order in which the gradient norm is summed, follow this order.
  EXPECT_LT(dense_grid, Axes(Axis::dp));
  EXPECT_LT(Axes(Axis::dp), Axes(Axis::tp));
  EXPECT_LT(Axes(Axis::tp), expert_grid);
  EXPECT_LT(expert_grid, Axes(Axis::edp));
  EXPECT_FALSE(Axes(Axis::dp) < Axes(Axis::dp));
}

TEST(Axes, AreOfOneGrid) {
  EXPECT_EQ(grid_of({}), dense_grid);
  EXPECT_EQ(grid_of(Axis::tp), dense_grid);
  EXPECT_EQ(grid_of(Axis::etp), expert_grid);
  EXPECT_THROW(grid_of(Axis::tp | Axis::ep), std::exception);
}

// The ranks along a set of axes are those with the same place along the grid's other axes, in the order of the ranks. As many
// ranks in both grids: a set may have the ranks of another one, and is another set nevertheless.
TEST(Mesh, PlacesAlongSetsOfAxes) {
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
        const Place mine = place_of(l, coord_of(l, me), set), rest = place_of(l, coord_of(l, me), others);
        EXPECT_EQ(mine.size * rest.size, l.ranks);
        int index = 0, size = 0;
        for (int r = 0; r < l.ranks; ++r) {
          if (place_of(l, coord_of(l, r), others).index != rest.index) continue;
          index += r < me;
          ++size;
        }
        ASSERT_EQ(mine.size, size) << l.str() << " over " << set.str();
        ASSERT_EQ(mine.index, index) << l.str() << " over " << set.str() << ", rank " << me;
      }
    }
}

TEST(Shard, PiecesCoverWithoutOverlap) {
  for (Index n : {0, 1, 5, 16, 257})
    for (int parts : {1, 2, 3, 7}) {
      Index at = 0;
      for (int i = 0; i < parts; ++i) {
        const Range r = piece(n, parts, i);
        EXPECT_EQ(r.begin, at);
        at = r.end;
      }
      EXPECT_EQ(at, n);
    }
}

TEST(Shard, BoxesOfExpertTensorsTileTheWhole) {
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

TEST(Shard, FewKvHeadsAreReplicated) {
  const Layout l{4, 4, 1, 1};
  for (int r = 0; r < 4; ++r) {
    const Box b = owned_box({2, 8, 16}, {Axis::tp}, l, coord_of(l, r));
    EXPECT_EQ(b.begin[0], r / 2);
    EXPECT_EQ(b.size[0], 1);
  }
}

TEST(Shard, GradientsAreSummedOverTheAxesThatDoNotSplit) {
  EXPECT_EQ(summed_axes({}), Axis::dp | Axis::tp);
  EXPECT_EQ(summed_axes({Axis::none, Axis::tp}), Axis::dp);
  EXPECT_EQ(summed_axes({Axis::ep, Axis::none, Axis::etp}), Axis::edp);
  EXPECT_EQ(summed_axes({Axis::none, Axis::ep}), Axis::edp | Axis::etp);
  EXPECT_EQ(axes_of({Axis::ep, Axis::none, Axis::etp}), Axis::ep | Axis::etp);
}

// Every run of every small box, element by element.
TEST(Shard, RunsBecomeBoxesInOrder) {
  for (const Shape& shape : {Shape{7}, Shape{3, 5}, Shape{2, 3, 4}, Shape{2, 1, 3, 2}, Shape{1, 1}, Shape{4, 0}}) {
    const Index n = shape.elements();
    for (Index begin = 0; begin <= n; ++begin)
      for (Index end = begin; end <= n; ++end) {
        std::vector<Index> seen;
        const auto boxes = boxes_of_run(shape, {begin, end});
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

// Rows labelled by (expert, source, number) travel by the plans of all ranks, by hand.
TEST(Exchange, PlansSortByExpertThenSource) {
  const int ranks = 3;
  const Index experts = 6;
  const std::vector<std::int32_t> counts = {2, 1, 1, 3, 0, 0,   // rank 0
                                            0, 0, 0, 0, 0, 0,   // rank 1 has no tokens
                                            1, 4, 0, 2, 0, 0};  // no rank sends to experts 4, 5: rank 2 idles
  struct Row {
    Index expert;
    int source;
    std::int32_t number;
    bool operator==(const Row&) const = default;
  };
  std::vector<std::vector<Row>> rows(ranks);
  for (int r = 0; r < ranks; ++r)
    for (Index e = 0; e < experts; ++e)
      for (std::int32_t i = 0; i < counts[r * experts + e]; ++i) rows[r].push_back({e, r, i});
  std::vector<DispatchPlan> plans;
  for (int r = 0; r < ranks; ++r) plans.push_back(plan_dispatch(counts, ranks, r, experts));
  std::vector<char> in_order(ranks, true);
  for (int r = 0; r < ranks; ++r) {
    const DispatchPlan& p = plans[r];
    ASSERT_EQ(p.sent, static_cast<Index>(rows[r].size()));
    std::vector<Row> arrived;
    for (int s = 0; s < ranks; ++s) {
      ASSERT_EQ(plans[s].send[r], p.receive[s]);
      Index at = 0;
      for (int q = 0; q < r; ++q) at += plans[s].send[q];
      arrived.insert(arrived.end(), rows[s].begin() + at, rows[s].begin() + at + plans[s].send[r]);
    }
    ASSERT_EQ(static_cast<Index>(arrived.size()), p.received);
    std::size_t row = 0;
    for (Index e = 0; e < 2; ++e) {
      EXPECT_EQ(p.offsets[e], static_cast<std::int32_t>(row));
      for (int s = 0; s < ranks; ++s)
        for (std::int32_t i = 0; i < counts[s * experts + r * 2 + e]; ++i, ++row) {
          EXPECT_EQ(std::count(arrived.begin(), arrived.end(), (Row{r * 2 + e, s, i})), 1);
          in_order[r] &= arrived[row] == Row{r * 2 + e, s, i};
        }
    }
    EXPECT_EQ(p.offsets[2], p.received);
    EXPECT_TRUE(in_order[r] || !p.in_order) << "rank " << r;
  }
  EXPECT_FALSE(plans[0].in_order);  // expert 1 of rank 0 comes before expert 0 of rank 2
  EXPECT_TRUE(plans[1].in_order);
  EXPECT_EQ(plans[2].received, 0);
}

}  // namespace
}  // namespace sy
