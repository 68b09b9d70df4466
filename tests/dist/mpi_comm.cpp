// Collectives on every number of ranks they are launched with, with integers as payload, so that results are exact.
#include <gtest/gtest.h>

#include "dist/exchange.h"
#include "dist/mesh.h"
#include "dist/runtime.h"
#include "kernels/bf16.h"
#include "tests/mpi_world.h"

namespace sy {
namespace {

using test::world;

TEST(Comm, AllReduceSumsAndTakesTheMaximum) {
  const int n = world().size(), r = world().rank();
  for (Index length : {0, 1, 5, 100003}) {
    std::vector<double> x(length);
    std::vector<std::int64_t> y(length);
    for (Index i = 0; i < length; ++i) {
      x[i] = static_cast<double>(i % 1000 + r);
      y[i] = (i * 7 + r * 13) % 101;
    }
    world().all_reduce(view_of(x.data(), {length}));
    world().all_reduce(view_of(y.data(), {length}), Reduce::max);
    for (Index i = 0; i < length; ++i) {
      ASSERT_EQ(x[i], static_cast<double>(i % 1000 * n + n * (n - 1) / 2));
      std::int64_t largest = 0;
      for (int s = 0; s < n; ++s) largest = std::max<std::int64_t>(largest, (i * 7 + s * 13) % 101);
      ASSERT_EQ(y[i], largest);
    }
  }
}

TEST(Comm, SumsAreTakenInRankOrder) {
  // 1e8 + 1 - 1e8 in single precision depends on the order.
  const float values[] = {1e8f, 1.0f, -1e8f, 3.0f};
  float expected = values[0];
  for (int r = 1; r < world().size(); ++r) expected += values[r % 4];
  float x = values[world().rank() % 4];
  world().all_reduce(view_of(&x, {1}));
  EXPECT_EQ(x, expected);
  std::vector<float> in(world().size(), values[world().rank() % 4]);
  float out = 0;
  world().reduce_scatter(view_of(in.data(), {world().size()}), view_of(&out, {1}));
  EXPECT_EQ(out, expected);
}

TEST(Comm, Bf16IsSummedInF32AndRoundedOnce) {
  // Ones behind 256 are lost one by one, and not in f32.
  const int n = world().size(), r = world().rank();
  const Index piece = 2500001;
  std::vector<Bf16> x(static_cast<std::size_t>(n * piece));
  for (Index i = 0; i < n * piece; ++i) x[i] = (r == 0 ? 256.0f : 1.0f) + static_cast<float>(2 * (i % 3));
  const View v = view_of(x.data(), {n * piece});
  world().reduce_scatter(v, v.rows(r * piece, piece));
  for (Index i = r * piece; i < (r + 1) * piece; ++i) {
    Bf16 expected;
    expected = static_cast<float>(255 + n + n * 2 * (i % 3));
    ASSERT_EQ(x[i].bits, expected.bits) << i;
  }
}

TEST(Comm, ReduceScatterAndAllGatherBeyondOneSegment) {
  const int n = world().size(), r = world().rank();
  for (Index piece : {0, 1, 63, 1100003}) {
    std::vector<float> in(n * piece), out(piece), all(n * piece);
    for (Index i = 0; i < n * piece; ++i) in[i] = static_cast<float>(i % 1009 + r);
    world().reduce_scatter(view_of(in.data(), {n * piece}), view_of(out.data(), {piece}));
    world().all_gather(view_of(out.data(), {piece}), view_of(all.data(), {n * piece}));
    for (Index i = 0; i < n * piece; ++i) ASSERT_EQ(all[i], static_cast<float>(i % 1009 * n + n * (n - 1) / 2)) << i;
  }
}

TEST(Comm, ReduceScatterInPlace) {
  const int n = world().size(), r = world().rank();
  const Index piece = 1100003;
  std::vector<float> x(n * piece);
  for (Index i = 0; i < n * piece; ++i) x[i] = static_cast<float>(i % 1009 + r);
  const View v = view_of(x.data(), {n * piece});
  world().reduce_scatter(v, v.rows(r * piece, piece));
  for (Index i = 0; i < n * piece; ++i)
    ASSERT_EQ(x[i], static_cast<float>(i / piece == r ? i % 1009 * n + n * (n - 1) / 2 : i % 1009 + r)) << i;
}

TEST(Comm, ReduceGivesTheRootTheSum) {
  const int n = world().size(), r = world().rank();
  for (int root = 0; root < n; ++root)
    for (Index count : {0, 1, 2500003}) {
      std::vector<float> x(count);
      for (Index i = 0; i < count; ++i) x[i] = static_cast<float>(i % 1009 + r);
      world().start_reduce(view_of(x.data(), {count}), root);
      world().wait();
      for (Index i = 0; r == root && i < count; ++i)
        ASSERT_EQ(x[i], static_cast<float>(i % 1009 * n + n * (n - 1) / 2)) << i;
    }
}

TEST(Comm, AllGatherInPlace) {
  const int n = world().size(), r = world().rank();
  std::vector<float> all(n * 5, -1.0f);
  for (int i = 0; i < 5; ++i) all[r * 5 + i] = static_cast<float>(r * 5 + i);
  const View v = view_of(all.data(), {n * 5});
  world().all_gather(v.rows(r * 5, 5), v);
  for (int i = 0; i < n * 5; ++i) ASSERT_EQ(all[i], static_cast<float>(i));
}

TEST(Comm, AllToAllVWithEmptyPartners) {
  const int n = world().size(), r = world().rank();
  // Rank s sends (s + 2 d) % 3 rows of width 3 to rank d.
  const auto rows = [](int s, int d) { return static_cast<Index>((s + 2 * d) % 3); };
  std::vector<Index> send, receive;
  std::vector<std::int32_t> in, expected;
  for (int d = 0; d < n; ++d) {
    send.push_back(rows(r, d));
    receive.push_back(rows(d, r));
    for (Index i = 0; i < rows(r, d) * 3; ++i) in.push_back(static_cast<std::int32_t>(r * 10000 + d * 100 + i));
    for (Index i = 0; i < rows(d, r) * 3; ++i) expected.push_back(static_cast<std::int32_t>(d * 10000 + r * 100 + i));
  }
  std::vector<std::int32_t> out(expected.size());
  world().all_to_all_v(view_of(in.data(), {static_cast<Index>(in.size()) / 3, 3}), send,
                       view_of(out.data(), {static_cast<Index>(out.size()) / 3, 3}), receive);
  EXPECT_EQ(out, expected);
}

TEST(Comm, SplitKeepsOrder) {
  const int r = world().rank();
  const auto part = world().split([](int rank) { return rank % 2; });
  std::vector<std::int64_t> members(part->size());
  const std::int64_t me = r;
  part->all_gather(view_of(&me, {1}), view_of(members.data(), {part->size()}));
  for (int i = 0; i + 1 < part->size(); ++i) EXPECT_LT(members[i], members[i + 1]);
  for (std::int64_t m : members) EXPECT_EQ(m % 2, r % 2);
}

// Of every layout, what the mesh gives for a set of axes are the ranks that geometry says, in its order.
TEST(Comm, AMeshHasTheRanksOfASetOfAxes) {
  const int n = world().size(), me = world().rank();
  for (int tp = 1; tp <= n; ++tp)
    for (int ep = 1; ep <= n; ++ep)
      for (int etp = 1; etp <= n; ++etp) {
        const Layout l{n, tp, ep, etp};
        if (!l.divides()) continue;
        const Mesh mesh = make_mesh(world(), l);
        for (const Axes axes : {dense_grid, Axes(Axis::dp), Axes(Axis::tp), Axes(Axis::edp), Axis::ep | Axis::etp}) {
          Comm& comm = mesh.over(axes);
          const Place place = place_of(l, coord_of(l, me), axes);
          ASSERT_EQ(comm.size(), place.size) << l.str() << " over " << axes.str();
          ASSERT_EQ(comm.rank(), place.index) << l.str() << " over " << axes.str();
          std::vector<Index> ranks(comm.size());
          const Index mine = me;
          comm.all_gather(view_of(&mine, {1}), view_of(ranks.data(), {comm.size()}));
          const Axes others = grid_of(axes) - axes;
          for (const Index rank : ranks)
            ASSERT_EQ(place_of(l, coord_of(l, static_cast<int>(rank)), others).index,
                      place_of(l, coord_of(l, me), others).index);
        }
        EXPECT_EQ(&mesh.over(dense_grid), mesh.stage.get());
        EXPECT_EQ(mesh.world().size(), n);
        EXPECT_THROW(mesh.over(Axis::ep), std::exception);
      }
}

TEST(Runtime, AgreeTellsEveryRankTheLowestFailure) {
  EXPECT_NO_THROW(agree(world(), [] {}));
  const int n = world().size();
  try {
    agree(world(), [&] {
      if (world().rank() >= n / 2) bad_input("from rank {}", world().rank());
    });
    FAIL() << "nothing thrown";
  } catch (const AgreedError& e) {
    EXPECT_EQ(e.exit_code(), 2);
    EXPECT_EQ(std::string(e.what()), "from rank " + std::to_string(n / 2));
  }
  try {
    agree(world(), [&] {
      if (world().rank() == n - 1) throw std::runtime_error("odd");
    });
    FAIL() << "nothing thrown";
  } catch (const AgreedError& e) {
    EXPECT_EQ(e.exit_code(), 1);
  }
}

// Rows labelled (expert, token) go to their experts and come back to where they were.
TEST(Exchange, DispatchThenCombineIsTheIdentity) {
  const auto backend = make_cpu();
  Arena arena([&](Index bytes) { return backend->allocate(bytes); }),
      scratch = Arena([&](Index bytes) { return backend->allocate(bytes); });
  const int n = world().size(), r = world().rank();
  const Index experts = 4 * n;
  std::vector<std::int32_t> counts(experts);
  std::vector<float> labels;
  for (Index e = 0; e < experts; ++e) {
    counts[e] = static_cast<std::int32_t>((e * 5 + e / 4 + r * 3) % 4);  // of no two ranks alike
    if (e % 4 == 1) counts[e] = 0;                                       // an expert without tokens
    for (int i = 0; i < counts[e]; ++i)
      labels.insert(labels.end(), {static_cast<float>(e), static_cast<float>(r * 100 + i)});
  }
  Exchange exchange(*backend, world(), view_of(counts.data(), {experts}), arena);
  exchange.plan(arena);
  const Index sent = exchange.sent();
  ASSERT_EQ(sent * 2, static_cast<Index>(labels.size()));
  const View rows = view_of(labels.data(), {sent, 2});
  const View there = exchange.dispatch(rows, arena, scratch);
  exchange.finish();
  const auto* offsets = exchange.expert_rows().host;
  for (Index e = 0; e < 4; ++e) {
    float last = -1;
    for (Index i = offsets[e]; i < offsets[e + 1]; ++i) {
      EXPECT_EQ(there.f32()[i * 2], static_cast<float>(r * 4 + e));
      EXPECT_GT(there.f32()[i * 2 + 1], last);  // global token order
      last = there.f32()[i * 2 + 1];
    }
  }
  const View back = exchange.combine(there, arena, scratch);
  exchange.finish();
  for (Index i = 0; i < sent * 2; ++i) ASSERT_EQ(back.f32()[i], labels[i]);
}

}  // namespace
}  // namespace sy
