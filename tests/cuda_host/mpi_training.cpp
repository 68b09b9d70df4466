// What a training step asks of a device beside the right numbers: no memory, no waits but those for expert counts, and an end
// when a rank is lost.
#include <gtest/gtest.h>

#include <cstdlib>

#include "dist/activity.h"
#include "dist/comm_nccl.h"
#include "src/model/engine.h"
#include "src/train/grad_sync.h"
#include "src/train/memory.h"
#include "tests/cuda_host/host/control.h"
#include "tests/mpi_world.h"

namespace sy {
namespace {

using test::world;

constexpr Index vocab = 37, sequences = 2, length = 12, moe_layers = 2, micro_batches = 2;

Config config_of(const std::vector<std::string>& settings) {
  return parse_config(R"(
[model]
layers = 3
d_model = 16
heads = 4
seq_len = 12
[moe]
experts = 8
first_dense = 1
d_ff = 12
shared_experts = 1
[train]
micro_batch = 2
)",
                      "test", settings);
}

struct Trained {
  Config config;
  Layout layout;
  Engine engine;
  GradSync sync;
  std::vector<std::int32_t> ids = std::vector<std::int32_t>(sequences * length, 5);
  Index steps = 0;

  Trained(const Config& c, const Layout& l)
      : config(c),
        layout(l),
        engine(c, vocab, make_backend("cuda"), make_mesh(world(), l), true, Index{4} << 20),
        sync(engine.mesh(), engine.store()) {
    for (std::size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<std::int32_t>(i * (3 + world().rank()) % vocab);
    engine.store().initialize(1);
  }
  void step() {
    const Index tokens = sequences * length * micro_batches * layout.dp();
    const Stage::LayerDone layer_done = [&](Index layer) { sync.layer_done(layer); };
    for (Index micro = 0; micro < micro_batches; ++micro)
      engine.train({sequences, length, ids, ids, tokens, 1, micro_batches},
                   micro + 1 == micro_batches ? layer_done : nullptr);
    sync.step(config.train, 1e-3, ++steps);
  }
};

TEST(Step, TakesNoMemoryAndWaitsForExpertCountsAlone) {
  const int n = world().size();
  for (const Layout& layout : {Layout{n, 1, 1, 1}, Layout{n, 1, n, 1}, Layout{n, n, n, 1}})
    for (const char* recompute : {"false", "true"})
      for (const char* dtype : {"f32", "bf16"}) {
        Trained t(config_of({std::string("--train.recompute=") + recompute, std::string("--run.dtype=") + dtype}),
                  layout);
        t.step();
        t.engine.take_statistics();  // the host has seen all of it
        const cuda_host::Counters before = cuda_host::counters();
        t.step();
        const cuda_host::Counters after = cuda_host::counters();
        EXPECT_GT(after.launches, before.launches + 100);
        EXPECT_EQ(after.allocations, before.allocations);
        EXPECT_EQ(after.frees, before.frees);
        const Index passes = micro_batches * moe_layers * (t.config.train.recompute ? 2 : 1);
        EXPECT_EQ(after.waits - before.waits, passes) << layout.str() << " recompute " << recompute;
        EXPECT_TRUE(std::isfinite(t.sync.norm()));
      }
}

// Both halves of a dense model's passes, and every model's update of the weights, become graphs: the host starts no kernel of them.
TEST(Step, WhatIsTheSameInEveryStepIsAGraph) {
  const int n = world().size();
  for (const char* dtype : {"f32", "bf16"})
    for (const Layout& layout : {Layout{n, 1, 1, 1}, Layout{n, n, 1, 1}})
      for (const char* recompute : {"false", "true"}) {
        const Config config = config_of(
            {"--moe.experts=0", std::string("--train.recompute=") + recompute, std::string("--run.dtype=") + dtype});
        std::vector<std::vector<std::byte>> weights;  // of each group, with graphs and without
        std::size_t groups = 0;
        for (const char* graphs : {"1", "0"}) {
          setenv("SWITCHYARD_GRAPHS", graphs, 1);
          Trained t(config, layout);
          cuda_host::Counters before{};
          for (int step = 0; step < 4; ++step) {
            before = cuda_host::counters();
            t.step();
            t.engine.take_statistics();
          }
          const cuda_host::Counters after = cuda_host::counters();
          if (graphs[0] == '1') {
            const auto graphs_launched = after.graphs - before.graphs;
            EXPECT_TRUE(n == 1 ? graphs_launched == 2 * micro_batches + 1 : graphs_launched > 2 * micro_batches + 1);
            EXPECT_LT(after.launches - before.launches, 12);  // the sum of squares, and what clips by it
            EXPECT_EQ(after.allocations, before.allocations);
            EXPECT_EQ(after.waits - before.waits, 1);  // for the statistics
          } else {
            EXPECT_EQ(after.graphs, before.graphs);
            EXPECT_GT(after.launches - before.launches, 100);
          }
          groups = t.engine.store().layout().groups.size();
          for (std::size_t g = 0; g < groups; ++g) {
            const View of_group = t.engine.store().buffers(g).weights;
            t.engine.backend().to_host(of_group, weights.emplace_back(of_group.size_bytes()).data());
          }
        }
        for (std::size_t g = 0; g < groups; ++g)
          EXPECT_TRUE(weights[g] == weights[groups + g]) << layout.str() << " " << dtype << " recompute " << recompute;
      }
  unsetenv("SWITCHYARD_GRAPHS");
}

// Waits long enough for the host to look after the communicators meanwhile, of which it leaves no trace.
TEST(Step, GoesOnAfterLongWaits) {
  const int n = world().size();
  Trained t(config_of({}), {n, 1, n, 1});
  cuda_host::set_latency(std::chrono::milliseconds(40));
  t.step();
  EXPECT_TRUE(std::isfinite(t.sync.norm()));
  cuda_host::set_latency(std::chrono::milliseconds(0));
}

std::vector<std::vector<std::byte>> trained_weights(const Config& config, const Layout& layout) {
  Trained t(config, layout);
  for (int step = 0; step < 2; ++step) t.step();
  std::vector<std::vector<std::byte>> weights;
  for (std::size_t g = 0; g < t.engine.store().layout().groups.size(); ++g) {
    const View of_group = t.engine.store().buffers(g).weights;
    t.engine.backend().to_host(of_group, weights.emplace_back(of_group.size_bytes()).data());
  }
  return weights;
}

// Devices run what they are given late, and in any order that streams and events allow.
TEST(Step, IsTheSameInAnyOrder) {
  const int n = world().size();
  for (const Layout& layout : {Layout{n, 1, n, 1}}) {
    const Config config = config_of({});
    const auto expected = trained_weights(config, layout);
    for (std::uint64_t seed = 0; seed < 2; ++seed) {
      cuda_host::set_running(seed == 0 ? cuda_host::Running::late : cuda_host::Running::seeded,
                             seed * 64 + static_cast<std::uint64_t>(world().rank()));
      EXPECT_TRUE(trained_weights(config, layout) == expected) << layout.str() << " seed " << seed;
      cuda_host::set_running(cuda_host::Running::at_once);
    }
  }
}

// A layer's gradients are given to NCCL, which starts in the order of what it is given, when the tokens of the layer before are
// under way. Here the host waits for these, for it wants to know their counts when it computes forward again.
TEST(Step, TokensDoNotWaitForGradientsOfTheLayerBehind) {
  const int n = world().size();
  if (n == 1) return;
  Trained t(config_of({"--train.recompute=true"}), {n, 1, n, 1});
  t.step();
  t.engine.take_statistics();
  cuda_host::set_running(cuda_host::Running::late);
  std::vector<std::int64_t> reduces;  // started, as each layer is done
  const auto before = cuda_host::counters().reduces;
  t.engine.train({sequences, length, t.ids, t.ids, sequences * length * n, 1, 1}, [&](Index layer) {
    t.sync.layer_done(layer);
    reduces.push_back(cuda_host::counters().reduces - before);
  });
  t.sync.step(t.config.train, 1e-3, 2);
  EXPECT_TRUE(std::isfinite(t.sync.norm()));
  cuda_host::set_running(cuda_host::Running::at_once);
  ASSERT_EQ(reduces.size(), 3u);
  EXPECT_EQ(reduces[1], 0);  // the second layer's counts have been waited for, not the third's gradients
  EXPECT_GT(cuda_host::counters().reduces - before, 0);
}

// Before 2.26, NCCL would let two collectives start in one order here and in another there, and wait for ever.
TEST(Step, CollectivesOfAnOldNcclRunOneAfterTheOther) {
  const int n = world().size();
  cuda_host::set_nccl_version(22505);
  EXPECT_EQ(nccl_streams(), 1);
  EXPECT_EQ(nccl_version(), "2.25.5");
  cuda_host::forget_collectives();
  cuda_host::set_running(cuda_host::Running::seeded, static_cast<std::uint64_t>(world().rank()));
  trained_weights(config_of({}), {n, 1, n, 1});
  cuda_host::set_running(cuda_host::Running::at_once);
  EXPECT_LE(cuda_host::counters().collectives_at_once, 1);
  cuda_host::set_nccl_version(22809);
  EXPECT_EQ(nccl_streams(), num_comm_streams);
}

// Trains until NCCL reports `result`, and expects an error that names who was doing what, and says `why`.
void lose_a_rank(int result, const std::string& why) {
  const int n = world().size();
  if (n == 1) return;
  Trained t(config_of({}), {n, 1, n, 1});
  t.step();
  t.engine.take_statistics();
  cuda_host::set_nccl_error(result);
  try {
    t.step();
    t.engine.take_statistics();
    FAIL() << "the loss of a rank went unnoticed";
  } catch (const Failure& e) {
    const std::string what = e.what();
    for (const std::string& part :
         {fmt::format("rank {}", world().rank()), fmt::format("{}", (world().rank() + 1) % n), std::string("layer 1"),
          std::string("all-gather"), std::string("forward pass"), why})
      EXPECT_NE(what.find(part), std::string::npos) << what;
  }
  cuda_host::set_nccl_error(0);
}

TEST(Step, ALostRankEndsIt) {
  lose_a_rank(6, "remote process exited");  // ncclRemoteError
}

// No error, but nothing ends: for hangs.sh, which sees what the watchdog makes of it.
TEST(Step, DISABLED_HangsForEver) {
  Trained t(config_of({}), {world().size(), 1, world().size(), 1});
  t.step();
  t.engine.take_statistics();
  cuda_host::set_nccl_error(7);  // ncclInProgress
  const DoingStep doing(2);
  t.step();
  t.engine.take_statistics();
}

}  // namespace
}  // namespace sy
