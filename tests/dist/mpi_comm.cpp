// Collectives on the launched number of ranks. Payloads are integers, so that results are exact.
#include <gtest/gtest.h>

#include <set>

#include "dist/mesh.h"
#include "dist/runtime.h"
#include "dist/token_dispatcher.h"
#include "kernels/bf16.h"
#include "kernels/ops/dispatch.h"
#include "kernels/ops/elementwise.h"
#include "kernels/ops/permute.h"
#include "tests/mpi_world.h"

namespace sy {
namespace {

using test::world;

TEST(Comm, AllReduceComputesSumAndMaximum) {
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

TEST(Comm, SumsInRankOrder) {
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

TEST(Comm, SumsBf16InF32AndRoundsOnce) {
  // 256 + 1 rounds to 256 in bf16, so that later ones would be lost. In f32 they are not.
  const int n = world().size(), r = world().rank();
  const Index block = 2500001;
  std::vector<Bf16> x(static_cast<std::size_t>(n * block));
  for (Index i = 0; i < n * block; ++i) x[i] = (r == 0 ? 256.0f : 1.0f) + static_cast<float>(2 * (i % 3));
  const View v = view_of(x.data(), {n * block});
  world().reduce_scatter(v, v.rows(r * block, block));
  for (Index i = r * block; i < (r + 1) * block; ++i) {
    Bf16 expected;
    expected = static_cast<float>(255 + n + n * 2 * (i % 3));
    ASSERT_EQ(x[i].bits, expected.bits) << i;
  }
}

TEST(Comm, ReduceScatterAndAllGatherSpanSegments) {
  const int n = world().size(), r = world().rank();
  for (Index block : {0, 1, 63, 1100003}) {
    std::vector<float> in(n * block), out(block), all(n * block);
    for (Index i = 0; i < n * block; ++i) in[i] = static_cast<float>(i % 1009 + r);
    world().reduce_scatter(view_of(in.data(), {n * block}), view_of(out.data(), {block}));
    world().all_gather(view_of(out.data(), {block}), view_of(all.data(), {n * block}));
    for (Index i = 0; i < n * block; ++i) ASSERT_EQ(all[i], static_cast<float>(i % 1009 * n + n * (n - 1) / 2)) << i;
  }
}

TEST(Comm, ReduceScatterWorksInPlace) {
  const int n = world().size(), r = world().rank();
  const Index block = 1100003;
  std::vector<float> x(n * block);
  for (Index i = 0; i < n * block; ++i) x[i] = static_cast<float>(i % 1009 + r);
  const View v = view_of(x.data(), {n * block});
  world().reduce_scatter(v, v.rows(r * block, block));
  for (Index i = 0; i < n * block; ++i)
    ASSERT_EQ(x[i], static_cast<float>(i / block == r ? i % 1009 * n + n * (n - 1) / 2 : i % 1009 + r)) << i;
}

TEST(Comm, ReduceSumsAtTheRoot) {
  const int n = world().size(), r = world().rank();
  for (int root = 0; root < n; ++root)
    for (Index count : {0, 1, 2500003}) {
      std::vector<float> x(count);
      for (Index i = 0; i < count; ++i) x[i] = static_cast<float>(i % 1009 + r);
      world().start_reduce(view_of(x.data(), {count}), root).wait();
      for (Index i = 0; r == root && i < count; ++i)
        ASSERT_EQ(x[i], static_cast<float>(i % 1009 * n + n * (n - 1) / 2)) << i;
    }
}

TEST(Comm, ReducesToSeveralRoots) {
  const int n = world().size(), r = world().rank();
  std::vector<float> x(static_cast<std::size_t>(n) * 7);
  for (std::size_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>(static_cast<int>(i) + r);
  const View all = view_of(x.data(), {n * 7});
  std::vector<RootedBuffer> buffers = {{all.rows(0, 0), n - 1}};
  for (int root = n - 1; root >= 0; --root) buffers.push_back({all.rows(root * 7, 7), root});
  Work work = world().start_reduce(buffers);
  work.join(world().start_reduce(std::span<const RootedBuffer>()));
  work.wait();
  for (int i = r * 7; i < r * 7 + 7; ++i)
    EXPECT_EQ(x[static_cast<std::size_t>(i)], static_cast<float>(i * n + n * (n - 1) / 2));
}

TEST(Comm, BroadcastsFromSeveralRoots) {
  const int n = world().size(), r = world().rank();
  std::vector<std::int32_t> x(static_cast<std::size_t>(n) * 7);
  for (std::size_t i = 0; i < x.size(); ++i) x[i] = static_cast<std::int32_t>(i) + 1000 * r;
  const View all = view_of(x.data(), {n * 7});
  std::vector<RootedBuffer> buffers = {{all.rows(0, 0), n - 1}};
  for (int root = n - 1; root >= 0; --root) buffers.push_back({all.rows(root * 7, 7), root});
  Work work = world().start_broadcast(buffers);
  work.join(world().start_broadcast(std::span<const RootedBuffer>()));
  work.wait();
  for (int i = 0; i < n * 7; ++i) EXPECT_EQ(x[static_cast<std::size_t>(i)], i + 1000 * (i / 7));
}

TEST(Comm, AllGatherWorksInPlace) {
  const int n = world().size(), r = world().rank();
  std::vector<float> all(n * 5, -1.0f);
  for (int i = 0; i < 5; ++i) all[r * 5 + i] = static_cast<float>(r * 5 + i);
  const View v = view_of(all.data(), {n * 5});
  world().all_gather(v.rows(r * 5, 5), v);
  for (int i = 0; i < n * 5; ++i) ASSERT_EQ(all[i], static_cast<float>(i));
}

TEST(Comm, AllToAllSupportsEmptyMessages) {
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

TEST(Comm, SplitKeepsRankOrder) {
  const int r = world().rank();
  const auto subgroup = world().split([](int rank) { return rank % 2; });
  std::vector<std::int64_t> members(subgroup->size());
  const std::int64_t me = r;
  subgroup->all_gather(view_of(&me, {1}), view_of(members.data(), {subgroup->size()}));
  for (int i = 0; i + 1 < subgroup->size(); ++i) EXPECT_LT(members[i], members[i + 1]);
  for (std::int64_t m : members) EXPECT_EQ(m % 2, r % 2);
}

// For every layout and set of axes, the mesh's communicator has the ranks of group_rank().
TEST(Comm, MeshGroupsHaveTheRanksOfTheirAxes) {
  const int n = world().size(), me = world().rank();
  for (int tp = 1; tp <= n; ++tp)
    for (int ep = 1; ep <= n; ++ep)
      for (int etp = 1; etp <= n; ++etp) {
        const Layout l{n, tp, ep, etp};
        if (!l.divides()) continue;
        const Mesh mesh = make_mesh(world(), l);
        for (const Axes axes : {dense_grid, Axes(Axis::dp), Axes(Axis::tp), Axes(Axis::edp), Axis::ep | Axis::etp}) {
          Comm& comm = mesh.over(axes);
          const GroupRank own = group_rank(l, coord_of(l, me), axes);
          ASSERT_EQ(comm.size(), own.size) << l.str() << " over " << axes.str();
          ASSERT_EQ(comm.rank(), own.index) << l.str() << " over " << axes.str();
          std::vector<Index> ranks(comm.size());
          const Index mine = me;
          comm.all_gather(view_of(&mine, {1}), view_of(ranks.data(), {comm.size()}));
          const Axes others = grid_of(axes) - axes;
          for (const Index rank : ranks)
            ASSERT_EQ(group_rank(l, coord_of(l, static_cast<int>(rank)), others).index,
                      group_rank(l, coord_of(l, me), others).index);
        }
        EXPECT_EQ(&mesh.over(dense_grid), mesh.stage.get());
        EXPECT_EQ(mesh.world().size(), n);
        EXPECT_THROW(mesh.over(Axis::ep), std::exception);
      }
}

TEST(Runtime, ReportsTheLowestFailureOnEveryRank) {
  EXPECT_NO_THROW(agree_on_errors(world(), [] {}));
  const int n = world().size();
  try {
    agree_on_errors(world(), [&] {
      if (world().rank() >= n / 2) bad_input("from rank {}", world().rank());
    });
    FAIL() << "nothing thrown";
  } catch (const CollectiveError& e) {
    EXPECT_EQ(e.exit_code(), 2);
    EXPECT_EQ(std::string(e.what()), "from rank " + std::to_string(n / 2));
  }
  try {
    agree_on_errors(world(), [&] {
      if (world().rank() == n - 1) throw std::runtime_error("odd");
    });
    FAIL() << "nothing thrown";
  } catch (const CollectiveError& e) {
    EXPECT_EQ(e.exit_code(), 1);
  }
}

// Tokens of one rank, their experts and weights, computable on any rank.
struct Tokens {
  Index count, k, experts;
  std::vector<std::int32_t> chosen, dispatch_mask;
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
        dispatch_mask.push_back((t + j) % 3 != 0);
        weights.push_back(static_cast<float>(1000 * (rank * 100 + t) + j));
      }
    }
  }
};

// Checks dispatch and combine. Each token must go once to each rank that holds any of its experts.
// Received tokens must be in global token order, and combine must return the sums of the experts'
// outputs. Results are exact, since all values are integers. ranks_per_node: 1 if dispatch is not
// hierarchical.
void check_dispatch(int etp, int ranks_per_node) {
  const auto device = make_cpu();
  Arena arena([&](Index bytes) { return device->allocate(bytes); }),
      scratch = Arena([&](Index bytes) { return device->allocate(bytes); });
  const int n = world().size(), ep = n / etp, r = world().rank();
  const Layout layout{n, 1, ep, etp, ranks_per_node};
  const Mesh mesh = make_mesh(world(), layout);
  const Index local = 3, E = local * ep, k = std::min<Index>(4, E - 1);
  const auto tokens_of = [&](int rank) { return Tokens(rank, k, E); };
  // Physical expert E - 1 - e is logical expert e.
  std::vector<std::int32_t> logical_to_physical(E);
  for (Index e = 0; e < E; ++e) logical_to_physical[e] = static_cast<std::int32_t>(E - 1 - e);
  const ExpertPlacement placement(layout, view_of(logical_to_physical.data(), {E}));
  Tokens own = tokens_of(r);
  const Index T = own.count;
  DispatchLayout dispatch_layout(placement, T, k, arena.i32({E}), arena, scratch);
  dispatch_layout.build(*device, placement, view_of(own.chosen.data(), {T, k}),
                        view_of(own.dispatch_mask.data(), {T, k}), scratch);
  TokenDispatcher dispatcher(*device, mesh, placement);
  const CountExchange exchange = dispatcher.exchange_counts(dispatch_layout);
  const View x = view_of(own.rows.data(), {T, 2}), weights = view_of(own.weights.data(), {T, k});
  const PackedTokens packed = dispatcher.pack(dispatch_layout, x, weights, scratch);
  DispatchHandle handle = dispatcher.finalize(exchange, arena, scratch);
  PendingDispatch dispatched = handle.dispatch(packed, arena, scratch);
  dispatched.wait();
  const ConstView received = dispatched.received(), received_weights = dispatched.weights(),
                  physical_experts = dispatched.physical_experts();
  const Index columns = received.dim(1), first_column = dispatched.first_column();
  EXPECT_EQ(columns, n > 1 ? (TokenRow{k, 2, DType::f32}.columns()) : 2);

  // This rank receives each token with a local expert once, ordered by source rank. If dispatch is
  // hierarchical, sources are ordered by (index within the node, node). One rank has all tokens.
  const Index first = handle.first_physical_expert(), A = received.dim(0);
  EXPECT_EQ(first, r / etp * local);
  const auto is_local = [&](const Tokens& t, Index a) {
    const Index physical = E - 1 - t.chosen[a];
    return t.dispatch_mask[a] != 0 && physical >= first && physical < first + local;
  };
  Index at = 0, rows = 0;
  const Topology topology = layout.expert_topology();
  for (int i = 0; i < n; ++i) {
    const int source = i % topology.nodes * topology.ranks_per_node + i / topology.nodes;
    const Tokens sent = tokens_of(source);
    for (Index t = 0; t < sent.count; ++t) {
      Index local_choices = 0;
      for (Index j = 0; j < k; ++j) local_choices += is_local(sent, t * k + j);
      rows += local_choices;
      if (local_choices == 0 && n > 1) continue;
      ASSERT_LT(at, A);
      for (Index c = 0; c < 2; ++c) EXPECT_EQ(received.f32()[at * columns + first_column + c], sent.rows[t * 2 + c]);
      for (Index j = 0; j < k; ++j) {
        const Index a = t * k + j;
        EXPECT_EQ(physical_experts.i32()[at * k + j], sent.dispatch_mask[a] ? E - 1 - sent.chosen[a] : -1);
        EXPECT_EQ(received_weights.f32()[at * k + j], sent.weights[a]);
      }
      ++at;
    }
  }
  ASSERT_EQ(at, A);
  ASSERT_EQ(rows, handle.rows());

  // No token was sent to a node twice.
  if (topology.nodes > 1) {
    Index to_nodes = 0;
    for (Index t = 0; t < T; ++t) {
      std::set<Index> nodes;
      for (Index j = 0; j < k; ++j)
        if (own.dispatch_mask[t * k + j]) nodes.insert((E - 1 - own.chosen[t * k + j]) / (E / topology.nodes));
      to_nodes += std::ssize(nodes);
    }
    EXPECT_EQ(handle.num_sent(), to_nodes);
  }

  // Each etp shard of physical expert p outputs (p + 1) times its input. The gradient with respect
  // to a weight is the weight of its row.
  const View assignments = arena.i32({rows}), row_tokens = arena.i32({rows}), row_id_map = arena.i32({A, k}),
             offsets = arena.i32({local + 1}), outputs = arena.f32({rows, 2}), drow_weights = arena.f32({rows, 1});
  run(*device, ops::BuildPermutation{.physical_experts = physical_experts,
                                     .first_expert = first,
                                     .assignments = assignments,
                                     .tokens = row_tokens,
                                     .row_id_map = row_id_map,
                                     .offsets = offsets});
  EXPECT_EQ(std::vector<std::int32_t>(offsets.i32(), offsets.i32() + local + 1), handle.offsets());
  run(*device, ops::Permute{.x = received, .index = row_tokens, .first_column = first_column, .y = outputs});
  run(*device, ops::Permute{.x = received_weights.reshape({A * k, 1}), .index = assignments, .y = drow_weights});
  for (Index p = 0; p < local; ++p)
    for (Index i = offsets.i32()[p]; i < offsets.i32()[p + 1]; ++i)
      for (Index c = 0; c < 2; ++c) outputs.f32()[i * 2 + c] *= static_cast<float>(first + p + 1);
  const View y = arena.f32({T, 2}), dweights = arena.f32({T, k});
  run(*device, ops::Fill{.x = y, .value = 7});
  handle.combine({{outputs, row_id_map, y, y}, {drow_weights, row_id_map.reshape({A * k, 1}), {}, dweights}}, scratch)
      .wait();
  for (Index t = 0; t < T; ++t) {
    float sum = 0;
    for (Index j = 0; j < k; ++j) {
      const Index a = t * k + j;
      const float shards = own.dispatch_mask[a] ? static_cast<float>(etp) : 0;
      sum += shards * static_cast<float>(E - own.chosen[a]);
      EXPECT_EQ(dweights.f32()[a], shards * own.weights[a]);
    }
    EXPECT_EQ(y.f32()[t * 2], 7 + sum * own.rows[t * 2]);
    EXPECT_EQ(y.f32()[t * 2 + 1], 7 + sum);
  }
}

TEST(TokenDispatcher, SendsATokenOnceToARankAndReturnsSums) {
  check_dispatch(1, 1);
  if (world().size() % 2 == 0) check_dispatch(2, 1);
}

TEST(TokenDispatcher, SendsATokenOnceToANodeAndForwardsIt) {
  int checked = 0;
  for (const auto& [etp, ranks_per_node] : {std::pair{1, 2}, {1, 3}, {1, 4}, {2, 2}, {2, 4}}) {
    const int n = world().size();
    if (n % etp != 0 || n <= ranks_per_node || n % ranks_per_node != 0) continue;
    check_dispatch(etp, ranks_per_node);
    ++checked;
  }
  EXPECT_EQ(checked > 0, world().size() >= 4 && world().size() % 2 == 0);
}

}  // namespace
}  // namespace sy
