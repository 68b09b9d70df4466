#include <algorithm>
#include <map>
#include <set>

#include "kernels/cpu/processor.h"
#include "src/doctor/facts.h"

namespace sy {

std::string ranges(const std::vector<int>& ascending) {
  std::string text;
  for (std::size_t i = 0; i < ascending.size();) {
    std::size_t last = i;
    while (last + 1 < ascending.size() && ascending[last + 1] == ascending[last] + 1) ++last;
    if (!text.empty()) text += ", ";
    text += std::to_string(ascending[i]);
    if (last > i) text += fmt::format("{}{}", last == i + 1 ? ", " : "-", ascending[last]);
    i = last + 1;
  }
  return text;
}

double gibibytes(Index bytes) {
  return static_cast<double>(bytes) / (Index{1} << 30);
}

namespace {

std::string counted(std::size_t n, const std::string& what) {
  return fmt::format("{} {}{}", n, what, n == 1 ? "" : "s");
}

// "rank 1 on node7", "ranks 0-3 on node7"
std::string named(const std::vector<const RankFacts*>& ranks) {
  std::vector<int> numbers;
  for (const RankFacts* r : ranks) numbers.push_back(r->rank);
  return fmt::format("rank{} {} on {}", numbers.size() == 1 ? "" : "s", ranges(numbers), ranks.front()->host.name);
}

// What the ranks of one machine compute with. One finding at most: the others would follow from it.
void check_cores(const HostFacts& host, const std::vector<const RankFacts*>& ranks, std::vector<Problem>& out) {
  const std::size_t n = ranks.size();
  const auto cores_in = [&](std::size_t cpus) {
    return (cpus + host.threads_per_core - 1) / static_cast<std::size_t>(host.threads_per_core);
  };
  std::set<int> used;
  std::size_t threads = 0;
  bool one_core = false;
  for (const RankFacts* r : ranks) {
    used.insert(r->cpus.begin(), r->cpus.end());
    threads += static_cast<std::size_t>(r->threads);
    one_core |= cores_in(r->cpus.size()) == 1;
  }
  const std::size_t cores = cores_in(used.size()), offered = cores_in(host.cpus.size());
  const std::string bind = "start with mpirun --bind-to none: by default it gives each of two ranks or fewer one core";
  if (n > cores && offered > cores)
    out.push_back({fmt::format("{} are bound to {} of {}", named(ranks), counted(cores, "core"), offered), bind});
  else if (n > cores)
    out.push_back({fmt::format("{} share {}", named(ranks), counted(cores, "core")),
                   fmt::format("start {} there at most (under launch/mpirun.sh waiting ranks at least make way)",
                               counted(cores, "rank"))});
  else if (one_core && offered >= 2 * n)
    out.push_back({fmt::format("{} {} bound to one core{}, and there are {}", named(ranks), n == 1 ? "is" : "are",
                               n == 1 ? "" : " each", offered),
                   bind});
  else if (threads > used.size())
    out.push_back({fmt::format("{} compute{} with {} on {}", named(ranks), n == 1 ? "s" : "",
                               counted(threads, "thread"), counted(used.size(), "CPU")),
                   fmt::format("set OMP_NUM_THREADS={}", std::max<std::size_t>(1, cores / n))});
}

void check_host(const HostFacts& host, const std::vector<const RankFacts*>& ranks, std::vector<Problem>& out) {
  check_cores(host, ranks, out);
  if (!host.kernels_run)
    out.push_back({fmt::format("the CPU kernels were compiled for {}, which {} lacks", kernel_simd(), host.name),
                   "build there, or with -DSWITCHYARD_ARCH=x86-64-v3 (x86-64-v2 for processors before 2013)"});
  constexpr Index rank_needs = Index{64} << 20;
  if (ranks.size() > 1 && host.shared_memory < rank_needs * static_cast<Index>(ranks.size()))
    out.push_back({fmt::format("/dev/shm of {} has {:.2f} GiB free for {}", host.name, gibibytes(host.shared_memory),
                               counted(ranks.size(), "rank")),
                   "remove what is left there; start containers with --shm-size=1g or more"});
  if (host.infiniband && host.locked_memory >= 0 && host.locked_memory < host.memory / 2)
    out.push_back({fmt::format("a process on {} may pin {:.2f} GiB, and its InfiniBand needs to pin what it sends",
                               host.name, gibibytes(host.locked_memory)),
                   "let ulimit -l be unlimited (/etc/security/limits.conf, or LimitMEMLOCK of the daemon that starts "
                   "the ranks)"});

  std::map<std::string, std::vector<const RankFacts*>> by_gpu;
  for (const RankFacts* r : ranks)
    if (!r->gpu.empty()) by_gpu[r->gpu].push_back(r);
  for (const auto& [gpu, sharing] : by_gpu)
    if (sharing.size() > 1)
      out.push_back({fmt::format("{} share GPU {}, which NCCL refuses", named(sharing), gpu),
                     fmt::format("start {} there at most, a GPU for each, or set run.backend = cpu",
                                 counted(by_gpu.size(), "rank"))});
  if (const auto broken = std::find_if(ranks.begin(), ranks.end(), [](const RankFacts* r) { return r->broken; });
      broken != ranks.end())
    out.push_back({fmt::format("{}: {}", host.name, (*broken)->missing),
                   "install one with which nvidia-smi works and shows the CUDA version of this build or a later one"});
}

void check_gpus(const HostFacts& host, std::vector<Problem>& out) {
  for (const cuda::Device& gpu : host.gpus) {
    if (!gpu.tried) continue;
    if (!gpu.error.empty())
      out.push_back({fmt::format("GPU {} of {} (compute capability {}) cannot be used: {}", gpu.id, host.name,
                                 gpu.capability, gpu.error),
                     "build for it with -DSWITCHYARD_CUDA_ARCHITECTURES=native, or choose others with "
                     "CUDA_VISIBLE_DEVICES"});
    else if (gpu.free_bytes < gpu.bytes / 10 * 8)
      out.push_back({fmt::format("GPU {} of {} has only {:.1f} of {:.1f} GiB free", gpu.id, host.name,
                                 gibibytes(gpu.free_bytes), gibibytes(gpu.bytes)),
                     "end what uses it (nvidia-smi shows it), or choose others with CUDA_VISIBLE_DEVICES"});
  }
}

}  // namespace

std::vector<Problem> find_problems(const std::vector<RankFacts>& ranks, const MpiInfo& mpi) {
  std::vector<Problem> out;
  if (mpi.started > static_cast<int>(ranks.size()))
    out.push_back(
        {fmt::format("the launcher has started {} processes, of which MPI sees {}", mpi.started, ranks.size()),
         fmt::format("use the mpirun of {}, or srun --mpi=pmix", mpi.library)});
  std::vector<const RankFacts*> without;
  for (const RankFacts& r : ranks)
    if (r.gpu.empty() && !r.broken) without.push_back(&r);
  if (!without.empty() && std::any_of(ranks.begin(), ranks.end(), [](const RankFacts& r) { return !r.gpu.empty(); }))
    out.push_back(
        {fmt::format("{} has no GPU and other ranks have: {}", named({without.front()}), without.front()->missing),
         "give each rank one, or set run.backend = cpu"});
  for (const HostFacts& host : hosts_of(ranks)) {
    std::vector<const RankFacts*> here;
    for (const RankFacts& r : ranks)
      if (r.host.name == host.name) here.push_back(&r);
    check_host(host, here, out);
    check_gpus(host, out);
  }
  return out;
}

}  // namespace sy
