#include "src/plan/measure.h"

#include <algorithm>
#include <chrono>

#include "dist/device_comm.h"
#include "dist/errors.h"
#include "dist/node_groups.h"
#include "dist/runtime.h"
#include "kernels/dry/dry.h"
#include "kernels/ops/activation.h"
#include "kernels/ops/attention.h"
#include "kernels/ops/capacity.h"
#include "kernels/ops/cross_entropy.h"
#include "kernels/ops/dispatch.h"
#include "kernels/ops/elementwise.h"
#include "kernels/ops/embedding.h"
#include "kernels/ops/gemm.h"
#include "kernels/ops/grouped_gemm.h"
#include "kernels/ops/norm.h"
#include "kernels/ops/optimizer.h"
#include "kernels/ops/permute.h"
#include "kernels/ops/rope.h"
#include "kernels/ops/route.h"
#include "src/plan/cost.h"

namespace sy {
namespace {

double seconds_now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// Times work that all ranks do at once, and reports the number of known figures out of `total`.
class Watch {
 public:
  Watch(Comm& world, Device& device, Index total, const std::function<void(Index, Index)>& progress)
      : world_(world), device_(device), total_(total), progress_(progress) {}

  // Returns the seconds of one call of `run`: the median of seven samples of about 10 ms, averaged
  // over the ranks.
  double operator()(const std::function<void()>& run) const {
    run();
    const double once = world_.sum(timed(1, run)) / world_.size();
    const auto calls = static_cast<int>(std::clamp(0.01 / std::max(once, 1e-7), 1.0, 20000.0));
    const Index agreed = world_.max(calls);
    std::vector<double> times;
    for (int i = 0; i < 7; ++i) times.push_back(timed(agreed, run) / static_cast<double>(agreed));
    std::nth_element(times.begin(), times.begin() + 3, times.end());
    if (progress_) progress_(++done_, total_);
    return world_.sum(times[3]) / world_.size();
  }

 private:
  double timed(Index calls, const std::function<void()>& run) const {
    device_.synchronize();
    world_.barrier();
    const double begin = seconds_now();
    for (Index i = 0; i < calls; ++i) run();
    device_.synchronize();
    return seconds_now() - begin;
  }
  Comm& world_;
  Device& device_;
  Index total_;
  mutable Index done_ = 0;
  const std::function<void(Index, Index)>& progress_;
};

// Sizes of a small model: width, experts, top k, vocabulary.
constexpr Index D = 256, E = 8, k = 2, V = 1024;
// Returns a number of tokens whose operands do not fit into a cache. In a step, an operation's
// inputs were also written long before.
Index many_tokens(const Device& b) {
  return b.on_host() ? 32768 : 131072;
}

// A call of the device that is repeated on its own operands.
using Call = std::function<void()>;

// The operands of calls, which must not outlive them.
class Operands {
 public:
  explicit Operands(Device& owner) : device(owner) {}

  View zeros(const Shape& shape, DType dtype = DType::f32) {
    return tensors_.emplace_back(device.tensor(shape, dtype));
  }
  // f32: values from -0.5 to 0.46; bf16: zeros
  View filled(const Shape& shape, DType dtype = DType::f32) {
    const View x = zeros(shape, dtype);
    if (dtype != DType::f32) return x;
    std::vector<float> values(static_cast<std::size_t>(shape.elements()));
    for (std::size_t i = 0; i < values.size(); ++i) values[i] = 0.01f * static_cast<float>(i % 97) - 0.5f;
    device.to_device(values.data(), x);
    return x;
  }
  // i32 from 0 to below - 1
  View numbers(const Shape& shape, Index below) {
    const View x = zeros(shape, DType::i32);
    std::vector<std::int32_t> values(static_cast<std::size_t>(shape.elements()));
    for (std::size_t i = 0; i < values.size(); ++i)
      values[i] = static_cast<std::int32_t>(static_cast<Index>(i) * 7 % below);
    device.to_device(values.data(), x);
    return x;
  }
  template <class Operation>
  Call call(const Operation& op) const {
    return [&on = device, op] { run(on, op); };
  }

