// The mesh of ranks. Pure geometry first (Layout, Coord: no MPI), then the communicators that it implies.
//
// World = dp x tp, tp fastest. The MoE layers see the same ranks as edp x ep x etp, etp fastest ("folding"), with
// edp * ep * etp = dp * tp.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "dist/comm.h"
#include "kernels/backend.h"

namespace sy {

struct Layout {
  int ranks = 1, tp = 1, ep = 1, etp = 1;
  int dp() const { return ranks / tp; }
  int edp() const { return ranks / (ep * etp); }
  std::string str() const;  // "dp 4 tp 1 ep 2 etp 1 edp 2"
};

struct Coord {
  int dp, tp, edp, ep, etp;
};

Coord coord_of(const Layout& layout, int rank);

// What is wrong with a layout, naming the key, or "": tp and ep * etp must divide the ranks.
std::string layout_problem(const Layout& layout);

struct Mesh {
  Layout layout;
  Coord coord;
  int rank;
  Comm* world;  // on host buffers; not owned
  // These are on buffers of the backend that the mesh was made for.
  std::unique_ptr<Comm> all;  // every rank
  std::unique_ptr<Comm> dp, tp, edp;
  std::unique_ptr<Comm> experts;  // the ep * etp ranks that hold all experts between them, etp fastest
};

// For buffers on the host. Collective.
Mesh make_mesh(Comm& world, const Layout& layout);
// The same mesh for buffers of `backend`, which must outlive it. Collective.
Mesh on_backend(Mesh mesh, Backend& backend);

}  // namespace sy
