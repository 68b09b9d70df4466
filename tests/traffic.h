// Expected traffic of each collective of a training step, computed from specs and shapes alone.
#pragma once

#include <algorithm>
#include <map>
#include <numeric>
#include <set>

#include "kernels/ops/dispatch.h"
#include "src/model/engine.h"

namespace sy::test {

// Rows and tokens that one rank's routers send to each rank of mesh.expert_group, itself included.
struct RoutedRows {
  std::vector<Index> rows;    // [P] rows: assignments, once for each etp shard of the expert
  std::vector<Index> tokens;  // [P] sent tokens: those with at least one row for the rank
  std::vector<Index> nodes;   // [nodes] sent tokens: those with at least one row for the node

  explicit RoutedRows(const Mesh& mesh)
      : rows(mesh.expert_group->size()),
        tokens(mesh.expert_group->size()),
        nodes(mesh.layout.expert_topology().nodes) {}

  void count(const RoutingView& r, const Mesh& mesh, Index experts) {
    const Index k = r.experts.dim(1), etp = mesh.layout.etp, local = experts / mesh.layout.ep;
    for (Index t = 0; t < r.experts.dim(0); ++t) {
      std::set<Index> ranks, on;
      for (Index a = t * k; a < (t + 1) * k; ++a)
        for (Index shard = 0; shard < etp && r.dispatch_mask.i32()[a]; ++shard) {
          const Index rank = r.experts.i32()[a] / local * etp + shard;
          ++rows[rank];
          ranks.insert(rank);
          on.insert(mesh.layout.expert_topology().node_of(static_cast<int>(rank)));
        }
      for (Index rank : ranks) ++tokens[rank];
      for (Index node : on) ++nodes[node];
    }
  }
};

// Numbers of tokens that a rank sends to and receives from the other ranks of a group. They cover
// one dispatch of all tokens that `RoutedRows` has counted.
struct TokenTraffic {
  std::string group;
  int size;
  Index sent = 0, received = 0;
};

// Returns the token traffic of each all-to-all group. Collective over mesh.expert_group.
//   * One node: `experts`, directly to each rank.
//   * Several nodes: `across`, to the rank with the same index on each other node. Then `within`,
//     which forwards the tokens from all nodes to the ranks of this node.
inline std::vector<TokenTraffic> token_traffic(const Mesh& mesh, const RoutedRows& routed) {
  const auto& [nodes, ranks_per_node] = mesh.layout.expert_topology();
  const int P = mesh.expert_group->size(), me = mesh.expert_group->rank(), node = me / ranks_per_node,
            index = me % ranks_per_node;
  const auto of_all = [&](std::vector<Index> own) {
    std::vector<Index> all(own.size() * P);
    mesh.expert_group->all_gather(view_of(own.data(), {std::ssize(own)}), view_of(all.data(), {std::ssize(all)}));
    return all;
  };
  const std::vector<Index> to_ranks = of_all(routed.tokens), to_nodes = of_all(routed.nodes);
  if (nodes == 1) {
    TokenTraffic all{"experts", P};
    for (int r = 0; r < P; ++r)
      if (r != me) all.sent += to_ranks[me * P + r], all.received += to_ranks[r * P + me];
    return {all};
  }
  TokenTraffic across{"across", nodes}, within{"within", ranks_per_node};
  for (int n = 0; n < nodes; ++n) {
    if (n != node) across.sent += to_nodes[me * nodes + n];
    if (n != node) across.received += to_nodes[(n * ranks_per_node + index) * nodes + node];
    for (int peer = 0; peer < ranks_per_node; ++peer) {
      if (peer == index) continue;
      within.sent += to_ranks[(n * ranks_per_node + index) * P + node * ranks_per_node + peer];
      within.received += to_ranks[(n * ranks_per_node + peer) * P + me];
    }
  }
  return {across, within};
}

struct Load {
  double needed = 0;  // bytes that the step requires: gradients, weights, activations
  Index bytes = 0;    // bytes that it sends, with padding, counts and statistics
  Index calls = 0;
};
using Loads = std::map<std::pair<std::string, Collective>, Load>;

// Returns the expected traffic of one rank in one optimizer step, for each group and collective.
// The step has `micro_batches` micro-batches of B sequences. `tokens` is the traffic of all MoE
// layers and micro-batches. The output layer computes the logits in chunks.
inline Loads expected_loads(const Config& c, Index vocab, const Layout& l, int rank, Index B, Index micro_batches,
                            const std::vector<TokenTraffic>& tokens) {
  Loads out;
  // needed: bytes, Index or double
  const auto add = [&](const std::string& group, int size, Collective kind, Index calls, Index bytes, auto needed) {
    if (size == 1 || calls == 0) return;
    Load& load = out[{group, kind}];
    load.calls += calls;
    load.bytes += bytes;
    load.needed += static_cast<double>(needed);
  };

  // Once per step, the ranks that share a parameter reduce-scatter its gradient and all-gather its
  // weights.
  const std::vector<ParamSpec> specs = param_specs(c, vocab);
  const FlatLayout flat = flat_layout(specs, l, coord_of(l, rank));
  for (const GroupLayout& group : flat.groups) {
    const std::string name = group.axes == dense_grid ? "stage" : group.axes.str();
    const int size = name == "stage" ? l.ranks : name == "dp" ? l.dp() : l.edp();
    Index elements = 0;
    for (const ParamSlice& p : group.slices) {
      elements += p.box.elements();
      int replicas = 1;  // tp ranks with the same kv heads: their gradients are reduced first
      for (int d = 0; d < p.spec->shape.size(); ++d)
        if (p.spec->split[d] == Axis::tp) replicas = num_replicas(p.spec->shape[d], l.tp);
      add("replicas", replicas, Collective::all_reduce, 1,
          all_reduce_bytes(p.box.elements() * 4, 4, replicas, coord_of(l, rank).tp % replicas),
          static_cast<double>(p.box.elements() * 8 * (replicas - 1)) / replicas);
    }
    for (Collective kind : {Collective::reduce_scatter, Collective::all_gather})
      add(name, size, kind, 1, group.elements / size * 4 * (size - 1),
          static_cast<double>(elements * 4 * (size - 1)) / size);
  }
  add("stage", l.ranks, Collective::all_reduce, 1, 8 * (l.ranks - 1), 0);  // the squared norm

  // Collectives between the layers. `again` is the number of forward passes through a block.
  const Index M = micro_batches, D = c.model.d_model, E = c.moe.experts, S = c.model.seq_len, k = c.moe.top_k;
  const Index T = B * S / l.tp, P = l.ep * l.etp, again = c.train.recompute == Recompute::block ? 2 : 1;
  const Index moe_layers = count_moe(block_specs(c));
  const Index routings = M * moe_layers * again;
  const Index dense_ffns = c.model.layers - moe_layers + (c.moe.shared_experts > 0 ? moe_layers : 0);
  // Attention and dense FFNs all-gather their input and reduce-scatter their output. Backward does
  // the same with the gradients. The output layer gathers its input and scatters the gradient. The
  // embedding does the reverse.
  const Index moves = (c.model.layers + dense_ffns) * (again + 1) + 2;
  // The normalised inputs of these sublayers are gathered again.
  const Index gathered_again = c.train.recompute == Recompute::norms       ? c.model.layers + dense_ffns
                               : c.train.recompute == Recompute::attention ? c.model.layers
                                                                           : 0;
  for (Collective kind : {Collective::reduce_scatter, Collective::all_gather}) {
    const Index calls = M * (moves + (kind == Collective::all_gather ? gathered_again : 0));
    add("tp", l.tp, kind, calls, calls * T * D * 4 * (l.tp - 1), 4 * calls * T * D * (l.tp - 1));
  }
  // The softmax over the whole vocabulary needs three floats of each token from each rank.
  const Index rows = block_range(vocab, l.tp, 0).size();
  const Index chunk = std::clamp<Index>((Index{4} << 20) / rows, 64, 4096);
  add("tp", l.tp, Collective::all_gather, M * ((B * S + chunk - 1) / chunk), M * B * S * 3 * 4 * (l.tp - 1), 0);
  // The counts of all layers are gathered together, once per micro-batch. Recomputation needs no
  // load-balancing loss, so it gathers none.
  const Index balances = moe_layers > 0 ? M : 0;
  if (T % S != 0) {  // a sequence spans several ranks, which decide together
    const Index segments = T / std::gcd(T, S);
    if (c.moe.aux_scope == AuxScope::sequence)
      add("tp", l.tp, Collective::all_gather, balances, balances * moe_layers * segments * E * 4 * (l.tp - 1), 0);
    if (c.moe.capacity_factor > 0 && c.moe.capacity_scope == CapacityScope::sequence)
      add("tp", l.tp, Collective::all_gather, 2 * routings, routings * T * k * 8 * (l.tp - 1), 0);
  }
  if (c.moe.aux_scope == AuxScope::global_batch)
    add("stage", l.ranks, Collective::all_gather, balances,
        balances * moe_layers * (T / std::gcd(T, S)) * E * 4 * (l.ranks - 1), 0);
  // Counts: copies and assignments for each rank. Between nodes, also those of the nodes' ranks.
  const auto [nodes, ranks_per_node] = l.expert_topology();
  add("experts", l.ep * l.etp, Collective::all_to_all, routings, routings * (P - 1) * (1 + E / l.ep) * 4, 0);
  add("across", nodes, Collective::all_to_all, 2 * routings,
      routings * (nodes - 1) * (1 + E / nodes + ranks_per_node * (1 + E / l.ep)) * 4, 0);
  // Dispatch sends k physical experts, k weights and D elements of a token (TokenRow). Combine
  // returns D elements. In backward, D elements are sent, and D and k gradients of weights return.
  for (const auto& [group, size, sent, received] : tokens)
    add(group, size, Collective::all_to_all, 2 * M * moe_layers * (again + 1),
        4 * ((sent * TokenRow{k, D, DType::f32}.columns() + received * D) * again + sent * D + received * (D + k)),
        4 * D * (sent + received) * (again + 1));
  return out;
}

}  // namespace sy::test
