#include "src/plan/measure.h"

#include <algorithm>
#include <chrono>
#include <numeric>

#include "dist/device_comm.h"
#include "dist/runtime.h"
#include "kernels/dry/dry.h"
#include "src/plan/cost.h"

namespace sy {
namespace {

double seconds_now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// Times work that all ranks do at once, and reports the number of known figures out of `total`.
class Watch {
 public:
  Watch(Comm& world, Backend& backend, Index total, const std::function<void(Index, Index)>& progress)
      : world_(world), backend_(backend), total_(total), progress_(progress) {}

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
    backend_.synchronize();
    world_.barrier();
    const double begin = seconds_now();
    for (Index i = 0; i < calls; ++i) run();
    backend_.synchronize();
    return seconds_now() - begin;
  }
  Comm& world_;
  Backend& backend_;
  Index total_;
  mutable Index done_ = 0;
  const std::function<void(Index, Index)>& progress_;
};

// Sizes of a small model: width, experts, top k, vocabulary.
constexpr Index D = 256, E = 8, k = 2, V = 1024;
// Returns a number of tokens whose operands do not fit into a cache. In a step, an operation's
// inputs were also written long before.
Index many_tokens(const Backend& b) {
  return b.on_host() ? 32768 : 131072;
}

Tensor filled(Backend& b, const Shape& shape, DType dtype) {
  Tensor t = b.tensor(shape, dtype);
  if (dtype != DType::f32) return t;
  std::vector<float> values(static_cast<std::size_t>(shape.elements()));
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = 0.01f * static_cast<float>(i % 97) - 0.5f;
  b.to_device(values.data(), t);
  return t;
}
Tensor numbers(Backend& b, const Shape& shape, Index below) {
  Tensor t = b.tensor(shape, DType::i32);
  std::vector<std::int32_t> values(static_cast<std::size_t>(shape.elements()));
  for (std::size_t i = 0; i < values.size(); ++i)
    values[i] = static_cast<std::int32_t>(static_cast<Index>(i) * 7 % below);
  b.to_device(values.data(), t);
  return t;
}

// A call of the backend that is repeated on its own operands.
using Call = std::function<void()>;
using Prepare = std::function<Call(Backend&, DType, Index tokens)>;

template <class... Tensors>
auto held(Tensors... tensors) {
  return std::make_shared<std::tuple<Tensors...>>(std::move(tensors)...);
}

// Operations whose speed is measured in bytes/s.
const Prepare by_bytes[] = {
    [](Backend& b, DType c, Index T) -> Call {
      const auto x = held(filled(b, {T, D}, c), filled(b, {T, D}, c));
      return [&b, x] { b.add(std::get<0>(*x), std::get<1>(*x)); };
    },
    [](Backend& b, DType c, Index T) -> Call {
      const auto x = held(filled(b, {T, D}, c), filled(b, {T, D}, c));
      return [&b, x] { b.copy(std::get<0>(*x), std::get<1>(*x)); };
    },
    [](Backend& b, DType, Index T) -> Call {
      const auto x = held(filled(b, {T, D}, DType::f32));
      return [&b, x] { b.fill(std::get<0>(*x), 0); };
    },
    [](Backend& b, DType, Index T) -> Call {
      const auto x = held(filled(b, {T * D}, DType::f32), b.tensor({1}, DType::f64));
      return [&b, x] { b.sum_squares(std::get<0>(*x), std::get<1>(*x)); };
    },
    [](Backend& b, DType c, Index T) -> Call {
      const auto x = held(filled(b, {T, D}, c), filled(b, {D}, c), filled(b, {T, D}, c), b.tensor({T, 2}));
      return [&b, x] {
        const auto& [in, w, y, moments] = *x;
        b.norm_forward({}, in, w, {}, y, moments);
      };
    },
    [](Backend& b, DType c, Index T) -> Call {
      const auto x = held(filled(b, {T, D}, c), filled(b, {T, D}, c), filled(b, {D}, c), filled(b, {T, 2}, DType::f32),
                          filled(b, {T, D}, c), b.tensor({D}));
      return [&b, x] {
        const auto& [dy, in, w, moments, dx, dw] = *x;
        b.norm_backward({}, dy, in, w, moments, dx, dw, {});
      };
    },
    [](Backend& b, DType c, Index T) -> Call {
      const auto x = held(filled(b, {T, 2 * D}, c), filled(b, {T}, DType::f32), filled(b, {T, D}, c));
      return [&b, x] {
        const auto& [h, scale, y] = *x;
        b.activation_forward({}, h, scale, y);
      };
    },
    [](Backend& b, DType c, Index T) -> Call {
      const auto x = held(filled(b, {T, D}, c), filled(b, {T, 2 * D}, c), filled(b, {T}, DType::f32),
                          filled(b, {T, 2 * D}, c), b.tensor({T}));
      return [&b, x] {
        const auto& [dy, h, scale, dh, dscale] = *x;
        b.activation_backward({}, dy, h, scale, dh, dscale);
      };
    },
    [](Backend& b, DType c, Index T) -> Call {
      const auto x = held(filled(b, {T, 8, 32}, c), numbers(b, {T}, 256), filled(b, {256, 16, 2}, DType::f32));
      return [&b, x] {
        const auto& [heads, positions, table] = *x;
        b.rope(heads, 6, positions, table, false);
      };
    },
    [](Backend& b, DType c, Index T) -> Call {
      const auto x = held(filled(b, {T, D}, c), numbers(b, {T * k}, T), filled(b, {T * k, D}, c));
      return [&b, x] {
        const auto& [in, index, y] = *x;
        b.permute(in, index, y);
      };
    },
    [](Backend& b, DType c, Index T) -> Call {
      const auto x = held(filled(b, {T * k, D}, c), numbers(b, {T, k}, T * k), filled(b, {T, D}, c));
      return [&b, x] {
        const auto& [in, row_id_map, y] = *x;
        b.unpermute(in, row_id_map, y, y);
      };
    },
    [](Backend& b, DType, Index T) -> Call {
      const auto x = held(filled(b, {T, E}, DType::f32), b.tensor({T, k}, DType::i32), b.tensor({T, k}),
                          b.tensor({4, E}, DType::i32), b.tensor({4, E}), b.tensor({1}, DType::f64));
      return [&b, x] {
        const auto& [logits, experts, weights, counts, probability, z] = *x;
        b.route_forward({}, logits, {}, {}, experts, weights, counts, probability, z);
      };
    },
    [](Backend& b, DType c, Index T) -> Call {
      const auto x = held(filled(b, {T, E}, DType::f32), numbers(b, {T, k}, E), filled(b, {T, k}, DType::f32),
                          filled(b, {T, k}, DType::f32), filled(b, {4, E}, DType::f32), filled(b, {T, E}, c));
      return [&b, x] {
        const auto& [logits, experts, weights, dweights, dprobability, dlogits] = *x;
        b.route_backward({}, logits, experts, weights, dweights, dprobability, 0, dlogits);
      };
    },
    [](Backend& b, DType, Index T) -> Call {
      const auto x = held(numbers(b, {T, k}, E), filled(b, {T, k}, DType::f32), b.tensor({T, k}, DType::i32));
      return [&b, x, T] {
        const auto& [experts, weights, dispatch_mask] = *x;
        b.apply_capacity({DropOrder::token, T}, experts, weights, 4, E, dispatch_mask);
      };
    },
    [](Backend& b, DType, Index T) -> Call {
      const ExpertPartition partition{E, 1};
      const auto x = held(numbers(b, {T, k}, E), numbers(b, {T, k}, 2), b.tensor({T, k}, DType::i32),
                          b.tensor({T * k}, DType::i32), b.tensor({T, k}, DType::i32), b.tensor({2 * E}, DType::i32),
                          b.tensor({E}, DType::i32));
      return [&b, x, partition] {
        const auto& [experts, dispatch_mask, physical_experts, tokens, row_id_map, counts, tokens_per_expert] = *x;
        b.dispatch_layout(partition, experts, dispatch_mask, physical_experts, tokens, row_id_map, counts,
                          tokens_per_expert);
      };
    },
    [](Backend& b, DType, Index T) -> Call {
      const auto x = held(numbers(b, {T, k}, E), b.tensor({T * k}, DType::i32), b.tensor({T * k}, DType::i32),
                          b.tensor({T, k}, DType::i32), b.tensor({E + 1}, DType::i32));
      return [&b, x] {
        const auto& [physical_experts, to_assignment, tokens, row_id_map, offsets] = *x;
        b.build_permutation(physical_experts, 0, to_assignment, tokens, row_id_map, offsets);
      };
    },
    [](Backend& b, DType, Index T) -> Call {
      const auto x = held(filled(b, {T, V}, DType::f32), numbers(b, {T}, V), b.tensor({T, 3}));
      return [&b, x] {
        const auto& [logits, targets, partial] = *x;
        b.cross_entropy_forward({}, logits, targets, partial);
      };
    },
    [](Backend& b, DType c, Index T) -> Call {
      // Keeps the gradient, which replaces the logits, small.
      const double total = 1e9;
      const auto x = held(filled(b, {T, V}, DType::f32), numbers(b, {T}, V), filled(b, {T}, DType::f32),
                          b.tensor({1}, DType::f64), filled(b, {T, V}, c));
      b.to_device(&total, std::get<3>(*x));
      return [&b, x] {
        const auto& [logits, targets, lse, sum, dlogits] = *x;
        b.cross_entropy_backward({}, logits, targets, lse, sum, dlogits);
      };
    },
    [](Backend& b, DType c, Index T) -> Call {
      const auto x = held(numbers(b, {T}, V), filled(b, {V, D}, c), filled(b, {T, D}, c));
      return [&b, x] {
        const auto& [ids, table, y] = *x;
        b.embedding_forward(ids, table, 0, y);
      };
    },
    [](Backend& b, DType c, Index T) -> Call {
      const auto x = held(numbers(b, {T}, V), filled(b, {T, D}, c), b.tensor({V, D}));
      return [&b, x] {
        const auto& [ids, dy, dtable] = *x;
        b.embedding_backward(ids, dy, 0, dtable);
      };
    },
    [](Backend& b, DType, Index T) -> Call {
      const Index n = T * D;
      const auto x = held(b.tensor({1}), filled(b, {3}, DType::f32), filled(b, {n}, DType::f32),
                          filled(b, {n}, DType::f32), b.tensor({n}), b.tensor({n}));
      return [&b, x] {
        const auto& [factor, step_scalars, g, w, m, v] = *x;
        b.adamw({0.9f, 0.95f, 1e-8f, 0.1f}, factor, step_scalars, g, w, m, v, {});
      };
    },
};

// GEMM of tokens with a square weight, and the two GEMMs of its gradients.
Call products(Backend& b, DType c, Index width) {
  constexpr Index T = 2048;
  const auto x = held(filled(b, {T, width}, c), filled(b, {width, width}, c), filled(b, {T, width}, c),
                      filled(b, {T, width}, c), b.tensor({width, width}));
  return [&b, x] {
    const auto& [in, w, y, din, dw] = *x;
    b.gemm({.transpose_b = true}, in, w.view(), y);
    b.gemm({}, y, w.view(), din);
    b.gemm({.transpose_a = true, .accumulate = true}, y, in, dw);
  };
}

// The same for experts of `each` rows. Their weights and gradients do not fit into a cache.
Call grouped_products(Backend& b, DType c, Index each) {
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
    b.grouped_gemm(in, w.view(), groups, y);
    b.grouped_gemm_dgrad(y, w.view(), groups, din);
    b.grouped_gemm_wgrad(y, in, groups, dw);
  };
}

