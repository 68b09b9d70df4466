#include "src/plan/measure.h"

#include <algorithm>
#include <chrono>
#include <numeric>

#include "dist/device_comm.h"
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

Tensor filled(Device& b, const Shape& shape, DType dtype) {
  Tensor t = b.tensor(shape, dtype);
  if (dtype != DType::f32) return t;
  std::vector<float> values(static_cast<std::size_t>(shape.elements()));
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = 0.01f * static_cast<float>(i % 97) - 0.5f;
  b.to_device(values.data(), t);
  return t;
}
Tensor numbers(Device& b, const Shape& shape, Index below) {
  Tensor t = b.tensor(shape, DType::i32);
  std::vector<std::int32_t> values(static_cast<std::size_t>(shape.elements()));
  for (std::size_t i = 0; i < values.size(); ++i)
    values[i] = static_cast<std::int32_t>(static_cast<Index>(i) * 7 % below);
  b.to_device(values.data(), t);
  return t;
}

// A call of the device that is repeated on its own operands.
using Call = std::function<void()>;
using Prepare = std::function<Call(Device&, DType, Index tokens)>;

template <class... Tensors>
auto held(Tensors... tensors) {
  return std::make_shared<std::tuple<Tensors...>>(std::move(tensors)...);
}

// Operations whose speed is measured in bytes/s.
const Prepare by_bytes[] = {
    [](Device& b, DType c, Index T) -> Call {
      const auto x = held(filled(b, {T, D}, c), filled(b, {T, D}, c));
      return [&b, x] { run(b, ops::Add{.x = std::get<0>(*x), .y = std::get<1>(*x)}); };
    },
    [](Device& b, DType c, Index T) -> Call {
      const auto x = held(filled(b, {T, D}, c), filled(b, {T, D}, c));
      return [&b, x] { run(b, ops::Copy{.x = std::get<0>(*x), .y = std::get<1>(*x)}); };
    },
    [](Device& b, DType, Index T) -> Call {
      const auto x = held(filled(b, {T, D}, DType::f32));
      return [&b, x] { run(b, ops::Fill{.x = std::get<0>(*x), .value = 0}); };
    },
    [](Device& b, DType, Index T) -> Call {
      const auto x = held(filled(b, {T * D}, DType::f32), b.tensor({1}, DType::f64));
      return [&b, x] { run(b, ops::SumSquares{.x = std::get<0>(*x), .out = std::get<1>(*x)}); };
    },
    [](Device& b, DType c, Index T) -> Call {
      const auto x = held(filled(b, {T, D}, c), filled(b, {D}, c), filled(b, {T, D}, c), b.tensor({T, 2}));
      return [&b, x] {
        const auto& [in, w, y, moments] = *x;
        run(b, ops::NormForward{.x = in, .weight = w, .y = y, .moments = moments});
      };
    },
    [](Device& b, DType c, Index T) -> Call {
      const auto x = held(filled(b, {T, D}, c), filled(b, {T, D}, c), filled(b, {D}, c), filled(b, {T, 2}, DType::f32),
                          filled(b, {T, D}, c), b.tensor({D}));
      return [&b, x] {
        const auto& [dy, in, w, moments, dx, dw] = *x;
        run(b, ops::NormBackward{.dy = dy, .x = in, .weight = w, .moments = moments, .dx = dx, .dweight = dw});
      };
    },
    [](Device& b, DType c, Index T) -> Call {
      const auto x = held(filled(b, {T, 2 * D}, c), filled(b, {T}, DType::f32), filled(b, {T, D}, c));
      return [&b, x] {
        const auto& [h, scale, y] = *x;
        run(b, ops::ActivationForward{.h = h, .row_scale = scale, .y = y});
      };
    },
    [](Device& b, DType c, Index T) -> Call {
      const auto x = held(filled(b, {T, D}, c), filled(b, {T, 2 * D}, c), filled(b, {T}, DType::f32),
                          filled(b, {T, 2 * D}, c), b.tensor({T}));
      return [&b, x] {
        const auto& [dy, h, scale, dh, dscale] = *x;
        run(b, ops::ActivationBackward{.dy = dy, .h = h, .row_scale = scale, .dh = dh, .drow_scale = dscale});
      };
    },
    [](Device& b, DType c, Index T) -> Call {
      const auto x = held(filled(b, {T, 8, 32}, c), numbers(b, {T}, 256), filled(b, {256, 16, 2}, DType::f32));
      return [&b, x] {
        const auto& [heads, positions, table] = *x;
        run(b, ops::Rope{.x = heads, .heads = 6, .positions = positions, .table = table});
      };
    },
    [](Device& b, DType c, Index T) -> Call {
      const auto x = held(filled(b, {T, D}, c), numbers(b, {T * k}, T), filled(b, {T * k, D}, c));
      return [&b, x] {
        const auto& [in, index, y] = *x;
        run(b, ops::Permute{.x = in, .index = index, .y = y});
      };
    },
    [](Device& b, DType c, Index T) -> Call {
      const auto x = held(filled(b, {T * k, D}, c), numbers(b, {T, k}, T * k), filled(b, {T, D}, c));
      return [&b, x] {
        const auto& [in, row_id_map, y] = *x;
        run(b, ops::Unpermute{.x = in, .row_id_map = row_id_map, .addend = y, .y = y});
      };
    },
    [](Device& b, DType, Index T) -> Call {
      const auto x = held(filled(b, {T, E}, DType::f32), b.tensor({T, k}, DType::i32), b.tensor({T, k}),
                          b.tensor({4, E}, DType::i32), b.tensor({4, E}), b.tensor({1}, DType::f64));
      return [&b, x] {
        const auto& [logits, experts, weights, counts, probability, z] = *x;
        run(b, ops::RouteForward{.logits = logits,
                                 .experts = experts,
                                 .weights = weights,
                                 .counts = counts,
                                 .probability = probability,
                                 .z_squared = z});
      };
    },
    [](Device& b, DType c, Index T) -> Call {
      const auto x = held(filled(b, {T, E}, DType::f32), numbers(b, {T, k}, E), filled(b, {T, k}, DType::f32),
                          filled(b, {T, k}, DType::f32), filled(b, {4, E}, DType::f32), filled(b, {T, E}, c));
      return [&b, x] {
        const auto& [logits, experts, weights, dweights, dprobability, dlogits] = *x;
        run(b, ops::RouteBackward{.logits = logits,
                                  .experts = experts,
                                  .weights = weights,
                                  .dweights = dweights,
                                  .dprobability = dprobability,
                                  .dlogits = dlogits});
      };
    },
    [](Device& b, DType, Index T) -> Call {
      const auto x = held(numbers(b, {T, k}, E), filled(b, {T, k}, DType::f32), b.tensor({T, k}, DType::i32));
      return [&b, x, T] {
        const auto& [experts, weights, dispatch_mask] = *x;
        run(b, ops::ApplyCapacity{.experts = experts,
                                  .weights = weights,
                                  .segments = 4,
                                  .num_experts = E,
                                  .desc = {DropOrder::token, T},
                                  .dispatch_mask = dispatch_mask});
      };
    },
    [](Device& b, DType, Index T) -> Call {
      const ExpertPartition partition{E, 1};
      const auto x = held(numbers(b, {T, k}, E), numbers(b, {T, k}, 2), b.tensor({T, k}, DType::i32),
                          b.tensor({T * k}, DType::i32), b.tensor({T, k}, DType::i32), b.tensor({2 * E}, DType::i32),
                          b.tensor({E}, DType::i32));
      return [&b, x, partition] {
        const auto& [experts, dispatch_mask, physical_experts, tokens, row_id_map, counts, tokens_per_expert] = *x;
        run(b, ops::DispatchLayout{.experts = experts,
                                   .dispatch_mask = dispatch_mask,
                                   .partition = partition,
                                   .physical_experts = physical_experts,
                                   .tokens = tokens,
                                   .row_id_map = row_id_map,
                                   .counts = counts,
                                   .tokens_per_expert = tokens_per_expert});
      };
    },
    [](Device& b, DType, Index T) -> Call {
      const auto x = held(numbers(b, {T, k}, E), b.tensor({T * k}, DType::i32), b.tensor({T * k}, DType::i32),
                          b.tensor({T, k}, DType::i32), b.tensor({E + 1}, DType::i32));
      return [&b, x] {
        const auto& [physical_experts, to_assignment, tokens, row_id_map, offsets] = *x;
        run(b, ops::BuildPermutation{.physical_experts = physical_experts,
                                     .assignments = to_assignment,
                                     .tokens = tokens,
                                     .row_id_map = row_id_map,
                                     .offsets = offsets});
      };
    },
    [](Device& b, DType, Index T) -> Call {
      const auto x = held(filled(b, {T, V}, DType::f32), numbers(b, {T}, V), b.tensor({T, 3}));
      return [&b, x] {
        const auto& [logits, targets, partial] = *x;
        run(b, ops::CrossEntropyForward{.logits = logits, .targets = targets, .desc = {}, .partial = partial});
      };
    },
    [](Device& b, DType c, Index T) -> Call {
      // Keeps the gradient, which replaces the logits, small.
      const double total = 1e9;
      const auto x = held(filled(b, {T, V}, DType::f32), numbers(b, {T}, V), filled(b, {T}, DType::f32),
                          b.tensor({1}, DType::f64), filled(b, {T, V}, c));
      b.to_device(&total, std::get<3>(*x));
      return [&b, x] {
        const auto& [logits, targets, lse, sum, dlogits] = *x;
        run(b, ops::CrossEntropyBackward{
                   .logits = logits, .targets = targets, .lse = lse, .total = sum, .desc = {}, .dlogits = dlogits});
      };
    },
    [](Device& b, DType c, Index T) -> Call {
      const auto x = held(numbers(b, {T}, V), filled(b, {V, D}, c), filled(b, {T, D}, c));
      return [&b, x] {
        const auto& [ids, table, y] = *x;
        run(b, ops::EmbeddingForward{.ids = ids, .table = table, .y = y});
      };
    },
    [](Device& b, DType c, Index T) -> Call {
      const auto x = held(numbers(b, {T}, V), filled(b, {T, D}, c), b.tensor({V, D}));
      return [&b, x] {
        const auto& [ids, dy, dtable] = *x;
        run(b, ops::EmbeddingBackward{.ids = ids, .dy = dy, .dtable = dtable});
      };
    },
    [](Device& b, DType, Index T) -> Call {
      const Index n = T * D;
      const auto x = held(b.tensor({1}), filled(b, {3}, DType::f32), filled(b, {n}, DType::f32),
                          filled(b, {n}, DType::f32), b.tensor({n}), b.tensor({n}));
      return [&b, x] {
        const auto& [factor, step_scalars, g, w, m, v] = *x;
        run(b, ops::AdamW{.coefficient = factor,
                          .step_scalars = step_scalars,
                          .g = g,
                          .beta1 = 0.9f,
                          .beta2 = 0.95f,
                          .eps = 1e-8f,
                          .weight_decay = 0.1f,
                          .w = w,
                          .m = m,
                          .v = v});
      };
    },
};

