#include <sched.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <set>
#include <tuple>

#include "dist/runtime.h"
#include "kernels/control_groups.h"
#include "kernels/cpu/processor.h"
#include "src/doctor/facts.h"
#include "src/doctor/probes.h"
#include "src/system/host.h"
#include "src/text/json.h"
#include "src/tokenizers/unicode.h"

namespace sy {

namespace {

// Returns references to all members of facts, in the order in which ranks exchange them.
auto members_of(cuda::Gpu& g) {
  return std::tie(g.name, g.id, g.capability, g.bytes, g.peers, g.tried, g.free_bytes, g.kernels, g.error);
}
auto members_of(Limits& l) {
  return std::tie(l.open_files, l.locked_memory, l.stack, l.core, l.processes);
}
auto members_of(Hdf5Library& l) {
  return std::tie(l.version, l.thread_safe, l.parallel, l.locks);
}
auto members_of(FolderFacts& f) {
  return std::tie(f.path, f.type, f.error, f.free_bytes, f.free_files, f.seen_after, f.write_seconds, f.write_bandwidth,
                  f.locks);
}
auto members_of(HostFacts& h) {
  return std::tie(h.name, h.processor, h.sockets, h.threads_per_core, h.cpus, h.cpu_time, h.load, h.isa, h.memory,
                  h.memory_limit, h.available, h.shared_memory, h.limits, h.window_ranks, h.window_bytes, h.no_window,
                  h.infiniband, h.driver, h.driver_cuda, h.gpus, h.hdf5, h.unicode);
}
auto members_of(RankFacts& r) {
  return std::tie(r.rank, r.host, r.cpus, r.threads, r.gpu, r.missing, r.broken, r.speed, r.clock_ahead, r.clock_error,
                  r.folder, r.gpu_aware_mpi, r.nccl_over_tcp);
}

template <class T>
concept Facts = requires(T& x) {
  members_of(x);
};

// Converts facts, vectors of them and JSON's own types to JSON. Facts are arrays of their members.
template <class T>
Json to_json(T& x) {
  if constexpr (Facts<T>) {
    return std::apply([](auto&... members) { return Json::array({to_json(members)...}); }, members_of(x));
  } else if constexpr (requires { x.push_back(x[0]); } && !std::is_same_v<T, std::string>) {
    Json json = Json::array();
    for (auto& element : x) json.push_back(to_json(element));
    return json;
  } else {
    return x;
  }
}
template <class T>
void from_json(const Json& json, T& x) {
  if constexpr (Facts<T>) {
    std::size_t i = 0;
    std::apply([&](auto&... members) { (from_json(json.at(i++), members), ...); }, members_of(x));
  } else if constexpr (requires { x.push_back(x[0]); } && !std::is_same_v<T, std::string>) {
    for (const Json& element : json) from_json(element, x.emplace_back());
  } else if constexpr (std::is_same_v<T, int>) {
    x = static_cast<int>(json.get<Index>());
  } else {
    x = json.get<T>();
  }
}

// Calls f(key, value) for each "key : value" of a file of /proc.
template <class F>
void for_each_entry(const char* file, F f) {
  std::ifstream in(file);
  for (std::string line; std::getline(in, line);) {
    const auto colon = line.find(':');
    if (colon == std::string::npos) continue;
    const auto key_end = line.find_last_not_of(" \t", colon - 1), value = line.find_first_not_of(" \t", colon + 1);
    f(line.substr(0, key_end + 1), value == std::string::npos ? "" : line.substr(value));
  }
}

void read_processor(HostFacts& host) {
  host.processor = processor_name();
  int cpus = 0;
  std::string socket;
  std::set<std::string> sockets;
  std::set<std::pair<std::string, std::string>> cores;
  for_each_entry("/proc/cpuinfo", [&](const std::string& key, const std::string& value) {
    if (key == "processor") ++cpus;
    if (key == "physical id") sockets.insert(socket = value);
    if (key == "core id") cores.emplace(socket, value);
  });
  host.sockets = std::max<int>(1, static_cast<int>(sockets.size()));
  host.threads_per_core = cores.empty() ? 1 : std::max<int>(1, cpus / static_cast<int>(cores.size()));
}

std::vector<int> cpus_of(pid_t process) {
  std::vector<int> cpus;
  cpu_set_t set;
  if (sched_getaffinity(process, sizeof set, &set) == 0)
    for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu)
      if (CPU_ISSET(cpu, &set)) cpus.push_back(cpu);
  return cpus;
}

// Input: "NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.65.06  ..."
std::string driver_version() {
  std::string version;
  for_each_entry("/proc/driver/nvidia/version", [&](const std::string& key, const std::string& value) {
    if (key != "NVRM version") return;
    std::istringstream tokens(value);
    for (std::string token; tokens >> token;)
      if (version.empty() && token.find_first_not_of("0123456789.") == std::string::npos) version = token;
  });
  return version;
}

HostFacts host_facts(const SharedMemory& window) {
  HostFacts host;
  host.name = host_name();
  read_processor(host);
  host.cpus = cpus_of(getppid());
  host.cpu_time = cpu_time(control_group_root());
  if (getloadavg(&host.load, 1) < 1) host.load = -1;
  host.isa = choose_isa(cpu_isas(), "").name;
  for_each_entry("/proc/meminfo", [&](const std::string& key, const std::string& value) {
    if (key == "MemTotal") host.memory = std::atoll(value.c_str()) * 1024;
    if (key == "MemAvailable") host.available = std::atoll(value.c_str()) * 1024;
  });
  host.window_ranks = window.ranks;
  host.window_bytes = window.bytes;
  host.no_window = window.missing;
  struct statvfs shm;
  if (statvfs("/dev/shm", &shm) == 0) host.shared_memory = static_cast<Index>(shm.f_bavail * shm.f_frsize);
  host.limits = process_limits();
  for (const MemoryLimit& limit : memory_limits(control_group_root())) {
    if (limit.bytes >= host.memory) continue;
    host.memory_limit = lower_limit(host.memory_limit, limit.bytes);
    host.available = std::min(host.available, limit.free);
  }
  std::error_code error;
  host.infiniband =
      std::filesystem::directory_iterator("/sys/class/infiniband", error) != std::filesystem::directory_iterator();
  host.driver = driver_version();
  host.hdf5 = hdf5_library();
  host.unicode = unicode_libraries();
  return host;
}

}  // namespace

