#include "dist/mesh.h"

#include "dist/comm_nccl.h"

namespace sy {

std::string Layout::str() const {
  return fmt::format("dp {} tp {} ep {} etp {} edp {}", dp(), tp, ep, etp, edp());
}

Coord coord_of(const Layout& l, int rank) {
  return {rank / l.tp, rank % l.tp, rank / (l.ep * l.etp), rank / l.etp % l.ep, rank % l.etp};
}

std::string layout_problem(const Layout& l) {
  if (l.ranks % l.tp != 0) return fmt::format("{} ranks are not divisible by parallel.tp = {}", l.ranks, l.tp);
  if (l.ranks % (l.ep * l.etp) != 0)
    return fmt::format("{} ranks are not divisible by parallel.ep * parallel.etp = {} * {}", l.ranks, l.ep, l.etp);
  return {};
}

Mesh make_mesh(Comm& world, const Layout& layout) {
  SY_ASSERT(layout_problem(layout).empty(), "{}", layout_problem(layout));
  // The ranks of one axis share the other coordinates; the colour names those. Their order is that of the axis.
  const auto along = [&](auto others) { return world.split([&](int rank) { return others(coord_of(layout, rank)); }); };
  return {layout,
          coord_of(layout, world.rank()),
          world.rank(),
          &world,
          along([](const Coord&) { return 0; }),
          along([](const Coord& c) { return c.tp; }),
          along([](const Coord& c) { return c.dp; }),
          along([&](const Coord& c) { return c.ep * layout.etp + c.etp; }),
          along([](const Coord& c) { return c.edp; })};
}

Mesh on_backend(Mesh mesh, Backend& backend) {
  if (backend.on_host()) return mesh;
  const MakeComm nccl = nccl_on(backend, mesh.rank);
  for (std::unique_ptr<Comm>* axis : {&mesh.all, &mesh.dp, &mesh.edp})
    *axis = nccl(std::move(*axis), CommStream::gradients);
  for (std::unique_ptr<Comm>* axis : {&mesh.tp, &mesh.experts}) *axis = nccl(std::move(*axis), CommStream::tokens);
  return mesh;
}

}  // namespace sy
