#include "dist/mesh.h"

#include "dist/device_comm.h"
#include "dist/shard.h"

namespace sy {
namespace {

// Name, size and coordinate of an axis.
// The table is ordered from the outermost axis to the innermost.
struct AxisInfo {
  Axis axis;
  const char* name;
  int (*size)(const Layout&);
  int Coord::*index;
};
constexpr AxisInfo all_axes[] = {{Axis::dp, "dp", [](const Layout& l) { return l.dp(); }, &Coord::dp},
                                 {Axis::tp, "tp", [](const Layout& l) { return l.tp; }, &Coord::tp},
                                 {Axis::edp, "edp", [](const Layout& l) { return l.edp(); }, &Coord::edp},
                                 {Axis::ep, "ep", [](const Layout& l) { return l.ep; }, &Coord::ep},
                                 {Axis::etp, "etp", [](const Layout& l) { return l.etp; }, &Coord::etp}};

std::string node_suffix(const Layout& l) {
  return l.ranks_per_node == 1 ? "" : fmt::format(" node {}", l.ranks_per_node);
}

// A communicator of a mesh for hierarchical dispatch. Its ranks are in rank order.
struct NodeGroup {
  std::unique_ptr<Comm> Mesh::*comm;
  int (*color)(const Layout&, int rank);                // number of the group of `rank`
  GroupRank (*group_rank)(const Topology&, int index);  // of rank `index` of Mesh::expert_group
};
constexpr NodeGroup node_groups[] = {
    {&Mesh::intra_node, [](const Layout& l, int rank) { return rank / l.ranks_per_node; },
     [](const Topology& t, int index) {
       return GroupRank{t.ranks_per_node, t.index_in_node(index)};
     }},
    {&Mesh::inter_node,
     [](const Layout& l, int rank) { return rank / (l.ep * l.etp) * l.ranks_per_node + rank % l.ranks_per_node; },
     [](const Topology& t, int index) {
       return GroupRank{t.nodes, t.node_of(index)};
     }}};

// A communicator of a mesh along a set of axes.
struct GridGroup {
  Axes axes;
  std::unique_ptr<Comm> Mesh::*comm;
  CommStream stream;
};
constexpr GridGroup grid_groups[] = {{dense_grid, &Mesh::stage, CommStream::gradients},
                                     {Axis::dp, &Mesh::dp, CommStream::gradients},
                                     {Axis::tp, &Mesh::tp, CommStream::tokens},
                                     {Axis::edp, &Mesh::edp, CommStream::gradients},
                                     {Axis::ep | Axis::etp, &Mesh::expert_group, CommStream::tokens}};

}  // namespace

std::string Axes::str() const {
  std::string text;
  for (const AxisInfo& a : all_axes)
    if (has(a.axis)) text += (text.empty() ? "" : " x ") + std::string(a.name);
  return text;
}

Axes grid_of(Axes axes) {
  const Axes grid = (axes & expert_grid).empty() ? dense_grid : expert_grid;
  SY_ASSERT(grid.has(axes), "{} are axes of two grids", axes.str());
  return grid;
}

Topology Layout::expert_topology() const {
  const int all = static_cast<int>(expert_ranks());
  return ranks_per_node > 1 && ranks_per_node < all ? Topology{all / ranks_per_node, ranks_per_node} : Topology{1, all};
}

bool Layout::nodes_divide() const {
  const Index all = expert_ranks(), n = ranks_per_node;
  return n == 1 || (ranks % n == 0 && (n % all == 0 || all % n == 0) && n % etp == 0);
}

std::string Layout::str() const {
  return fmt::format("dp {} tp {} ep {} etp {} edp {}", dp(), tp, ep, etp, edp()) + node_suffix(*this);
}

std::string Layout::short_name() const {
  return fmt::format("tp {} ep {} etp {}", tp, ep, etp) + node_suffix(*this);
}

Coord coord_of(const Layout& l, int rank) {
  return {rank / l.tp, rank % l.tp, rank / (l.ep * l.etp), rank / l.etp % l.ep, rank % l.etp};
}

GroupRank group_rank(const Layout& layout, const Coord& coord, Axes axes) {
  GroupRank result;
  for (const AxisInfo& a : all_axes) {
    if (!axes.has(a.axis)) continue;
    const int size = a.size(layout);
    result = {result.size * size, result.index * size + coord.*a.index};
  }
  return result;
}

Comm& Mesh::over(Axes axes) const {
  for (const GridGroup& group : grid_groups)
    if (group.axes == axes) return *(this->*group.comm);
  if (axes == (Axis::edp | Axis::etp) && layout.etp == 1) return *edp;
  if (axes == (Axis::edp | Axis::etp) && expert_replicas) return *expert_replicas;
  SY_ASSERT(false, "no communicator over {}", axes.str());
}

std::vector<std::pair<std::string_view, const Comm*>> Mesh::groups() const {
  return {{"world", host},
          {"stage", stage.get()},
          {"dp", dp.get()},
          {"tp", tp.get()},
          {"edp", edp.get()},
          {"experts", expert_group.get()},
          {"within", intra_node.get()},
          {"across", inter_node.get()},
          {"replicas", kv_replicas.get()},
          {"expert replicas", expert_replicas.get()}};
}

namespace {

Mesh mesh_without_comms(Comm& world, const Layout& layout) {
  SY_ASSERT(layout.divides(), "{} ranks as {}", layout.ranks, layout.short_name());
  Mesh mesh{};
  mesh.layout = layout;
  mesh.rank = world.rank();
  mesh.coord = coord_of(layout, mesh.rank);
  mesh.host = &world;
  return mesh;
}

}  // namespace

Mesh make_mesh(Comm& world, const Layout& layout) {
  Mesh mesh = mesh_without_comms(world, layout);
  // Ranks with equal coordinates along the other axes of the grid form a group.
  for (const GridGroup& group : grid_groups)
    mesh.*group.comm = world.split(
        [&](int rank) { return group_rank(layout, coord_of(layout, rank), grid_of(group.axes) - group.axes).index; });
  for (const NodeGroup& group : node_groups)
    if (layout.expert_topology().nodes > 1)
      mesh.*group.comm = world.split([&](int rank) { return group.color(layout, rank); });
  return mesh;
}

// Computes groups instead of splitting `world`: a split of many thousand ranks takes milliseconds.
Mesh make_dry_mesh(Comm& world, const Layout& layout, bool asynchronous) {
  Mesh mesh = mesh_without_comms(world, layout);
  for (const GridGroup& group : grid_groups) {
    const GroupRank own = group_rank(layout, mesh.coord, group.axes);
    mesh.*group.comm = make_comm_dry(own.size, own.index, asynchronous, world.shared_context());
  }
  const Topology topology = layout.expert_topology();
  for (const NodeGroup& group : node_groups) {
    const GroupRank own = group.group_rank(topology, mesh.expert_group->rank());
    if (topology.nodes > 1) mesh.*group.comm = make_comm_dry(own.size, own.index, asynchronous, world.shared_context());
  }
  return mesh;
}

Mesh on_device(Mesh mesh, Device& device) {
  if (device.on_host() || mesh.device == &device) return mesh;
  SY_ASSERT(!mesh.device && !mesh.kv_replicas, "a mesh for the buffers of another backend");
  device.publish_waits_to(block_state(mesh.host->shared_context()));
  const MakeDeviceComm on_device = make_device_comm(device, mesh.rank, mesh.rank_context());
  for (const GridGroup& group : grid_groups) mesh.*group.comm = on_device(std::move(mesh.*group.comm), group.stream);
  for (const NodeGroup& group : node_groups)
    if (mesh.*group.comm) mesh.*group.comm = on_device(std::move(mesh.*group.comm), CommStream::tokens);
  mesh.device = &device;
  return mesh;
}

void join_kv_replicas(Mesh& mesh, Index n) {
  const Index tp = mesh.layout.tp;
  if (mesh.kv_replicas || num_replicas(n, mesh.layout.tp) == 1) return;
  mesh.kv_replicas = mesh.tp->split([&](int rank) { return static_cast<int>(rank * n / tp); });
}

void join_expert_replicas(Mesh& mesh) {
  if (mesh.expert_replicas || mesh.layout.etp == 1) return;
  mesh.expert_replicas = mesh.stage->split([&](int rank) { return coord_of(mesh.layout, rank).ep; });
}

}  // namespace sy