// GEMM of tokens with a square weight, and the two GEMMs of its gradients.
Call products(Device& b, DType c, Index width) {
  constexpr Index T = 2048;
  const auto x = held(filled(b, {T, width}, c), filled(b, {width, width}, c), filled(b, {T, width}, c),
                      filled(b, {T, width}, c), b.tensor({width, width}));
  return [&b, x] {
    const auto& [in, w, y, din, dw] = *x;
    run(b, ops::Gemm{.a = in, .b = w.view(), .transpose_b = true, .c = y});
    run(b, ops::Gemm{.a = y, .b = w.view(), .c = din});
    run(b, ops::Gemm{.a = y, .b = in, .transpose_a = true, .accumulate = true, .c = dw});
  };
}

// The same for experts of `each` rows. Their weights and gradients do not fit into a cache.
Call grouped_products(Device& b, DType c, Index each) {
  constexpr Index many_experts = 64;
  std::vector<std::int32_t> ends;
  for (Index e = 0; e <= many_experts; ++e) ends.push_back(static_cast<std::int32_t>(e * each));
  const auto x = held(filled(b, {many_experts * each, D}, c), filled(b, {many_experts, D, D}, c),
                      filled(b, {many_experts * each, D}, c), filled(b, {many_experts * each, D}, c),
                      b.tensor({many_experts, D, D}), b.tensor({many_experts + 1}, DType::i32), ends);
  b.to_device(ends.data(), std::get<5>(*x));
  return [&b, x] {
    const auto& [in, w, y, din, dw, offsets, host] = *x;
    const GroupOffsets groups{offsets, host.data()};
    run(b, ops::GroupedGemm{.x = in, .w = w.view(), .groups = groups, .y = y});
    run(b, ops::GroupedGemmDgrad{.dy = y, .w = w.view(), .groups = groups, .dx = din});
    run(b, ops::GroupedGemmWgrad{.dy = y, .x = in, .groups = groups, .dw = dw});
  };
}

