#include "src/plan/cost.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "src/model/context.h"

namespace sy {
namespace {

// Curve of an operation's share of the peak.
struct CurveOf {
  std::string_view op;
  Curve Machine::*curve;
};
constexpr CurveOf curves[] = {
    {"gemm", &Machine::products},
    {"batched_head_gemm", &Machine::products},
    {"grouped_gemm", &Machine::grouped_products},
    {"grouped_gemm_dgrad", &Machine::grouped_products},
    {"grouped_gemm_wgrad", &Machine::grouped_products},
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
  if (name == "within") return {l.expert_topology().ranks_per_node, 1};
  if (name == "across") return {l.expert_topology().nodes, l.ranks_per_node};
  if (name == "replicas") return {num_replicas(kv_heads, l.tp), 1};
  if (name == "expert replicas") return {l.edp() * l.etp, l.edp() > 1 ? static_cast<int>(l.expert_ranks()) : 1};
  return {l.ranks, 1};  // stage and world
}

Peers peers_of(const GroupShape& group, int ranks_per_node) {
  const int on_node = ranks_per_node > 0
                          ? std::min<int>(group.size, static_cast<int>(ceil_div(ranks_per_node, group.stride)))
                          : group.size;
  return {on_node - 1, group.size - on_node};
}

std::string_view name_of(TimeCategory category) {
  constexpr std::string_view names[num_time_categories] = {"compute",   "tensor",     "dispatch", "combine",
                                                           "gradients", "statistics", "waiting"};
  return names[static_cast<int>(category)];
}

double seconds_of(const Machine& machine, DType dtype, int ranks, const DryCall& call) {
  const double sharing = machine.ranks_sharing(ranks);
  const auto row = std::ranges::find(curves, call.op, &CurveOf::op);
  const auto slow = machine.operations.find(call.op);
  const double bandwidth = slow == machine.operations.end() ? machine.memory_bandwidth : slow->second;
  double seconds = call.bytes * sharing / bandwidth;
  if (row != std::end(curves) && call.flops > 0) {
    const double share = (machine.*row->curve).at(static_cast<double>(call.size));
    seconds = std::max(seconds, call.flops * sharing / (machine.peak(dtype) * share));
  }
  return machine.overhead + seconds;
}

namespace {

// Returns the number of rounds in which a value reaches n ranks, if each round doubles their
// number.
double doublings(int n) {
  return std::ceil(std::log2(n));
}

double seconds_of(const Machine& machine, int ranks, const Algorithm& a) {
  const double sharing = machine.ranks_sharing(ranks);
  return machine.node_latency * a.node_steps + machine.latency * a.steps + machine.message_overhead * a.messages +
         std::max(a.within * sharing / machine.node_bandwidth,
                  a.beyond > 0 ? a.beyond * sharing / machine.bandwidth : 0);
}

}  // namespace

std::vector<Algorithm> algorithms_of(bool device, const Peers& peers, const DryTransfer& transfer) {
  const int others = peers.here + peers.away, p = others + 1, on_node = peers.here + 1;
  const int nodes = static_cast<int>(ceil_div(p, on_node));
  const auto counted = static_cast<double>(std::max(transfer.sent, transfer.received));
  const auto buffer = static_cast<double>(transfer.buffer);
  const bool all_reduce = transfer.kind == Collective::all_reduce;
  if (!device || transfer.kind == Collective::all_to_all) {
    const double beyond = counted * peers.away / others;
    const bool scattered = transfer.kind == Collective::reduce_scatter || transfer.kind == Collective::all_gather,
               small_blocks = scattered && blocks_in_tree(transfer.buffer / p, p);
    const AllReduceAlgorithm algorithm = all_reduce_algorithm(transfer.buffer, p);
    if ((all_reduce && algorithm == AllReduceAlgorithm::eager) ||
        (small_blocks && nodes > 1 && transfer.kind == Collective::all_gather))
      return {{"doubling", doublings(on_node), doublings(nodes), 0, counted - beyond, beyond}};
    if ((all_reduce && algorithm == AllReduceAlgorithm::tree) ||
        (small_blocks && transfer.kind == Collective::reduce_scatter)) {
      const double here = 2 * doublings(on_node), away = 2 * doublings(nodes);
      return {{"tree", here, away, 0, here * buffer, away * buffer}};
    }
    const double phases = all_reduce ? 2 * static_cast<double>(ceil_div(transfer.buffer, all_reduce_chunk(p))) : 1;
    return {
        {"direct", nodes == 1 ? phases : 0, nodes > 1 ? phases : 0, phases * (others - 1), counted - beyond, beyond}};
  }
  // Each rank sends its bytes to its neighbour; one rank of each node sends them to another node.
  const auto along = [&](std::string_view name, double node_steps, double steps, double messages, double bytes) {
    return Algorithm{name, node_steps, steps, messages, peers.here > 0 ? bytes : 0, nodes > 1 ? bytes / on_node : 0};
  };
  if (all_reduce)
    return {along("ring", 2 * (p - nodes), 2 * (nodes - 1), 0, 2 * buffer * others / p),
            along("tree", 2 * peers.here, 2 * doublings(nodes), 0, 2 * buffer)};
  if (transfer.kind == Collective::broadcast || transfer.kind == Collective::reduce)
    return {along("chain", p - nodes, nodes - 1, static_cast<double>(std::max<Index>(transfer.roots - 1, 0)), buffer)};
  std::vector<Algorithm> found{along("ring", p - nodes, nodes - 1, 0, counted)};
  if (on_node == 1) found.push_back(along("PAT", 0, doublings(p), 0, counted));
  return found;
}

double seconds_of(const Machine& machine, int ranks, std::string_view group, const Peers& peers,
                  const DryTransfer& transfer) {
  if (peers.here + peers.away == 0) return 0;
  // Host messages use MPI on every machine.
  const bool device = machine.backend == "cuda" && group != "world";
  double least = std::numeric_limits<double>::infinity();
  for (const Algorithm& a : algorithms_of(device, peers, transfer))
    least = std::min(least, seconds_of(machine, ranks, a));
  return least;
}

TimeCategory category_of(std::string_view group, const DryTransfer& transfer, bool update) {
  if (group == "world") return TimeCategory::statistics;
  if (update) return TimeCategory::gradients;
  if (group == "tp" || transfer.subphase == batch_norm_subphase) return TimeCategory::tensor;
  // Dispatch includes the counts, and the sums that balance experts.
  return transfer.subphase == "combine" ? TimeCategory::combine : TimeCategory::dispatch;
}

StepTime step_time(const Machine& machine, DType dtype, const Layout& layout, Index kv_heads, const Profile& profile) {
  StepTime time;
  // Seconds of the passes' operations, of reducing gradients, and of gathering weights.
  double computed = 0, reduced = 0, gathered = 0;
  for (const bool update : {false, true}) {
    const Workload& work = update ? profile.update : profile.pass;
    for (const auto& [call, times] : work.calls)
      time[TimeCategory::compute] += times * seconds_of(machine, dtype, layout.ranks, call);
    if (!update) computed = time[TimeCategory::compute];
    for (const auto& [key, times] : work.transfers) {
      const auto& [group, transfer] = key;
      const Peers peers = peers_of(group_shape(group, layout, kv_heads), static_cast<int>(machine.ranks_per_node));
      const double seconds = times * seconds_of(machine, layout.ranks, group, peers, transfer);
      time[category_of(group, transfer, update)] += seconds;
      const Collective kind = transfer.kind;
      if (!update || group == "world") continue;
      if (kind == Collective::reduce_scatter || kind == Collective::reduce) reduced += seconds;
      if (kind == Collective::all_gather || kind == Collective::broadcast) gathered += seconds;
    }
  }
  const double pass = computed / static_cast<double>(profile.passes);
  if (machine.backend == "cuda")
    time[TimeCategory::gradients] -= std::min(reduced, pass * 2 / 3) + std::min(gathered, pass / 3);
  return time;
}

}  // namespace sy
