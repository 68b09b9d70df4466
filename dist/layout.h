// Sizes of the parallel axes, and the nodes of a group of ranks. Geometry without MPI.
#pragma once

#include <string>

#include "kernels/types.h"

namespace sy {

// Nodes (machines) of a group of consecutive ranks. Each node has equally many consecutive ranks.
struct Topology {
  int nodes = 1, ranks_per_node = 1;
  // Node of rank `index` of the group, and its index within that node.
  int node_of(int index) const { return index / ranks_per_node; }
  int index_in_node(int index) const { return index % ranks_per_node; }
};

// Sizes of the parallel axes.
struct Layout {
  int ranks = 1, tp = 1, ep = 1, etp = 1;
  // Number of ranks per node. 1 means that dispatch ignores nodes. If it is above 1 and below
  // ep * etp, dispatch is hierarchical: first between nodes, then within the node.
  int ranks_per_node = 1;
  int dp() const { return ranks / tp; }
  // Number of ranks that together hold all experts once.
  // It may exceed an int if divides() does not hold.
  Index expert_ranks() const { return Index{ep} * etp; }
  int edp() const { return static_cast<int>(ranks / expert_ranks()); }
  // Returns the nodes of the expert_ranks(); one node if dispatch is not hierarchical.
  // Requires divides().
  Topology expert_topology() const;
  // True if tp divides the number of ranks.
  bool tp_divides() const { return ranks % tp == 0; }
  // True if ep * etp divides the number of ranks.
  bool experts_divide() const { return ranks % expert_ranks() == 0; }
  // True if the expert_ranks() are on one node or fill whole nodes, or if ranks_per_node is 1.
  // If ranks_per_node is above 1, it must also divide the number of ranks, and etp must divide
  // ranks_per_node.
  bool nodes_divide() const;
  // True if tp_divides(), experts_divide() and nodes_divide() are true.
  bool divides() const { return tp_divides() && experts_divide() && nodes_divide(); }
  // "dp 4 tp 1 ep 2 etp 1 edp 2"; ends with "node 2" if there are 2 ranks per node.
  std::string str() const;
  // Short name "tp 1 ep 2 etp 1": unique among the layouts of equally many ranks.
  // Ends with "node 2" as str() does.
  std::string short_name() const;
  friend bool operator==(const Layout&, const Layout&) = default;
};

}  // namespace sy
