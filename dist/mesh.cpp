#include "dist/mesh.h"

namespace sy {

std::string Layout::str() const {
  return fmt::format("dp {} tp {} ep {} etp {} edp {}", dp(), tp, ep, etp, edp());
}

Coord coord_of(const Layout& l, int rank) {
  return {rank / l.tp, rank % l.tp, rank / (l.ep * l.etp), rank / l.etp % l.ep, rank % l.etp};
}

void check_layout(const Layout& l) {
  if (l.ranks % l.tp != 0)
    bad_input("{} ranks are not divisible by parallel.tp = {}: start a multiple of {} ranks or change parallel.tp",
              l.ranks, l.tp, l.tp);
  if (l.ranks % (l.ep * l.etp) != 0)
    bad_input("{} ranks are not divisible by parallel.ep * parallel.etp = {} * {}: start a multiple of {} ranks or change "
              "parallel.ep", l.ranks, l.ep, l.etp, l.ep * l.etp);
}

Mesh make_mesh(Comm& world, const Layout& layout) {
  check_layout(layout);
  const int rank = world.rank();
  const Coord c = coord_of(layout, rank);
  // The ranks of one axis share the other coordinates; the colour names those.
  return {layout,
          c,
          rank,
          &world,
          world.split(c.tp, c.dp),
          world.split(c.dp, c.tp),
          world.split(c.ep * layout.etp + c.etp, c.edp),
          world.split(c.edp * layout.etp + c.etp, c.ep),
          world.split(c.edp * layout.ep + c.ep, c.etp)};
}

}  // namespace sy
