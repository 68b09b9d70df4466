// Whether consecutive ranks that a layout takes for one node (Layout::node) are on one host.
#pragma once

#include <optional>
#include <span>
#include <string>

#include "dist/comm.h"

namespace sy {

// Two ranks of one node of the layout that are on different hosts.
struct SplitNode {
  int first_rank = 0, last_rank = 0;  // of the node
  int rank = 0;                       // the first that is not on the host of first_rank
  // Whether the hosts hold so many ranks that another order of the ranks puts every node on one host.
  bool order_helps = false;
};

// The first node that is split; empty if none is. hosts: [ranks] a number for the host of each rank. Several nodes may be on
// one host. Pure function.
std::optional<SplitNode> find_split_node(std::span<const Index> hosts, int ranks_per_node);

// What is wrong with the hosts of the ranks, and what to do; `problem` is empty if every node is on one host. Collective.
struct NodeCheck {
  std::string problem;
  bool order_helps = false;  // as above
};
NodeCheck check_nodes(Comm& world, int ranks_per_node);

}  // namespace sy
