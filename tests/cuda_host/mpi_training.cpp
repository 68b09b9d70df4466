// Tests of a training step on a device, apart from its numbers. A step allocates no memory, waits
// only for expert counts, and ends if a rank is lost.
#include <gtest/gtest.h>

#include <cstdlib>
#include <tuple>

#include "dist/device_comm.h"
#include "dist/phase.h"
#include "kernels/bf16.h"
#include "kernels/ops/elementwise.h"
#include "src/model/engine.h"
#include "src/train/device_reservation.h"
#include "src/train/distributed_optimizer.h"
#include "src/train/memory.h"
#include "src/train/pipeline_schedule.h"
#include "tests/cuda_host/host/control.h"
#include "tests/forwarding_comm.h"
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
  DistributedOptimizer optimizer;
  std::vector<std::int32_t> ids = std::vector<std::int32_t>(sequences * length, 5);
  Index steps = 0;
  double rate = 1e-3;

  Trained(const Config& c, const Layout& l, const std::string& device = "cuda")
      : Trained(c, l, make_device(device), {make_mesh(world(), l), 0, {.scratch = Index{4} << 20}}) {}
  Trained(const Config& c, const Layout& l, std::unique_ptr<Device> device, DeviceReservation reservation)
      : config(c),
        layout(l),
        engine(c, vocab, std::move(device), std::move(reservation.mesh), true, reservation.arenas, reservation.slots),
        optimizer(engine.mesh(), engine.store()) {
    for (std::size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<std::int32_t>(i * (3 + world().rank()) % vocab);
    engine.store().initialize(1);
  }
  // of_step: number of sequences by which the passes divide some of the losses
  void step(Index of_step = 1) {
    const Index tokens = sequences * length * micro_batches * layout.dp();
    const BackwardHooks hooks = optimizer.backward_hooks();
    for (Index micro = 0; micro < micro_batches; ++micro)
      engine.forward_backward({sequences, length, ids, ids, tokens, of_step, micro_batches},
                              micro + 1 == micro_batches ? hooks : BackwardHooks{});
    optimizer.step(config.train, rate, ++steps);
  }
  // Bytes of the weights of each parameter group.
  std::vector<std::vector<std::byte>> weights() {
    engine.store().finish_all_gather();
    std::vector<std::vector<std::byte>> all;
    for (std::size_t g = 0; g < engine.store().layout().groups.size(); ++g) {
      const View of_group = engine.store().buffers(g).weights;
      engine.device().to_host(of_group, all.emplace_back(of_group.size_bytes()).data());
    }
    return all;
  }
};

TEST(Step, AllocatesNothingAndWaitsOnlyForExpertCounts) {
  const int n = world().size();
  for (const Layout& layout : {Layout{n, 1, 1, 1}, Layout{n, 1, n, 1}, Layout{n, n, n, 1}})
    for (const char* recompute : {"none", "block"})
      for (const char* dtype : {"f32", "bf16"}) {
        Trained t(config_of({std::string("--train.recompute=") + recompute, std::string("--run.dtype=") + dtype}),
                  layout);
        t.step();
        t.engine.take_statistics();  // waits for the whole step
        const cuda_host::Counters before = cuda_host::counters();
        t.step();
        const cuda_host::Counters after = cuda_host::counters();
        EXPECT_GT(after.launches, before.launches + 100);
        EXPECT_EQ(after.allocations, before.allocations);
        EXPECT_EQ(after.frees, before.frees);
        const Index passes = micro_batches * moe_layers * (t.config.train.recompute == Recompute::block ? 2 : 1);
        EXPECT_EQ(after.waits - before.waits, passes) << layout.str() << " recompute " << recompute;
        EXPECT_TRUE(std::isfinite(t.optimizer.gradient_norm()));
      }
}

// A pass of training is another graph if other weights have arrived: an evaluation waits for none
// of multi-token prediction. So it is in a step of another size, which divides indexers' losses.
TEST(Step, KeepsGraphsApart) {
  const int n = world().size();
  const std::vector<std::string> cases[] = {
      {"--model.mtp_depth=1"},
      {"--model.attention=indexed", "--model.index_n_heads=2", "--model.index_head_dim=8", "--model.index_topk=3"}};
  for (const std::vector<std::string>& settings : cases) {
    SCOPED_TRACE(settings[0]);
    std::vector<std::string> dense = {"--moe.experts=0"};
    dense.insert(dense.end(), settings.begin(), settings.end());
    std::vector<std::vector<std::vector<std::byte>>> weights;  // with graphs and without
    for (const char* graphs : {"1", "0"}) {
      setenv("SWITCHYARD_GRAPHS", graphs, 1);
      Trained t(config_of(dense), Layout{n, 1, 1, 1});
      for (int step = 0; step < 5; ++step) {
        t.step(step < 3 ? 4 : 8);
        if (step == 2) t.engine.evaluate({sequences, length, t.ids, t.ids, sequences * length}, false);
        t.engine.take_statistics();
      }
      weights.push_back(t.weights());
    }
    EXPECT_TRUE(weights[0] == weights[1]);
  }
  unsetenv("SWITCHYARD_GRAPHS");
}