std::vector<RankFacts> collect_facts(Comm& world, const std::filesystem::path& folder) {
  const int local = local_rank(world), local_ranks = ranks_sharing(world, "");
  RankFacts mine;
  agree_on_errors(world, [&] {
    mine.rank = world.rank();
    mine.cpus = cpus_of(0);
    mine.host = host_facts(world.rank_context().shared_memory);
    mine.threads = cpu_threads();
    const cuda::Choice choice = cuda::choose_device(local);
    mine.host.gpus = cuda::find_devices(local, local_ranks);
    mine.host.driver_cuda = cuda::versions().driver;
    if (choice.device >= 0) mine.gpu = mine.host.gpus[choice.device].id;
    mine.missing = choice.missing;
    mine.broken = choice.broken;
    mine.gpu_aware_mpi = gpu_aware_mpi_setting(mpi_info().cuda_aware);
    mine.nccl_over_tcp = nccl_over_tcp_setting();
  });
  std::tie(mine.clock_ahead, mine.clock_error) = probe_clock(world);
  // If threads share a CPU, their speed says nothing about the CPU.
  const bool can = mine.threads <= static_cast<int>(mine.cpus.size());
  mine.speed = probe_speed(world, can ? local : -1);
  mine.folder = probe_folder(world, folder, local == 0);
  std::vector<RankFacts> ranks;
  for (const std::string& t : all_gather_texts(world, to_json(mine).dump()))
    from_json(Json::parse(t), ranks.emplace_back());
  return ranks;
}

std::vector<HostFacts> hosts_of(const std::vector<RankFacts>& ranks) {
  std::vector<HostFacts> hosts;
  for (const RankFacts& r : ranks) {
    const auto host = std::ranges::find(hosts, r.host.name, &HostFacts::name);
    if (host == hosts.end()) {
      hosts.push_back(r.host);
      continue;
    }
    for (const cuda::Gpu& gpu : r.host.gpus) {
      const auto known = std::ranges::find(host->gpus, gpu.id, &cuda::Gpu::id);
      if (known == host->gpus.end())
        host->gpus.push_back(gpu);
      else if (gpu.tried && !known->tried)
        *known = gpu;
    }
  }
  for (HostFacts& host : hosts) std::ranges::sort(host.gpus, {}, &cuda::Gpu::id);
  return hosts;
}

}  // namespace sy
