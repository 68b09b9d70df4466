// Collectives on the launched number of ranks. Payloads are integers, so that results are exact.
#include <gtest/gtest.h>

#include <set>

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
  // 256 + 1 rounds to 256 in bf16, so that later ones would be lost. In f32 they are not.
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

TEST(Comm, ReduceToSeveralRoots) {
  const int n = world().size(), r = world().rank();
  std::vector<float> x(static_cast<std::size_t>(n) * 7);
  for (std::size_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>(static_cast<int>(i) + r);
  const View all = view_of(x.data(), {n * 7});
  std::vector<Rooted> parts = {{all.rows(0, 0), n - 1}};
  for (int root = n - 1; root >= 0; --root) parts.push_back({all.rows(root * 7, 7), root});
  world().start_reduce(parts);
  world().start_reduce({});
  world().wait();
  for (int i = r * 7; i < r * 7 + 7; ++i)
    EXPECT_EQ(x[static_cast<std::size_t>(i)], static_cast<float>(i * n + n * (n - 1) / 2));
}

TEST(Comm, BroadcastFromSeveralRoots) {
  const int n = world().size(), r = world().rank();
  std::vector<std::int32_t> x(static_cast<std::size_t>(n) * 7);
  for (std::size_t i = 0; i < x.size(); ++i) x[i] = static_cast<std::int32_t>(i) + 1000 * r;
  const View all = view_of(x.data(), {n * 7});
  std::vector<Rooted> parts = {{all.rows(0, 0), n - 1}};
  for (int root = n - 1; root >= 0; --root) parts.push_back({all.rows(root * 7, 7), root});
  world().start_broadcast(parts);
  world().start_broadcast({});
  world().wait();
  for (int i = 0; i < n * 7; ++i) EXPECT_EQ(x[static_cast<std::size_t>(i)], i + 1000 * (i / 7));
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

// For every layout and set of axes, the mesh's communicator has the ranks of Place, in its order.
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

// Tokens of one rank, their experts and weights, computable on any rank.
struct Tokens {
  Index count, k, experts;
  std::vector<std::int32_t> chosen, keep;
  std::vector<float> rows;     // [count, 2] number of the token among all ranks, and 1
  std::vector<float> weights;  // [count, k] 1000 * number + choice
  // Ranks have different tokens, and rank 1 has none. A third of the assignments is dropped. No
  // token chooses the last expert.
  Tokens(int rank, Index k_, Index experts_) : count(rank == 1 ? 0 : 5 + 3 * rank), k(k_), experts(experts_) {
    for (Index t = 0; t < count; ++t) {
      rows.insert(rows.end(), {static_cast<float>(rank * 100 + t), 1.0f});
      for (Index j = 0; j < k; ++j) {
        const Index step = experts > 3 ? 1 + t % 2 : 1;  // so that a token's experts differ
        chosen.push_back(static_cast<std::int32_t>((t * t + rank + j * step) % (experts - 1)));
        keep.push_back((t + j) % 3 != 0);
        weights.push_back(static_cast<float>(1000 * (rank * 100 + t) + j));
      }
    }
  }
};

// Checks dispatch and combine. Each token must go once to each rank that holds any of its experts.
// Received tokens must be in global token order, and combine must return the sums of the experts'
// outputs. Results are exact, since all values are integers. parts: etp. node: ranks per node.
void check_exchange(int parts, int node) {
  const auto backend = make_cpu();
  Arena arena([&](Index bytes) { return backend->allocate(bytes); }),
      scratch = Arena([&](Index bytes) { return backend->allocate(bytes); });
  const int n = world().size(), owners = n / parts, r = world().rank();
  const Layout layout{n, 1, owners, parts, node};
  const Mesh mesh = make_mesh(world(), layout);
  const Index local = 3, E = local * owners, k = std::min<Index>(4, E - 1);
  const auto tokens_of = [&](int rank) { return Tokens(rank, k, E); };
  // Physical expert E - 1 - e is logical expert e.
  std::vector<std::int32_t> place_of(E);
  for (Index e = 0; e < E; ++e) place_of[e] = static_cast<std::int32_t>(E - 1 - e);
  const ExpertRanks ranks(layout, view_of(place_of.data(), {E}));
  Tokens mine = tokens_of(r);
  const Index T = mine.count;
  Sends sends(ranks, T, k, E, arena, scratch);
  sends.plan(*backend, ranks, view_of(mine.chosen.data(), {T, k}), view_of(mine.keep.data(), {T, k}), arena.i32({E}),
             scratch);
  Exchange exchange(*backend, mesh, ranks, sends, scratch);
  const View x = view_of(mine.rows.data(), {T, 2}), weights = view_of(mine.weights.data(), {T, k});
  const ConstView x_leaving = exchange.copies(x, scratch), weights_leaving = exchange.copies(weights, scratch);
  exchange.plan(arena, scratch);
  const auto arrived = exchange.dispatch({{x_leaving, arena}, {weights_leaving, arena}}, scratch);
  exchange.finish();
  const ConstView places = exchange.places();

  // This rank receives each token with a local expert once, ordered by source rank. If dispatch is
  // hierarchical, sources are ordered by (index within the node, node). One rank has all tokens.
  const Index first = exchange.first_place(), A = arrived[0].dim(0);
  EXPECT_EQ(first, r / parts * local);
  const auto is_here = [&](const Tokens& t, Index a) {
    const Index place = E - 1 - t.chosen[a];
    return t.keep[a] != 0 && place >= first && place < first + local;
  };
  Index at = 0, rows = 0;
  const Topology topology = layout.experts_topology();
  for (int i = 0; i < n; ++i) {
    const int source = i % topology.nodes * topology.ranks + i / topology.nodes;
    const Tokens theirs = tokens_of(source);
    for (Index t = 0; t < theirs.count; ++t) {
      Index here = 0;
      for (Index j = 0; j < k; ++j) here += is_here(theirs, t * k + j);
      rows += here;
      if (here == 0 && n > 1) continue;
      ASSERT_LT(at, A);
      EXPECT_EQ(arrived[0].f32()[at * 2], theirs.rows[t * 2]);
      for (Index j = 0; j < k; ++j) {
        const Index a = t * k + j;
        EXPECT_EQ(places.i32()[at * k + j], theirs.keep[a] ? E - 1 - theirs.chosen[a] : -1);
        EXPECT_EQ(arrived[1].f32()[at * k + j], theirs.weights[a]);
      }
      ++at;
    }
  }
  ASSERT_EQ(at, A);
  ASSERT_EQ(rows, exchange.rows());

  // No token was sent to a node twice.
  if (topology.nodes > 1) {
    Index to_nodes = 0;
    for (Index t = 0; t < T; ++t) {
      std::set<Index> nodes;
      for (Index j = 0; j < k; ++j)
        if (mine.keep[t * k + j]) nodes.insert((E - 1 - mine.chosen[t * k + j]) / (E / topology.nodes));
      to_nodes += std::ssize(nodes);
    }
    EXPECT_EQ(exchange.sent(), to_nodes);
  }

  // Each etp shard of physical expert p outputs (p + 1) times its input. The gradient with respect
  // to a weight is the weight of its row.
  const View assignments = arena.i32({rows}), of = arena.i32({rows}), slots = arena.i32({A, k}),
             offsets = arena.i32({local + 1}), outputs = arena.f32({rows, 2}), dgates = arena.f32({rows, 1});
  backend->sort_assignments(places, first, assignments, of, slots, offsets);
  EXPECT_EQ(std::vector<std::int32_t>(offsets.i32(), offsets.i32() + local + 1), exchange.offsets());
  backend->gather_rows(arrived[0], of, outputs);
  backend->gather_rows(arrived[1].reshape({A * k, 1}), assignments, dgates);
  for (Index p = 0; p < local; ++p)
    for (Index i = offsets.i32()[p]; i < offsets.i32()[p + 1]; ++i)
      for (Index c = 0; c < 2; ++c) outputs.f32()[i * 2 + c] *= static_cast<float>(first + p + 1);
  const View y = arena.f32({T, 2}), dweights = arena.f32({T, k});
  backend->fill(y, 7);
  exchange.combine({{outputs, slots, y, y}, {dgates, slots.reshape({A * k, 1}), {}, dweights}}, scratch);
  exchange.finish();
  for (Index t = 0; t < T; ++t) {
    float sum = 0;
    for (Index j = 0; j < k; ++j) {
      const Index a = t * k + j;
      const float parts_kept = mine.keep[a] ? static_cast<float>(parts) : 0;
      sum += parts_kept * static_cast<float>(E - mine.chosen[a]);
      EXPECT_EQ(dweights.f32()[a], parts_kept * mine.weights[a]);
    }
    EXPECT_EQ(y.f32()[t * 2], 7 + sum * mine.rows[t * 2]);
    EXPECT_EQ(y.f32()[t * 2 + 1], 7 + sum);
  }
}

TEST(Exchange, TokensGoOnceToARankAndComeBackAsSums) {
  check_exchange(1, 1);
  if (world().size() % 2 == 0) check_exchange(2, 1);
}

TEST(Exchange, TokensGoOnceToANodeAndOnThereToItsRanks) {
  int checked = 0;
  for (const auto& [parts, node] : {std::pair{1, 2}, {1, 3}, {1, 4}, {2, 2}, {2, 4}}) {
    const int n = world().size();
    if (n % parts != 0 || n <= node || n % node != 0) continue;
    check_exchange(parts, node);
    ++checked;
  }
  EXPECT_EQ(checked > 0, world().size() >= 4 && world().size() % 2 == 0);
}

}  // namespace
}  // namespace sy
