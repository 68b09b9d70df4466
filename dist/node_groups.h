// Check that each group of ranks that the layout calls a node is on one host.
#pragma once

#include <optional>
#include <span>
#include <string>

#include "dist/comm.h"

namespace sy {

// A node of the layout whose ranks are on different hosts.
struct SplitNode {
  int first_rank = 0, last_rank = 0;  // ranks of the node, inclusive
  int rank = 0;                       // first rank that is on another host than first_rank
  // True if ranks_per_node divides the number of ranks of each host.
  // Another order of the ranks then puts every node on one host.
  bool order_helps = false;
};

// Returns the first split node; empty if every node is on one host. Pure function.
// hosts: [ranks] number of the host of each rank. ranks_per_node: at least 1.
std::optional<SplitNode> find_split_node(std::span<const Index> hosts, int ranks_per_node);

// Result of check_nodes, equal on all ranks.
struct NodeCheck {
  std::string problem;       // error message with advice; empty if every node is on one host
  bool order_helps = false;  // SplitNode::order_helps
};
// Compares the host names of the ranks of each node. Collective.
// If ranks_per_node or the number of ranks is 1, there is no problem.
NodeCheck check_nodes(Comm& world, int ranks_per_node);

}  // namespace sy
