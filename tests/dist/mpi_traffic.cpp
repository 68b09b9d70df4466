// Bytes and calls of every collective are compared with formulas.
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "src/train/distributed_optimizer.h"
#include "tests/mpi_world.h"
#include "tests/traffic.h"

namespace sy {
namespace {

using test::world;

// Makes calls of each kind of collective, with known sizes.
void make_calls(Comm& comm) {
  const int n = comm.size(), r = comm.rank();
  std::vector<float> all(n * 12), block(12);
  const RootedBuffer buffers[] = {{view_of(block.data(), {7}), n - 1}, {view_of(block.data() + 7, {5}), n - 1}};
  comm.start_broadcast(buffers).wait();
  comm.all_reduce(view_of(block.data(), {5}));
  std::int64_t largest[3] = {};
  comm.all_reduce(view_of(largest, {3}), Reduce::max);
  std::vector<double> many(5003);  // above all_reduce_eager_limit bytes
  comm.all_reduce(view_of(many.data(), {5003}));
  comm.start_reduce(view_of(block.data(), {11}), 0).wait();
  comm.reduce_scatter(view_of(all.data(), {n * 12}), view_of(block.data(), {12}));
  comm.all_gather(view_of(block.data(), {7}), view_of(all.data(), {n * 7}));
  // Rank s sends (s + d) % 3 rows of 2 floats to rank d.
  std::vector<Index> rows;
  for (int d = 0; d < n; ++d) rows.push_back((r + d) % 3);
  const Index total = std::accumulate(rows.begin(), rows.end(), Index{0});
  std::vector<float> in(total * 2), out(total * 2);
  comm.all_to_all_v(view_of(in.data(), {total, 2}), rows, view_of(out.data(), {total, 2}), rows);
  comm.gather(std::string(static_cast<std::size_t>(r + 3), 'x'));
  comm.gather(std::string(static_cast<std::size_t>(2 * r + 1), 'y'), n - 1);
}

TEST(Traffic, CountsTheSentBytesOfEachCollective) {
  const int n = world().size(), r = world().rank();
  const auto dry = make_comm_dry(n, r), mpi = world().split([](int) { return 0; });
  Index rows = 0;
  for (int d = 0; d < n; ++d) rows += d == r ? 0 : (r + d) % 3;
  // A rank sums a block of ceil(5003 / n) elements, the last rank the remaining ones. It sends the
  // other blocks to their owners, and its sums to all other ranks.
  const Index each = (5003 + n - 1) / n, own = std::clamp<Index>(5003 - r * each, 0, each);
  const Index block_bytes = n == 1 ? 0 : 8 * (5003 - own + own * (n - 1));
  const Index bytes[num_collectives] = {r == n - 1 ? 48 * (n - 1) : 0,
                                        (20 + 24) * (n - 1) + block_bytes,
                                        r == 0 ? 0 : 44,
                                        48 * (n - 1),
                                        28 * (n - 1),
                                        rows * 8,
                                        (r == 0 ? 0 : r + 3) + (r == n - 1 ? 0 : 2 * r + 1)};
  for (Comm* comm : {dry.get(), mpi.get()}) {
    make_calls(*comm);
    for (int kind = 0; kind < num_collectives; ++kind) {
      const Traffic& t = comm->traffic(static_cast<Collective>(kind));
      EXPECT_EQ(t.bytes, bytes[kind]) << name_of(static_cast<Collective>(kind));
      EXPECT_EQ(t.calls, n == 1                                                ? 0
                         : kind == 1                                           ? 3
                         : static_cast<Collective>(kind) == Collective::gather ? 2
                                                                               : 1)
          << name_of(static_cast<Collective>(kind));
      EXPECT_EQ(t.seconds > 0, n > 1 && t.calls > 0);
    }
  }
}

TEST(Traffic, DryMeshHasTheGroupsOfARealMesh) {
  const int n = world().size();
  const auto dry = make_comm_dry(n, world().rank());
  const int two = n % 2 ? 1 : 2;
  for (const Layout& layout :
       {Layout{n, 1, n, 1}, Layout{n, n, 1, 1}, Layout{n, two, two, n % 4 ? 1 : 2}, Layout{n, 1, n, 1, two}}) {
    const Mesh a = make_mesh(world(), layout), b = make_mesh(*dry, layout), c = make_dry_mesh(*dry, layout);
    for (const auto comm :
         {&Mesh::dp, &Mesh::tp, &Mesh::edp, &Mesh::expert_group, &Mesh::intra_node, &Mesh::inter_node})
      for (const Mesh* other : {&b, &c}) {
        ASSERT_EQ(a.*comm == nullptr, other->*comm == nullptr) << layout.str();
        if (!(a.*comm)) continue;
        EXPECT_EQ((a.*comm)->size(), (other->*comm)->size()) << layout.str();
        EXPECT_EQ((a.*comm)->rank(), (other->*comm)->rank()) << layout.str();
      }
  }
}

constexpr const char* model = R"(
[model]
layers = 3
d_model = 24
heads = 4
kv_heads = 2
seq_len = 20
d_ff = 40
[moe]
experts = 8
top_k = 3
first_dense = 1
shared_experts = 1
d_ff = 20
capacity_factor = 1.0
)";
constexpr Index vocab = 37, sequences = 3, micro_batches = 2;

// Runs one training step, and returns the traffic of each group and collective.
test::Loads train(Comm& comm, const Config& config, const Layout& layout, std::unique_ptr<Device> device,
                  test::RoutedRows* routed) {
  Engine engine(config, vocab, std::move(device), make_mesh(comm, layout), true);
  engine.store().initialize(3);
  DistributedOptimizer optimizer(engine.mesh(), engine.store());
  if (routed)
    engine.set_routing_hook([&](const RoutingView& r) { routed->count(r, engine.mesh(), config.moe.experts); });
  const auto groups = engine.mesh().groups();
  std::map<std::pair<std::string, Collective>, Traffic> before;
  const auto each = [&](auto f) {
    for (const auto& [name, group] : groups)
      for (int kind = 0; group && kind < num_collectives; ++kind)
        f(std::pair{std::string(name), static_cast<Collective>(kind)}, group->traffic(static_cast<Collective>(kind)));
  };
  each([&](const auto& key, const Traffic& t) { before[key] = t; });
  const Index tokens = sequences * config.model.seq_len;
  std::vector<std::int32_t> ids(tokens);
  for (Index micro = 0; micro < micro_batches; ++micro) {
    for (Index i = 0; i < tokens; ++i)
      ids[i] = static_cast<std::int32_t>((i * i + 7 * i * (engine.mesh().coord.dp + 1) + micro) % vocab);
    engine.forward_backward({sequences, config.model.seq_len, ids, ids, tokens, sequences, micro_batches});
  }
  optimizer.step(config.train, 1e-3, 1);
  test::Loads loads;
  each([&](const auto& key, const Traffic& t) {
    if (t.calls > before[key].calls) loads[key] = {0, t.bytes - before[key].bytes, t.calls - before[key].calls};
  });
  return loads;
}

std::string format_loads(const test::Loads& loads) {
  std::string text;
  for (const auto& [key, load] : loads)
    text += fmt::format("{} {}: {} bytes in {} calls\n", key.first, name_of(key.second), load.bytes, load.calls);
  return text;
}

TEST(Traffic, StepSendsTheBytesOfTheFormulas) {
  const int n = world().size();
  int steps = 0;
  for (int tp : {1, 2, 4})
    for (int ep : {1, 2, 4})
      for (const auto& [etp, node] : {std::pair{1, 1}, {2, 1}, {1, 2}, {2, 2}})
        for (const std::vector<std::string>& settings :
             {std::vector<std::string>{},
              {"--train.recompute=block", "--moe.capacity_factor=0"},
              {"--train.recompute=norms"},
              {"--train.recompute=experts"},
              {"--train.recompute=attention"},
              {"--moe.aux_scope=global_batch", "--model.bias=true", "--model.tie_embeddings=true"},
              {"--moe.aux_layers=joint", "--moe.aux_scope=global_batch", "--train.recompute=block"}}) {
          const Layout layout{n, tp, ep, etp, node};
          if (!layout.divides() || (node > 1 && layout.expert_topology().nodes == 1)) continue;
          const std::string where = layout.str() + (settings.empty() ? "" : " " + settings[0]);
          const Config config = parse_config(model, "test", settings);
          const Mesh mesh = make_mesh(world(), layout);
          test::RoutedRows routed(mesh);
          const test::Loads measured = train(world(), config, layout, make_cpu(), &routed);

          const std::vector<test::TokenTraffic> tokens = test::token_traffic(mesh, routed);
          const test::Loads expected =
              test::expected_loads(config, vocab, layout, world().rank(), sequences, micro_batches, tokens);
          EXPECT_EQ(format_loads(measured), format_loads(expected)) << where;
          for (const auto& [key, load] : expected)
            EXPECT_GE(static_cast<double>(load.bytes), load.needed) << where << key.first;

          // The dry step has no routing: only the calls of its all-to-alls are comparable.
          const auto dry_world = make_comm_dry(n, world().rank());
          test::Loads dry = train(*dry_world, config, layout, make_dry(), nullptr);
          test::Loads others = measured;
          for (const auto& [group, size, sent, received] : tokens) {
            const std::pair rows{group, Collective::all_to_all};
            EXPECT_EQ(dry[rows].calls, measured.count(rows) ? measured.at(rows).calls : 0) << where;
            dry.erase(rows);
            others.erase(rows);
          }
          EXPECT_EQ(format_loads(dry), format_loads(others)) << where;
          ++steps;
        }
  EXPECT_GT(steps, 0);
}

}  // namespace
}  // namespace sy
