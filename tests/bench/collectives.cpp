// Measures the collectives of a training step, memory, and the transports of a machine.
// - The bytes and the time of each collective, beside the bytes that the step needs at least.
// - The memory of a rank by the number of data-parallel ranks, with and without ZeRO-1.
// - The time of collectives through the memory that ranks of a machine share, and by MPI's messages
//   alone.
//
//   launch/mpirun.sh RANKS build/bench_collectives [--tp N] [--ep N] [--etp N] [--node N]
//     [--d-model N] [--layers N] [--heads N] [--kv-heads N] [--experts N] [--top-k N] [--d-ff N]
//     [--vocab N] [--seq-len N] [--batch N] [--steps N] [--recompute]
//
// --batch: sequences of a step, over all ranks. Bytes and times are means over ranks and steps. A
// time includes the wait for slower ranks; with more ranks than cores, that is most of it.
#include <sys/resource.h>

#include <boost/program_options.hpp>
#include <iostream>

#include "dist/comm_mpi.h"
#include "dist/runtime.h"
#include "src/config/layout.h"
#include "src/text/table.h"
#include "src/train/distributed_optimizer.h"
#include "src/train/memory.h"
#include "tests/bench/arguments.h"
#include "tests/bench/peak.h"
#include "tests/forwarding_comm.h"
#include "tests/traffic.h"

namespace sy::bench {
namespace {

// Separates dispatch from combine: the calls alternate, in forward and in backward.
class ExpertsComm final : public ForwardingComm {
 public:
  using ForwardingComm::ForwardingComm;
  Traffic dispatch, combine;

 private:
  Work do_all_to_all_v(std::span<const SendReceive> buffers, std::span<const Index> send,
                       std::span<const Index> receive) override {
    const Traffic before = inner_->traffic(Collective::all_to_all);
    inner_->start_all_to_all_v(buffers, send, receive).wait();
    const Traffic& after = inner_->traffic(Collective::all_to_all);
    Traffic& phase_traffic = next_ == 0 ? dispatch : combine;
    phase_traffic.calls += after.calls - before.calls;
    phase_traffic.bytes += after.bytes - before.bytes;
    phase_traffic.seconds += after.seconds - before.seconds;
    next_ = 1 - next_;
    return {};
  }

