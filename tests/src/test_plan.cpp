// The plan is compared with formulas, with exhaustive search, and with dry runs of the whole model.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <numeric>
#include <set>
#include <sstream>

#include "kernels/dry/dry.h"
#include "kernels/dry/reach.h"
#include "src/config.h"
#include "src/config/layout.h"
#include "src/io/checkpoint.h"
#include "src/params/block_specs.h"
#include "src/params/costs.h"
#include "src/plan/plan.h"
#include "src/text/json.h"

namespace sy {
namespace {

// Share of the tokens that have one of experts [first, first + n).
double dry_reach(const std::vector<Index>& tokens_per_expert, Index tokens, Index k, Index first, Index n,
                 const std::vector<Index>& group_of = {}, Index groups = 1, Index limit = 1) {
  return DryReach({tokens_per_expert, tokens, k, group_of, groups, limit})(first, n);
}

constexpr const char* planned_model = R"(
[model]
layers = 7
pattern = local*2, global
d_model = 24
heads = 6
kv_heads = 2
head_dim = 4
seq_len = 20
d_ff = 48
[attention.local]
window = 8
[moe]
experts = 12
top_k = 3
first_dense = 1
every = 2
shared_experts = 1
d_ff = 24
capacity_factor = 0
[train]
global_batch = 12
micro_batch = 2
)";
constexpr Index planned_vocab = 50;

Config planned(const std::vector<std::string>& settings = {}) {
  return parse_config(planned_model, "test", settings);
}

std::string message(const std::function<void()>& work) {
  try {
    work();
  } catch (const InputError& e) {
    return e.what();
  }
  return "no error";
}

TEST(Plan, EnumeratesAllowedLayouts) {
  const Config config = planned();
  for (int ranks : {1, 2, 6, 12})
    for (int node : {1, 2, 3, 12}) {
      std::vector<std::string> expected, found;
      for (int tp = 1; tp <= ranks; ++tp)
        for (int ep = 1; ep <= ranks; ++ep)
          for (int etp = 1; etp <= ranks; ++etp)
            for (int of : std::set{1, node}) {  // hierarchical if experts lie on several nodes
              if (of > 1 && ep * etp <= of) continue;
              if (message([&] { check_config_for_layout(config, {ranks, tp, ep, etp, of}); }) == "no error")
                expected.push_back(Layout{ranks, tp, ep, etp, of}.str());
            }
      for (const Layout& l : layouts_of(config, ranks, node)) found.push_back(l.str());
      EXPECT_EQ(found, expected);
      EXPECT_FALSE(found.empty()) << ranks;
      const bool travels = std::any_of(found.begin(), found.end(), [](auto& l) { return l.find("node") != l.npos; });
      EXPECT_EQ(travels, node > 1 && node < ranks) << ranks << " of which machines hold " << node;
    }
  // A rank reads the counts of its own experts alone: few with ep, those of all experts with etp.
  const Config wide = planned({"--moe.experts=1536", "--moe.d_ff=1536", "--train.global_batch=3072"});
  EXPECT_EQ(message([&] { check_config_for_layout(wide, {1536, 1, 1536, 1}); }), "no error");
  EXPECT_NE(message([&] { check_config_for_layout(wide, {1536, 1, 1, 1536}); }).find("row counts"), std::string::npos);
}

TEST(Plan, ChecksLayoutsOfManyRanks) {
  const Config config = planned({"--moe.experts=64", "--train.global_batch=65536", "--train.micro_batch=1"});
  EXPECT_NE(message([&] {
              check_config_for_layout(config, {4, 1, 65536, 65536});
            }).find("not divisible"),
            std::string::npos);
  const std::vector<Layout> found = layouts_of(config, 65536, 8);
  EXPECT_FALSE(found.empty());
  for (const Layout& layout : found) EXPECT_TRUE(layout.divides()) << layout.str();
}

void expect_equal(const Profile& a, const Profile& b, const std::string& where) {
  for (const auto& [x, y] : {std::pair{&a.pass, &b.pass}, {&a.update, &b.update}}) {
    ASSERT_EQ(x->calls.size(), y->calls.size()) << where;
    for (const auto& [call, times] : x->calls) {
      ASSERT_TRUE(y->calls.count(call)) << where << call.op;
      EXPECT_EQ(times, y->calls.at(call)) << where << call.op;
    }
    EXPECT_EQ(x->transfers, y->transfers) << where;
  }
  EXPECT_EQ(a.memory.parameters(), b.memory.parameters()) << where;
  EXPECT_EQ(a.memory.activations(), b.memory.activations()) << where;
}

// The profiler runs equal layers once. Here all layers run, with rows that experts share equally.
TEST(Plan, ExtrapolatesEqualLayers) {
  const auto cpu = make_cpu();
  for (const char* recompute : {"--train.recompute=none", "--train.recompute=norms", "--train.recompute=experts",
                                "--train.recompute=attention", "--train.recompute=block", "--train.reversible=true"})
    for (const Layout& layout : {Layout{1}, Layout{6, 2, 3, 1}, Layout{6, 1, 3, 2}}) {
      const Config config = planned({recompute});
      const Profiler profiler(config, planned_vocab, cpu.get());
      const Shares even(3, std::vector<double>(12, 1.0 / 12));
      const Profile whole = profiler.loaded(layout, 0, even);
      const std::string where = layout.str() + recompute;
      expect_equal(profiler.balanced(layout), whole, where);
      const MemoryPlan memory = plan_memory(config, planned_vocab, layout, 0, *cpu);
      EXPECT_EQ(whole.memory.activations(), memory.activations()) << where;
      EXPECT_EQ(whole.memory.parameters(), memory.parameters()) << where;
      EXPECT_EQ(profiler.parameters(layout).optimizer, memory.optimizer) << where;
    }
  const DistinctLayers distinct = distinct_layers(planned());
  EXPECT_EQ(distinct.counts,
            // Dense local and global layers, and MoE layers, local and global.
            (std::vector<Index>{3, 1, 2, 1}));
  EXPECT_EQ(std::accumulate(distinct.counts.begin(), distinct.counts.end(), 0), 7);
}

// The first micro-batch of a step overwrites the gradients of experts, and the later ones add to
// them. No operation of the update clears them.
TEST(Plan, ClearsNoGradientThatAMicroBatchOverwrites) {
  double experts = 0, all = 0;  // gradients
  for (const ParamSpec& spec : param_specs(planned(), planned_vocab)) {
    const auto elements = static_cast<double>(spec.shape.elements());
    all += elements;
    if (spec.name.find(".moe.experts.") != spec.name.npos) experts += elements;
  }
  ASSERT_GT(experts, all / 2);
  for (const bool on_card : {false, true}) {
    const auto cpu = make_cpu();
    const auto bytes_of = [&](const std::string& global_batch, bool update, std::string_view op) {
      const Config config = planned({"--train.global_batch=" + global_batch});
      const Profile profile = Profiler(config, planned_vocab, on_card ? nullptr : cpu.get()).balanced(Layout{1});
      double bytes = 0;
      for (const auto& [call, times] : (update ? profile.update : profile.pass).calls)
        if (call.op == op) bytes += call.bytes * times;
      return bytes;
    };
    const double once = bytes_of("2", false, "grouped_gemm_wgrad"), twice = bytes_of("4", false, "grouped_gemm_wgrad");
    EXPECT_EQ(twice - 2 * once, sizeof(float) * experts) << on_card;
    EXPECT_GT(bytes_of("2", true, "fill"), 0) << on_card;
    EXPECT_LE(bytes_of("2", true, "fill"), sizeof(float) * (all - experts)) << on_card;
  }
}

// 6 FLOPs per token for each weight of a matrix. Attention has two products in forward and five in
// backward.
TEST(Plan, FlopsMatchTheFormula) {
  const Config config = planned();
  const auto cpu = make_cpu();
  const double tokens = static_cast<double>(config.train.global_batch * config.model.seq_len);
  double weights = 0, attention = 0;
  for (const ParamSpec& s : param_specs(config, planned_vocab)) {
    if (!s.decays || s.name == "embedding.weight") continue;
    const double chosen = axes_of(s.split).has(Axis::ep) ? 3.0 / 12 : 1;
    weights += static_cast<double>(s.shape.elements()) * chosen;
  }
  for (const BlockSpec& block : block_specs(config)) {
    const CoreAttentionSpec& a = block.attention();
    attention += static_cast<double>(a.heads) * mean_visible_keys(config.model.seq_len, a.mask()) *
                 static_cast<double>(2 * (a.key_width + a.value_width) + 2 * (3 * a.key_width + 2 * a.value_width));
  }
  double of_one = 0;
  for (const Layout& layout : {Layout{1}, Layout{2, 2, 1, 1}, Layout{6, 1, 3, 2}, Layout{6, 2, 3, 1}}) {
    const Profile profile = Profiler(config, planned_vocab, cpu.get()).balanced(layout);
    EXPECT_EQ(profile.update.flops(), 0);
    const double all = profile.pass.flops() * layout.ranks;
    EXPECT_NEAR(all / (tokens * (6 * weights + attention)), 1, 1e-12) << layout.str();
    if (layout.ranks == 1) of_one = all;
  }
  // model_costs does not count the scores that backward recomputes.
  double recomputed = 0;
  for (const BlockSpec& block : block_specs(config)) {
    const CoreAttentionSpec& a = block.attention();
    recomputed += static_cast<double>(a.heads * a.key_width) * mean_visible_keys(config.model.seq_len, a.mask()) * 2;
  }
  EXPECT_NEAR(of_one / (tokens * (model_costs(config, planned_vocab).flops_per_token + recomputed)), 1, 1e-12);
}

TEST(Plan, GroupShapesMatchTheMesh) {
  for (const Layout& l : {Layout{48, 2, 4, 3}, Layout{48, 8, 16, 1}, Layout{48, 4, 1, 2}}) {
    const std::pair<const char*, Axes> groups[] = {{"stage", dense_grid},
                                                   {"dp", Axis::dp},
                                                   {"tp", Axis::tp},
                                                   {"edp", Axis::edp},
                                                   {"experts", Axis::ep | Axis::etp}};
    for (const auto& [name, axes] : groups)
      for (int per_node : {0, 1, 4, 8}) {
        // The group of rank 0 by its definition, counted by node.
        Peers expected;
        const Axes others = grid_of(axes) - axes;
        for (int r = 1; r < l.ranks; ++r)
          if (group_rank(l, coord_of(l, r), others).index == group_rank(l, coord_of(l, 0), others).index)
            ++(per_node == 0 || r / per_node == 0 ? expected.here : expected.away);
        const Peers peers = peers_of(group_shape(name, l, 48), per_node);
        EXPECT_EQ(peers.here, expected.here) << l.str() << name << per_node;
        EXPECT_EQ(peers.away, expected.away) << l.str() << name << per_node;
      }
  }
  EXPECT_EQ(group_shape("replicas", {8, 8, 1, 1}, 2).size, 4);
  // With hierarchical dispatch, the group between nodes has one peer on each other node. The group
  // within a node has all peers on it.
  const Layout by_node{48, 1, 16, 1, 4};
  EXPECT_EQ(peers_of(group_shape("across", by_node, 1), 4).away, 3);
  EXPECT_EQ(peers_of(group_shape("across", by_node, 1), 4).here, 0);
  EXPECT_EQ(peers_of(group_shape("within", by_node, 1), 4).away, 0);
  EXPECT_EQ(peers_of(group_shape("within", by_node, 1), 4).here, 3);
}

// 12 experts over four ranks on two nodes. With hierarchical dispatch, a token crosses once if it
// has any of the other node's six experts. Otherwise it crosses once for each rank there that has
// any of its experts.
TEST(Plan, CountsATokenOncePerNode) {
  const Config config = planned({"--train.global_batch=8"});
  PlanOptions options;
  options.layouts = {Layout{4, 1, 4, 1}, Layout{4, 1, 4, 1, 2}};
  const Plan plan = make_plan(config, planned_vocab, 4, options);
  ASSERT_EQ(plan.fitting.size(), 2u);
  const Index tokens = config.train.micro_batch * config.model.seq_len;
  const std::vector<Index> tokens_per_expert(12, tokens * 3 / 12);
  std::map<std::string, double> sent;  // by layout and group, in dispatches
  for (const Candidate& c : plan.fitting)
    for (const TrafficLine& line : c.traffic)
      if (line.subphase == "dispatch") sent[c.layout.short_name() + " " + std::string(line.group)] += line.sent;
  const double to_node = std::round(static_cast<double>(tokens) * dry_reach(tokens_per_expert, tokens, 3, 0, 6)),
               to_rank = std::round(static_cast<double>(tokens) * dry_reach(tokens_per_expert, tokens, 3, 0, 3));
  EXPECT_NEAR(sent["tp 1 ep 4 etp 1 node 2 across"] / sent["tp 1 ep 4 etp 1 experts"], to_node / (3 * to_rank), 1e-9);
  EXPECT_NEAR(sent["tp 1 ep 4 etp 1 node 2 within"] / sent["tp 1 ep 4 etp 1 experts"], 2 * to_rank / (3 * to_rank),
              1e-9);
  EXPECT_EQ(sent.size(), 3u);
}

// 12 experts in four groups on four ranks. A token chooses one group, so that its three experts are
// on one rank.
TEST(Plan, LimitsRanksOfATokenByGroups) {
  PlanOptions options;
  options.layouts = {Layout{4, 1, 4, 1}, Layout{4, 1, 4, 1, 2}};
  const Config config = planned({"--train.global_batch=8", "--moe.groups=4", "--moe.topk_groups=1"});
  const Plan plan = make_plan(config, planned_vocab, 4, options);
  ASSERT_EQ(plan.fitting.size(), 2u);
  const Config free = planned({"--train.global_batch=8"});
  const Plan without = make_plan(free, planned_vocab, 4, options);
  std::map<std::string, double> limited, unlimited;
  for (const auto& [of, sent] : {std::pair{&plan, &limited}, {&without, &unlimited}})
    for (const Candidate& c : of->fitting)
      for (const TrafficLine& line : c.traffic)
        if (line.subphase == "dispatch") (*sent)[std::string(line.group)] += line.sent;
  const Index tokens = config.train.micro_batch * config.model.seq_len;
  const std::vector<Index> tokens_per_expert(12, tokens * 3 / 12);
  const auto rows = [&](double reach) { return std::round(static_cast<double>(tokens) * reach); };
  EXPECT_NEAR(limited["experts"] / unlimited["experts"],
              rows(0.25) / rows(dry_reach(tokens_per_expert, tokens, 3, 0, 3)), 1e-9);
  EXPECT_NEAR(limited["across"] / unlimited["across"], rows(0.5) / rows(dry_reach(tokens_per_expert, tokens, 3, 0, 6)),
              1e-9);
  EXPECT_NEAR(limited["within"] / unlimited["within"], rows(0.25) / rows(dry_reach(tokens_per_expert, tokens, 3, 0, 3)),
              1e-9);
}

Machine round_machine() {
  Machine m;
  m.name = "round";
  m.backend = "cuda";
  m.memory = 1e9;
  m.peak_f32 = 1e12;
  m.memory_bandwidth = 1e10;
  m.overhead = 1e-6;
  m.products.points = {{16, 0.25}, {64, 0.5}};
  m.operations["adamw"] = 1e9;
  m.node_latency = 1e-6;
  m.node_bandwidth = 1e9;
  m.latency = 1e-5;
  m.bandwidth = 1e8;
  m.ranks_per_node = 4;
  return m;
}

TEST(Plan, TimesMatchTheFormulas) {
  Machine m = round_machine();
  EXPECT_DOUBLE_EQ(m.products.at(8), 0.25);
  EXPECT_DOUBLE_EQ(m.products.at(32), 0.375);
  EXPECT_DOUBLE_EQ(m.products.at(1000), 0.5);
  const auto op = [&](std::string_view name, Index size, double flops, double bytes, int ranks = 1) {
    return seconds_of(m, DType::f32, ranks, DryCall{name, size, flops, bytes});
  };
  EXPECT_DOUBLE_EQ(op("gemm", 64, 1e9, 10), 1e-6 + 2e-3);  // half the peak
  EXPECT_DOUBLE_EQ(op("gemm", 64, 1, 1e7), 1e-6 + 1e-3);   // memory is slower
  EXPECT_DOUBLE_EQ(op("add", 0, 0, 1e7), 1e-6 + 1e-3);
  EXPECT_DOUBLE_EQ(op("adamw", 0, 0, 1e7), 1e-6 + 1e-2);
  m.shared = true;
  EXPECT_DOUBLE_EQ(op("gemm", 64, 1e9, 10, 2), 1e-6 + 4e-3);
  EXPECT_DOUBLE_EQ(op("gemm", 64, 1e9, 10, 100), 1e-6 + 8e-3);  // four ranks on a node
  m.shared = false;
  const auto link = [&](const char* group, Peers peers, Collective kind, Index sent, Index received, Index buffer = 0,
                        Index roots = 0) {
    return seconds_of(m, 64, group, peers, {kind, "", sent, received, buffer, roots});
  };
  using enum Collective;
  EXPECT_DOUBLE_EQ(link("tp", {3, 0}, all_gather, 1000000, 1000000), 3e-6 + 1e-3);
  // Ring of NCCL: the four ranks of a node share the traffic to other nodes.
  EXPECT_DOUBLE_EQ(link("dp", {3, 4}, reduce_scatter, 1000000, 1000000), 6e-6 + 1e-5 + 2.5e-3);
  // With one rank on each node, NCCL uses recursive doubling: three rounds reach five ranks.
  EXPECT_DOUBLE_EQ(link("dp", {0, 4}, reduce_scatter, 1000000, 1000000), 3e-5 + 1e-2);
  // In an all-to-all, each rank's own rows cross. The larger of the sent and received bytes
  // decides.
  EXPECT_DOUBLE_EQ(link("experts", {3, 5}, all_to_all, 100, 8000000), 1e-5 + 7e-6 + 5e-2);
  EXPECT_DOUBLE_EQ(link("experts", {0, 0}, all_to_all, 0, 0), 0);
  // A large all-reduce of NCCL is a ring. A small one over many nodes is a tree.
  EXPECT_DOUBLE_EQ(link("stage", {3, 0}, all_reduce, 0, 0, 3000000), 6e-6 + 4.5e-3);
  EXPECT_DOUBLE_EQ(link("stage", {3, 60}, all_reduce, 0, 0, 8), 6e-6 + 8e-5 + 4e-8);
  // In MPI's all-reduce, all elements go to every rank: by recursive doubling, or directly in two
  // phases for each 8 MiB.
  EXPECT_DOUBLE_EQ(link("world", {3, 0}, all_reduce, 3000000, 3000000, 1000), 2e-6 + 3e-3);
  EXPECT_DOUBLE_EQ(link("world", {3, 0}, all_reduce, 3000000, 3000000, 20000000), 6e-6 + 12e-6 + 3e-3);
  // One NCCL call with reductions to several owners.
  EXPECT_DOUBLE_EQ(link("dp", {3, 4}, reduce, 0, 7000000, 1000000, 5), 6e-6 + 1e-5 + 4e-6 + 2.5e-3);
  EXPECT_EQ(category_of("experts", {all_to_all, "combine", 1, 1}, false), TimeCategory::combine);
  EXPECT_EQ(category_of("experts", {all_to_all, "dispatch", 1, 1}, false), TimeCategory::dispatch);
  EXPECT_EQ(category_of("stage", {all_gather, "", 1, 1}, true), TimeCategory::gradients);

  // The time of a step is the sum of its components. On a GPU, backward hides the reduction of
  // gradients for as long as it lasts.
  Profile profile{};
  profile.passes = 2;
  profile.pass.calls[{"gemm", 64, 1e9, 10}] = 3;
  profile.update.transfers[{"stage", {reduce_scatter, "", 1000000, 1000000}}] = 1;
  profile.update.transfers[{"stage", {all_gather, "", 1000000, 1000000}}] = 1;
  m.overhead = 0;
  const Layout four{4};
  StepTime time = step_time(m, DType::f32, four, 4, profile);
  EXPECT_DOUBLE_EQ(time[TimeCategory::compute], 6e-3);
  // The reduction is hidden, because backward of a pass takes 2 ms. The all-gather of the weights
  // is hidden except for 0.003 ms, because the next forward takes 1 ms.
  EXPECT_NEAR(time[TimeCategory::gradients], 0.003e-3, 1e-12);
  EXPECT_DOUBLE_EQ(time.total(), time[TimeCategory::compute] + time[TimeCategory::gradients]);
  m.backend = "cpu";
  EXPECT_NEAR(step_time(m, DType::f32, four, 4, profile)[TimeCategory::gradients], 2.006e-3, 1e-12);
}

// Small messages over many ranks take as long as rounds of recursive doubling, and large ones as
// long as their bytes.
TEST(Plan, LatencyGrowsWithTheLogarithmOfRanks) {
  const Machine h100 = read_machine("h100", MODELS "/gpt-1.ini");
  const auto seconds = [&](const char* group, int ranks, Collective kind, Index bytes) {
    const Peers peers = peers_of({ranks, 1}, 8);
    return seconds_of(h100, ranks, group, peers, {kind, "", bytes * (ranks - 1), bytes * (ranks - 1), bytes});
  };
  using enum Collective;
  EXPECT_LT(seconds("stage", 65536, all_reduce, 8), 2e-4);  // the norm
  EXPECT_GT(seconds("stage", 65536, all_reduce, 8), 1e-4);
  EXPECT_LT(seconds("world", 65536, all_reduce, 8), 3e-4);
  EXPECT_NEAR(seconds("stage", 65536, all_reduce, 8) - seconds("stage", 32768, all_reduce, 8), 2 * h100.latency, 1e-7);
  // Bandwidth of a ring: the buffer without a rank's own block, twice.
  const double large = seconds("stage", 16, all_reduce, Index{1} << 30);
  EXPECT_NEAR(large / (2 * 15.0 / 16 * (Index{1} << 30) / 8 / h100.bandwidth), 1, 0.02);
}

// On a GPU, gradients are reduced to their owners, and weights are broadcast from them, bucket by
// bucket. The bytes are those of reduce-scatter and all-gather on the host.
TEST(Plan, CollectivesMatchTheTrainer) {
  const auto cpu = make_cpu();
  const Layout layout{6, 2, 3, 1};
  struct Sum {
    double calls = 0, sent = 0, roots = 0;
  };
  const auto update = [&](const Device* device) {
    std::map<std::pair<std::string, Collective>, Sum> sums;
    const Profile profile = Profiler(planned(), planned_vocab, device).balanced(layout);
    for (const auto& [key, times] : profile.update.transfers) {
      Sum& sum = sums[{std::string(key.first), key.second.kind}];
      sum.calls += times;
      sum.sent += times * static_cast<double>(key.second.sent);
      sum.roots += times * static_cast<double>(key.second.roots);
    }
    return sums;
  };
  auto host = update(cpu.get()), device = update(nullptr);
  using enum Collective;
  for (const char* group : {"stage", "dp", "edp"}) {
    if (!host.count({group, reduce_scatter})) continue;
    EXPECT_EQ(host.count({group, reduce}), 0u) << group;
    EXPECT_EQ(device.count({group, reduce_scatter}), 0u) << group;
    EXPECT_EQ(device.count({group, all_gather}), 0u) << group;
    const Sum reduced = device[{group, reduce}], gathered = device[{group, broadcast}];
    EXPECT_EQ(reduced.sent, (host[{group, reduce_scatter}].sent)) << group;
    EXPECT_EQ(gathered.sent, (host[{group, all_gather}].sent)) << group;
    EXPECT_GE(reduced.calls, 3) << group;  // one or more for each layer
    const double owners = group == std::string("stage") ? 6 : group == std::string("dp") ? 3 : 2;
    EXPECT_GE(reduced.roots, reduced.calls) << group;  // a layer may have several owners
    EXPECT_GE(reduced.roots, owners) << group;         // every rank owns a range
  }
  EXPECT_GT((device[{"stage", reduce}].calls), 0);
  // The host's all-reduces: samples are read, the losses, metrics are written, and whether to stop.
  EXPECT_EQ((host[{"world", all_reduce}].calls), 4);
  EXPECT_EQ((device[{"world", all_reduce}].calls), 4);
}

TEST(Plan, ReadsMachineFiles) {
  const Machine m = round_machine();
  const Machine again = parse_machine(to_ini(m, "a comment\nof two lines"), "again");
  EXPECT_EQ(to_ini(again, ""), to_ini(m, ""));
  EXPECT_EQ(again.products.points, m.products.points);
  EXPECT_GE(machine_names().size(), 14u);
  for (const std::string& name : machine_names()) {
    SCOPED_TRACE(name);
    const Machine known = read_machine(name, MODELS "/gpt-1.ini");
    EXPECT_EQ(known.name, name);
    EXPECT_GT(known.peak(DType::bf16), known.peak(DType::f32));
    EXPECT_GE(known.ranks_per_node, 4);
    EXPECT_GT(known.node_bandwidth, known.bandwidth);
  }
  EXPECT_NE(message([] { read_machine("h1000", MODELS "/gpt-1.ini"); }).find("h100, h200, h800"), std::string::npos);
  const auto error = [&](const std::string& line) {
    return message([&] { parse_machine(to_ini(round_machine(), "") + line, "file"); });
  };
  EXPECT_NE(error("bandwith = 3").find("did you mean 'links.bandwidth'"), std::string::npos);
  EXPECT_NE(error("bandwidth = 3").find("links.bandwidth is given twice"), std::string::npos);
  EXPECT_NE(error("[compute]\nattention_forward = 64:0.3, 32:0.5").find("file:"), std::string::npos);
  EXPECT_NE(error("[operations]\nadd = -3").find("bytes/s above 0"), std::string::npos);
  const Machine old_names = parse_machine(to_ini(round_machine(), "") + "[operations]\ngather_rows = 3e9\n", "file");
  EXPECT_EQ(old_names.operations.at("permute"), 3e9);
  EXPECT_NE(
      error("[operations]\nnorm_forwrad = 3e9").find("unknown operation 'norm_forwrad': did you mean 'norm_forward'?"),
      std::string::npos);
  EXPECT_NE(error("[operations]\nx = 3e9").find("unknown operation 'x': `switchyard plan --operations`"),
            std::string::npos);
  // Values out of range, each with its line.
  const auto changed = [](std::string_view key, std::string_view value) {
    std::string text = to_ini(round_machine(), "");
    const std::size_t at = text.find("\n" + std::string(key) + " = ") + 1;
    text.replace(at, text.find('\n', at) - at, fmt::format("{} = {}", key, value));
    return message([&] { parse_machine(text, "file"); });
  };
  EXPECT_EQ(changed("products", "1:1"), "no error");
  EXPECT_EQ(changed("ranks_per_node", "1"), "no error");
  EXPECT_EQ(changed("overhead", "0"), "no error");
  const std::vector<std::array<const char*, 3>> wrong = {
      {"products", "1:5", "up to 1"},       {"products", "1:0", "above 0"},    {"ranks_per_node", "0.5", "whole"},
      {"ranks_per_node", "2.7", "whole"},   {"ranks_per_node", "0", "from 1"}, {"ranks_per_node", "1e300", "whole"},
      {"overhead", "1e300", "from 0 to 1"}, {"latency", "2", "from 0 to 1"},   {"node_latency", "nan", "from 0 to 1"},
      {"node_bandwidth", "0", "above 0"},   {"bandwidth", "inf", "above 0"},   {"memory_bandwidth", "-1", "above 0"},
      {"peak_f32", "0", "above 0"},         {"memory", "0", "above 0"}};
  for (const auto& [key, value, expected] : wrong) {
    const std::string text = changed(key, value);
    EXPECT_NE(text.find(fmt::format("{} = '{}': expected", key, value)), std::string::npos) << text;
    EXPECT_NE(text.find(expected), std::string::npos) << text;
  }
  EXPECT_NE(
      message([] { parse_machine("[machine]\nmemory = 1e9", "file"); }).find("compute.memory_bandwidth is missing"),
      std::string::npos);
  EXPECT_NE(message([] { parse_machine("[machine]\nmemory = much", "file"); }).find("file:2: machine.memory = 'much'"),
            std::string::npos);
}

TEST(Plan, ParsesLayoutLists) {
  const std::vector<Layout> layouts = parse_layouts("tp2-ep4, ep8-etp2,tp1,ep16-node4", 16);
  ASSERT_EQ(layouts.size(), 4u);
  EXPECT_EQ(layouts[3], (Layout{16, 1, 16, 1, 4}));
  EXPECT_EQ(layouts[0].str(), (Layout{16, 2, 4, 1}).str());
  EXPECT_EQ(layouts[1].str(), (Layout{16, 1, 8, 2}).str());
  EXPECT_EQ(layouts[2].str(), Layout{16}.str());
  for (const char* text : {"", "2", "tp", "tp2ep4", "pp2", "tp2--ep2", "tp0", "tp2x"})
    EXPECT_NE(message([&] { parse_layouts(text, 16); }).find("tp2-ep4-etp1"), std::string::npos) << text;
}

TEST(Plan, ConvertsSharesToRows) {
  std::vector<Index> rows(3);
  rows_of({0.5, 0.25, 0.25}, 10, rows);
  EXPECT_EQ(rows, (std::vector<Index>{5, 3, 2}));
  rows_of({0.3, 0.0, 0.3}, 10, rows);  // the remaining rows are dropped
  EXPECT_EQ(rows, (std::vector<Index>{3, 0, 3}));
  const Shares load = {{0.1, 0.2, 0.3, 0.4}, {0.4, 0.4, 0.1, 0.0}};
  EXPECT_NEAR(by_rank(load, 2)[0][1], 0.7, 1e-12);
  EXPECT_EQ(busiest_first(load, 2), (Shares{{0.3, 0.4, 0.1, 0.2}, {0.4, 0.4, 0.1, 0.0}}));
  EXPECT_NEAR(evened(load)[1][3], 0.225, 1e-12);
}

// A recorded load decides rows, bytes and time of the busiest rank. They are computed here from raw
// counts.
TEST(Plan, UsesTheLoadOfTheBusiestRank) {
  const std::filesystem::path run = std::filesystem::path(FIRST_RUN) / "run";
  const TrainState state = read_state(resolve_checkpoint(run, nullptr));
  Config config = parse_config(state.config, "run");
  const ExpertHistory& h = state.experts;
  ASSERT_GT(h.layers, 0);
  const Shares load = recorded_load(run, config);
  // Kept assignments of the last tenth of the steps.
  Shares counts(static_cast<std::size_t>(h.layers), std::vector<double>(static_cast<std::size_t>(h.experts)));
  std::vector<double> routed(static_cast<std::size_t>(h.layers));
  for (Index w = 0; w < h.windows(); ++w)
    if (10 * h.steps[w] > 9 * h.steps.back() || w + 1 == h.windows())
      for (Index l = 0; l < h.layers; ++l)
        for (Index e = 0; e < h.experts; ++e) {
          const Index at = (w * h.layers + l) * h.experts + e;
          routed[l] += static_cast<double>(h.routed[at]);
          counts[l][e] += static_cast<double>(h.routed[at] - h.dropped[at]);
        }
  for (Index l = 0; l < h.layers; ++l)
    for (Index e = 0; e < h.experts; ++e) EXPECT_NEAR(load[l][e], counts[l][e] / routed[l], 1e-12);

  config = parse_config(to_ini(config), "run", {"--train.global_batch=8", "--train.micro_batch=2"});
  const Layout layout{2, 1, 2, 1};
  PlanOptions options;
  options.machine = round_machine();
  options.layouts = {layout};
  const Plan balanced = make_plan(config, state.vocab, 2, options);
  options.load = load;
  const Plan plan = make_plan(config, state.vocab, 2, options);
  ASSERT_EQ(plan.fitting.size(), 1u);
  const double assignments = static_cast<double>(2 * config.model.seq_len * config.moe.top_k);
  const double passes = static_cast<double>(plan.fitting[0].passes);
  // Tokens with an expert of the busiest rank.
  double tokens = 0;
  for (const std::vector<double>& layer : busiest_first(load, 2)) {
    std::vector<Index> tokens_per_expert(layer.size());
    rows_of(layer, static_cast<Index>(assignments), tokens_per_expert);
    const Index all = 2 * config.model.seq_len, E = std::ssize(tokens_per_expert);
    std::vector<Index> group_of;  // two of the run's three groups are chosen
    for (Index e = 0; e < E; ++e) group_of.push_back(e * config.moe.groups / E);
    const double reach = dry_reach(tokens_per_expert, all, config.moe.top_k, 0, E / 2, group_of, config.moe.groups,
                                   config.moe.topk_groups);
    tokens += std::round(static_cast<double>(all) * reach);
  }
  for (const TrafficLine& line : plan.fitting[0].traffic) {
    if (line.subphase != "dispatch") continue;
    // Forward rows with physical experts and weights, and backward rows. Both ranks send the same
    // number.
    const double expected =
        passes * tokens * static_cast<double>(4 * (2 * config.model.d_model + 2 * config.moe.top_k));
    EXPECT_NEAR(line.received / expected, 1, 0.01);
  }
  const StepTime& time = *plan.fitting[0].time;
  EXPECT_GT(time[TimeCategory::waiting], 0);
  EXPECT_LT(time[TimeCategory::waiting], time.total());
  EXPECT_EQ((*balanced.fitting[0].time)[TimeCategory::waiting], 0);
  const Json json = plan_json(plan);
  EXPECT_NEAR(json["layouts"][0]["tokens_per_second"].get<double>(), plan.tokens() / time.total(), 1e-6);
  EXPECT_NE(plan_text(plan, 0).find("waits for its busiest rank"), std::string::npos);

  // If the configuration drops nothing, all routed assignments are kept.
  const Config dropless = parse_config(to_ini(config), "run", {"--moe.capacity_factor=0"});
  for (const std::vector<double>& layer : recorded_load(run, dropless))
    EXPECT_NEAR(std::accumulate(layer.begin(), layer.end(), 0.0), 1, 1e-9);
  const Config other = parse_config(to_ini(config), "run", {"--moe.experts=" + std::to_string(2 * h.experts)});
  EXPECT_NE(message([&] { recorded_load(run, other); }).find("give a run of this model"), std::string::npos);
}

TEST(Plan, NodeLayoutsFollowTheMachine) {
  PlanOptions options;
  options.machine = round_machine();
  const auto by_node = [&](double ranks) {
    options.machine->ranks_per_node = ranks;
    std::set<int> nodes;
    for (const Candidate& c : make_plan(planned(), planned_vocab, 6, options).fitting)
      nodes.insert(c.layout.ranks_per_node);
    return nodes;
  };
  EXPECT_EQ(by_node(0), std::set{1});
  EXPECT_EQ(by_node(2), (std::set{1, 2}));
  EXPECT_EQ(by_node(6), std::set{1});
}

TEST(Plan, RejectsRepeatedAxes) {
  EXPECT_EQ(parse_layouts("tp2-ep4,ep2", 8), (std::vector<Layout>{{8, 2, 4}, {8, 1, 2}}));
  for (const char* text : {"ep2-ep4", "tp2,tp2-tp2", "ep4-node2-node2"})
    EXPECT_NE(message([&] { parse_layouts(text, 8); }).find("is there twice"), std::string::npos) << text;
}

// Memory and sent bytes differ by orders of magnitude. The unit must also show the smaller ones.
TEST(Plan, PrintsOneUnitOfBytesPerTable) {
  const Plan plan =
      make_plan(planned({"--train.global_batch=12000000"}), planned_vocab, 4, {{}, {}, {Layout{4, 1, 4}}});
  const std::string text = plan_text(plan, 1);
  EXPECT_NE(text.find("memory MB"), std::string::npos) << text;
  EXPECT_NE(text.find("sent MB"), std::string::npos) << text;
}

// If nothing fits, the plan names the largest micro-batch that would fit, with its exact options.
TEST(Plan, SuggestsSettingsThatFit) {
  PlanOptions options;
  options.machine = round_machine();
  options.suggest = true;
  options.layouts = {Layout{6, 1, 3, 1}};
  const auto memory = [&](const std::vector<std::string>& settings) {
    PlanOptions wide = options;
    wide.machine->memory = 1e15;
    return static_cast<double>(make_plan(planned(settings), planned_vocab, 6, wide).fitting.front().memory.total());
  };
  const std::string four = "--train.micro_batch=4", batch = "--train.global_batch=24",
                    again = "--train.recompute=block";
  const double of_two = memory({batch, "--train.micro_batch=2"}), of_one = memory({batch, "--train.micro_batch=1"}),
               least = memory({batch, "--train.micro_batch=1", again}), as_it_is = memory({batch, four}),
               recomputed = memory({batch, four, again});
  ASSERT_LT(least, of_one);
  ASSERT_LT(of_one, of_two);
  const auto suggested = [&](double bytes) {
    options.machine->memory = bytes;
    const Config config = planned({batch, four});
    const Plan plan = make_plan(config, planned_vocab, 6, options);
    EXPECT_TRUE(plan.fitting.empty());
    std::vector<std::string> texts;
    for (const Suggestion& s : plan.suggestions) {
      texts.push_back(s.options(config));
      EXPECT_LE(static_cast<double>(s.best.memory.total()), bytes);
      EXPECT_NE(plan_text(plan, 3).find(texts.back()), std::string::npos);
      // The suggested options fit.
      std::vector<std::string> settings = {batch, four};
      std::istringstream arguments(texts.back());
      for (std::string argument; arguments >> argument;) settings.push_back(argument);
      EXPECT_LE(memory(settings), bytes);
    }
    EXPECT_NE(plan_text(plan, 3).find("Nothing fits"), std::string::npos);
    return texts;
  };
  std::vector<std::string> with_two = suggested(of_two + 1);
  ASSERT_FALSE(with_two.empty());
  EXPECT_EQ(with_two.front(), "--train.micro_batch=2");
  ASSERT_LT(recomputed, as_it_is);
  EXPECT_EQ(suggested(recomputed + 1).back(), "--train.recompute=block");
  // The cheapest mode that suffices comes first. A dearer one has a larger micro-batch.
  const auto with_mode = [&](const std::string& micro_batch, const std::string& mode) {
    return memory({batch, micro_batch, "--train.recompute=" + mode});
  };
  const double norms = with_mode(four, "norms");
  ASSERT_LT(norms, as_it_is);
  ASSERT_LT(recomputed, norms);
  EXPECT_EQ(suggested(norms + 1).back(), "--train.recompute=norms");
  EXPECT_TRUE(suggested(least - 1).empty());
  EXPECT_EQ(suggested(least).back(), "--train.micro_batch=1 --train.recompute=block");
  // There are no suggestions if they are not requested, or if a layout fits.
  options.suggest = false;
  options.machine->memory = least;
  EXPECT_TRUE(make_plan(planned({batch, four}), planned_vocab, 6, options).suggestions.empty());
  options.suggest = true;
  options.machine->memory = as_it_is;
  EXPECT_EQ(plan_text(make_plan(planned({batch, four}), planned_vocab, 6, options), 3).find("Nothing fits"),
            std::string::npos);
}

// All rows of the document have the same fields: with or without a machine, and also if they do not
// fit.
TEST(Plan, WritesJsonRowsWithTheSameFields) {
  const auto names_of = [](const Json& object) {
    std::string names;
    for (const Json::Member& m : object.members()) names += m.name + ",";
    return names;
  };
  PlanOptions options;
  options.layouts = {Layout{6}, Layout{6, 2, 3, 1}, Layout{6, 1, 3, 1}};
  const Plan free = make_plan(planned(), planned_vocab, 6, options);
  options.machine = round_machine();
  const Json without = plan_json(free);
  const Json& first = without["layouts"][0];
  EXPECT_TRUE(first["seconds"].is_null());
  EXPECT_TRUE(first["tokens_per_second"].is_null());
  EXPECT_TRUE(without["memory_of_a_rank"].is_null());
  int rows = 0;
  std::set<bool> profiled;
  for (const double memory : {1e9, 1.0, 1.01 * static_cast<double>(free.fitting.front().memory.parameters())}) {
    options.machine->memory = memory;
    const Json json = plan_json(make_plan(planned(), planned_vocab, 6, options));
    EXPECT_EQ(names_of(json), names_of(without));
    EXPECT_TRUE(json["memory_of_a_rank"].is_integer());
    for (const char* list : {"layouts", "too_large"})
      for (const Json& row : json[list]) {
        ++rows;
        EXPECT_EQ(names_of(row), names_of(first));
        EXPECT_TRUE(row["node"].is_integer());
        EXPECT_TRUE(row["memory"]["total"].is_integer());
        const bool known = !row["traffic"].is_null();
        profiled.insert(known);
        EXPECT_EQ(row["sent_bytes"].is_integer(), known);
        EXPECT_EQ(row["micro_batches"].is_integer(), known);
        EXPECT_EQ(row["memory"]["activations"].is_integer(), known);
        if (!known) continue;
        EXPECT_GT(row["seconds"]["step"].get<double>(), 0);
        for (const Json& line : row["traffic"])
          for (const char* field : {"ranks", "calls", "roots", "sent_bytes", "received_bytes"})
            EXPECT_TRUE(line[field].is_integer()) << field;
        double computed = 0;
        for (const Json& line : row["operations"]) {
          computed += line["seconds"].get<double>();
          EXPECT_GT(line["calls"].get<Index>(), 0) << line["operation"].get<std::string>();
        }
        EXPECT_NEAR(computed, row["seconds"]["compute"].get<double>(), 1e-9 * computed);
      }
  }
  EXPECT_EQ(rows, 9);
  EXPECT_EQ(profiled.size(), 2u);
}

// The copy of an asynchronous checkpoint is in the memory of a CPU rank, as in arena_sizes().
TEST(Plan, CountsTheCopyOfACheckpointOnCpus) {
  PlanOptions options;
  options.layouts = {Layout{6, 1, 3, 1}};
  options.machine = round_machine();
  const auto plan_with = [&](const std::string& backend, double memory, const std::string& async) {
    options.machine->backend = backend;
    options.machine->memory = memory;
    return make_plan(planned({"--run.async_checkpoint=" + async}), planned_vocab, 6, options);
  };
  const MemoryPlan needs = plan_with("cpu", 1e15, "true").fitting.front().memory;
  ASSERT_GT(needs.checkpoint_copy, 0);
  const auto without = static_cast<double>(needs.total()), with = without + static_cast<double>(needs.checkpoint_copy);
  EXPECT_EQ(plan_with("cpu", without, "false").fitting.size(), 1u);
  EXPECT_EQ(plan_with("cpu", with, "true").fitting.size(), 1u);
  EXPECT_NE(plan_text(plan_with("cpu", with, "true"), 1).find("checkpoint copy"), std::string::npos);
  const Plan plan = plan_with("cpu", with - 1, "true");
  EXPECT_EQ(plan.too_large.size(), 1u);
  EXPECT_NE(
      plan_text(plan, 1).find("With --run.async_checkpoint=false, which needs no copy of a checkpoint, 1 of them fits"),
      std::string::npos)
      << plan_text(plan, 1);
  const auto device_needs = static_cast<double>(plan_with("cuda", 1e15, "true").fitting.front().memory.total());
  EXPECT_EQ(plan_with("cuda", device_needs, "true").fitting.size(), 1u);
}

// The group that sums gradients of shared kv heads has the stacks' number of them.
TEST(Plan, SizesTheReplicasOfAnEncoderDecoder) {
  const Config config = parse_config(
      "[model]\nkind = encoder_decoder\nlayers = 2\nd_model = 64\nheads = 8\nseq_len = 16\nsentinels = 4\n"
      "[encoder]\nkv_heads = 2\n[decoder]\nkv_heads = 2\n[train]\nglobal_batch = 2\nmicro_batch = 1\n",
      "test");
  PlanOptions options;
  options.layouts = {Layout{4, 4}};
  options.machine = round_machine();
  const Plan plan = make_plan(config, planned_vocab, 4, options);
  const auto& traffic = plan.fitting.at(0).traffic;
  const auto line = std::ranges::find(traffic, "replicas", &TrafficLine::group);
  ASSERT_NE(line, traffic.end());
  EXPECT_EQ(line->ranks, 2);
  EXPECT_GT(line->seconds, 0);
}

// Only the layouts that are the fastest with balanced experts are planned with a load. If none of
// them fits, the next ones are.
TEST(Plan, AppliesTheLoadToTheFastestLayouts) {
  const Config config = planned({"--train.global_batch=72", "--train.micro_batch=1"});
  PlanOptions options;
  options.machine = round_machine();
  options.machine->memory = 1e15;
  const Plan balanced = make_plan(config, planned_vocab, 72, options);
  ASSERT_GT(balanced.fitting.size(), max_loaded_layouts);
  EXPECT_EQ(balanced.with_load + balanced.without_load, 0u);
  // All tokens have the first three experts.
  Shares load(static_cast<std::size_t>(count_moe(block_specs(config))), std::vector<double>(12, 0.0));
  for (std::vector<double>& layer : load) layer[0] = layer[1] = layer[2] = 1.0 / 3;
  options.load = load;
  const Plan all = make_plan(config, planned_vocab, 72, options);
  EXPECT_EQ(all.fitting.size(), max_loaded_layouts);
  EXPECT_EQ(all.with_load, max_loaded_layouts);
  EXPECT_EQ(all.without_load, balanced.fitting.size() - max_loaded_layouts);
  EXPECT_NE(plan_text(all, 3).find(fmt::format("planned with the load; {} were not", all.without_load)),
            std::string::npos);
  EXPECT_EQ(plan_json(all)["layouts_without_load"].get<std::size_t>(), all.without_load);
  // The 24 fastest layouts fit with balanced experts alone, and a slower one fits with the load.
  const auto loaded_bytes = [&](const Candidate& c) {
    options.layouts = {c.layout};
    return make_plan(config, planned_vocab, 72, options).fitting.front().memory.total();
  };
  std::vector<std::pair<const Candidate*, Index>> candidates;  // with loaded bytes
  for (const Candidate& c : balanced.fitting) candidates.emplace_back(&c, loaded_bytes(c));
  const auto chosen = [&](Index memory) {
    std::vector<Layout> fast;
    for (const auto& [c, bytes] : candidates) {
      if (c->memory.total() <= memory && bytes > memory && fast.size() < max_loaded_layouts) fast.push_back(c->layout);
      if (bytes <= memory && fast.size() == max_loaded_layouts) {
        fast.push_back(c->layout);
        return fast;
      }
    }
    return std::vector<Layout>();
  };
  options.layouts.clear();
  for (const auto& [c, bytes] : candidates)
    if (options.layouts.empty()) {
      options.layouts = chosen(bytes);
      options.machine->memory = static_cast<double>(bytes);
    }
  ASSERT_EQ(options.layouts.size(), max_loaded_layouts + 1);
  const Plan next = make_plan(config, planned_vocab, 72, options);
  ASSERT_EQ(next.fitting.size(), 1u);
  EXPECT_EQ(next.fitting[0].layout, options.layouts.back());
  EXPECT_EQ(next.with_load, max_loaded_layouts + 1);
  EXPECT_EQ(next.without_load, 0u);
}

TEST(Plan, WritesMachinesAsJson) {
  const Json json = machine_json(round_machine());
  EXPECT_EQ(json["machine"]["name"], Json("round"));
  EXPECT_EQ(json["links"]["node_bandwidth"].get<double>(), 1e9);
  EXPECT_EQ(json["operations"]["adamw"].get<double>(), 1e9);
  EXPECT_EQ(json["compute"]["products"][1][1].get<double>(), 0.5);
}

TEST(Plan, ReportsProgress) {
  PlanOptions options;
  std::vector<std::pair<Index, Index>> seen;
  options.progress = [&](std::string_view phase, Index done, Index total) {
    EXPECT_EQ(phase, "planning for 6 ranks");
    seen.emplace_back(done, total);
  };
  const Plan plan = make_plan(planned(), planned_vocab, 6, options);
  ASSERT_EQ(seen.size(), plan.fitting.size());
  for (std::size_t i = 0; i < seen.size(); ++i)
    EXPECT_EQ(seen[i], (std::pair<Index, Index>(static_cast<Index>(i) + 1, std::ssize(seen))));
}

TEST(Plan, ReportsLayoutsThatDoNotFit) {
  Machine m = round_machine();
  m.memory = 3e5;
  PlanOptions options;
  options.machine = m;
  const Plan plan = make_plan(planned(), planned_vocab, 6, options);
  EXPECT_EQ(plan.fitting.size() + plan.too_large.size(), layouts_of(planned(), 6).size());
  ASSERT_FALSE(plan.too_large.empty());
  for (const Candidate& c : plan.fitting) EXPECT_LE(c.memory.total(), 3e5);
  for (const Candidate& c : plan.too_large) EXPECT_GT(c.memory.total(), 3e5);
  EXPECT_NE(plan_text(plan, 3).find("do not fit into the 0.30 MB of a rank"), std::string::npos);
  for (std::size_t i = 1; i < plan.fitting.size(); ++i)
    EXPECT_LE(plan.fitting[i - 1].time->total(), plan.fitting[i].time->total());
  EXPECT_NE(message([&] { make_plan(planned(), planned_vocab, 7, {}); }).find("no layout of 7 ranks works"),
            std::string::npos);
  m.peak_bf16 = 0;
  options.machine = m;
  EXPECT_NE(message([&] { make_plan(planned({"--run.dtype=bf16"}), planned_vocab, 6, options); }).find("peak_bf16"),
            std::string::npos);
}

}  // namespace
}  // namespace sy
