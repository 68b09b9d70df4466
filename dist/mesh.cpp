#include "dist/mesh.h"

#include "dist/comm_nccl.h"
#include "dist/shard.h"

namespace sy {
namespace {

// Name, size and coordinate of an axis.
// The table is ordered from the outermost axis to the innermost.
struct AxisFacts {
  Axis axis;
  const char* name;
  int (*size)(const Layout&);
  int Coord::*index;
};
constexpr AxisFacts all_axes[] = {{Axis::dp, "dp", [](const Layout& l) { return l.dp(); }, &Coord::dp},
                                  {Axis::tp, "tp", [](const Layout& l) { return l.tp; }, &Coord::tp},
                                  {Axis::edp, "edp", [](const Layout& l) { return l.edp(); }, &Coord::edp},
                                  {Axis::ep, "ep", [](const Layout& l) { return l.ep; }, &Coord::ep},
                                  {Axis::etp, "etp", [](const Layout& l) { return l.etp; }, &Coord::etp}};

std::string node_in_words(const Layout& l) {
  return l.node == 1 ? "" : fmt::format(" node {}", l.node);
}

// A communicator of a mesh for hierarchical dispatch. Its ranks are in rank order.
struct NodeMember {
  std::unique_ptr<Comm> Mesh::*comm;
  int (*group)(const Layout&, int rank);       // number of the group that `rank` belongs to
  Place (*place)(const Topology&, int index);  // group rank of rank `index` of Mesh::experts
};
constexpr NodeMember node_members[] = {
    {&Mesh::within, [](const Layout& l, int rank) { return rank / l.node; },
     [](const Topology& t, int index) {
       return Place{t.ranks, t.within_node(index)};
     }},
    {&Mesh::across, [](const Layout& l, int rank) { return rank / (l.ep * l.etp) * l.node + rank % l.node; },
     [](const Topology& t, int index) {
       return Place{t.nodes, t.node_of(index)};
     }}};

// A communicator of a mesh along a set of axes.
struct Member {
  Axes axes;
  std::unique_ptr<Comm> Mesh::*comm;
  CommStream stream;
};
constexpr Member members[] = {{dense_grid, &Mesh::stage, CommStream::gradients},
                              {Axis::dp, &Mesh::dp, CommStream::gradients},
                              {Axis::tp, &Mesh::tp, CommStream::tokens},
                              {Axis::edp, &Mesh::edp, CommStream::gradients},
                              {Axis::ep | Axis::etp, &Mesh::experts, CommStream::tokens}};

}  // namespace

std::string Axes::str() const {
  std::string text;
  for (const AxisFacts& a : all_axes)
    if (has(a.axis)) text += (text.empty() ? "" : " x ") + std::string(a.name);
  return text;
}

Axes grid_of(Axes axes) {
  const Axes grid = (axes & expert_grid).empty() ? dense_grid : expert_grid;
  SY_ASSERT(grid.has(axes), "{} are axes of two grids", axes.str());
  return grid;
}

Topology Layout::experts_topology() const {
  const int all = static_cast<int>(expert_ranks());
  return node > 1 && node < all ? Topology{all / node, node} : Topology{1, all};
}

bool Layout::nodes_divide() const {
  const Index all = expert_ranks();
  return node == 1 || (ranks % node == 0 && (node % all == 0 || all % node == 0) && node % etp == 0);
}

std::string Layout::str() const {
  return fmt::format("dp {} tp {} ep {} etp {} edp {}", dp(), tp, ep, etp, edp()) + node_in_words(*this);
}

std::string Layout::given() const {
  return fmt::format("tp {} ep {} etp {}", tp, ep, etp) + node_in_words(*this);
}

Coord coord_of(const Layout& l, int rank) {
  return {rank / l.tp, rank % l.tp, rank / (l.ep * l.etp), rank / l.etp % l.ep, rank % l.etp};
}

Place place_of(const Layout& layout, const Coord& coord, Axes axes) {
  Place place;
  for (const AxisFacts& a : all_axes) {
    if (!axes.has(a.axis)) continue;
    const int size = a.size(layout);
    place = {place.size * size, place.index * size + coord.*a.index};
  }
  return place;
}

Comm& Mesh::over(Axes axes) const {
  for (const Member& member : members)
    if (member.axes == axes) return *(this->*member.comm);
  SY_ASSERT(false, "no communicator over {}", axes.str());
}

std::vector<std::pair<std::string_view, const Comm*>> Mesh::groups() const {
  return {{"world", host},          {"stage", stage.get()},   {"dp", dp.get()},
          {"tp", tp.get()},         {"edp", edp.get()},       {"experts", experts.get()},
          {"within", within.get()}, {"across", across.get()}, {"replicas", replicas.get()}};
}

namespace {

Mesh mesh_without_groups(Comm& world, const Layout& layout) {
  SY_ASSERT(layout.divides(), "{} ranks as {}", layout.ranks, layout.given());
  Mesh mesh{};
  mesh.layout = layout;
  mesh.rank = world.rank();
  mesh.coord = coord_of(layout, mesh.rank);
  mesh.host = &world;
  return mesh;
}

}  // namespace

Mesh make_mesh(Comm& world, const Layout& layout) {
  Mesh mesh = mesh_without_groups(world, layout);
  // Ranks with equal coordinates along the other axes of the grid form a group.
  for (const Member& member : members)
    mesh.*member.comm = world.split(
        [&](int rank) { return place_of(layout, coord_of(layout, rank), grid_of(member.axes) - member.axes).index; });
  for (const NodeMember& member : node_members)
    if (layout.experts_topology().nodes > 1)
      mesh.*member.comm = world.split([&](int rank) { return member.group(layout, rank); });
  return mesh;
}

// Computes groups instead of splitting `world`: a split of many thousand ranks takes milliseconds.
Mesh make_dry_mesh(Comm& world, const Layout& layout, bool asynchronous) {
  Mesh mesh = mesh_without_groups(world, layout);
  for (const Member& member : members) {
    const Place place = place_of(layout, mesh.coord, member.axes);
    mesh.*member.comm = make_comm_dry(place.size, place.index, asynchronous);
  }
  const Topology nodes = layout.experts_topology();
  for (const NodeMember& member : node_members) {
    const Place place = member.place(nodes, mesh.experts->rank());
    if (nodes.nodes > 1) mesh.*member.comm = make_comm_dry(place.size, place.index, asynchronous);
  }
  return mesh;
}

Mesh on_backend(Mesh mesh, Backend& backend) {
  if (backend.on_host() || mesh.backend == &backend) return mesh;
  SY_ASSERT(!mesh.backend && !mesh.replicas, "a mesh for the buffers of another backend");
  const MakeComm nccl = nccl_on(backend, mesh.rank);
  for (const Member& member : members) mesh.*member.comm = nccl(std::move(mesh.*member.comm), member.stream);
  for (const NodeMember& member : node_members)
    if (mesh.*member.comm) mesh.*member.comm = nccl(std::move(mesh.*member.comm), CommStream::tokens);
  mesh.backend = &backend;
  return mesh;
}

void join_replicas(Mesh& mesh, Index n) {
  const Index tp = mesh.layout.tp;
  if (mesh.replicas || replicas_of(n, mesh.layout.tp) == 1) return;
  mesh.replicas = mesh.tp->split([&](int rank) { return static_cast<int>(rank * n / tp); });
}

}  // namespace sy
