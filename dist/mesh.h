// The mesh of ranks: geometry without MPI (Coord, GroupRank), and communicators (Mesh).
//
// World = dp x tp, tp fastest. The MoE layers see the same ranks as edp x ep x etp, etp fastest
// ("folding"), with edp * ep * etp = dp * tp. A pipeline would have several stages of such ranks;
// there is one stage.
#pragma once

#include <memory>
#include <string_view>
#include <utility>
#include <vector>

#include "dist/axes.h"
#include "dist/comm.h"
#include "dist/layout.h"
#include "kernels/device.h"

namespace sy {

// Coordinates of a rank in both grids.
struct Coord {
  int dp, tp, edp, ep, etp;
};

// Returns the coordinates of a rank of the world. Pure function.
Coord coord_of(const Layout& layout, int rank);

// Size of a group of ranks, and the index of one rank in it.
struct GroupRank {
  int size = 1, index = 0;
};
// Returns the group rank of `coord` in the group along these axes.
// The group holds the ranks that differ from `coord` along these axes alone, in rank order.
GroupRank group_rank(const Layout& layout, const Coord& coord, Axes axes);

// Communicators of one rank along the axes of the mesh.
struct Mesh {
  Layout layout;
  Coord coord;
  int rank;                        // in the world
  Comm* host;                      // all ranks of the world, on host buffers; not owned
  const Device* device = nullptr;  // device of the communicators' buffers; nullptr: host buffers
  std::unique_ptr<Comm> stage;     // dp x tp: the ranks that compute the same layers
  std::unique_ptr<Comm> dp, tp, edp;
  // The ep * etp ranks that together hold all experts, etp fastest.
  std::unique_ptr<Comm> expert_group;
  // intra_node: the ranks of `expert_group` on this rank's node.
  // inter_node: the ranks of `expert_group` with this rank's index in their node, one per node.
  // Both are nullptr if the ranks of `expert_group` are on one node.
  std::unique_ptr<Comm> intra_node, inter_node;
  // Ranks of `tp` that hold the same kv head (join_kv_replicas). nullptr if there are no replicas,
  // or before join_kv_replicas().
  std::unique_ptr<Comm> kv_replicas;
  // edp x etp: the ranks that hold the same experts or shards of them (join_expert_replicas).
  // nullptr if etp = 1, or before join_expert_replicas().
  std::unique_ptr<Comm> expert_replicas;

  // Returns `stage`: it holds all ranks of the world, because there is one stage. Its buffers
  // are those of `device`; the buffers of `host` are in host memory.
  Comm& world() const { return *stage; }
  RankContext& rank_context() const { return host->rank_context(); }
  // Returns the communicator whose ranks differ along these axes alone.
  // axes: dp x tp, dp, tp, edp, or ep x etp. After join_expert_replicas() also edp x etp. Any other
  // set is an internal error.
  Comm& over(Axes axes) const;
  // Returns all communicators by name, `host` as "world". A missing communicator is nullptr.
  std::vector<std::pair<std::string_view, const Comm*>> groups() const;
};

// Returns the mesh for host buffers. Collective over `world`, which must outlive it.
// Requires layout.divides(), as does make_dry_mesh().
Mesh make_mesh(Comm& world, const Layout& layout);
// Returns the mesh of rank world.rank() for planning; no other rank exists.
// Its communicators have the sizes of the layout and are dry (dist/comm_dry.h).
// world: also dry, with layout.ranks ranks. It must outlive the mesh.
// If `asynchronous`, the communicators overlap with compute, like those of a GPU.
Mesh make_dry_mesh(Comm& world, const Layout& layout, bool asynchronous = false);
// Returns the mesh for buffers of `device`, which must outlive it. Collective.
// From then on, waits for the device are published to the context of the mesh.
// Returns `mesh` unchanged if it is for these buffers already, or if they are host buffers.
// Otherwise `mesh` must be for host buffers and have no replicas: call this before
// join_kv_replicas().
Mesh on_device(Mesh mesh, Device& device);
// Sets mesh.kv_replicas to the ranks of tp that hold the same kv head. Collective over tp.
// n: number of kv heads, or size of another dimension that tp splits.
// No-op if mesh.kv_replicas exists already, or if n is 0 or at least tp.
// The communicator's buffers are on the device of mesh.tp.
void join_kv_replicas(Mesh& mesh, Index n);
// Sets mesh.expert_replicas, on the device of mesh.stage. Collective over the stage. No-op if it
// exists already, or if etp = 1: Mesh::edp has the same ranks then.
void join_expert_replicas(Mesh& mesh);

}  // namespace sy