  Device& device;

 private:
  std::vector<Tensor> tensors_;
};

// Makes a call and its operands.
using Prepare = std::function<Call(Operands&)>;

// Calls `measure` for each operation whose speed is measured in bytes/s, with T tokens in type c.
void for_each_by_bytes(DType c, Index T, const std::function<void(const Prepare&)>& measure) {
  // make: returns the operation with its operands.
  const auto by_bytes = [&](const auto& make) { measure([&](Operands& x) { return x.call(make(x)); }); };
  by_bytes([=](Operands& x) { return ops::Add{.x = x.filled({T, D}, c), .y = x.filled({T, D}, c)}; });
  by_bytes([=](Operands& x) { return ops::Copy{.x = x.filled({T, D}, c), .y = x.filled({T, D}, c)}; });
  by_bytes([=](Operands& x) { return ops::Fill{.x = x.filled({T, D}), .value = 0}; });
  by_bytes([=](Operands& x) { return ops::SumSquares{.x = x.filled({T * D}), .out = x.zeros({1}, DType::f64)}; });
  by_bytes([=](Operands& x) {
    return ops::NormForward{
        .x = x.filled({T, D}, c), .weight = x.filled({D}, c), .y = x.filled({T, D}, c), .moments = x.zeros({T, 2})};
  });
  by_bytes([=](Operands& x) {
    return ops::NormBackward{.dy = x.filled({T, D}, c),
                             .x = x.filled({T, D}, c),
                             .weight = x.filled({D}, c),
                             .moments = x.filled({T, 2}),
                             .dx = x.filled({T, D}, c),
                             .dweight = x.zeros({D})};
  });
  by_bytes([=](Operands& x) {
    return ops::ActivationForward{.h = x.filled({T, 2 * D}, c), .row_scale = x.filled({T}), .y = x.filled({T, D}, c)};
  });
  by_bytes([=](Operands& x) {
    return ops::ActivationBackward{.dy = x.filled({T, D}, c),
                                   .h = x.filled({T, 2 * D}, c),
                                   .row_scale = x.filled({T}),
                                   .dh = x.filled({T, 2 * D}, c),
                                   .drow_scale = x.zeros({T})};
  });
  by_bytes([=](Operands& x) {
    return ops::Rope{
        .x = x.filled({T, 8, 32}, c), .heads = 6, .positions = x.numbers({T}, 256), .table = x.filled({256, 16, 2})};
  });
  by_bytes([=](Operands& x) {
    return ops::Permute{.x = x.filled({T, D}, c), .index = x.numbers({T * k}, T), .y = x.filled({T * k, D}, c)};
  });
  by_bytes([=](Operands& x) {
    const View y = x.filled({T, D}, c);
    return ops::Unpermute{.x = x.filled({T * k, D}, c), .row_id_map = x.numbers({T, k}, T * k), .addend = y, .y = y};
  });
  by_bytes([=](Operands& x) {
    return ops::RouteForward{.logits = x.filled({T, E}),
                             .experts = x.zeros({T, k}, DType::i32),
                             .weights = x.zeros({T, k}),
                             .counts = x.zeros({4, E}, DType::i32),
                             .probability = x.zeros({4, E}),
                             .z_squared = x.zeros({1}, DType::f64)};
  });
  by_bytes([=](Operands& x) {
    return ops::RouteBackward{.logits = x.filled({T, E}),
                              .experts = x.numbers({T, k}, E),
                              .weights = x.filled({T, k}),
                              .dweights = x.filled({T, k}),
                              .dprobability = x.filled({4, E}),
                              .dlogits = x.filled({T, E}, c)};
  });
  by_bytes([=](Operands& x) {
    return ops::ApplyCapacity{.experts = x.numbers({T, k}, E),
                              .weights = x.filled({T, k}),
                              .segments = 4,
                              .num_experts = E,
                              .desc = {DropOrder::token, T},
                              .dispatch_mask = x.zeros({T, k}, DType::i32)};
  });
  by_bytes([=](Operands& x) {
    return ops::DispatchLayout{.experts = x.numbers({T, k}, E),
                               .dispatch_mask = x.numbers({T, k}, 2),
                               .partition = {E, 1},
                               .physical_experts = x.zeros({T, k}, DType::i32),
                               .tokens = x.zeros({T * k}, DType::i32),
                               .row_id_map = x.zeros({T, k}, DType::i32),
                               .counts = x.zeros({E, 2}, DType::i32),
                               .tokens_per_expert = x.zeros({E}, DType::i32)};
  });
  by_bytes([=](Operands& x) {
    return ops::BuildPermutation{.physical_experts = x.numbers({T, k}, E),
                                 .assignments = x.zeros({T * k}, DType::i32),
                                 .tokens = x.zeros({T * k}, DType::i32),
                                 .row_id_map = x.zeros({T, k}, DType::i32),
                                 .offsets = x.zeros({E + 1}, DType::i32)};
  });
  by_bytes([=](Operands& x) {
    return ops::CrossEntropyForward{
        .logits = x.filled({T, V}), .targets = x.numbers({T}, V), .desc = {}, .partial = x.zeros({T, 3})};
  });
  by_bytes([=](Operands& x) {
    // Keeps the gradient, which replaces the logits, small.
    const double total = 1e9;
    const View sum = x.zeros({1}, DType::f64);
    x.device.to_device(&total, sum);
    return ops::CrossEntropyBackward{.logits = x.filled({T, V}),
                                     .targets = x.numbers({T}, V),
                                     .lse = x.filled({T}),
                                     .total = sum,
                                     .desc = {},
                                     .dlogits = x.filled({T, V}, c)};
  });
  by_bytes([=](Operands& x) {
    return ops::EmbeddingForward{.ids = x.numbers({T}, V), .table = x.filled({V, D}, c), .y = x.filled({T, D}, c)};
  });
  by_bytes([=](Operands& x) {
    return ops::EmbeddingBackward{.ids = x.numbers({T}, V), .dy = x.filled({T, D}, c), .dtable = x.zeros({V, D})};
  });
  by_bytes([=](Operands& x) {
    return ops::AdamW{.coefficient = x.zeros({1}),
                      .step_scalars = x.filled({3}),
                      .g = x.filled({T * D}),
                      .beta1 = 0.9f,
                      .beta2 = 0.95f,
                      .eps = 1e-8f,
                      .weight_decay = 0.1f,
                      .w = x.filled({T * D}),
                      .m = x.zeros({T * D}),
                      .v = x.zeros({T * D})};
  });
}

// GEMM of tokens with a square weight, and the two GEMMs of its gradients.
Call products(Operands& operands, DType c, Index width) {
  constexpr Index T = 2048;
  const View in = operands.filled({T, width}, c), w = operands.filled({width, width}, c),
             y = operands.filled({T, width}, c), din = operands.filled({T, width}, c),
             dw = operands.zeros({width, width});
  return [=, &b = operands.device] {
    run(b, ops::Gemm{.a = in, .b = w, .transpose_b = true, .c = y});
    run(b, ops::Gemm{.a = y, .b = w, .c = din});
    run(b, ops::Gemm{.a = y, .b = in, .transpose_a = true, .accumulate = true, .c = dw});
  };
}

// The same for experts of `each` rows. Their weights and gradients do not fit into a cache.
Call grouped_products(Operands& operands, DType c, Index each) {
  constexpr Index many_experts = 64;
  const Index rows = many_experts * each;
  std::vector<std::int32_t> ends;
  for (Index e = 0; e <= many_experts; ++e) ends.push_back(static_cast<std::int32_t>(e * each));
  const View in = operands.filled({rows, D}, c), w = operands.filled({many_experts, D, D}, c),
             y = operands.filled({rows, D}, c), din = operands.filled({rows, D}, c),
             dw = operands.zeros({many_experts, D, D}), offsets = operands.zeros({many_experts + 1}, DType::i32);
  operands.device.to_device(ends.data(), offsets);
  return [=, &b = operands.device] {
    const GroupOffsets groups{offsets, ends.data()};
    run(b, ops::GroupedGemm{.x = in, .w = w, .groups = groups, .y = y});
    run(b, ops::GroupedGemmDgrad{.dy = y, .w = w, .groups = groups, .dx = din});
    run(b, ops::GroupedGemmWgrad{.dy = y, .x = in, .groups = groups, .dw = dw});
  };
}

Call attention(Operands& operands, DType c, Index width, bool backward) {
  constexpr Index B = 8, S = 256, H = 8;
  const Shape heads{B, S, H, width};
  const View q = operands.filled(heads, c), other_k = operands.filled(heads, c), v = operands.filled(heads, c),
             out = operands.filled(heads, c), d = operands.filled(heads, c), lse = operands.zeros({B, H, S});
  if (!backward)
    return operands.call(ops::AttentionForward{.q = q, .k = other_k, .v = v, .desc = {}, .out = out, .lse = lse});
  return operands.call(ops::AttentionBackward{
      .dout = out, .q = q, .k = other_k, .v = v, .out = out, .lse = lse, .desc = {}, .dq = d, .dk = d, .dv = d});
}

// Counts the FLOPs and bytes of a call on the dry device.
DryCounts counted(const Prepare& prepare) {
  const std::unique_ptr<Device> dry = make_dry();
  Operands operands(*dry);
  const Call call = prepare(operands);
  dry_counts(*dry) = {};
  call();
  return dry_counts(*dry);
}

// Returns the seconds of one step of a small all-gather, and the bandwidth in bytes/s. The
// bandwidth is the average of reduce-scatter, all-gather and all-to-all. peers: location of the
// other ranks of the group.
std::pair<double, double> measure_links(const Watch& watch, Device& b, Comm& group, const Peers& peers,
                                        double message_overhead) {
  const int p = group.size();
  constexpr Index n = Index{1} << 17;  // floats per rank
  Operands operands(b);
  const View all = operands.filled({p * n}), shard = operands.filled({n}), back = operands.filled({p * n});
  const std::vector<Index> each(static_cast<std::size_t>(p), n);
  const auto gather = [&](Index of) { group.all_gather(shard.rows(0, of), all.rows(0, p * of)); };
  const double small = watch([&] { gather(16); });
  const std::vector<Algorithm> algorithms = algorithms_of(!b.on_host(), peers, {Collective::all_gather, ""});
  const Algorithm& used = algorithms.back();  // the algorithm with the fewest steps
  const double latency =
      std::max(small - used.messages * message_overhead, small / 10) / (used.node_steps + used.steps);
  const double seconds = (watch([&] { gather(n); }) + watch([&] { group.reduce_scatter(all, shard); }) +
                          watch([&] { group.all_to_all_v(all, each, back, each); })) /
                         3;
  const double bytes = static_cast<double>((p - 1) * n * 4);
  return {latency, bytes / std::max(seconds - small, seconds / 10)};
}

}  // namespace

void check_can_measure(const Comm& world) {
  if (world.size() < 2)
    throw CollectiveError(2,
                          "--machine measures the links between ranks, too: start doctor with at least 2, as in "
                          "launch/mpirun.sh 2 switchyard doctor --machine FILE");
}

Machine measure_machine(Comm& world, Device& device, const std::string& name, double memory,
                        const std::function<void(Index, Index)>& progress) {
  check_can_measure(world);
  const int here = ranks_sharing(world, ""), ranks = world.size();
  const Index most = world.max(Index{here}), least = -world.max(-Index{here});
  if (least != most || !check_nodes(world, here).problem.empty())
    throw CollectiveError(2,
                          "--machine needs equally many ranks on each host, and consecutive ranks on the same host: "
                          "mpirun --map-by slot, or srun --distribution=block:block");
  constexpr Index product_sizes[] = {16, 64, 128, 256, 512, 1024}, grouped_sizes[] = {4, 16, 64, 256},
                  head_widths[] = {16, 32, 64, 128}, link_figures = 4;
  const DType c = device.on_host() ? DType::f32 : DType::bf16;
  Index num_by_bytes = 0;
  for_each_by_bytes(c, 0, [&](const Prepare&) { ++num_by_bytes; });
  const Watch watch(world, device,
                    4 + std::ssize(product_sizes) + std::ssize(grouped_sizes) + 2 * std::ssize(head_widths) +
                        num_by_bytes + link_figures * ((here > 1) + (here < ranks)),
                    progress);
  Machine m;
  m.name = name;
  m.shared = device.on_host();
  m.backend = device.on_host() ? "cpu" : "cuda";
  m.memory = device.on_host() ? memory : 0.95 * static_cast<double>(device.free_bytes());
  m.ranks_per_node = here < ranks ? here : 0;
  const double together = m.shared ? here : 1;  // ranks that share the machine's speeds

  {
    Operands x(device);
    const View tiny = x.filled({16, 16});
    m.overhead = watch(x.call(ops::Gemm{.a = tiny, .b = tiny, .c = x.zeros({16, 16})}));
  }
  const auto measure = [&](const Prepare& prepare) {
    const DryCounts work = counted(prepare);
    double calls = 0;
    for (const auto& [call, times] : work.calls) calls += static_cast<double>(times);
    Operands operands(device);
    const double seconds = watch(prepare(operands));
    // The time of a very fast operation may vanish in the measured overhead.
    return std::pair(work, std::max(seconds - calls * m.overhead, seconds / 10));
  };
  const auto flops = [&](const Prepare& prepare) {
    const auto [work, seconds] = measure(prepare);
    return together * work.flops / seconds;
  };
  m.peak_f32 = flops([](Operands& x) { return products(x, DType::f32, 1024); });
  m.peak_bf16 = flops([](Operands& x) { return products(x, DType::bf16, 1024); });
  // A share is at most 1, because on a busy machine the measured peak may be too low.
  const auto share = [&, peak = m.peak(c)](const Prepare& prepare) { return std::min(1.0, flops(prepare) / peak); };
  for (Index size : product_sizes)
    m.products.points.emplace_back(size, share([=](Operands& x) { return products(x, c, size); }));
  for (Index each : grouped_sizes)
    m.grouped_products.points.emplace_back(each, share([=](Operands& x) { return grouped_products(x, c, each); }));
  for (Index width : head_widths)
    for (const bool backward : {false, true}) {
      Curve& curve = backward ? m.attention_backward : m.attention_forward;
      curve.points.emplace_back(width, share([=](Operands& x) { return attention(x, c, width, backward); }));
    }

  for_each_by_bytes(c, many_tokens(device), [&](const Prepare& prepare) {
    const auto [work, seconds] = measure(prepare);
    m.operations[std::string(work.calls.begin()->first.op)] = together * work.bytes / seconds;
  });
  {
    constexpr Index n = Index{1} << 24;
    Operands x(device);
    m.memory_bandwidth = together * 2 * n * 4 / watch(x.call(ops::Copy{.x = x.filled({n}), .y = x.filled({n})}));
  }

  const auto group = [&](const std::function<int(int)>& color) {
    std::unique_ptr<Comm> comm = world.split(color);
    return device.on_host()
               ? std::move(comm)
               : make_device_comm(device, world.rank(), world.rank_context())(std::move(comm), CommStream::tokens);
  };
  const auto node = group([&](int rank) { return rank / here; });
  if (node->size() > 1)
    std::tie(m.node_latency, m.node_bandwidth) =
        measure_links(watch, device, *node, {node->size() - 1, 0}, m.message_overhead);
  if (here < ranks) {
    const auto across = group([&](int rank) { return rank % here; });
    std::tie(m.latency, m.bandwidth) =
        measure_links(watch, device, *across, {0, across->size() - 1}, m.message_overhead);
    if (m.node_bandwidth == 0) std::tie(m.node_latency, m.node_bandwidth) = std::pair(m.latency, m.bandwidth);
  }
  m.node_bandwidth *= together;
  m.bandwidth *= together;
  return m;
}

}  // namespace sy
