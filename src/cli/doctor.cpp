// switchyard doctor: what this machine, or every rank's, offers, and what is misconfigured.
#include <iostream>

#include "dist/comm_nccl.h"
#include "kernels/cpu/processor.h"
#include "src/cli/options.h"
#include "src/config.h"
#include "src/doctor/facts.h"
#include "src/io/files.h"
#include "src/io/hdf5.h"
#include "src/plan/measure.h"
#include "src/text/json.h"
#include "src/text/table.h"

namespace sy {

namespace {

struct Findings {
  MpiInfo mpi;
  cuda::Versions cuda;
  std::vector<RankFacts> ranks;
  std::vector<HostFacts> hosts;
  std::vector<Problem> problems;
};

Json gpu_json(const cuda::Device& g) {
  Json j{{"id", g.id}, {"name", g.name}, {"compute_capability", g.capability}, {"bytes", g.bytes}, {"peers", g.peers}};
  if (g.tried) {
    j["free_bytes"] = g.free_bytes;
    j["kernels"] = g.kernels;
    j["error"] = g.error;
  }
  return j;
}

Json to_json(const Findings& findings) {
  Json hosts = Json::array(), ranks = Json::array(), problems = Json::array();
  for (const HostFacts& h : findings.hosts) {
    Json gpus = Json::array();
    for (const cuda::Device& g : h.gpus) gpus.push_back(gpu_json(g));
    hosts.push_back({{"name", h.name},
                     {"processor", h.processor},
                     {"sockets", h.sockets},
                     {"threads_per_core", h.threads_per_core},
                     {"cpus", h.cpus},
                     {"kernels_run", h.kernels_run},
                     {"memory_bytes", h.memory},
                     {"available_bytes", h.available},
                     {"shared_memory_bytes", h.shared_memory},
                     {"locked_memory_bytes", h.locked_memory < 0 ? Json() : Json(h.locked_memory)},
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
                     {"no_gpu_because", r.missing}});
  for (const Problem& p : findings.problems) problems.push_back({{"what", p.what}, {"remedy", p.remedy}});
  return {{"build",
           {{"compiler", __VERSION__},
            {"simd", kernel_simd()},
            {"cuda", findings.cuda.runtime},
            {"cuda_architectures", findings.cuda.kernels},
            {"nccl", nccl_version()},
            {"hdf5", hdf5_version()}}},
          {"mpi",
           {{"library", findings.mpi.library},
            {"launched", !findings.mpi.threads.empty()},
            {"threads", findings.mpi.threads},
            {"cuda_aware", findings.mpi.cuda_aware}}},
          {"hosts", hosts},
          {"ranks", ranks},
          {"problems", problems}};
}

void print_gpus(const Findings& findings) {
  Table table({"host", "GPU", "name", "capability", "kernels", "free GiB", "of", "reaches"});
  bool any = false;
  for (const HostFacts& h : findings.hosts)
    for (const cuda::Device& g : h.gpus) {
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

void print(const Findings& findings) {
  const RankFacts& first = findings.ranks.front();
  const cuda::Versions& cuda = findings.cuda;
  fmt::print("build     compiler {}; CPU kernels for {}\n", __VERSION__, kernel_simd());
  if (findings.mpi.threads.empty())
    fmt::print("MPI       {}; not started: no launcher\n", findings.mpi.library);
  else
    fmt::print("MPI       {}; thread level {}; takes GPU memory: {} (not needed)\n", findings.mpi.library,
               findings.mpi.threads, findings.mpi.cuda_aware);
  fmt::print("HDF5      {}\n", hdf5_version());
  if (!cuda.kernels.empty())
    fmt::print("CUDA      {} with NCCL {}; kernels for compute capability {}\n", cuda.runtime, nccl_version(),
               cuda.kernels);
  const std::string driver = first.host.driver.empty() ? "" : "NVIDIA driver " + first.host.driver;
  const std::string knows = first.host.driver_cuda.empty() ? "" : "knows CUDA " + first.host.driver_cuda;
  if (!driver.empty() || !knows.empty())
    fmt::print("driver    {}{}{}\n", driver, driver.empty() || knows.empty() ? "" : ", ", knows);
  if (!first.missing.empty()) fmt::print("GPU       {}\n", first.missing);

  Table hosts({"host", "processor", "sockets", "cores", "memory GiB", "available", "/dev/shm"});
  for (const HostFacts& h : findings.hosts)
    hosts.row({h.name, h.processor, std::to_string(h.sockets),
               std::to_string(static_cast<int>(h.cpus.size()) / h.threads_per_core),
               fmt::format("{:.1f}", gibibytes(h.memory)), fmt::format("{:.1f}", gibibytes(h.available)),
               fmt::format("{:.1f}", gibibytes(h.shared_memory))});
  std::cout << "\n" << hosts.str();
  print_gpus(findings);
  Table ranks({"rank", "host", "CPUs it may use", "threads", "GPU"});
  for (const RankFacts& r : findings.ranks)
    ranks.row({std::to_string(r.rank), r.host.name, ranges(r.cpus), std::to_string(r.threads),
               r.gpu.empty() ? "none" : r.gpu});
  std::cout << "\n" << ranks.str() << "\n";

  for (const Problem& p : findings.problems) std::cout << "problem: " << p.what << ": " << p.remedy << "\n";
  if (findings.problems.empty()) std::cout << "no problems found\n";
}

// Measures, and writes what is found as a machine file. Collective.
void write_machine(Comm& world, const std::string& file, const Findings& findings) {
  std::unique_ptr<Backend> backend;
  const int local = local_rank(world);
  agree(world, [&] { backend = open_backend("the backend", "auto", local); });
  agree_on_devices(world, *backend);
  const Machine m = measure_machine(world, *backend, std::filesystem::path(file).stem().string(),
                                    0.9 * static_cast<double>(findings.hosts.front().memory));
  agree(world, [&] {
    if (world.rank() != 0) return;
    const HostFacts& host = findings.hosts.front();
    write_file(file,
               to_ini(m, fmt::format("Measured by `switchyard doctor` on {} ranks, all at the same time: {}, {}.\n"
                                     "What ranks share of a node is given for the node.",
                                     world.size(), host.processor, backend->describe())));
  });
}

}  // namespace

int doctor_command(CommandLine& line) {
  po::options_description options;
  std::string machine;
  options.add_options()("json", po::bool_switch(), "print JSON")(
      "machine", po::value(&machine),
      "under mpirun: measure how fast all ranks together compute and reach each other, and write this machine file "
      "for `switchyard plan`");
  po::variables_map given;
  bool wanted = false;
  agree(line.world, [&] { wanted = parse_options(line, "doctor", options, {}, given); });
  if (!wanted) return 0;
  Findings findings;
  findings.mpi = mpi_info();
  findings.ranks = collect_facts(line.world);
  findings.hosts = hosts_of(findings.ranks);
  findings.problems = find_problems(findings.ranks, findings.mpi);
  if (line.world.rank() == 0) {
    findings.cuda = cuda::versions();
    if (given["json"].as<bool>())
      std::cout << json_text(to_json(findings)) << std::flush;
    else
      print(findings);
  }
  if (!machine.empty()) write_machine(line.world, machine, findings);
  return findings.problems.empty() ? 0 : 1;
}

}  // namespace sy
