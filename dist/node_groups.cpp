#include "dist/node_groups.h"

#include <algorithm>
#include <map>
#include <vector>

#include "dist/runtime.h"
#include "kernels/philox.h"

namespace sy {

std::optional<SplitNode> find_split_node(std::span<const Index> hosts, int ranks_per_node) {
  const int ranks = static_cast<int>(hosts.size());
  std::map<Index, int> ranks_on;
  for (const Index host : hosts) ++ranks_on[host];
  const bool fits = std::all_of(ranks_on.begin(), ranks_on.end(),
                                [&](const auto& host) { return host.second % ranks_per_node == 0; });
  for (int rank = 0; rank < ranks; ++rank) {
    const int first = rank / ranks_per_node * ranks_per_node;
    if (hosts[rank] != hosts[first]) return SplitNode{first, std::min(first + ranks_per_node, ranks) - 1, rank, fits};
  }
  return {};
}

NodeCheck check_nodes(Comm& world, int ranks_per_node) {
  if (ranks_per_node < 2 || world.size() < 2) return {};
  const auto host = static_cast<Index>(machine_id());
  std::vector<Index> hosts(world.size());
  world.all_gather(view_of(&host, {1}), view_of(hosts.data(), {world.size()}));
  const std::optional<SplitNode> split = find_split_node(hosts, ranks_per_node);
  if (!split) return {};
  const std::string first = broadcast_text(world, host_name(), split->first_rank),
                    other = broadcast_text(world, host_name(), split->rank);
  return {
      fmt::format(
          "parallel.ranks_per_node = {} takes ranks {} to {} for one node, but rank {} is on {} and rank {} on {}: {}",
          ranks_per_node, split->first_rank, split->last_rank, split->first_rank, first, split->rank, other,
          split->order_helps ? "start consecutive ranks on the same host (mpirun --map-by slot, srun "
                               "--distribution=block:block)"
                             : "set it to a number of ranks that every host has, or to 1"),
      split->order_helps};
}

}  // namespace sy