  int next_ = 0;
};

struct Line {
  std::string what, group;
  int ranks;
  Traffic traffic;  // of this rank, over all steps
  double needed;
};

std::string mega(auto bytes) {
  return fmt::format("{:.3f}", static_cast<double>(bytes) / 1e6);
}

// Content of the collectives of each communicator.
const std::map<std::pair<std::string, Collective>, const char*> meanings = {
    {{"stage", Collective::reduce_scatter}, "gradients of norms, routers"},
    {{"stage", Collective::all_gather}, "weights of norms, routers"},
    {{"stage", Collective::all_reduce}, "gradient norm"},
    {{"dp", Collective::reduce_scatter}, "gradients of dense matrices"},
    {{"dp", Collective::all_gather}, "weights of dense matrices"},
    {{"edp", Collective::reduce_scatter}, "gradients of experts"},
    {{"edp", Collective::all_gather}, "weights of experts"},
    {{"tp", Collective::all_gather}, "gather tokens"},
    {{"tp", Collective::reduce_scatter}, "sum and scatter tokens"},
    {{"replicas", Collective::all_reduce}, "gradients of shared kv heads"},
};

std::vector<std::string> cells(const Line& line, Comm& world, Index steps, double step_seconds) {
  const double over = static_cast<double>(steps) * world.size();
  const double bytes = world.sum(static_cast<double>(line.traffic.bytes)) / over,
               needed = world.sum(line.needed) / over;
  const double seconds = world.sum(line.traffic.seconds) / over;
  return {line.what,
          fmt::format("{} x {}", line.group, line.ranks),
          fmt::format("{}", line.traffic.calls / steps),
          mega(bytes),
          needed > 0 ? mega(needed) : "-",
          needed > 0 ? fmt::format("{:.4f}", bytes / needed) : "-",
          fmt::format("{:.2f}", seconds * 1e3),
          fmt::format("{:.3f}", bytes / seconds / 1e9),
          fmt::format("{:.1f}", 100 * seconds / step_seconds)};
}

// With and without ZeRO-1, every rank holds all gradients: ZeRO-1 splits only the optimizer's
// moments.
void print_memory(const Config& config, Index vocab, Engine& engine) {
  Table table({"layout", "weights", "gradients", "m, v", "m, v unsplit", "activations", "total", "without ZeRO"});
  std::vector<Layout> layouts;
  for (int dp : {1, 2, 4})
    for (int ep : {1, dp})
      if (config.moe.experts % ep == 0 && (ep > 1 || layouts.empty() || layouts.back().ranks != dp))
        layouts.push_back({dp, 1, ep, 1});
  const Layout& own = engine.mesh().layout;
  if (std::none_of(layouts.begin(), layouts.end(), [&](const Layout& l) { return l.str() == own.str(); }))
    layouts.push_back(own);
  for (const Layout& l : layouts) {
    const MemoryPlan plan = plan_memory(config, vocab, l, 0, *make_cpu());
    const Index unsplit = 2 * plan.gradients;
    table.row({l.str(), mega(plan.weights), mega(plan.gradients), mega(plan.optimizer), mega(unsplit),
               mega(plan.activations()), mega(plan.total()), mega(plan.total() - plan.optimizer + unsplit)});
  }
  fmt::print("\nPlanned memory of rank 0, MB, {} tokens in a pass:\n{}",
             config.train.micro_batch * config.model.seq_len, table.str());
}

// A collective to measure.
struct Timed {
  const char* what;
  void (*run)(Comm& comm, View x, View y);  // x, y: of equal size, a multiple of the ranks
};
constexpr Timed timed[] = {
    {"all-reduce", [](Comm& comm, View x, View) { comm.all_reduce(x); }},
    {"reduce-scatter", [](Comm& comm, View x, View y) { comm.reduce_scatter(x, y.rows(0, y.dim(0) / comm.size())); }},
    {"all-gather", [](Comm& comm, View x, View y) { comm.all_gather(x.rows(0, x.dim(0) / comm.size()), y); }},
    {"all-to-all",
     [](Comm& comm, View x, View y) {
       const std::vector<Index> rows(comm.size(), x.dim(0) / comm.size());
       comm.all_to_all_v(x, rows, y, rows);
     }},
    {"broadcast", [](Comm& comm, View x, View) { comm.broadcast(x, 0); }},
};

// Measures both transports alternately: the median of seven times each, then the mean over ranks.
void print_ways(Comm& world) {
  const auto messages = make_comm_mpi(world.shared_context(), MPI_COMM_WORLD, false, nullptr);
  Table table({"collective", "bytes", "us", "us, MPI alone", "ratio", "GB/s"});
  for (const Timed& t : timed)
    for (const Index bytes :
         {Index{64}, Index{4} << 10, Index{64} << 10, Index{1} << 20, Index{16} << 20, Index{64} << 20}) {
      const Index n = std::max<Index>(bytes / 4 / world.size(), 1) * world.size();
      std::vector<float> x(n), y(n);
      const int calls = static_cast<int>(std::clamp<Index>((Index{8} << 20) / bytes, 1, 300));
      std::vector<double> times[2];
      for (int repeat = 0; repeat < 16; ++repeat) {
        Comm& comm = repeat % 2 ? *messages : world;
        world.barrier();
        const double begin = seconds_now();
        for (int i = 0; i < calls; ++i) t.run(comm, view_of(x.data(), {n}), view_of(y.data(), {n}));
        if (repeat > 1) times[repeat % 2].push_back((seconds_now() - begin) / calls);
      }
      double us[2];
      for (int way = 0; way < 2; ++way) {
        std::nth_element(times[way].begin(), times[way].begin() + 3, times[way].end());
        us[way] = 1e6 * world.sum(times[way][3]) / world.size();
      }
      table.row({t.what, std::to_string(4 * n), fmt::format("{:.1f}", us[0]), fmt::format("{:.1f}", us[1]),
                 fmt::format("{:.2f}", us[1] / us[0]), fmt::format("{:.2f}", 4e-3 * static_cast<double>(n) / us[0])});
    }
  if (world.rank() == 0)
    fmt::print(
        "\nThrough shared memory, where SWITCHYARD_WINDOW leaves it on, and by MPI's messages alone; bytes of the larger buffer:\n{}",
        table.str());
}

// Returns false if --help was passed.
bool run(Comm& world, int argc, char** argv) {
  namespace po = boost::program_options;
  po::options_description options;
  std::map<std::string, Index> n;
  for (const auto& [name, value] : {std::pair{"tp", 1},
                                    {"ep", 1},
                                    {"etp", 1},
                                    {"node", 1},
                                    {"d-model", 256},
                                    {"layers", 4},
                                    {"heads", 8},
                                    {"kv-heads", 8},
                                    {"experts", 8},
                                    {"top-k", 2},
                                    {"d-ff", 704},
                                    {"vocab", 257},
                                    {"seq-len", 256},
                                    {"batch", 8},
                                    {"steps", 4}})
    options.add_options()(name, po::value<Index>(&n[name])->default_value(value));
  options.add_options()("recompute", po::bool_switch());
  po::variables_map values;
  bool asked = true;
  agree_on_errors(world, [&] {
    asked =
        read_arguments(argc, argv, "bench_collectives", "Measures the collectives of a training step: bytes and time.",
                       options, values, world.rank() == 0);
  });
  if (!asked) return false;

  const Layout layout{world.size(), static_cast<int>(n["tp"]), static_cast<int>(n["ep"]), static_cast<int>(n["etp"]),
                      static_cast<int>(n["node"])};
  if (!layout.divides()) throw CollectiveError(2, "--tp and --ep * --etp must divide the ranks, and --node both");
  const Index S = n["seq-len"], B = n["batch"] / layout.dp(), vocab = n["vocab"], steps = n["steps"], E = n["experts"];
  const Config config = parse_config(
      fmt::format("[model]\nlayers={}\nd_model={}\nheads={}\nkv_heads={}\nseq_len={}\nd_ff={}\n[moe]\nexperts={}\n"
                  "top_k={}\nd_ff={}\ncapacity_factor=0\n[train]\nmicro_batch={}\nglobal_batch={}\nrecompute={}\n",
                  n["layers"], n["d-model"], n["heads"], n["kv-heads"], S, n["d-ff"], E, n["top-k"], n["d-ff"], B,
                  n["batch"], values["recompute"].as<bool>() ? "block" : "none"),
      "bench");
  agree_on_errors(world, [&] { check_config_for_layout(config, layout); });

  Mesh mesh = make_mesh(world, layout);
  std::map<std::string, ExpertsComm*> travelling;
  for (const auto& [name, comm] :
       {std::pair{"experts", &mesh.expert_group}, {"within", &mesh.intra_node}, {"across", &mesh.inter_node}})
    if (*comm) {
      auto owned = std::make_unique<ExpertsComm>(std::move(*comm));
      travelling[name] = owned.get();
      *comm = std::move(owned);
    }
  ExpertsComm& experts = *travelling["experts"];
  Engine engine(config, vocab, make_cpu(), std::move(mesh), true);
  engine.store().initialize(1);
  DistributedOptimizer optimizer(engine.mesh(), engine.store());
  const Index T = B * S;
  std::vector<std::int32_t> ids(T), targets(T);
  const RandomStream random(1, "bench");
  for (Index i = 0; i < T; ++i) {
    const Index at = engine.mesh().coord.dp * T + i;
    ids[i] = static_cast<std::int32_t>(random.bits(2 * at) % vocab);
    targets[i] = static_cast<std::int32_t>(random.bits(2 * at + 1) % vocab);
  }
  Index done = 0;
  const auto train = [&] {
    engine.forward_backward({B, S, ids, targets, n["batch"] * S, n["batch"], 1});
    optimizer.step(config.train, 1e-4, ++done);
  };

  train();  // arenas grow
  const auto groups = engine.mesh().groups();
  const auto snapshot = [&] {
    std::map<std::pair<std::string, Collective>, Traffic> all;
    for (const auto& [name, group] : groups)
      for (int kind = 0; group && kind < num_collectives; ++kind)
        all[{std::string(name), static_cast<Collective>(kind)}] = group->traffic(static_cast<Collective>(kind));
    return all;
  };
  test::RoutedRows routed(engine.mesh());
  engine.set_routing_hook([&](const RoutingView& r) { routed.count(r, engine.mesh(), E); });
  world.barrier();
  const auto before = snapshot();
  for (const auto& [name, comm] : travelling) comm->dispatch = comm->combine = {};
  const double started = seconds_now();
  for (Index i = 0; i < steps; ++i) train();
  const double mine = seconds_now() - started;
  const auto after = snapshot();
  const double step_seconds = world.sum(mine) / world.size() / static_cast<double>(steps);

  const int P = experts.size(), me = experts.rank();
  std::vector<Index> rows(P * P);
  experts.all_gather(view_of(routed.rows.data(), {P}), view_of(rows.data(), {P * P}));
  const std::vector<test::TokenTraffic> tokens = test::token_traffic(engine.mesh(), routed);
  const Topology topology = layout.expert_topology();
  // Tokens, sent once to each rank; those sent to ranks of other nodes; rows, sent once to each
  // expert.
  Index leaving = 0, crossing = 0, rows_leaving = 0;
  for (int r = 0; r < P; ++r) {
    leaving += r == me ? 0 : routed.tokens[r];
    crossing += topology.node_of(r) == topology.node_of(me) ? 0 : routed.tokens[r];
    rows_leaving += r == me ? 0 : rows[me * P + r];
  }

  // Expected bytes of one step, from the mean rows of all ranks: bytes are linear in the rows.
  const test::Loads loads = test::expected_loads(config, vocab, layout, world.rank(), B, 1, tokens);
  const double passes = config.train.recompute == Recompute::block ? 3 : 2, D = static_cast<double>(n["d-model"]);
  std::vector<Line> lines;
  for (const auto& [key, load] : loads) {
    const auto& [group, kind] = key;
    const Traffic &a = after.at(key), &b = before.at(key);
    const auto of = std::find_if(groups.begin(), groups.end(), [&](const auto& g) { return g.first == group; });
    const int ranks = of->second->size();
    if (kind == Collective::all_to_all) {
      const ExpertsComm& comm = *travelling.at(group);
      const auto rows_of =
          std::find_if(tokens.begin(), tokens.end(), [&](const auto& t) { return t.group == key.first; });
      lines.push_back(
          {"dispatch rows", group, ranks, comm.dispatch, 4 * D * passes * static_cast<double>(rows_of->sent)});
      lines.push_back(
          {"combine rows", group, ranks, comm.combine, 4 * D * passes * static_cast<double>(rows_of->received)});
      const auto rest = [&](auto member) {
        return a.*member - b.*member - comm.dispatch.*member - comm.combine.*member;
      };
      lines.push_back(
          {"row counts", group, ranks, {rest(&Traffic::calls), rest(&Traffic::bytes), rest(&Traffic::seconds)}, 0});
      continue;
    }
    lines.push_back({fmt::format("{} {}", name_of(kind), meanings.at(key)),
                     group,
                     ranks,
                     {a.calls - b.calls, a.bytes - b.bytes, a.seconds - b.seconds},
                     load.needed * static_cast<double>(steps)});
  }
  Table table({"collective", "group x ranks", "calls", "MB", "needed", "ratio", "ms", "GB/s", "% of step"});
  for (const Line& line : lines) table.row(cells(line, world, steps, step_seconds));

  // A token is sent once to each rank with any of its experts. If it were sent to each of its
  // experts, every etp part of an expert would take one row. Under balanced load, a share (P - 1) /
  // P of the token's k rows would then leave its rank.
  const Index moe_layers = count_moe(block_specs(config));
  const double balanced = static_cast<double>(T / layout.tp * n["top-k"] * layout.etp * moe_layers) * (P - 1) / P;
  const auto mean = [&](Index rows_of_rank) {
    return world.sum(static_cast<double>(rows_of_rank)) / static_cast<double>(steps * world.size());
  };
  const double mean_leaving = mean(leaving), mean_rows = mean(rows_leaving), mean_crossing = mean(crossing),
               mean_internode = mean(tokens.front().sent), mean_intranode = mean(tokens.back().sent);
  const auto received = [&](int rank) {
    Index sum = 0;
    for (int r = 0; r < P; ++r) sum += rows[r * P + rank];
    return sum / steps;
  };
  const Index most_received = world.max(received(me));

  struct rusage usage {};
  getrusage(RUSAGE_SELF, &usage);
  const Index resident = world.max(Index{usage.ru_maxrss} * 1024),
              allocated = world.max(engine.store().allocated_bytes());
  const Index saved = world.max(engine.saved().peak()), scratch = world.max(engine.scratch().peak());
  const Index reserved = world.max(engine.saved().reserved() + engine.scratch().reserved());
  if (world.rank() != 0) return true;

  fmt::print("{}; {} ranks, {}; {}\n", engine.device().describe(), world.size(), layout.str(),
             config.train.recompute == Recompute::block ? "activations recomputed" : "activations kept");
  fmt::print(
      "d_model {} layers {} experts {} top-{} d_ff {} vocab {}, {} x {} tokens a step, {} steps of {:.1f} ms\n\n",
      n["d-model"], n["layers"], E, n["top-k"], n["d-ff"], vocab, n["batch"], S, steps, step_seconds * 1e3);
  if (lines.empty())
    fmt::print("One rank: no collective.\n");
  else
    fmt::print("Sent by a rank in a step, mean of all:\n{}", table.str());
  if (P > 1)
    fmt::print(
        "Tokens that leave a rank in a forward pass: {:.0f}. Rows, if a token went once to each of its experts: {:.0f}; {:.0f} "
        "if experts were equally loaded.\nRows that a rank's experts compute: the most {}, {:.0f} if equally loaded.\n",
        mean_leaving, mean_rows, balanced, most_received, balanced * P / (P - 1));
  if (topology.nodes > 1)
    fmt::print(
        "Tokens that a rank sends to other nodes of {} ranks in a forward pass: {:.0f}, and to others of its own: {:.0f}. Once to "
        "each rank: {:.0f} and {:.0f}.\n",
        topology.ranks_per_node, mean_internode, mean_intranode, mean_crossing, mean_leaving - mean_crossing);
  print_memory(config, vocab, engine);
  fmt::print(
      "\nMeasured in this run, the most of any rank: weights, gradients and moments {} MB; activations {} MB (saved "
      "{}, scratch {}; reserved {}); resident {} MB\n",
      mega(allocated), mega(saved + scratch), mega(saved), mega(scratch), mega(reserved), mega(resident));
  return true;
}

}  // namespace
}  // namespace sy::bench

int main(int argc, char** argv) {
  sy::Runtime runtime(std::make_shared<sy::RankContext>(), &argc, &argv);
  return runtime.run([&] {
    if (sy::bench::run(runtime.world(), argc, argv) && runtime.world().size() > 1)
      sy::bench::print_ways(runtime.world());
    return 0;
  });
}
