// Measures communication between the ranks of a MoE model.
// - Dispatch and combine beside a plain all-to-all of as many bytes, by routing.
// - Passes of a layer, beside those of a layer that waits for its tokens.
// - A step that reduces gradients during backward, and one that reduces them after it.
#include <algorithm>
#include <cmath>

#include "kernels/philox.h"
#include "src/cli/trained.h"
#include "src/config/layout.h"
#include "src/evaluate/replay.h"
#include "src/train/distributed_optimizer.h"
#include "tests/bench/gpu/layer.h"
#include "tests/bench/gpu/trip.h"

namespace sy::bench {
namespace {

const ModelShape gpu_layers[] = {
    {"Mixtral 8x7B", 1, 4096, 32, 8, 8, 2, 14336, 256, 1, 4096},
    {"64 experts, top 8", 1, 2048, 16, 16, 64, 8, 1408, 256, 1, 4096},
};
// Layers that CPUs train, and a layer that shows in a second that everything runs.
const ModelShape host_layers[] = {{"8 experts, top 2", 1, 256, 8, 8, 8, 2, 704, 256, 4, 256},
                                  {"64 experts, top 8", 1, 256, 8, 8, 64, 8, 128, 256, 4, 256},
                                  {"64 experts, top 1", 1, 256, 8, 8, 64, 1, 704, 256, 4, 256}};
const ModelShape few_layers[] = {{"small", 1, 64, 2, 1, 8, 2, 96, 64, 2, 24}};

// Draws distinct experts for each token, in proportion to `shares`: [E].
Load drawn(std::string name, const std::vector<double>& shares, Index k) {
  return {std::move(name), [=](Index T, int rank) {
            const auto E = static_cast<Index>(shares.size());
            const RandomStream random(1, fmt::format("routing of rank {}", rank));
            std::vector<std::int32_t> all, order(E);
            std::vector<double> keys(E);
            for (Index t = 0; t < T; ++t) {
              for (Index e = 0; e < E; ++e) {
                keys[e] = std::log(shares[e] + 1e-9) + random.gumbel(static_cast<std::uint64_t>(t * E + e));
                order[e] = static_cast<std::int32_t>(e);
              }
              std::partial_sort(order.begin(), order.begin() + k, order.end(),
                                [&](auto a, auto b) { return keys[a] > keys[b]; });
              all.insert(all.end(), order.begin(), order.begin() + k);
            }
            return all;
          }};
}

std::vector<Load> drawn_loads(const ModelShape& shape) {
  std::vector<double> uneven;
  for (Index e = 0; e < shape.experts; ++e) uneven.push_back(1 / static_cast<double>(e + 1));
  return {drawn("balanced", std::vector<double>(shape.experts, 1.0), shape.top_k),
          drawn("uneven", uneven, shape.top_k)};
}

// The shape of a run's last MoE layer, and the physical experts that it chose for the run's
// validation text, without drops.
struct Recorded {
  ModelShape shape;
  std::vector<std::int32_t> physical_experts;  // [tokens, k]
};
Recorded recorded(const std::filesystem::path& run, int ranks) {
  const auto self = make_comm_self();
  const Trained trained = open_checkpoint(*self, run.string());
  const Config& config = trained.config;
  if (config.moe.experts == 0 || config.moe.experts % ranks != 0)
    bad_input("--load: {} has {} experts, which {} ranks cannot share: give another run, or other ranks", run.string(),
              config.moe.experts, ranks);
  const auto dataset = open_validation(trained, dataset_of(trained, {}), {}, false, true);
  const auto engine = load_model(*self, trained, {}, "cpu");
  std::vector<std::int32_t> physical_experts;
  for_replay_batches(dataset, config, {.max_windows = 64}, [&](const ReplayBatch& batch) {
    const std::vector<std::int32_t> experts = replay(*engine, batch, true, false).layers.back().experts;
    physical_experts.insert(physical_experts.end(), experts.begin(), experts.end());
  });
  if (const auto orders = read_expert_map(config); !orders.empty())
    for (std::int32_t& expert : physical_experts) {
      const std::vector<Index>& physical_to_logical = orders.back();
      expert = static_cast<std::int32_t>(std::find(physical_to_logical.begin(), physical_to_logical.end(), expert) -
                                         physical_to_logical.begin());
    }
  return {{"", 1, config.model.d_model, 1, 1, config.moe.experts, config.moe.top_k, config.moe.d_ff, 256,
           config.train.micro_batch, config.model.seq_len},
          std::move(physical_experts)};
}

// Rank 0 reads the run and broadcasts it.
Recorded shared_by(Comm& world, const std::filesystem::path& run) {
  Recorded r{};
  agree_on_errors(world, [&] {
    if (world.rank() == 0) r = recorded(run, world.size());
  });
  ModelShape& s = r.shape;
  s.name = "of " + run.string();
  Index size = std::ssize(r.physical_experts);
  for (Index* number : {&s.layers, &s.d_model, &s.heads, &s.kv_heads, &s.experts, &s.top_k, &s.d_ff, &s.vocab,
                        &s.sequences, &s.seq_len, &size})
    world.broadcast(view_of(number, {1}), 0);
  r.physical_experts.resize(static_cast<std::size_t>(size));
  world.broadcast(view_of(r.physical_experts.data(), {size}), 0);
  return r;
}

// Each rank takes the tokens of the next micro-batch.
Load load_of(const Recorded& r) {
  return {r.shape.name, [physical_experts = r.physical_experts, k = r.shape.top_k](Index T, int rank) {
            std::vector<std::int32_t> all;
            const Index tokens = std::ssize(physical_experts) / k;
            for (Index t = 0; t < T; ++t) {
              const auto first = physical_experts.begin() + (rank * T + t) % tokens * k;
              all.insert(all.end(), first, first + k);
            }
            return all;
          }};
}

// Measures runs alternately. All ranks repeat a run equally often: otherwise they would wait for
// each other in different collectives.
std::vector<Spread> measure_together(Comm& world, Device& device, const Setup& setup, const std::vector<Run>& runs) {
  std::vector<Index> repeated;
  for (const Run& run : runs) {
    run();
    const double once = world.sum(sample(device, 2, run)) / static_cast<double>(world.size());
    repeated.push_back(std::max<Index>(1, std::llround(std::min(setup.sample_seconds / once, 1e6))));
  }
  std::vector<std::vector<double>> seconds(runs.size());
  for (int i = 0; i < setup.samples; ++i)
    for (std::size_t r = 0; r < runs.size(); ++r) {
      world.barrier();
      seconds[r].push_back(sample(device, repeated[r], runs[r]));
    }
  std::vector<Spread> spreads;
  for (const auto& of_run : seconds) spreads.push_back(spread_of(of_run));
  return spreads;
}

Spread less(const Spread& a, const Spread& b) {
  return {std::max(0.0, a.least - b.median), std::max(0.0, a.median - b.median), std::max(0.0, a.most - b.median)};
}

// Share of `alone` seconds of work that is hidden behind other work. Its range is the least to the
// most that the samples allow, which says little for short work. Empty if a collective is complete
// when its call returns.
std::string hidden(const Comm& comm, const Spread& behind, const Spread& beside, double alone) {
  if (!comm.asynchronous()) return "";
  const auto percent = [&](double with, double without) { return 100 * (with - without) / alone; };
  return fmt::format("{:.0f} % ({:.0f} to {:.0f}) of {:.3g} ms is hidden", percent(behind.median, beside.median),
                     percent(behind.least, beside.most), percent(behind.most, beside.least), 1e3 * alone);
}

void compare_ways(const Setup& setup, Comm& world, Device& device, Trip& trip, const std::string& load,
                  std::vector<Line>& lines) {
  trip.compare_ways();
  for (const bool back : {false, true}) {
    std::vector<Run> passes;
    for (const auto way : {Trip::Way::indexed, Trip::Way::copied, Trip::Way::by_expert})
      passes.push_back([&trip, way, back] { trip.to_experts(way, back); });
    const std::vector<Spread> times = measure_together(world, device, setup, passes);
    const char* const names[] = {"through an index", "copied to their places", "a message for each expert"};
    for (std::size_t i = 0; i < times.size(); ++i)
      lines.push_back({.what = fmt::format("rows of experts{}, {}, {}", back ? " and back" : "", names[i], load),
                       .seconds = times[i],
                       .note = fmt::format("{:.2f} times the first", times[i].median / times[0].median)});
  }
}

void measure_layer(const Setup& setup, Comm& world, const ModelShape& shape, const std::vector<Load>& loads,
                   std::vector<Section>& sections) {
  Layer layer(shape, setup.dtype, setup.make(), world), waiting(shape, setup.dtype, setup.make(), world, true);
  Device& device = layer.device();
  sections.push_back(
      {fmt::format("Between {} ranks: {}", world.size(), shape.name),
       fmt::format("{}, {} tokens a rank, d_model {}, {} experts of {}, top {}, ep {}. GB/s: of what a rank "
                   "sends to others, the mean over ranks. A plain all-to-all sends as many bytes to every rank "
                   "(nccl-tests' alltoall, bus bandwidth).",
                   info(setup.dtype).name, shape.sequences * shape.seq_len, shape.d_model, shape.experts, shape.d_ff,
                   shape.top_k, world.size()),
       {}});
  std::vector<Line>& lines = sections.back().lines;
  double travel = 0;
  for (const Load& load : loads) {
    Trip trip(device, layer.engine().mesh(), shape, setup.dtype, load);
    const double bytes =
        world.sum(static_cast<double>(trip.sent_rows() * trip.row_bytes())) / static_cast<double>(world.size());
    const auto others = static_cast<double>((world.size() - 1) * trip.row_bytes());
    const auto each = static_cast<Index>(std::llround(bytes / others));
    const auto times =
        measure_together(world, device, setup,
                         {[&] { trip.dispatch(); }, [&] { trip.dispatch_combine(); }, [&] { trip.all_to_all(each); }});
    const auto line = [&](const std::string& what, const Spread& seconds) {
      lines.push_back({.what = what + ", " + load.name,
                       .seconds = seconds,
                       .note = fmt::format("{:.3g} MB", bytes / 1e6) +
                               (seconds.median > 0 ? fmt::format(", {:.3g} GB/s", bytes / seconds.median / 1e9) : "")});
    };
    line("dispatch", times[0]);
    line("combine", less(times[1], times[0]));
    line("plain all-to-all", times[2]);
    if (device.on_host()) compare_ways(setup, world, device, trip, load.name, lines);
    if (travel == 0) travel = times[1].median;
  }
  const auto times = measure_together(world, device, setup,
                                      {[&] { layer.forward(); }, [&] { layer.forward_backward(); },
                                       [&] { waiting.forward(); }, [&] { waiting.forward_backward(); }});
  layer.check();
  waiting.check();
  const Comm& comm = *layer.engine().mesh().expert_group;
  const Spread backward = less(times[1], times[0]), backward_waiting = less(times[3], times[2]);
  lines.push_back({.what = "layer, forward", .seconds = times[0], .note = hidden(comm, times[2], times[0], travel)});
  lines.push_back(
      {.what = "layer, backward", .seconds = backward, .note = hidden(comm, backward_waiting, backward, travel)});
  lines.push_back({.what = "layer, forward, its tokens waited for", .seconds = times[2]});
  lines.push_back({.what = "layer, backward, its tokens waited for", .seconds = backward_waiting});
}

// Measures a step whose experts are over half of the ranks: two ranks hold each expert, and all
// gradients are reduced. The gradients of a layer are in flight during the backward passes of the
// layers before it. One layer alone would hide nothing.
void measure_sync(const Setup& setup, Comm& world, ModelShape shape, std::vector<Section>& sections) {
  shape.layers = 3;
  const Config config = config_of(shape, setup.dtype);
  Engine engine(config, shape.vocab, setup.make(), make_mesh(world, {.ranks = world.size(), .ep = world.size() / 2}),
                true);
  DistributedOptimizer optimizer(engine.mesh(), engine.store());
  fill_parameters(engine);
  const Index T = shape.sequences * shape.seq_len;
  const RandomStream random(1, fmt::format("tokens of rank {}", world.rank()));
  std::vector<std::int32_t> ids(T), targets(T);
  for (Index t = 0; t < T; ++t) {
    ids[t] = static_cast<std::int32_t>(random.bits(2 * t) % shape.vocab);
    targets[t] = static_cast<std::int32_t>(random.bits(2 * t + 1) % shape.vocab);
  }
  Index steps = 0;
  const auto step = [&](const BackwardHooks& hooks) {
    engine.forward_backward(
        {shape.sequences, shape.seq_len, ids, targets, T * world.size(), shape.sequences * world.size(), 1}, hooks);
    optimizer.step(config.train, 1e-4, ++steps);
  };
  const auto reduce = [&] {
    const auto& layout = engine.store().layout();
    for (std::size_t g = 0; g < layout.groups.size(); ++g) {
      const Range owned = layout.groups[g].owned();
      const View gradients = engine.store().buffers(g).grads;
      engine.mesh().over(layout.groups[g].axes).reduce_scatter(gradients, gradients.rows(owned.begin, owned.size()));
    }
  };
  const auto times = measure_together(world, engine.device(), setup,
                                      {[&] { step(optimizer.backward_hooks()); }, [&] { step({}); }, reduce});
  sections.push_back({fmt::format("A step of {} ranks: {}", world.size(), shape.name),
                      fmt::format("{} layers, ep {}: each expert is on two ranks, and every gradient is reduced.",
                                  shape.layers, world.size() / 2),
                      {{.what = "gradients reduced beside backward",
                        .seconds = times[0],
                        .note = hidden(*engine.mesh().dp, times[1], times[0], times[2].median)},
                       {.what = "gradients reduced behind backward", .seconds = times[1]},
                       {.what = "reducing them alone", .seconds = times[2]}}});
  if (!std::isfinite(optimizer.gradient_norm())) fail("the gradients have a norm of {}", optimizer.gradient_norm());
}

}  // namespace

void measure_ranks(const Setup& setup, Comm& world, std::vector<Section>& sections) {
  const int n = world.size();
  const std::span<const ModelShape> shapes = setup.small              ? std::span<const ModelShape>(few_layers)
                                             : setup.backend == "cpu" ? std::span<const ModelShape>(host_layers)
                                                                      : gpu_layers;
  std::optional<Recorded> run;
  if (!setup.load.empty()) run = shared_by(world, setup.load);
  for (const ModelShape& shape : shapes)
    if (shape.experts % n == 0) measure_layer(setup, world, shape, drawn_loads(shape), sections);
  if (run) {
    std::vector<Load> loads = drawn_loads(run->shape);
    loads.push_back(load_of(*run));
    measure_layer(setup, world, run->shape, loads, sections);
  }
  for (const ModelShape& shape : shapes)
    if (n % 2 == 0 && shape.experts % (n / 2) == 0) measure_sync(setup, world, shape, sections);
}

}  // namespace sy::bench
