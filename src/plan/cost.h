// How long a step takes on a machine. Pure.
//
// An operation takes   overhead + max(FLOPs / (peak * share), bytes / bandwidth):   the roofline (Williams et al., "Roofline",
// 2009), with the share of the peak that products and attention of a size reach (Machine).
// A collective of p ranks, of which `here` others are on this rank's node and `away` are not, takes
//   node_latency * here + latency * away + max(bytes / node_bandwidth, bytes beyond the node / bandwidth),
// the alpha-beta model (Hockney, 1994) with one message to each other rank. bytes: the more of what this rank sends and receives,
// which is (p - 1) / p of the whole buffer in reduce-scatter and all-gather (Thakur et al., "Optimization of collective communication
// operations in MPICH", 2005). Of an all-to-all, and of MPI's collectives here, which send directly, the share away / (p - 1) leaves
// the node; in NCCL's rings all of it does, once for all ranks of the group that are on the node, which share their links.
// An all-reduce of NCCL's sends 2 / p of what every rank sends to every other.
#pragma once

#include <array>
#include <string_view>

#include "src/plan/machine.h"
#include "src/plan/profile.h"

namespace sy {

// A group of a mesh by arithmetic: `size` ranks, each `stride` after the one before.
struct GroupShape {
  int size = 1, stride = 1;
};
// name: of Work::transfers. kv_heads: of the model, which say how many ranks of tp are "replicas" of one another.
GroupShape group_shape(std::string_view name, const Layout& layout, Index kv_heads);
// The other ranks of the group on the node of its first rank, and those on others. ranks_per_node: 0: all.
struct Peers {
  int here = 0, away = 0;
};
Peers peers_of(const GroupShape& group, int ranks_per_node);

// What the time of a step goes to.
enum class Part { compute, tensor, dispatch, combine, gradients, statistics, waiting };
constexpr int num_parts = 7;
std::string_view name_of(Part part);

struct StepTime {
  std::array<double, num_parts> seconds{};
  double& operator[](Part part) { return seconds[static_cast<std::size_t>(part)]; }
  double operator[](Part part) const { return seconds[static_cast<std::size_t>(part)]; }
  double total() const;
};

double seconds_of(const Machine& machine, DType dtype, int ranks, const DryCall& call);
double seconds_of(const Machine& machine, int ranks, std::string_view group, const Peers& peers,
                  const DryTransfer& transfer);
// What a collective is for.
Part part_of(std::string_view group, const DryTransfer& transfer, bool update);
// On a GPU gradients travel while backward goes on (GradSync): the time that is left is what backward of the last micro-batch,
// two thirds of a pass, does not cover.
StepTime step_time(const Machine& machine, DType dtype, const Layout& layout, Index kv_heads, const Profile& profile);

}  // namespace sy