// The forward and backward passes of a dense model, and the weight update of every model, become
// graphs. The host launches none of their kernels.
TEST(Step, RunsRepeatedPassesAsGraphs) {
  const int n = world().size();
  for (const char* dtype : {"f32", "bf16"})
    for (const Layout& layout : {Layout{n, 1, 1, 1}, Layout{n, n, 1, 1}})
      for (const char* recompute : {"none", "block"}) {
        const Config config = config_of(
            {"--moe.experts=0", std::string("--train.recompute=") + recompute, std::string("--run.dtype=") + dtype});
        std::vector<std::vector<std::vector<std::byte>>> weights;  // with graphs and without
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
            EXPECT_LT(after.launches - before.launches, 12);  // the sum of squares and the clipping
            EXPECT_EQ(after.allocations, before.allocations);
            EXPECT_EQ(after.waits - before.waits, 1);  // for the statistics
          } else {
            EXPECT_EQ(after.graphs, before.graphs);
            EXPECT_GT(after.launches - before.launches, 100);
          }
          weights.push_back(t.weights());
        }
        EXPECT_TRUE(weights[0] == weights[1]) << layout.str() << " " << dtype << " recompute " << recompute;
      }
  unsetenv("SWITCHYARD_GRAPHS");
}

// A step of four micro-batches, with as many of them in flight as the engine has slots. Its memory
// is what the plan says, `spare` times. Returns the weights after four steps, so that graphs are
// recorded and replayed.
std::vector<std::vector<std::byte>> pipelined_weights(const Config& config, const Layout& layout, Index slots,
                                                      Index spare) {
  constexpr Index in_step = 4;
  std::unique_ptr<Device> device = make_device("cuda");
  const MemoryPlan plan = plan_memory(config, vocab, layout, world().rank(), *device, slots);
  Trained t(config, layout, std::move(device),
            {make_mesh(world(), layout), 0, {spare * plan.saved / slots, spare * plan.scratch}, slots});
  const Index tokens = sequences * length * in_step * layout.dp();
  const BackwardHooks hooks = t.optimizer.backward_hooks();
  for (Index step = 1; step <= 4; ++step) {
    const cuda_host::Counters before = cuda_host::counters();
    for (const auto& [direction, micro] : one_forward_one_backward(in_step, slots)) {
      std::vector<std::int32_t> ids = t.ids;
      for (std::int32_t& id : ids) id = static_cast<std::int32_t>((id + 7 * micro + step) % vocab);
      if (direction == ScheduledPass::Direction::forward)
        t.engine.forward({sequences, length, ids, ids, tokens, 1, in_step}, micro % slots);
      else
        t.engine.backward(micro % slots, micro + 1 == in_step ? hooks : BackwardHooks{});
    }
    t.optimizer.step(config.train, t.rate, step);
    t.engine.take_statistics();
    const cuda_host::Counters after = cuda_host::counters();
    if (step == 4 && config.moe.experts == 0) {
      EXPECT_EQ(after.allocations, before.allocations);
      EXPECT_LT(after.launches - before.launches, 12) << slots << " slots";  // passes are replayed
    }
  }
  for (Index slot = 0; slot < slots; ++slot) {
    EXPECT_EQ(t.engine.saved(slot).in_use(), 0);
    if (config.moe.experts == 0) {
      EXPECT_EQ(t.engine.saved(slot).peak() * slots, plan.saved);
    }
  }
  return t.weights();
}

// The weights are the same, bit by bit, with any number of micro-batches in flight.
TEST(Step, KeepsSeveralMicroBatchesInFlight) {
  const int n = world().size();
  // Experts may get more rows than planned.
  for (const auto& [settings, layout, spare] :
       {std::tuple{std::vector<std::string>{"--moe.experts=0"}, Layout{n, 1, 1, 1}, 1},
        {{"--moe.experts=0", "--run.dtype=bf16", "--train.recompute=block"}, Layout{n, n, 1, 1}, 1},
        {{"--moe.capacity_factor=1"}, Layout{n, 1, n, 1}, 4},
        {{"--moe.aux_scope=global_batch", "--train.recompute=block"}, Layout{n, 1, n, 1}, 4}}) {
    const Config config = config_of(settings);
    const auto expected = pipelined_weights(config, layout, 1, spare);
    for (const Index slots : {2, 3}) {
      cuda_host::set_running(cuda_host::Running::late);
      EXPECT_TRUE(pipelined_weights(config, layout, slots, spare) == expected) << layout.str() << " slots " << slots;
      cuda_host::set_running(cuda_host::Running::at_once);
    }
  }
}

