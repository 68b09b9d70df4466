// The mesh of ranks. Pure geometry first (Layout, Coord, Place: no MPI), then the communicators that it implies.
//
// World = dp x tp, tp fastest. The MoE layers see the same ranks as edp x ep x etp, etp fastest ("folding"), with
// edp * ep * etp = dp * tp. A pipeline would put stages of such ranks one after the other; there is one.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "dist/axes.h"
#include "dist/comm.h"
#include "kernels/backend.h"

namespace sy {

struct Layout {
  int ranks = 1, tp = 1, ep = 1, etp = 1;
  int dp() const { return ranks / tp; }
  int edp() const { return ranks / (ep * etp); }
  // Whether the ranks can be divided so.
  bool tp_divides() const { return ranks % tp == 0; }
  bool experts_divide() const { return ranks % (ep * etp) == 0; }
  bool divides() const { return tp_divides() && experts_divide(); }
  std::string str() const;    // "dp 4 tp 1 ep 2 etp 1 edp 2"
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
  Comm* host;  // every rank of the world, on host buffers; not owned
  // These are on buffers of the backend that the mesh was made for.
  std::unique_ptr<Comm> stage;  // dp x tp: the ranks that compute the same layers
  std::unique_ptr<Comm> dp, tp, edp;
  std::unique_ptr<Comm> experts;  // the ep * etp ranks that hold all experts between them, etp fastest

  // Every rank of the world: with one stage, the ranks of that.
  Comm& world() const { return *stage; }
  // The ranks that differ from this one in these axes alone; one of the communicators above.
  Comm& over(Axes axes) const;
};

// For buffers on the host. Collective.
Mesh make_mesh(Comm& world, const Layout& layout);
// The mesh of a rank among others that do not exist: its communicators are dry (dist/comm_dry.h), and so is `world`.
Mesh make_dry_mesh(Comm& world, const Layout& layout);
// The same mesh for buffers of `backend`, which must outlive it. Collective.
Mesh on_backend(Mesh mesh, Backend& backend);

}  // namespace sy
