// The mesh of ranks: pure geometry without MPI (Layout, Coord, Place), and communicators (Mesh).
//
// World = dp x tp, tp fastest. The MoE layers see the same ranks as edp x ep x etp, etp fastest
// ("folding"), with edp * ep * etp = dp * tp. A pipeline would have several stages of such ranks;
// there is one stage.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "dist/axes.h"
#include "dist/comm.h"
#include "kernels/backend.h"

namespace sy {

// Nodes (machines) of a group of consecutive ranks. Each node has equally many consecutive ranks.
struct Topology {
  int nodes = 1, ranks = 1;  // number of nodes; number of ranks per node
  // Node of rank `index` of the group, and its index within that node.
  int node_of(int index) const { return index / ranks; }
  int within_node(int index) const { return index % ranks; }
};

// Sizes of the parallel axes.
struct Layout {
  int ranks = 1, tp = 1, ep = 1, etp = 1;
  // Number of ranks per node. If it is above 1 and below ep * etp, dispatch is hierarchical: first
  // between nodes, then within the node.
  int node = 1;
  int dp() const { return ranks / tp; }
  // Number of ranks that together hold all experts once.
  // It may exceed an int if divides() does not hold.
  Index expert_ranks() const { return Index{ep} * etp; }
  int edp() const { return static_cast<int>(ranks / expert_ranks()); }
  // Returns the nodes of the expert_ranks(); one node if dispatch is not hierarchical.
  // Requires divides().
  Topology experts_topology() const;
  // True if tp divides the number of ranks.
  bool tp_divides() const { return ranks % tp == 0; }
  // True if ep * etp divides the number of ranks.
  bool experts_divide() const { return ranks % expert_ranks() == 0; }
  // True if `node` is 1. Otherwise true if three conditions hold: `node` divides the number of
  // ranks, etp divides `node`, and the expert_ranks() are on one node or fill several.
  bool nodes_divide() const;
  // True if tp_divides(), experts_divide() and nodes_divide() are true.
  bool divides() const { return tp_divides() && experts_divide() && nodes_divide(); }
  // "dp 4 tp 1 ep 2 etp 1 edp 2"; ends with "node 2" if there are 2 ranks per node.
  std::string str() const;
  // Short name "tp 1 ep 2 etp 1": unique among the layouts of equally many ranks.
  // Ends with "node 2" as str() does.
  std::string given() const;
  friend bool operator==(const Layout&, const Layout&) = default;
};

// Coordinates of a rank in both grids.
struct Coord {
  int dp, tp, edp, ep, etp;
};

// Returns the coordinates of a rank of the world. Pure function.
Coord coord_of(const Layout& layout, int rank);

// Size of a group of ranks, and the index of one rank in it.
struct Place {
  int size = 1, index = 0;
};
// Returns the group rank of `coord` in the group along these axes.
// The group holds the ranks that differ from `coord` along these axes alone, in rank order.
Place place_of(const Layout& layout, const Coord& coord, Axes axes);

// Communicators of one rank along the axes of the mesh.
struct Mesh {
  Layout layout;
  Coord coord;
  int rank;                          // in the world
  Comm* host;                        // all ranks of the world, on host buffers; not owned
  const Backend* backend = nullptr;  // device of the communicators' buffers; nullptr: host buffers
  std::unique_ptr<Comm> stage;       // dp x tp: the ranks that compute the same layers
  std::unique_ptr<Comm> dp, tp, edp;
  std::unique_ptr<Comm> experts;  // the ep * etp ranks that together hold all experts, etp fastest
  // `within`: the ranks of `experts` on this rank's node.
  // `across`: the ranks of `experts` with this rank's index within their node, one per node.
  // Both are nullptr if the ranks of `experts` are on one node.
  std::unique_ptr<Comm> within, across;
  // Ranks of tp with the same index of a dimension smaller than tp (join_replicas). nullptr if
  // there are no replicas.
  std::unique_ptr<Comm> replicas;

  // Returns `stage`: it holds all ranks of the world, because there is one stage. Its buffers
  // are those of `backend`; the buffers of `host` are in host memory.
  Comm& world() const { return *stage; }
  // Returns the communicator whose ranks differ along these axes alone.
  // axes: dp x tp, dp, tp, edp, or ep x etp; any other set is an internal error.
  Comm& over(Axes axes) const;
  // Returns all communicators by name, `host` as "world". A missing communicator is nullptr.
  std::vector<std::pair<std::string_view, const Comm*>> groups() const;
};

// Returns the mesh for host buffers. Collective over `world`, which must outlive it.
Mesh make_mesh(Comm& world, const Layout& layout);
// Returns the mesh of rank world.rank() for planning; no other rank exists.
// Its communicators have the sizes of the layout and are dry (dist/comm_dry.h).
// world: also dry, with layout.ranks ranks. It must outlive the mesh.
// If `asynchronous`, the communicators overlap with compute, like those of a GPU.
Mesh make_dry_mesh(Comm& world, const Layout& layout, bool asynchronous = false);
// Returns the mesh for buffers of `backend`, which must outlive it. Collective.
// Returns `mesh` unchanged if it is for these buffers already, or if they are host buffers.
// Otherwise `mesh` must be for host buffers and have no replicas: call it before join_replicas().
Mesh on_backend(Mesh mesh, Backend& backend);
// Sets mesh.replicas for a dimension of n that tp splits, such as kv heads. Collective over tp.
// No-op if mesh.replicas exists already, or if n is 0 or at least tp.
// Its buffers are on the device of mesh.tp.
void join_replicas(Mesh& mesh, Index n);

}  // namespace sy