Call attention(Backend& b, DType c, Index width, bool backward) {
  constexpr Index B = 8, S = 256, H = 8;
  const Shape heads{B, S, H, width};
  const auto x = held(filled(b, heads, c), filled(b, heads, c), filled(b, heads, c), filled(b, heads, c),
                      filled(b, heads, c), b.tensor({B, H, S}));
  return [&b, x, backward] {
    const auto& [q, other_k, v, out, d, lse] = *x;
    if (backward)
      b.attention_backward({}, out, q.view(), other_k.view(), v.view(), out, lse, d.view(), d.view(), d.view());
    else
      b.attention_forward({}, q.view(), other_k.view(), v.view(), out, lse);
  };
}

// Counts the FLOPs and bytes of a call on the dry-run backend.
DryCounts counted(const Prepare& prepare, DType c, Index tokens) {
  const std::unique_ptr<Backend> dry = make_dry();
  const Call call = prepare(*dry, c, tokens);
  dry_counts(*dry) = {};
  call();
  return dry_counts(*dry);
}

// Returns the seconds of one step of a small all-gather, and the bandwidth in bytes/s. The
// bandwidth is the average of reduce-scatter, all-gather and all-to-all. peers: location of the
// other ranks of the group.
std::pair<double, double> measure_links(const Watch& watch, Backend& b, Comm& group, const Peers& peers,
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

Machine measure_machine(Comm& world, Backend& b, const std::string& name, double memory,
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
  m.overhead = watch([&] { b.gemm({}, tiny, tiny.view(), result); });
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
  const auto wide = [](Backend& on, DType c, Index) { return products(on, c, 1024); };
  m.peak_f32 = flops(wide, DType::f32);
  m.peak_bf16 = flops(wide, DType::bf16);
  const DType c = b.on_host() ? DType::f32 : DType::bf16;
  // A share is at most 1, because on a busy machine the measured peak may be too low.
  const auto share = [&, peak = m.peak(c)](const Prepare& prepare) { return std::min(1.0, flops(prepare, c) / peak); };
  for (Index size : product_sizes)
    m.products.points.emplace_back(size, share([=](Backend& on, DType d, Index) { return products(on, d, size); }));
  for (Index each : grouped_sizes)
    m.grouped_products.points.emplace_back(
        each, share([=](Backend& on, DType d, Index) { return grouped_products(on, d, each); }));
  for (Index width : head_widths)
    for (const bool backward : {false, true}) {
      Curve& curve = backward ? m.attention_backward : m.attention_forward;
      curve.points.emplace_back(width,
                                share([=](Backend& on, DType d, Index) { return attention(on, d, width, backward); }));
    }

  for (const Prepare& prepare : by_bytes) {
    const auto [work, seconds] = measure(prepare, c);
    m.operations[std::string(work.calls.begin()->first.op)] = together * work.bytes / seconds;
  }
  {
    constexpr Index n = Index{1} << 24;
    const Tensor x = filled(b, {n}, DType::f32), y = filled(b, {n}, DType::f32);
    m.memory_bandwidth = together * 2 * n * 4 / watch([&] { b.copy(x, y); });
  }

  const auto group = [&](const std::function<int(int)>& color) {
    std::unique_ptr<Comm> comm = world.split(color);
    return b.on_host() ? std::move(comm) : make_device_comm(b, world.rank())(std::move(comm), CommStream::tokens);
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
