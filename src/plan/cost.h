// Estimates the time of a step on a machine. Pure functions.
//
// An operation takes
//   overhead + max(FLOPs / (peak * share), bytes / bandwidth):
// the roofline (Williams et al., "Roofline", 2009). The share of the peak is the one that GEMMs or
// attention of a size reach (Machine). If the ranks of a node share its speeds (Machine::shared), a
// rank's FLOPs and bytes are multiplied by their number.
//
// A collective takes the time of the fastest algorithm that its library has for it (algorithms_of):
//   node_latency * node_steps + latency * steps + message_overhead * messages +
//     max(bytes within / node_bandwidth, beyond / bandwidth),
// the alpha-beta model (Hockney, 1994). Steps are messages that wait for one another, within a node
// and between nodes. The table is for p ranks on m nodes and a buffer of n bytes (Thakur et al.,
// "Optimization of collective communication operations in MPICH", 2005). "Counted" means the
// larger of DryTransfer::sent and DryTransfer::received.
//
//   library, collective          algorithm steps                        bytes of a rank
//   GPU all-reduce               ring      2 (p - m), and 2 (m - 1)     2 n (p - 1) / p
//                                tree      2 (p / m - 1), and 2 log2 m  2 n
//   GPU reduce-scatter, gather   ring     p - m, and m - 1             n (p - 1) / p
//     with a rank on each node   PAT       log2 p                       the same
//   GPU broadcast, reduce        chain     p - m, and m - 1             n; roots - 1 messages
//   all-to-all, MPI's others     direct    1                            counted, p - 2 messages
//   MPI all-reduce to 16 KiB     doubling  log2 (p / m), and log2 m     counted
//   MPI all-reduce of more       direct    2 for each 8 MiB             counted, 2 (p - 2) messages
//                                                                       for each 8 MiB
//
// Rings and trees enter and leave a node once, so the node's ranks of the group share these bytes.
// Direct messages leave the node if they go to ranks on other nodes. The model has no contention
// between tokens and gradients on a link. docs/design/cost-model.md names the libraries.
#pragma once

#include <array>
#include <numeric>
#include <string_view>
#include <vector>

#include "src/plan/machine.h"
#include "src/plan/profile.h"

namespace sy {

// A group of a mesh in arithmetic form: `size` ranks, each `stride` after the one before.
struct GroupShape {
  int size = 1, stride = 1;
};
// Returns the shape of a group.
// name: as in Workload::transfers (profile.h). kv_heads: of the model; it determines the size of
// the group "replicas".
GroupShape group_shape(std::string_view name, const Layout& layout, Index kv_heads);
// Number of other ranks of a group: on the node of its first rank, and on other nodes.
struct Peers {
  int here = 0, away = 0;
};
// ranks_per_node: 0 means that all ranks are on one node.
Peers peers_of(const GroupShape& group, int ranks_per_node);

// Categories of the time of a step.
// - compute: operations of the device
// - tensor, dispatch, combine: collectives of the passes. `dispatch` includes the row counts and
//   the sums that balance experts. `tensor` includes the sums of batch norms.
// - gradients: all collectives of the update
// - statistics: messages of the host
// - waiting: for ranks with a larger expert load; step_time() leaves it 0
enum class TimeCategory { compute, tensor, dispatch, combine, gradients, statistics, waiting };
constexpr int num_time_categories = 7;
std::string_view name_of(TimeCategory category);

// Seconds of a step of one rank, by category.
struct StepTime {
  std::array<double, num_time_categories> seconds{};
  double& operator[](TimeCategory category) { return seconds[static_cast<std::size_t>(category)]; }
  double operator[](TimeCategory category) const { return seconds[static_cast<std::size_t>(category)]; }
  double total() const { return std::accumulate(seconds.begin(), seconds.end(), 0.0); }
};

// Returns the time of one operation. ranks: of the training (Machine::ranks_sharing).
double seconds_of(const Machine& machine, DType dtype, int ranks, const DryCall& call);
// Returns the time of one collective, with the fastest of algorithms_of(). 0 if the group has no
// other rank. group: name as in Workload::transfers; "world" uses MPI, the others use
// device collectives if there are GPUs.
double seconds_of(const Machine& machine, int ranks, std::string_view group, const Peers& peers,
                  const DryTransfer& transfer);

// An algorithm of a collective.
struct Algorithm {
  std::string_view name;
  // Messages that wait for one another, within a node and between nodes.
  double node_steps = 0, steps = 0;
  double messages = 0;            // further messages of a rank that do not wait
  double within = 0, beyond = 0;  // bytes of a rank within a node, and between nodes
};
// Returns the algorithms from which the library of a collective chooses: that of the device's
// collectives if `device`, otherwise MPI. The group must have another rank.
std::vector<Algorithm> algorithms_of(bool device, const Peers& peers, const DryTransfer& transfer);
// Returns the category of a collective of a group. update: it belongs to Profile::update, not to
// Profile::pass.
TimeCategory category_of(std::string_view group, const DryTransfer& transfer, bool update);
// Returns the time of a step of the profiled rank.
// On a GPU, gradient reduction overlaps with backward of the last micro-batch
// (DistributedOptimizer), two thirds of a pass. The all-gather of new weights overlaps with the
// next step's first forward (ParamAllGather), one third. TimeCategory::gradients is the time that
// these do not hide.
StepTime step_time(const Machine& machine, DType dtype, const Layout& layout, Index kv_heads, const Profile& profile);

}  // namespace sy
