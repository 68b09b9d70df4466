// What travels between ranks in a MoE layer: dispatch and combine beside a plain all-to-all of as many bytes, by routing, and a
// layer's passes beside their travel alone.
#include <algorithm>
#include <cmath>

#include "kernels/philox.h"
#include "src/plan/load.h"
#include "tests/bench/gpu/layer.h"

namespace sy::bench {
namespace {

const ModelShape gpu_layers[] = {
    {"Mixtral 8x7B", 1, 4096, 32, 8, 8, 2, 14336, 256, 1, 4096},
    {"64 experts, top 8", 1, 2048, 16, 16, 64, 8, 1408, 256, 1, 4096},
};
// What processors train, and what shows in a second that everything runs.
const ModelShape host_layers[] = {{"8 experts, top 2", 1, 256, 8, 8, 8, 2, 704, 256, 4, 256},
                                  {"64 experts, top 8", 1, 256, 8, 8, 64, 8, 128, 256, 4, 256}};
const ModelShape few_layers[] = {{"small", 1, 64, 2, 1, 8, 2, 96, 64, 2, 24}};

struct Load {
  std::string name;
  std::vector<double> shares;  // [E] of the assignments
};

// [T, k] of this rank: distinct experts, drawn in proportion to their shares.
std::vector<std::int32_t> draw_experts(const Load& load, Index T, Index k, int rank) {
  const auto E = static_cast<Index>(load.shares.size());
  const RandomStream random(1, fmt::format("routing of rank {}", rank));
  std::vector<std::int32_t> all, order(E);
  std::vector<double> keys(E);
  for (Index t = 0; t < T; ++t) {
    for (Index e = 0; e < E; ++e) {
      keys[e] = std::log(load.shares[e] + 1e-9) + random.gumbel(static_cast<std::uint64_t>(t * E + e));
      order[e] = static_cast<std::int32_t>(e);
    }
    std::partial_sort(order.begin(), order.begin() + k, order.end(), [&](auto a, auto b) { return keys[a] > keys[b]; });
    all.insert(all.end(), order.begin(), order.begin() + k);
  }
  return all;
}

std::vector<Load> loads_of(const Setup& setup, const ModelShape& shape) {
  std::vector<Load> loads = {{"balanced", std::vector<double>(shape.experts, 1.0)}, {"uneven", {}}};
  for (Index e = 0; e < shape.experts; ++e) loads[1].shares.push_back(1 / static_cast<double>(e + 1));
  if (setup.load.empty()) return loads;
  // Of a run of as many experts its last MoE layer, as it was routed.
  Config config = config_of(shape, setup.dtype);
  const Config of_run = read_config(setup.load / "config.ini", {});
  if (of_run.moe.experts != shape.experts) return loads;
  loads.push_back({"of " + setup.load.string(), recorded_load(setup.load, of_run).back()});
  return loads;
}

// All ranks repeat as often, or they would wait for each other in different collectives.
Spread measure_together(Comm& world, Backend& backend, const Setup& setup, const Run& run) {
  run();
  const double once = world.sum(sample(backend, 2, run)) / static_cast<double>(world.size());
  const Index n = std::max<Index>(1, std::llround(std::min(setup.sample_seconds / once, 1e6)));
  std::vector<double> seconds;
  for (int i = 0; i < setup.samples; ++i) {
    world.barrier();
    seconds.push_back(sample(backend, n, run));
  }
  return spread_of(seconds);
}

// One routing's tokens on their way to the experts and back.
class Trip {
 public:
  Trip(Layer& layer, const ModelShape& shape, DType dtype, const Load& load)
      : backend_(layer.backend()),
        mesh_(layer.engine().mesh()),
        group_(*mesh_.experts),
        ranks_(mesh_.layout, {}),
        T_(shape.sequences * shape.seq_len),
        k_(shape.top_k),
        arena_([this](Index bytes) { return backend_.allocate(bytes); }),
        kept_(backend_.tensor({T_, k_}, DType::i32)),
        x_(backend_.tensor({T_, shape.d_model}, dtype)),
        y_(backend_.tensor({T_, shape.d_model}, dtype)),
        weights_(backend_.tensor({T_, k_})) {
    const std::vector<std::int32_t> experts = draw_experts(load, T_, k_, group_.rank());
    const Tensor chosen = backend_.tensor({T_, k_}, DType::i32);
    const std::vector<std::int32_t> all(T_ * k_, 1);
    backend_.to_device(experts.data(), chosen);
    backend_.to_device(all.data(), kept_);
    fill_normal(backend_, x_, 1, "x");
    sends_ = Sends(ranks_, T_, k_, shape.experts, arena_, arena_);
    sends_.plan(backend_, ranks_, chosen, kept_, arena_.i32({shape.experts}), arena_);
    backend_.synchronize();
  }

