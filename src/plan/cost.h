// How long a step takes on a machine. Pure.
//
// An operation takes   overhead + max(FLOPs / (peak * share), bytes / bandwidth):   the roofline (Williams et al., "Roofline",
// 2009), with the share of the peak that products and attention of a size reach (Machine).
// A collective takes the time of the fastest algorithm that its library has for it (algorithms_of):
//   node_latency * node_steps + latency * steps + message_overhead * messages +
//     max(bytes within / node_bandwidth, beyond / bandwidth),
// the alpha-beta model (Hockney, 1994). Steps are messages that wait for one another, within a node
// and between nodes. p ranks on m nodes, and a buffer of n bytes (Thakur et al., "Optimization of
// collective communication operations in MPICH", 2005):
//
//   library, collective           algorithm  steps                         bytes of a rank
//   NCCL all-reduce               ring       2 (p - m), and 2 (m - 1)      2 n (p - 1) / p
//                                 tree       2 (p / m - 1), and 2 log2 m   2 n
//   NCCL reduce-scatter, gather   ring       p - m, and m - 1              n (p - 1) / p
//     with a rank on each node    PAT        log2 p                        the same
//   NCCL broadcast, reduce        chain      p - m, and m - 1              n; a message for each further root of the call
//   all-to-all, MPI's others      direct     1                             those counted; p - 2 messages more
//   MPI all-reduce to 16 KiB      doubling   log2 (p / m), and log2 m      those counted
//   MPI all-reduce of more        direct     2 for each 8 MiB              those counted; 2 (p - 2) messages more for each
//
// NCCL's rings and trees enter and leave a node once, so that its ranks of the group share these
// bytes; of direct messages the share of the ranks beyond leaves it. NCCL has PAT from 2.23 on.
// Tokens and gradients share links without contention.
#pragma once

#include <array>
#include <string_view>
#include <vector>

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

// One way to run a collective.
struct Algorithm {
  std::string_view name;
  double node_steps = 0, steps = 0;  // messages that wait for one another, within a node and between nodes
  double messages = 0;               // further messages of a rank that wait for none
  double within = 0, beyond = 0;     // bytes of a rank within a node, and beyond
};
// The algorithms that NCCL, or MPI on the host, chooses from. There is at least one other rank.
std::vector<Algorithm> algorithms_of(bool nccl, const Peers& peers, const DryTransfer& transfer);
// What a collective is for.
Part part_of(std::string_view group, const DryTransfer& transfer, bool update);
// On a GPU gradients travel during backward of the last micro-batch (GradSync), two thirds of a
// pass, and new weights during the next step's first forward (WeightFetch), a third:
// Part::gradients is the time that these do not cover.
StepTime step_time(const Machine& machine, DType dtype, const Layout& layout, Index kv_heads, const Profile& profile);

}  // namespace sy