Call attention(Device& b, DType c, Index width, bool backward) {
  constexpr Index B = 8, S = 256, H = 8;
  const Shape heads{B, S, H, width};
  const auto x = held(filled(b, heads, c), filled(b, heads, c), filled(b, heads, c), filled(b, heads, c),
                      filled(b, heads, c), b.tensor({B, H, S}));
  return [&b, x, backward] {
    const auto& [q, other_k, v, out, d, lse] = *x;
    if (backward)
      run(b, ops::AttentionBackward{.dout = out,
                                    .q = q.view(),
                                    .k = other_k.view(),
                                    .v = v.view(),
                                    .out = out,
                                    .lse = lse,
                                    .desc = {},
                                    .dq = d.view(),
                                    .dk = d.view(),
                                    .dv = d.view()});
    else
      run(b,
          ops::AttentionForward{.q = q.view(), .k = other_k.view(), .v = v.view(), .desc = {}, .out = out, .lse = lse});
  };
}

// Counts the FLOPs and bytes of a call on the dry device.
DryCounts counted(const Prepare& prepare, DType c, Index tokens) {
  const std::unique_ptr<Device> dry = make_dry();
  const Call call = prepare(*dry, c, tokens);
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
  const Tensor all = filled(b, {p * n}, DType::f32), shard = filled(b, {n}, DType::f32),
               back = filled(b, {p * n}, DType::f32);
  const std::vector<Index> each(static_cast<std::size_t>(p), n);
  const auto gather = [&](Index of) { group.all_gather(shard.view().rows(0, of), all.view().rows(0, p * of)); };
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

Machine measure_machine(Comm& world, Device& b, const std::string& name, double memory,
                        const std::function<void(Index, Index)>& progress) {
  if (world.size() < 2)
    throw CollectiveError(2,
                          "--machine measures the links between ranks, too: start doctor under mpirun with at least 2");
  const int here = ranks_sharing(world, ""), ranks = world.size();
  constexpr Index product_sizes[] = {16, 64, 128, 256, 512, 1024}, grouped_sizes[] = {4, 16, 64, 256},
                  head_widths[] = {16, 32, 64, 128}, link_figures = 4;
  const Watch watch(world, b,
                    4 + std::ssize(product_sizes) + std::ssize(grouped_sizes) + 2 * std::ssize(head_widths) +
                        std::ssize(by_bytes) + link_figures * ((here > 1) + (here < ranks)),
                    progress);
  Machine m;
  m.name = name;
  m.shared = b.on_host();
  m.backend = b.on_host() ? "cpu" : "cuda";
  m.memory = b.on_host() ? memory : 0.95 * static_cast<double>(b.free_bytes());
  m.ranks_per_node = here < ranks ? here : 0;
  const double together = m.shared ? here : 1;  // ranks that share the machine's speeds

  const Tensor tiny = filled(b, {16, 16}, DType::f32), result = b.tensor({16, 16});
  m.overhead = watch([&] { run(b, ops::Gemm{.a = tiny, .b = tiny.view(), .c = result}); });
  const auto measure = [&](const Prepare& prepare, DType c) {
    const DryCounts work = counted(prepare, c, many_tokens(b));
    double calls = 0;
    for (const auto& [call, times] : work.calls) calls += static_cast<double>(times);
    const double seconds = watch(prepare(b, c, many_tokens(b)));
    // The time of a very fast operation may vanish in the measured overhead.
    return std::pair(work, std::max(seconds - calls * m.overhead, seconds / 10));
  };
  const auto flops = [&](const Prepare& prepare, DType c) {
    const auto [work, seconds] = measure(prepare, c);
    return together * work.flops / seconds;
  };
  const auto wide = [](Device& on, DType c, Index) { return products(on, c, 1024); };
  m.peak_f32 = flops(wide, DType::f32);
  m.peak_bf16 = flops(wide, DType::bf16);
  const DType c = b.on_host() ? DType::f32 : DType::bf16;
  // A share is at most 1, because on a busy machine the measured peak may be too low.
  const auto share = [&, peak = m.peak(c)](const Prepare& prepare) { return std::min(1.0, flops(prepare, c) / peak); };
  for (Index size : product_sizes)
    m.products.points.emplace_back(size, share([=](Device& on, DType d, Index) { return products(on, d, size); }));
  for (Index each : grouped_sizes)
    m.grouped_products.points.emplace_back(
        each, share([=](Device& on, DType d, Index) { return grouped_products(on, d, each); }));
  for (Index width : head_widths)
    for (const bool backward : {false, true}) {
      Curve& curve = backward ? m.attention_backward : m.attention_forward;
      curve.points.emplace_back(width,
                                share([=](Device& on, DType d, Index) { return attention(on, d, width, backward); }));
    }

  for (const Prepare& prepare : by_bytes) {
    const auto [work, seconds] = measure(prepare, c);
    m.operations[std::string(work.calls.begin()->first.op)] = together * work.bytes / seconds;
  }
  {
    constexpr Index n = Index{1} << 24;
    const Tensor x = filled(b, {n}, DType::f32), y = filled(b, {n}, DType::f32);
    m.memory_bandwidth = together * 2 * n * 4 / watch([&] { run(b, ops::Copy{.x = x, .y = y}); });
  }

  const auto group = [&](const std::function<int(int)>& color) {
    std::unique_ptr<Comm> comm = world.split(color);
    return b.on_host() ? std::move(comm)
                       : make_device_comm(b, world.rank(), world.rank_context())(std::move(comm), CommStream::tokens);
  };
  const auto node = group([&](int rank) { return rank / here; });
  if (node->size() > 1)
    std::tie(m.node_latency, m.node_bandwidth) =
        measure_links(watch, b, *node, {node->size() - 1, 0}, m.message_overhead);
  if (here < ranks) {
    const auto across = group([&](int rank) { return rank % here; });
    std::tie(m.latency, m.bandwidth) = measure_links(watch, b, *across, {0, across->size() - 1}, m.message_overhead);
    if (m.node_bandwidth == 0) std::tie(m.node_latency, m.node_bandwidth) = std::pair(m.latency, m.bandwidth);
  }
  m.node_bandwidth *= together;
  m.bandwidth *= together;
  return m;
}

}  // namespace sy
