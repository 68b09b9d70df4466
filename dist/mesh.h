// The mesh of ranks. Pure geometry first (Layout, Coord, Place: no MPI), then the communicators that it implies.
//
// World = dp x tp, tp fastest. The MoE layers see the same ranks as edp x ep x etp, etp fastest ("folding"), with
// edp * ep * etp = dp * tp. A pipeline would put stages of such ranks one after the other; there is one.
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

// The nodes (machines) that a group of consecutive ranks lies on, with as many consecutive ranks on each.
struct Topology {
  int nodes = 1, ranks = 1;  // ranks of a node
  // Where rank `index` of the group stands.
  int node_of(int index) const { return index / ranks; }
  int within_node(int index) const { return index % ranks; }
};

struct Layout {
  int ranks = 1, tp = 1, ep = 1, etp = 1;
  // So many consecutive ranks are one node, over whose borders tokens travel by node. 1: each for itself.
  int node = 1;
  int dp() const { return ranks / tp; }
  // Number of ranks that hold all experts between them. It may exceed an int before divides() holds.
  Index expert_ranks() const { return Index{ep} * etp; }
  int edp() const { return static_cast<int>(ranks / expert_ranks()); }
  // Of the ranks that hold all experts between them: one node where tokens go straight to every rank.
  // Requires divides().
  Topology experts_topology() const;
  // Whether the ranks can be divided so.
  bool tp_divides() const { return ranks % tp == 0; }
  bool experts_divide() const { return ranks % expert_ranks() == 0; }
  // Nodes hold as many ranks each; the experts' ranks are on one, or fill several, on which no expert is split over two.
  bool nodes_divide() const;
  bool divides() const { return tp_divides() && experts_divide() && nodes_divide(); }
  std::string str() const;    // "dp 4 tp 1 ep 2 etp 1 edp 2", and "node 2" where that is not 1
  std::string given() const;  // "tp 1 ep 2 etp 1": what tells it from others of as many ranks
  friend bool operator==(const Layout&, const Layout&) = default;
};

struct Coord {
  int dp, tp, edp, ep, etp;
};

Coord coord_of(const Layout& layout, int rank);

// Where a rank stands among those from which it differs in these axes alone, which are in the order of their ranks.
struct Place {
  int size = 1, index = 0;
};
Place place_of(const Layout& layout, const Coord& coord, Axes axes);

struct Mesh {
  Layout layout;
  Coord coord;
  int rank;
  Comm* host;                        // every rank of the world, on host buffers; not owned
  const Backend* backend = nullptr;  // on whose buffers these are; null: on the host's
  std::unique_ptr<Comm> stage;       // dp x tp: the ranks that compute the same layers
  std::unique_ptr<Comm> dp, tp, edp;
  std::unique_ptr<Comm> experts;  // the ep * etp ranks that hold all experts between them, etp fastest
  // Those of them on this rank's node, and those with its place on the other nodes; none where they are on one.
  std::unique_ptr<Comm> within, across;
  // The ranks of tp that hold the same part of a dimension shorter than tp (join_replicas); none where there is none.
  std::unique_ptr<Comm> replicas;

  // Every rank of the world: with one stage, the ranks of that.
  Comm& world() const { return *stage; }
  // The ranks that differ from this one in these axes alone; one of the communicators above.
  Comm& over(Axes axes) const;
  // All of them, and "world", by name; null: there is none.
  std::vector<std::pair<std::string_view, const Comm*>> groups() const;
};

// For buffers on the host. Collective.
Mesh make_mesh(Comm& world, const Layout& layout);
// The mesh of a rank among others that do not exist: its communicators are dry (dist/comm_dry.h), and so is `world`.
Mesh make_dry_mesh(Comm& world, const Layout& layout);
// The same mesh for buffers of `backend`, which must outlive it; it may be for these already. Collective.
Mesh on_backend(Mesh mesh, Backend& backend);
// Connects mesh.replicas, unless they are connected: of a dimension of n that tp splits, such as kv heads. There are none where
// n >= tp. On the buffers that the mesh is for then. Collective.
void join_replicas(Mesh& mesh, Index n);

}  // namespace sy