// The waits are so long that the host checks its communicators meanwhile. This leaves no trace.
TEST(Step, ContinuesAfterLongWaits) {
  const int n = world().size();
  Trained t(config_of({}), {n, 1, n, 1});
  cuda_host::set_latency(std::chrono::milliseconds(40));
  t.step();
  EXPECT_TRUE(std::isfinite(t.optimizer.gradient_norm()));
  cuda_host::set_latency(std::chrono::milliseconds(0));
}

std::vector<std::vector<std::byte>> trained_weights(const Config& config, const Layout& layout) {
  Trained t(config, layout);
  for (int step = 0; step < 2; ++step) t.step();
  return t.weights();
}

// The device runs operations late, and in any order that streams and events allow.
TEST(Step, GivesTheSameWeightsInAnyOrder) {
  const int n = world().size();
  std::vector<Layout> layouts;
  for (const int tp : {1, 2})
    for (const auto& [ep, etp] : {std::pair{1, 1}, {2, 1}, {1, 2}}) layouts.push_back({2, tp, ep, etp});
  if (n == 4) layouts = {{4, 2, 2, 1}, {4, 1, 2, 2}, {4, 2, 1, 1}};
  if (n == 1) layouts = {{}};
  for (const Layout& layout : layouts) {
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

// Calls of a collective on the communicators `stage`, `dp` and `edp`.
Index calls(Trained& t, Collective kind) {
  Index n = 0;
  const Mesh& mesh = t.engine.mesh();
  for (const Comm* comm : {mesh.stage.get(), mesh.dp.get(), mesh.edp.get()}) n += comm->traffic(kind).calls;
  return n;
}

// New weights are broadcast bucket by bucket, each while the bucket before computes. This happens
// in the first forward after an update, and in no other. Code that computes with the weights, or
// reads them, has all of them.
TEST(Step, BroadcastsWeightsDuringThePreviousBucket) {
  const int n = world().size();
  for (const char* recompute : {"none", "block"}) {
    Trained t(config_of({std::string("--train.recompute=") + recompute}), {n, 1, 1, 1});
    std::vector<Index> broadcasts;
    const auto see = [&] { broadcasts.push_back(calls(t, Collective::broadcast)); };
    t.step();
    see();  // the embedding's bucket
    t.engine.set_routing_hook([&](const RoutingView&) { see(); });
    const Engine::MicroBatch batch{sequences, length, t.ids, t.ids, sequences * length * n, 1, 1};
    t.engine.forward_backward(batch);
    see();
    ASSERT_EQ(std::ssize(broadcasts), 2 + moe_layers);
    if (n > 1) {
      EXPECT_GT(broadcasts[0], 0);
      EXPECT_LT(broadcasts[0], broadcasts[1]);  // the third layer's, while the second computes
      EXPECT_LT(broadcasts[1], broadcasts[2]);
    }
    EXPECT_EQ(broadcasts[2], broadcasts.back());
    t.engine.forward_backward(batch);
    t.weights();
    EXPECT_EQ(calls(t, Collective::broadcast), broadcasts.back());
    EXPECT_EQ(calls(t, Collective::all_gather), 0);
    t.optimizer.step(t.config.train, 1e-3, 2);
    const auto weights = t.weights();  // no forward has requested them
    EXPECT_FALSE(t.engine.store().all_gather_in_flight());
    for (std::size_t g = 0; g < weights.size(); ++g) {
      std::vector<std::byte> first = weights[g];
      world().broadcast(view_of(reinterpret_cast<std::uint8_t*>(first.data()), {std::ssize(first)}), 0);
      EXPECT_TRUE(first == weights[g]) << "group " << g;
    }
  }
}

// A host communicator that claims to be asynchronous. Gradients are then reduced, and weights
// broadcast, bucket by bucket.
class PerBufferComm final : public ForwardingComm {
 public:
  using ForwardingComm::ForwardingComm;
  const char* peer_names() const override { return inner_->peer_names(); }
  bool host_all_gather(std::span<const Index> mine, std::span<Index> all) override {
    return inner_->host_all_gather(mine, all);
  }
  bool asynchronous() const override { return size() > 1; }

 private:
  std::unique_ptr<Comm> do_split(const std::function<int(int)>& color) override {
    return std::make_unique<PerBufferComm>(inner_->split(color));
  }
};

// Everything that a checkpoint holds, after three steps. at_once: waits for each step's weights as
// soon as they are requested.
std::vector<std::vector<std::byte>> trained_state(Trained& t, bool at_once) {
  for (int step = 0; step < 3; ++step) {
    t.step();
    if (at_once) t.engine.store().finish_all_gather();
  }
  std::vector<std::vector<std::byte>> state = t.weights();
  for (std::size_t g = 0; g < t.engine.store().layout().groups.size(); ++g) {
    const ParamStore::Buffers& b = t.engine.store().buffers(g);
    std::vector<View> owned = {b.master.view()};
    for (const Tensor& x : b.state) owned.push_back(x.view());
    for (const View x : owned)
      if (x.present()) t.engine.device().to_host(x, state.emplace_back(x.size_bytes()).data());
  }
  return state;
}

// Weights that are broadcast during computation equal weights that are waited for at once, bit by
// bit. On the host, where sums are taken in rank order, they also equal weights of whole buffers.
TEST(Step, GivesTheSameWeightsByBucketAndByBuffer) {
  const int n = world().size();
  // In the layout of four ranks, two ranks hold the same kv heads.
  for (const Layout& layout :
       n == 4 ? std::vector<Layout>{{4, 2, 2, 1}} : std::vector<Layout>{{n, 1, 1, 1}, {n, 1, n, 1}})
    for (const char* dtype : {"f32", "bf16"}) {
      const Config config = config_of({std::string("--run.dtype=") + dtype, "--model.kv_heads=1"});
      std::vector<std::vector<std::vector<std::byte>>> states;
      for (const bool at_once : {true, false}) {
        if (!at_once) cuda_host::set_running(cuda_host::Running::late);
        Trained t(config, layout);
        states.push_back(trained_state(t, at_once));
        cuda_host::set_running(cuda_host::Running::at_once);
      }
      EXPECT_TRUE(states[0] == states[1]) << layout.str() << " " << dtype;

      states.clear();
      for (const auto& [per_buffer, at_once] : {std::pair{false, false}, {true, true}, {true, false}}) {
        Mesh mesh = make_mesh(world(), layout);
        if (per_buffer)
          for (std::unique_ptr<Comm>* comm : {&mesh.stage, &mesh.dp, &mesh.edp})
            *comm = std::make_unique<PerBufferComm>(std::move(*comm));
        Trained t(config, layout, make_device("cpu"), {std::move(mesh), 0, {.scratch = Index{4} << 20}});
        states.push_back(trained_state(t, at_once));
        EXPECT_EQ(calls(t, Collective::broadcast) > 0, per_buffer && n > 1);
      }
      EXPECT_TRUE(states[1] == states[2]) << "on the host, " << layout.str() << " " << dtype;
      EXPECT_TRUE(states[0] == states[1]) << "on the host, " << layout.str() << " " << dtype;
    }
}

// Losses of some steps: each depends on the weights of the step before. Collectives of the host are
// complete when they return.
TEST(Step, MatchesTheLossesOfTheCpuBackend) {
  const int n = world().size();
  for (const auto& [settings, layout] :
       {std::pair{std::vector<std::string>{"--model.tie_embeddings=true"}, Layout{n, 1, n, 1}},
        {{"--model.tie_embeddings=false", "--train.recompute=block"}, Layout{n, 1, 1, 1}},
        {{"--model.position=t5", "--moe.aux_scope=global_batch"}, Layout{n, 1, n, 1}},
        {{"--moe.experts=0", "--model.tie_embeddings=true"}, Layout{n, 1, 1, 1}}}) {
    std::vector<std::vector<double>> losses;
    for (const char* device : {"cpu", "cuda"}) {
      if (losses.size() == 1) cuda_host::set_running(cuda_host::Running::late);
      Trained t(config_of(settings), layout, device);
      t.rate = 1e-2;
      losses.emplace_back();
      for (int step = 0; step < 5; ++step) {
        t.step();
        losses.back().push_back(t.engine.take_statistics().loss_sum);
      }
    }
    cuda_host::set_running(cuda_host::Running::at_once);
    for (std::size_t i = 0; i < losses[0].size(); ++i)
      EXPECT_NEAR(losses[0][i], losses[1][i], 1e-4 * losses[0][i]) << layout.str() << " step " << i;
    EXPECT_LT(losses[0].back(), 0.9 * losses[0].front());
  }
}

// NCCL starts collectives in the order in which they are enqueued. The gradients of a bucket (the
// head, a layer) are therefore enqueued when the tokens of the layer before it are in flight. Here
// the host waits for these tokens: it needs their counts to compute forward again.
TEST(Step, SendsTokensBeforeGradientsOfTheNextLayer) {
  const int n = world().size();
  if (n == 1) return;
  Trained t(config_of({"--train.recompute=block"}), {n, 1, n, 1});
  t.step();
  t.engine.take_statistics();
  cuda_host::set_running(cuda_host::Running::late);
  // Reduces that have started, and that NCCL has been called for, as each bucket is done.
  std::vector<std::int64_t> reduces, enqueued;
  const auto before = cuda_host::counters().reduces;
  const Index calls_before = calls(t, Collective::reduce);
  const BackwardHooks hooks = t.optimizer.backward_hooks();
  const auto on_gradients_ready = [&](Index bucket) {
    hooks.on_gradients_ready(bucket);
    reduces.push_back(cuda_host::counters().reduces - before);
    enqueued.push_back(calls(t, Collective::reduce) - calls_before);
  };
  t.engine.forward_backward({sequences, length, t.ids, t.ids, sequences * length * n, 1, 1},
                            {on_gradients_ready, hooks.on_dispatch_started});
  t.optimizer.step(t.config.train, 1e-3, 2);
  EXPECT_TRUE(std::isfinite(t.optimizer.gradient_norm()));
  cuda_host::set_running(cuda_host::Running::at_once);
  ASSERT_EQ(reduces.size(), 5u);
  EXPECT_EQ(enqueued[0], 0);
  EXPECT_GT(enqueued[1], 0);  // the head's, which are complete before the layers'
  EXPECT_GT(enqueued[2], enqueued[1]);
  // The host has waited for the second layer's counts, not for the third's gradients.
  EXPECT_EQ(reduces[2], enqueued[1]);
  EXPECT_GT(cuda_host::counters().reduces - before, 0);
}

// The gradients of the bucket after a layer are reduced while the tokens of the layer are in
// flight. They are not enqueued before these tokens leave, nor after they are back.
TEST(Step, ReducesGradientsWhileTokensAreInFlight) {
  const int n = world().size();
  if (n == 1) return;
  Trained t(config_of({}), {n, 1, n, 1});
  t.step();
  const BackwardHooks hooks = t.optimizer.backward_hooks();
  const auto trips = [&] { return t.engine.mesh().expert_group->traffic(Collective::all_to_all).calls; };
  // Reduces enqueued when a layer's tokens are in flight, and all-to-alls since backward began.
  std::vector<Index> reduces, trips_since;
  Index before = 0;
  const auto on_gradients_ready = [&](Index bucket) {
    if (trips_since.empty()) before = trips();
    hooks.on_gradients_ready(bucket);
  };
  const auto on_dispatch_started = [&] {
    const Index calls_before = calls(t, Collective::reduce);
    hooks.on_dispatch_started();
    reduces.push_back(calls(t, Collective::reduce) - calls_before);
    trips_since.push_back(trips() - before);
  };
  t.engine.forward_backward({sequences, length, t.ids, t.ids, sequences * length * n, 1, 1},
                            {on_gradients_ready, on_dispatch_started});
  t.optimizer.step(t.config.train, 1e-3, 2);
  EXPECT_TRUE(std::isfinite(t.optimizer.gradient_norm()));
  ASSERT_EQ(std::ssize(reduces), moe_layers);
  EXPECT_GT(reduces[0], 0);                                // the head's
  EXPECT_GT(reduces[1], 0);                                // the last layer's
  EXPECT_EQ(trips_since, (std::vector<Index>{1, 1 + 2}));  // a layer's tokens travel there and back
}

// The ranks of a layer exchange counts. One message to each rank then has the tokens and their
// metadata. Gradients of rows and weights return in one launch, too.
TEST(Step, SendsTokensAndMetadataInOneMessage) {
  const int n = world().size();
  Trained t(config_of({}), {n, 1, n, 1});
  t.step();
  t.engine.store().finish_all_gather();
  t.engine.take_statistics();
  const auto launches = [] { return cuda_host::counters().nccl_launches; };
  const auto sends = [] { return cuda_host::counters().nccl_sends; };
  const auto before = launches(), sends_before = sends();
  const Engine::MicroBatch batch{sequences, length, t.ids, t.ids, sequences * length * n, 1, 1};
  t.engine.forward(batch);
  const auto between = launches(), sends_between = sends();
  t.engine.backward();
  EXPECT_EQ(between - before, n > 1 ? 3 * moe_layers : 0);
  EXPECT_EQ(launches() - between, n > 1 ? 2 * moe_layers : 0);
  // Counts, tokens, sums; tokens, sums, gradients of weights.
  EXPECT_EQ(sends_between - sends_before, 3 * (n - 1) * moe_layers);
  EXPECT_EQ(sends() - sends_between, 3 * (n - 1) * moe_layers);
}

// The load-balancing loss over the global batch needs every rank's counts once, however often a
// layer is computed. A second request would come after all gradients that are being reduced. The
// gradients are the same, bit by bit.
TEST(Step, GathersExpertCountsOnceWithRecompute) {
  const int n = world().size();
  std::vector<Index> calls;
  std::vector<std::vector<std::vector<std::byte>>> weights;
  for (const char* recompute : {"none", "block"}) {
    Trained t(config_of({std::string("--train.recompute=") + recompute, "--moe.aux_scope=global_batch",
                         "--moe.aux_loss=0.5"}),
              {n, 1, n, 1});
    for (int step = 0; step < 2; ++step) t.step();
    calls.push_back(t.engine.mesh().stage->traffic(Collective::all_gather).calls);
    weights.push_back(t.weights());
  }
  EXPECT_EQ(calls[0], calls[1]);
  EXPECT_EQ(calls[0] > 0, n > 1);
  EXPECT_TRUE(weights[0] == weights[1]);
}

// No layer waits for the other ranks' counts: they would come after the next layer's new weights.
// The counts of all layers are requested once, after the last weights have arrived.
TEST(Step, GathersLossCountsAfterAllLayers) {
  const int n = world().size();
  Trained t(config_of({"--moe.aux_scope=global_batch", "--moe.aux_loss=0.5"}), {n, 1, n, 1});
  t.step();
  const auto gathers = [&] { return t.engine.mesh().stage->traffic(Collective::all_gather).calls; };
  const Index before = gathers();
  std::vector<Index> asked;  // before each layer's tokens leave
  t.engine.set_routing_hook([&](const RoutingView&) { asked.push_back(gathers() - before); });
  t.engine.forward_backward({sequences, length, t.ids, t.ids, sequences * length * n, 1, 1});
  EXPECT_EQ(asked, std::vector<Index>(moe_layers, 0));
  EXPECT_EQ(gathers() - before, n > 1 ? 1 : 0);
}

// Collectives run one after the other if NCCL is older than 2.26, or if the user forbids implicit
// order. Two collectives could otherwise start in different orders on two ranks, and wait for ever.
TEST(Step, SerializesCollectivesOfAnOldNccl) {
  const int n = world().size();
  const char* const variable = "NCCL_LAUNCH_ORDER_IMPLICIT";
  for (const auto& [code, version, implicit] : {std::tuple(22505, "2.25.5", "1"), std::tuple(22809, "2.28.9", "0")}) {
    cuda_host::set_nccl_version(code);
    setenv(variable, implicit, 1);
    EXPECT_EQ(device_collectives().streams, 1) << version;
    EXPECT_EQ(device_collectives().version, version);
    cuda_host::forget_collectives();
    cuda_host::set_running(cuda_host::Running::seeded, static_cast<std::uint64_t>(world().rank()));
    trained_weights(config_of({}), {n, 1, n, 1});
    cuda_host::set_running(cuda_host::Running::at_once);
    EXPECT_LE(cuda_host::counters().collectives_at_once, 1) << version;
    EXPECT_STREQ(std::getenv(variable), implicit);
  }
  cuda_host::set_nccl_version(22809);
  unsetenv(variable);
  EXPECT_EQ(device_collectives().streams, num_comm_streams);
  setenv(variable, "1", 1);
  EXPECT_EQ(device_collectives().streams, num_comm_streams);
}

// ---- the device's memory ----

// NCCL takes a gibibyte for each kind of connection of each communicator, and activations take all
// memory that is left. Kernels of this program and of cuBLAS have their memory by then.
TEST(Memory, IsReservedForLibrariesBeforeActivations) {
  const int n = world().size();
  cuda_host::set_nccl_channel_bytes(std::size_t{64} << 20);
  const std::string bf16 = "--run.dtype=bf16", dense = "--moe.experts=0", few = "--model.kv_heads=1";
  const std::pair<Layout, std::vector<std::string>> cases[] = {{{n, 1, 1, 1}, {bf16}},
                                                               {{n, 1, 1, 1}, {dense}},
                                                               {{n, 1, n, 1}, {bf16}},
                                                               {{n, n, n, 1}, {bf16}},
                                                               {{n, n, 1, 1}, {dense, few}}};
  for (const auto& [layout, settings] : cases) {
    const Config config = config_of(settings);
    std::unique_ptr<Device> device = make_device("cuda");
    const auto before = cuda_host::counters().library_bytes;
    DeviceReservation reservation = warm_up_and_reserve(world(), config, vocab, layout, *device, 1);
    const auto used_library_bytes = cuda_host::counters().library_bytes;
    EXPECT_EQ(reservation.library_bytes, used_library_bytes - before) << layout.str();
    if (n > 1) {
      EXPECT_GE(reservation.library_bytes, Index{2} << 30) << layout.str();
    }
    EXPECT_GT(reservation.arenas.total(), Index{512} << 20) << layout.str();
    Trained t(config, layout, std::move(device), std::move(reservation));
    for (int step = 0; step < 2; ++step) t.step();
    EXPECT_TRUE(std::isfinite(t.optimizer.gradient_norm()));
    EXPECT_EQ(cuda_host::counters().library_bytes, used_library_bytes) << layout.str();
  }
  cuda_host::set_nccl_channel_bytes(std::size_t{1} << 20);
}

// The arenas of all slots have the memory that one slot would have.
TEST(Memory, IsReservedForEverySlot) {
  const int n = world().size();
  const Config config = config_of({"--moe.experts=0"});
  const Layout layout{n, 1, 1, 1};
  const std::unique_ptr<Device> device = make_device("cuda");
  const auto sizes = [&](Index slots) {
    return arena_sizes(config, vocab, layout, world().rank(), *device, n, true, slots);
  };
  const ArenaSizes one = sizes(1);
  for (const Index slots : {2, 5}) {
    const ArenaSizes several = sizes(slots);
    EXPECT_EQ(several.total(slots), one.total());
    const MemoryPlan plan = plan_memory(config, vocab, layout, world().rank(), *device, slots);
    EXPECT_GT(several.saved, 1000 * plan.saved / slots);
    EXPECT_NEAR(static_cast<double>(several.saved) / static_cast<double>(several.scratch),
                static_cast<double>(plan.saved / slots) / static_cast<double>(plan.scratch), 1e-3);
  }
}

// Without warm_up_and_reserve, the first step would find no memory for its connections.
TEST(Memory, IsExhaustedByALateConnection) {
  const int n = world().size();
  if (n == 1) return;
  cuda_host::set_nccl_channel_bytes(std::size_t{256} << 20);
  const Config config = config_of({});
  std::unique_ptr<Device> device = make_device("cuda");
  const ArenaSizes arenas = arena_sizes(config, vocab, {n, 1, n, 1}, world().rank(), *device, 1, false);
  try {
    Trained t(config, {n, 1, n, 1}, std::move(device), {make_mesh(world(), {n, 1, n, 1}), 0, arenas});
    for (int step = 0; step < 2; ++step) t.step();
    FAIL() << "all connections found memory";
  } catch (const Failure& e) {
    EXPECT_NE(std::string(e.what()).find("out of memory"), std::string::npos) << e.what();
  }
  cuda_host::set_nccl_channel_bytes(std::size_t{1} << 20);
}

TEST(Memory, LimitsNcclChannelsUnlessTheEnvironmentSetsThem) {
  const int n = world().size();
  if (n == 1) return;
  for (const auto& [name, channels] :
       {std::pair("", 16), std::pair("NCCL_MAX_CTAS", 24), std::pair("NCCL_MAX_NCHANNELS", 20)}) {
    if (*name) setenv(name, std::to_string(channels).c_str(), 1);
    const std::unique_ptr<Device> device = make_device("cuda");
    const Mesh mesh = on_device(make_mesh(world(), {n, 1, 1, 1}), *device);
    const Tensor x = device->tensor({n}), y = device->tensor({n});
    auto before = cuda_host::counters().library_bytes;
    mesh.dp->all_reduce(x);
    EXPECT_EQ(cuda_host::counters().library_bytes - before, channels << 20) << name;
    before = cuda_host::counters().library_bytes;
    mesh.dp->all_to_all_v(x, std::vector<Index>(n, 1), y, std::vector<Index>(n, 1));
    EXPECT_EQ(cuda_host::counters().library_bytes - before, 16 << 20) << name;
    device->synchronize();
    if (*name) unsetenv(name);
  }
}

// Groups of the same ranks and stream share a communicator of NCCL. With tp = 1, all of them are
// one: stage, dp and edp. With ep = 1, edp has all ranks too.
TEST(Memory, IsSharedByGroupsOfTheSameRanks) {
  const int n = world().size();
  if (n == 1) return;
  const std::unique_ptr<Device> device = make_device("cuda");
  const auto made = [&](const Layout& layout) {
    const auto before = cuda_host::counters().nccl_comms;
    const Mesh mesh = on_device(make_mesh(world(), layout), *device);
    for (Comm* const comm : {mesh.stage.get(), mesh.dp.get(), mesh.tp.get(), mesh.edp.get(), mesh.expert_group.get()}) {
      const Tensor x = device->tensor({1});
      run(*device, ops::Fill{.x = x, .value = 1.0f});
      comm->all_reduce(x);
      float sum = 0;
      device->to_host(x, &sum);
      EXPECT_EQ(sum, static_cast<float>(comm->size()));
    }
    return cuda_host::counters().nccl_comms - before;
  };
  EXPECT_EQ(made({n, 1, 1, 1}), 1);
  EXPECT_EQ(made({n, 1, n, 1}), 2);  // and the group of the experts, on the stream of tokens
  EXPECT_EQ(made({n, n, 1, 1}), 2);  // and tp
}

// A start_reduce or start_broadcast to several roots is one launch.
TEST(RootedBuffer, UsesOneLaunchForSeveralRoots) {
  const int n = world().size(), r = world().rank();
  if (n == 1) return;
  const std::unique_ptr<Device> device = make_device("cuda");
  const Mesh mesh = on_device(make_mesh(world(), {n, 1, 1, 1}), *device);
  const Tensor x = device->tensor({8 * n});
  run(*device, ops::Fill{.x = x, .value = static_cast<float>(r + 1)});
  std::vector<RootedBuffer> rooted = {{x.view().rows(0, 0), 0}};
  for (int root = 0; root < n; ++root) rooted.push_back({x.view().rows(root * 8, 8), root});
  const auto before = cuda_host::counters();
  mesh.dp->start_reduce(rooted).wait();
  std::vector<float> sums(static_cast<std::size_t>(8 * n));
  device->to_host(x, sums.data());
  const auto after = cuda_host::counters();
  EXPECT_EQ(after.nccl_launches - before.nccl_launches, 1);
  EXPECT_EQ(after.reduces - before.reduces, n);
  mesh.dp->start_broadcast(rooted).wait();
  std::vector<float> all(sums.size());
  device->to_host(x, all.data());
  EXPECT_EQ(cuda_host::counters().nccl_launches - after.nccl_launches, 1);
  for (const float sum : all) EXPECT_EQ(sum, static_cast<float>(n * (n + 1) / 2));
  for (int i = 0; i < 8; ++i) EXPECT_EQ(sums[static_cast<std::size_t>(r * 8 + i)], static_cast<float>(n * (n + 1) / 2));
}

// Adding 1 to 256 in bf16 gives 256 each time. In f32 it does not, so on 3 ranks or more a sum that
// is rounded at each rank differs. The block of rank s has 256 + s in place of 256.
TEST(ReduceScatter, SumsBf16InF32AndRoundsOnce) {
  const int n = world().size(), r = world().rank();
  if (n == 1) return;
  const std::unique_ptr<Device> device = make_device("cuda");
  const Mesh mesh = on_device(make_mesh(world(), {n, 1, 1, 1}), *device);
  constexpr Index rows = 3, width = 5;
  const auto value = [&](int rank, int block) { return rank == 0 ? 256.0f + static_cast<float>(2 * block) : 1.0f; };
  std::vector<std::uint16_t> values;
  for (int block = 0; block < n; ++block) values.insert(values.end(), rows * width, bf16_of_float(value(r, block)));
  const Tensor in = device->tensor({n * rows, width}, DType::bf16),
               scratch = device->tensor({n * rows, width}, DType::bf16),
               out = device->tensor({rows, width}, DType::bf16);
  float sum = 0;
  for (int rank = 0; rank < n; ++rank) sum += value(rank, r);
  for (const View to : {out.view(), in.view().rows(r * rows, rows)}) {
    device->to_device(values.data(), in);
    mesh.dp->reduce_scatter(in, to, scratch);
    std::vector<std::uint16_t> found(rows * width);
    device->to_host(to, found.data());
    for (const std::uint16_t x : found) EXPECT_EQ(float_of_bf16(x), float_of_bf16(bf16_of_float(sum)));
  }
}

// Trains until NCCL reports `result`. Expects an error that names the ranks, the phase, and `why`.
void lose_a_rank(int result, const std::string& why) {
  const int n = world().size();
  if (n == 1) return;
  Trained t(config_of({}), {n, 1, n, 1});
  t.step();
  t.engine.store().finish_all_gather();
  t.engine.take_statistics();
  cuda_host::set_nccl_error(result);
  try {
    t.step();
    t.engine.take_statistics();
    FAIL() << "the loss of a rank went unnoticed";
  } catch (const Failure& e) {
    const std::string what = e.what();
    for (const std::string& text :
         {fmt::format("rank {}", world().rank()), fmt::format("{}", (world().rank() + 1) % n), std::string("layer 1"),
          std::string("all-to-all"), std::string("forward pass"), why})
      EXPECT_NE(what.find(text), std::string::npos) << what;
  }
  cuda_host::set_nccl_error(0);
}

TEST(Step, EndsWhenARankIsLost) {
  lose_a_rank(6, "remote process exited");  // ncclRemoteError
}

// Reports no error, but no launch ends after `launches` more launches of the second step. hangs.sh
// checks what the watchdog reports then.
void hang_for_ever(int launches) {
  Trained t(config_of({}), {world().size(), 1, world().size(), 1});
  t.step();
  t.engine.store().finish_all_gather();
  t.engine.take_statistics();
  cuda_host::set_nccl_error(7, launches);  // ncclInProgress
  const ScopedStep scoped_step(world().rank_context(), 2);
  t.step();
  t.engine.take_statistics();
}
TEST(Step, DISABLED_HangsInACountExchange) {
  hang_for_ever(0);
}
TEST(Step, DISABLED_HangsInADispatch) {
  hang_for_ever(1);
}
TEST(Step, DISABLED_HangsWithAFullQueue) {
  cuda_host::set_queue_limit(8);
  hang_for_ever(1);
}

}  // namespace
}  // namespace sy