  void dispatch() {
    const Arena::Scope scope(arena_);
    Exchange exchange = begin();
    exchange.finish();
  }
  // With the dispatch before it, whose time is to be subtracted.
  void dispatch_combine() {
    const Arena::Scope scope(arena_);
    Exchange exchange = begin();
    exchange.finish();
    // As if every token that arrived were one row: what the experts' rows are summed to is theirs.
    exchange.combine({{arrived_, identity(arrived_.dim(0)), {}, y_}}, arena_);
    exchange.finish();
  }
  // So many rows to each rank.
  void all_to_all(Index each) {
    const Arena::Scope scope(arena_);
    const Index P = group_.size();
    const std::vector<Index> rows(P, each);
    const View in = arena_.take({P * each, x_.view().dim(1)}, x_.view().dtype()),
               out = arena_.take(in.shape(), in.dtype());
    group_.all_to_all_v(in, rows, out, rows);
  }

  // Rows that leave this rank for others.
  Index sent_rows() {
    if (sent_ >= 0) return sent_;
    std::vector<std::int32_t> counts(sends_.counts.elements());
    backend_.to_host(sends_.counts, counts.data());
    sent_ = 0;
    for (int r = 0; r < group_.size(); ++r)
      if (r != group_.rank()) sent_ += counts[r];
    return sent_;
  }
  Index row_bytes() const { return sy::row_bytes(x_); }

 private:
  Exchange begin() {
    Exchange exchange(backend_, mesh_, ranks_, sends_, arena_);
    const ConstView x = exchange.copies(x_, arena_), weights = exchange.copies(weights_, arena_);
    exchange.plan(arena_, arena_);
    arrived_ = exchange.dispatch({{x, arena_}, {weights, arena_}}, arena_)[0];
    return exchange;
  }
  ConstView identity(Index n) {
    if (!identity_.view() || identity_.view().elements() < n) {
      std::vector<std::int32_t> rows(n);
      for (Index i = 0; i < n; ++i) rows[i] = static_cast<std::int32_t>(i);
      identity_ = backend_.tensor({n, 1}, DType::i32);
      backend_.to_device(rows.data(), identity_);
    }
    return identity_.view().rows(0, n);
  }

  Backend& backend_;
  const Mesh& mesh_;
  Comm& group_;
  ExpertRanks ranks_;
  Index T_, k_, sent_ = -1;
  Arena arena_;
  Tensor kept_, x_, y_, weights_, identity_;
  Sends sends_;
  ConstView arrived_;
};

Spread less(const Spread& a, const Spread& b) {
  return {std::max(0.0, a.least - b.median), std::max(0.0, a.median - b.median), std::max(0.0, a.most - b.median)};
}

void measure_layer(const Setup& setup, Comm& world, const ModelShape& shape, std::vector<Section>& sections) {
  Layer layer(shape, setup.dtype, setup.make(), world);
  Backend& backend = layer.backend();
  sections.push_back(
      {fmt::format("Between {} ranks: {}", world.size(), shape.name),
       fmt::format("{}, {} tokens a rank, d_model {}, {} experts of {}, top {}, ep {}. GB/s: of what a rank "
                   "sends to others, the mean over ranks. A plain all-to-all sends as many bytes to every rank "
                   "(nccl-tests' alltoall, algorithm bandwidth).",
                   info(setup.dtype).name, shape.sequences * shape.seq_len, shape.d_model, shape.experts, shape.d_ff,
                   shape.top_k, world.size()),
       {}});
  std::vector<Line>& lines = sections.back().lines;
  double travel = 0;
  for (const Load& load : loads_of(setup, shape)) {
    Trip trip(layer, shape, setup.dtype, load);
    const double bytes =
        world.sum(static_cast<double>(trip.sent_rows() * trip.row_bytes())) / static_cast<double>(world.size());
    const auto line = [&](std::string what, const Spread& seconds) {
      lines.push_back({.what = what + ", " + load.name,
                       .seconds = seconds,
                       .note = fmt::format("{:.3g} MB", bytes / 1e6) +
                               (seconds.median > 0 ? fmt::format(", {:.3g} GB/s", bytes / seconds.median / 1e9) : "")});
    };
    const Spread there = measure_together(world, backend, setup, [&] { trip.dispatch(); });
    const Spread both = measure_together(world, backend, setup, [&] { trip.dispatch_combine(); });
    line("dispatch", there);
    line("combine", less(both, there));
    const auto others = static_cast<double>((world.size() - 1) * trip.row_bytes());
    const auto each = static_cast<Index>(std::llround(bytes / others));
    line("plain all-to-all", measure_together(world, backend, setup, [&] { trip.all_to_all(each); }));
    if (travel == 0) travel = both.median;
  }
  const Spread forward = measure_together(world, backend, setup, [&] { layer.forward(); });
  const Spread step = measure_together(world, backend, setup, [&] { layer.forward_backward(); });
  layer.check();
  lines.push_back({.what = "layer, forward", .seconds = forward});
  lines.push_back({.what = "layer, backward",
                   .seconds = less(step, forward),
                   .note = fmt::format("dispatch and combine alone take {:.3g} ms", 1e3 * travel)});
}

}  // namespace

void measure_ranks(const Setup& setup, Comm& world, std::vector<Section>& sections) {
  const std::span<const ModelShape> shapes = setup.small              ? std::span<const ModelShape>(few_layers)
                                             : setup.backend == "cpu" ? std::span<const ModelShape>(host_layers)
                                                                      : gpu_layers;
  for (const ModelShape& shape : shapes)
    if (shape.experts % world.size() == 0) measure_layer(setup, world, shape, sections);
}

}  // namespace sy::bench
