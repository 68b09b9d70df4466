// switchyard doctor: resources of this machine, or of every rank's, and misconfigurations.
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <iostream>
#include <optional>

#include "dist/device_comm.h"
#include "kernels/control_groups.h"
#include "kernels/cpu/processor.h"
#include "src/cli/options.h"
#include "src/cli/progress.h"
#include "src/config.h"
#include "src/config/layout.h"
#include "src/doctor/facts.h"
#include "src/io/hdf5/hdf5_library.h"
#include "src/plan/measure.h"
#include "src/system/files.h"
#include "src/text/json.h"
#include "src/text/numbers.h"
#include "src/text/table.h"

namespace sy {

namespace {

struct Findings {
  MpiInfo mpi;
  cuda::Versions cuda;
  std::vector<RankFacts> ranks;
  std::vector<HostFacts> hosts;
  std::vector<Problem> problems;
  std::optional<Machine> machine;  // empty if it was not measured
};

std::vector<std::string> isa_names() {
  std::vector<std::string> names;
  for (const CpuIsa& isa : cpu_isas()) names.emplace_back(isa.name);
  return names;
}

Json gpu_json(const cuda::Gpu& g) {
  Json j{{"id", g.id}, {"name", g.name}, {"compute_capability", g.capability}, {"bytes", g.bytes}, {"peers", g.peers}};
  if (g.tried) {
    j["free_bytes"] = g.free_bytes;
    j["kernels"] = g.kernels;
    j["error"] = g.error;
  }
  return j;
}

// Returns null for a negative number, which means absent.
template <class Number>
Json or_null(Number x) {
  return x < 0 ? Json() : Json(x);
}

Json folder_json(const FolderFacts& f) {
  return {{"path", f.path},
          {"type", f.type},
          {"error", f.error},
          {"free_bytes", or_null(f.free_bytes)},
          {"free_files", or_null(f.free_files)},
          {"seen_after_seconds", or_null(f.seen_after)},
          {"write_seconds", or_null(f.write_seconds)},
          {"write_bytes_per_second", or_null(f.write_bandwidth)},
          {"locks", f.write_seconds < 0 ? Json() : Json(f.locks)}};
}

Json links_json(const Machine& m) {
  return {{"node_latency_seconds", m.node_latency},
          {"node_bytes_per_second", m.node_bandwidth},
          {"latency_seconds", m.latency},
          {"bytes_per_second", m.bandwidth}};
}

Json to_json(const Findings& findings) {
  const DeviceCollectives collectives = device_collectives();
  Json hosts = Json::array(), ranks = Json::array(), problems = Json::array();
  for (const HostFacts& h : findings.hosts) {
    Json gpus = Json::array();
    for (const cuda::Gpu& g : h.gpus) gpus.push_back(gpu_json(g));
    hosts.push_back({{"name", h.name},
                     {"processor", h.processor},
                     {"sockets", h.sockets},
                     {"threads_per_core", h.threads_per_core},
                     {"cpus", h.cpus},
                     {"cpu_time", h.cpu_time > 0 ? Json(h.cpu_time) : Json()},
                     {"cpu_quota", h.cpu_time > 0 ? Json(cpu_quota(h.cpu_time)) : Json()},
                     {"load_average", or_null(h.load)},
                     {"instruction_set", h.isa},
                     {"memory_bytes", h.memory},
                     {"memory_limit_bytes", or_null(h.memory_limit)},
                     {"available_bytes", h.available},
                     {"shared_memory_bytes", h.shared_memory},
                     {"window", {{"ranks", h.window_ranks}, {"bytes", h.window_bytes}, {"none_because", h.no_window}}},
                     {"limits",
                      {{"open_files", or_null(h.limits.open_files)},
                       {"locked_memory_bytes", or_null(h.limits.locked_memory)},
                       {"stack_bytes", or_null(h.limits.stack)},
                       {"core_bytes", or_null(h.limits.core)},
                       {"processes", or_null(h.limits.processes)}}},
                     {"hdf5",
                      {{"version", h.hdf5.version},
                       {"thread_safe", h.hdf5.thread_safe},
                       {"parallel", h.hdf5.parallel},
                       {"locks", h.hdf5.locks}}},
                     {"unicode", h.unicode},
                     {"infiniband", h.infiniband},
                     {"nvidia_driver", h.driver},
                     {"driver_cuda", h.driver_cuda},
                     {"gpus", gpus}});
  }
  for (const RankFacts& r : findings.ranks)
    ranks.push_back({{"rank", r.rank},
                     {"host", r.host.name},
                     {"cpus", r.cpus},
                     {"threads", r.threads},
                     {"gpu", r.gpu},
                     {"no_gpu_because", r.missing},
                     {"flops_per_second", r.speed > 0 ? Json(r.speed) : Json()},
                     {"clock_ahead_seconds", r.clock_ahead},
                     {"clock_error_seconds", r.clock_error},
                     {"folder", folder_json(r.folder)}});
  for (const Problem& p : findings.problems) problems.push_back({{"what", p.what}, {"remedy", p.remedy}});
  return {{"build",
           {{"compiler", __VERSION__},
            {"instruction_sets", isa_names()},
            {"cuda", findings.cuda.runtime},
            {"cuda_architectures", findings.cuda.kernels},
            {"cublas", findings.cuda.cublas.built},
            {"cublas_loaded", findings.cuda.cublas.loaded},
            {"nccl", collectives.version},
            {"nccl_built", collectives.built_version},
            {"nccl_streams", collectives.streams},
            {"hdf5", hdf5_library().version}}},
          {"mpi",
           {{"library", findings.mpi.library},
            {"launched", !findings.mpi.threads.empty()},
            {"threads", findings.mpi.threads},
            {"cuda_aware", findings.mpi.cuda_aware}}},
          {"hosts", hosts},
          {"ranks", ranks},
          {"instruction_set", cpu_isa().name},
          {"links", findings.machine ? links_json(*findings.machine) : Json()},
          {"problems", problems}};
}

void print_gpus(const Findings& findings) {
  Table table({"host", "GPU", "name", "capability", "kernels", "free GiB", "of", "reaches"});
  bool any = false;
  for (const HostFacts& h : findings.hosts)
    for (const cuda::Gpu& g : h.gpus) {
      any = true;
      const std::string reaches = g.peers.empty()                       ? "-"
                                  : g.peers.size() + 1 == h.gpus.size() ? "all"
                                                                        : fmt::format("{}", fmt::join(g.peers, " "));
      table.row({h.name, g.id, g.name, g.capability, g.error.empty() ? g.kernels : "none",
                 g.tried ? fmt::format("{:.1f}", gibibytes(g.free_bytes)) : "-",
                 fmt::format("{:.1f}", gibibytes(g.bytes)), reaches});
    }
  if (any) std::cout << "\n" << table.str();
}

// Formats a limit in `unit`.
std::string limit_of(Index limit, Index unit = 1) {
  return limit < 0 ? "any" : std::to_string(limit / unit);
}

void print_limits(const Findings& findings) {
  constexpr Index mebibyte = Index{1} << 20;
  Table table({"host", "open files", "processes", "stack MiB", "locked MiB", "core MiB", "clock ahead ms", "+-"});
  for (const HostFacts& h : findings.hosts) {
    const auto rank = std::ranges::find(findings.ranks, h.name, [](const RankFacts& r) { return r.host.name; });
    table.row({h.name, limit_of(h.limits.open_files), limit_of(h.limits.processes), limit_of(h.limits.stack, mebibyte),
               limit_of(h.limits.locked_memory, mebibyte), limit_of(h.limits.core, mebibyte),
               fmt::format("{:.3f}", 1e3 * rank->clock_ahead), fmt::format("{:.3f}", 1e3 * rank->clock_error)});
  }
  std::cout << "\n" << table.str();
}

// Prints the folder as the first rank of each host measured it, if it could.
void print_folder(const Findings& findings) {
  std::cout << "\nfolder    " << visible(findings.ranks.front().folder.path) << "\n";
  Table table({"host", "file system", "free GiB", "files free", "small file ms", "MB/s", "locks"});
  bool any = false;
  for (const RankFacts& r : findings.ranks) {
    const FolderFacts& f = r.folder;
    if (f.write_seconds < 0) continue;
    any = true;
    table.row({r.host.name, f.type, fmt::format("{:.1f}", gibibytes(f.free_bytes)), limit_of(f.free_files),
               fmt::format("{:.1f}", 1e3 * f.write_seconds), fmt::format("{:.0f}", f.write_bandwidth / 1e6),
               f.locks ? "yes" : "no"});
  }
  if (any) std::cout << table.str();
}

void print_links(const Machine& m) {
  const auto link = [](const char* where, double latency, double bandwidth) {
    fmt::print("{} {:.1f} us, {:.2f} GB/s", where, 1e6 * latency, 1e-9 * bandwidth);
  };
  fmt::print("links     ");
  if (m.node_bandwidth > 0) link("in a node", m.node_latency, m.node_bandwidth);
  if (m.bandwidth > 0) link(m.node_bandwidth > 0 ? "; between nodes" : "between nodes", m.latency, m.bandwidth);
  fmt::print(" (all ranks of a node together)\n");
}

void print(const Findings& findings) {
  const RankFacts& first = findings.ranks.front();
  const cuda::Versions& cuda = findings.cuda;
  fmt::print("build     compiler {}; CPU kernels for {}\n", __VERSION__, fmt::join(isa_names(), ", "));
  fmt::print("kernels   {} on every rank\n", cpu_isa().name);
  if (findings.mpi.threads.empty())
    fmt::print("MPI       {}; not started: no launcher\n", findings.mpi.library);
  else
    fmt::print("MPI       {}; thread level {}; takes GPU memory: {} (not needed)\n", findings.mpi.library,
               findings.mpi.threads, findings.mpi.cuda_aware);
  const Hdf5Library& hdf5 = first.host.hdf5;
  fmt::print("HDF5      {}; parallel: {}, thread-safe: {} (neither is needed); locks files: {}\n", hdf5.version,
             hdf5.parallel ? "yes" : "no", hdf5.thread_safe ? "yes" : "no", hdf5.locks ? "yes" : "no");
  fmt::print("Unicode   {}, for a tokenizer.json\n", first.host.unicode);
  if (!cuda.kernels.empty()) {
    const DeviceCollectives collectives = device_collectives();
    fmt::print("CUDA      built with {}, cuBLAS {}, {} {}; kernels for compute capability {}\n", cuda.runtime,
               cuda.cublas.built, collectives.name, collectives.built_version, cuda.kernels);
    fmt::print("          runs with cuBLAS {}, {} {}{}\n", cuda.cublas.loaded, collectives.name, collectives.version,
               collectives.streams == 1
                   ? fmt::format(" (gradients do not travel beside tokens: they do {})", collectives.all_streams_if)
                   : "");
  }
  const std::string driver = first.host.driver.empty() ? "" : "NVIDIA driver " + first.host.driver;
  const std::string knows = first.host.driver_cuda.empty() ? "" : "knows CUDA " + first.host.driver_cuda;
  if (!driver.empty() || !knows.empty())
    fmt::print("driver    {}{}{}\n", driver, driver.empty() || knows.empty() ? "" : ", ", knows);
  if (!first.missing.empty()) fmt::print("GPU       {}\n", first.missing);

  Table hosts({"host", "processor", "kernels", "sockets", "cores", "memory GiB", "limit", "available", "/dev/shm"});
  for (const HostFacts& h : findings.hosts)
    hosts.row({h.name, h.processor, h.isa, std::to_string(h.sockets),
               std::to_string(static_cast<int>(h.cpus.size()) / h.threads_per_core),
               fmt::format("{:.1f}", gibibytes(h.memory)),
               h.memory_limit < 0 ? "none" : fmt::format("{:.1f}", gibibytes(h.memory_limit)),
               fmt::format("{:.1f}", gibibytes(h.available)), fmt::format("{:.1f}", gibibytes(h.shared_memory))});
  std::cout << "\n" << hosts.str();
  for (const HostFacts& h : findings.hosts)
    if (h.cpu_time > 0) {
      Index threads = 0;
      for (const RankFacts& r : findings.ranks)
        if (r.host.name == h.name) threads += r.threads;
      fmt::print("quota     the time of {:g} of the CPUs of {}, by a control group: {} by default, {} in use\n",
                 h.cpu_time, visible(h.name), counted(cpu_quota(h.cpu_time), "thread"), threads);
    }
  for (const HostFacts& h : findings.hosts)
    if (h.window_ranks > 1)
      fmt::print("window    {} ranks of {} share {:.1f} MiB, through which they reach each other\n", h.window_ranks,
                 visible(h.name), static_cast<double>(h.window_bytes) / (1 << 20));
    else if (!h.no_window.empty())
      fmt::print("window    none on {}: {}; its ranks reach each other by MPI's messages, which take longer\n",
                 visible(h.name), visible(h.no_window));
  print_gpus(findings);
  print_limits(findings);
  Table ranks({"rank", "host", "CPUs it may use", "threads", "GFLOP/s", "load", "GPU"});
  for (const RankFacts& r : findings.ranks)
    ranks.row({std::to_string(r.rank), r.host.name, format_rank_list(r.cpus), std::to_string(r.threads),
               r.speed > 0 ? fmt::format("{:.1f}", r.speed / 1e9) : "-",
               r.host.load < 0 ? "-" : fmt::format("{:.1f}", r.host.load), r.gpu.empty() ? "none" : r.gpu});
  std::cout << "\n" << ranks.str();
  print_folder(findings);
  std::cout << "\n";

  for (const Problem& p : findings.problems) std::cout << "problem: " << p.what << ": " << p.remedy << "\n";
  if (findings.problems.empty()) std::cout << "no problems found\n";
  std::cout << std::flush;
}

// Throws InputError if the machine file cannot be written.
void check_machine_file(const std::filesystem::path& file) {
  if (is_folder(file)) bad_input("--machine {} is a folder: name a file", file.string());
  const std::filesystem::path parent = file.has_parent_path() ? file.parent_path() : ".";
  if (!is_folder(parent))
    bad_input("--machine {}: there is no folder {}: make it first", file.string(), parent.string());
  if (access(parent.c_str(), W_OK | X_OK) != 0)
    bad_input("--machine {}: {} cannot be written ({}): choose another folder", file.string(), parent.string(),
              std::strerror(errno));
}

// Measures the machine and writes the result as a machine file. Collective.
Machine write_machine(Comm& world, const std::string& file, const Findings& findings) {
  std::unique_ptr<Device> device;
  const int local = local_rank(world);
  agree_on_errors(world, [&] { device = open_device("the backend", "auto", local); });
  device->publish_waits_to(block_state(world.shared_context()));
  agree_on_devices(world, *device);
  const HostFacts& first = findings.hosts.front();
  Progress progress;
  const Machine m =
      measure_machine(world, *device, std::filesystem::path(file).stem().string(),
                      0.9 * static_cast<double>(first.memory_limit < 0 ? first.memory : first.memory_limit),
                      [&](Index done, Index total) {
                        if (world.rank() == 0) progress.show("measuring", done, total, "speeds");
                      });
  progress.clear();
  agree_on_errors(world, [&] {
    if (world.rank() != 0) return;
    write_file(file,
               to_ini(m, fmt::format("Measured by `switchyard doctor` on {} ranks, all at the same time: {}, {}.\n"
                                     "What ranks share of a node is given for the node.",
                                     world.size(), first.processor, device->describe())));
  });
  return m;
}

}  // namespace

int doctor_command(CommandLine& line) {
  po::options_description options;
  std::string machine, folder;
  options.add_options()("json", po::bool_switch(), "print JSON")(
      "dir", po::value(&folder)->default_value("."),
      "a folder in which runs are to be written: 16 MB are written there by each host, timed and removed")(
      "machine", po::value(&machine),
      "under mpirun: measure how fast all ranks together compute and reach each other, and write this machine file "
      "for `switchyard plan`");
  po::variables_map arguments;
  bool wanted = false;
  agree_on_errors(line.world, [&] { wanted = parse_options(line, "doctor", options, {}, arguments); });
  if (!wanted) return 0;
  if (!machine.empty()) {
    check_can_measure(line.world);
    agree_on_errors(line.world, [&] {
      if (line.world.rank() == 0) check_machine_file(machine);
    });
  }
  Findings findings;
  findings.mpi = mpi_info();
  findings.ranks = collect_facts(line.world, folder);
  findings.hosts = hosts_of(findings.ranks);
  findings.problems = find_problems(findings.ranks, findings.mpi);
  const bool speaks = line.world.rank() == 0, json = arguments["json"].as<bool>();
  if (speaks) findings.cuda = cuda::versions();
  if (speaks && !json) print(findings);
  if (!machine.empty()) findings.machine = write_machine(line.world, machine, findings);
  if (speaks && json) std::cout << json_text(to_json(findings)) << std::flush;
  if (speaks && !json && findings.machine) print_links(*findings.machine);
  return findings.problems.empty() ? 0 : 1;
}

}  // namespace sy
