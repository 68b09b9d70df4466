#include "src/plan/cost.h"

#include <algorithm>
#include <numeric>

namespace sy {
namespace {

// Which curve says the share of the peak that an operation reaches.
struct CurveOf {
  std::string_view op;
  Curve Machine::*curve;
};
constexpr CurveOf curves[] = {
    {"gemm", &Machine::products},
    {"heads_gemm", &Machine::products},
    {"grouped_gemm", &Machine::grouped_products},
    {"grouped_gemm_input", &Machine::grouped_products},
    {"grouped_gemm_weight", &Machine::grouped_products},
    {"attention_forward", &Machine::attention_forward},
    {"attention_backward", &Machine::attention_backward},
    {"attention_backward_learned", &Machine::attention_backward},
};

}  // namespace

GroupShape group_shape(std::string_view name, const Layout& l, Index kv_heads) {
  if (name == "dp") return {l.dp(), l.tp};
  if (name == "tp") return {l.tp, 1};
  if (name == "edp") return {l.edp(), static_cast<int>(l.expert_ranks())};
  if (name == "experts") return {static_cast<int>(l.expert_ranks()), 1};
  if (name == "within") return {l.experts_topology().ranks, 1};
  if (name == "across") return {l.experts_topology().nodes, l.node};
  if (name == "replicas") return {replicas_of(kv_heads, l.tp), 1};
  return {l.ranks, 1};  // stage and world
}

Peers peers_of(const GroupShape& group, int ranks_per_node) {
  const int on_node = ranks_per_node > 0
                          ? std::min<int>(group.size, static_cast<int>(ceil_div(ranks_per_node, group.stride)))
                          : group.size;
  return {on_node - 1, group.size - on_node};
}

std::string_view name_of(Part part) {
  constexpr std::string_view names[num_parts] = {"compute",   "tensor",     "dispatch", "combine",
                                                 "gradients", "statistics", "waiting"};
  return names[static_cast<int>(part)];
}

double StepTime::total() const {
  return std::accumulate(seconds.begin(), seconds.end(), 0.0);
}

double seconds_of(const Machine& machine, DType dtype, int ranks, const DryCall& call) {
  const double parts = machine.ranks_sharing(ranks);
  const auto row =
      std::find_if(std::begin(curves), std::end(curves), [&](const CurveOf& c) { return c.op == call.op; });
  const auto slow = machine.operations.find(call.op);
  const double bandwidth = slow == machine.operations.end() ? machine.memory_bandwidth : slow->second;
  double seconds = call.bytes * parts / bandwidth;
  if (row != std::end(curves) && call.flops > 0) {
    const double share = (machine.*row->curve).at(static_cast<double>(call.size));
    seconds = std::max(seconds, call.flops * parts / (machine.peak(dtype) * share));
  }
  return machine.overhead + seconds;
}

double seconds_of(const Machine& machine, int ranks, std::string_view group, const Peers& peers,
                  const DryTransfer& transfer) {
  const int others = peers.here + peers.away;
  if (others == 0) return 0;
  // The host's messages go through MPI on every machine.
  const bool ring = machine.backend == "cuda" && group != "world" && transfer.kind != Collective::all_to_all;
  const double bytes = static_cast<double>(std::max(transfer.sent, transfer.received));
  const double beyond = peers.away == 0 ? 0 : ring ? bytes / (peers.here + 1) : bytes * peers.away / others;
  const double within = ring ? (peers.here > 0 ? bytes : 0) : bytes - beyond;
  const double parts = machine.ranks_sharing(ranks);
  return machine.node_latency * peers.here + machine.latency * peers.away +
         std::max(within * parts / machine.node_bandwidth, peers.away > 0 ? beyond * parts / machine.bandwidth : 0);
}

Part part_of(std::string_view group, const DryTransfer& transfer, bool update) {
  if (group == "world") return Part::statistics;
  if (update) return Part::gradients;
  if (group == "tp") return Part::tensor;
  return transfer.part == "combine" ? Part::combine : Part::dispatch;  // with the counts, and what balances experts
}

StepTime step_time(const Machine& machine, DType dtype, const Layout& layout, Index kv_heads, const Profile& profile) {
  StepTime time;
  double reduced = 0;  // of gradients to their owners
  for (const bool update : {false, true}) {
    const Work& work = update ? profile.update : profile.pass;
    for (const auto& [call, times] : work.calls)
      time[Part::compute] += times * seconds_of(machine, dtype, layout.ranks, call);
    for (const auto& [key, times] : work.transfers) {
      const auto& [group, transfer] = key;
      const Peers peers = peers_of(group_shape(group, layout, kv_heads), static_cast<int>(machine.ranks_per_node));
      const double seconds = times * seconds_of(machine, layout.ranks, group, peers, transfer);
      time[part_of(group, transfer, update)] += seconds;
      if (update && transfer.kind == Collective::reduce_scatter) reduced += seconds;
    }
  }
  if (machine.backend == "cuda")
    time[Part::gradients] -= std::min(reduced, time[Part::compute] * 2 / 3 / static_cast<double>(profile.passes));
  return time;
}

}  // namespace sy
