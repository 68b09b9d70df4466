#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <set>

#include "dist/device_comm.h"
#include "kernels/control_groups.h"
#include "src/doctor/facts.h"
#include "src/text/numbers.h"

namespace sy {

double gibibytes(Index bytes) {
  return static_cast<double>(bytes) / (Index{1} << 30);
}

namespace {

using Ranks = std::vector<const RankFacts*>;

Ranks ranks_with(const std::vector<RankFacts>& ranks, const std::function<bool(const RankFacts&)>& property) {
  Ranks found;
  for (const RankFacts& r : ranks)
    if (property(r)) found.push_back(&r);
  return found;
}

// "rank 1 on node7", "ranks 0-3 on node7", "ranks 4-15 on node8 and 2 other hosts"
std::string rank_names(const Ranks& ranks) {
  std::vector<int> numbers;
  std::set<std::string> hosts;
  for (const RankFacts* r : ranks) numbers.push_back(r->rank), hosts.insert(r->host.name);
  return fmt::format("rank{} {} on {}{}", numbers.size() == 1 ? "" : "s", format_rank_list(numbers),
                     ranks.front()->host.name,
                     hosts.size() == 1 ? "" : " and " + counted(hosts.size() - 1, "other host"));
}

// Returns the first group of ranks that has more threads than CPUs while other CPUs are free. Ranks
// whose CPUs overlap are one group.
Ranks oversubscribed(const HostFacts& host, const Ranks& ranks) {
  struct CpuGroup {
    std::set<int> cpus;
    Ranks ranks;
  };
  std::vector<CpuGroup> groups;
  for (const RankFacts* r : ranks) {
    CpuGroup mine{{r->cpus.begin(), r->cpus.end()}, {r}};
    std::erase_if(groups, [&](const CpuGroup& other) {
      const bool apart = std::none_of(other.cpus.begin(), other.cpus.end(), [&](int c) { return mine.cpus.count(c); });
      if (apart) return false;
      mine.cpus.insert(other.cpus.begin(), other.cpus.end());
      mine.ranks.insert(mine.ranks.end(), other.ranks.begin(), other.ranks.end());
      return true;
    });
    groups.push_back(std::move(mine));
  }
  for (CpuGroup& group : groups) {
    std::size_t threads = 0;
    for (const RankFacts* r : group.ranks) threads += static_cast<std::size_t>(r->threads);
    if (group.ranks.size() == 1 || threads <= group.cpus.size() || group.cpus.size() >= host.cpus.size()) continue;
    std::ranges::sort(group.ranks, {}, &RankFacts::rank);
    return group.ranks;
  }
  return {};
}

// Checks the cores of the ranks of one machine. Reports one problem at most: others would follow
// from it.
void check_cores(const HostFacts& host, const Ranks& ranks, std::vector<Problem>& out) {
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
  const std::string bind =
      "start with mpirun --bind-to none, as Open MPI's gives each of two ranks or fewer one core, or with the cores of "
      "a rank: srun --cpus-per-task=N, mpiexec --depth N --cpu-bind depth (PALS), flux run --cores-per-task=N";
  if (n > cores && offered > cores)
    out.push_back({fmt::format("{} are bound to {} of {}", rank_names(ranks), counted(cores, "core"), offered), bind});
  else if (n > cores)
    out.push_back({fmt::format("{} share {}", rank_names(ranks), counted(cores, "core")),
                   fmt::format("start {} there at most (under launch/mpirun.sh waiting ranks at least make way)",
                               counted(cores, "rank"))});
  else if (one_core && offered >= 2 * n)
    out.push_back({fmt::format("{} {} bound to one core{}, and there are {}", rank_names(ranks), n == 1 ? "is" : "are",
                               n == 1 ? "" : " each", offered),
                   bind});
  else if (const Ranks crowded = oversubscribed(host, ranks); !crowded.empty())
    out.push_back({fmt::format("{} are bound to the same CPUs, fewer than their threads, and others are free",
                               rank_names(crowded)),
                   "give each rank cores of its own: launch/mpirun.sh --hostfile, mpirun --map-by slot:PE=N --bind-to "
                   "core, srun --cpus-per-task=N"});
  else if (const auto quota = static_cast<std::size_t>(cpu_quota(host.cpu_time)); quota > 0 && threads > quota)
    out.push_back(
        {fmt::format("{} compute{} with {}, and a control group grants {:g} CPU{} of time", rank_names(ranks),
                     n == 1 ? "s" : "", counted(threads, "thread"), host.cpu_time, host.cpu_time == 1 ? "" : "s"),
         n > quota ? fmt::format("start {} there at most, or raise the quota (docker --cpus, a limit of "
                                 "Kubernetes, cpu.max)",
                                 counted(quota, "rank"))
                   : fmt::format("set OMP_NUM_THREADS={}, or raise the quota (docker --cpus, a limit of "
                                 "Kubernetes, cpu.max)",
                                 quota / n)});
  else if (threads > used.size())
    out.push_back({fmt::format("{} compute{} with {} on {}", rank_names(ranks), n == 1 ? "s" : "",
                               counted(threads, "thread"), counted(used.size(), "CPU")),
                   fmt::format("set OMP_NUM_THREADS={}", std::max<std::size_t>(1, cores / n))});
}

bool below(Index limit, Index need) {
  return limit >= 0 && limit < need;
}
constexpr Index mebibyte = Index{1} << 20, gibibyte = Index{1} << 30;
// Files and threads of a rank, in addition to those for each other rank or compute thread.
constexpr Index base_files = 256, base_threads = 8;
constexpr double max_clock_difference = 0.05;  // seconds

// Checks a machine with its ranks. first: rank 0.
void check_host(const HostFacts& host, const Ranks& ranks, const RankFacts& first, std::size_t all_ranks,
                std::vector<Problem>& out) {
  const auto here = std::ssize(ranks);
  const RankFacts& rank = *ranks.front();
  const Limits& limits = host.limits;
  Index threads = 0;
  for (const RankFacts* r : ranks) threads += r->threads;
  if (here > 1 && host.shared_memory < 64 * mebibyte * here)
    out.push_back({fmt::format("/dev/shm of {} has {:.2f} GiB free for {}", host.name, gibibytes(host.shared_memory),
                               counted(here, "rank")),
                   "remove what is left there; start containers with --shm-size=1g or more"});
  if (host.memory_limit >= 0 && host.available < gibibyte * here)
    out.push_back(
        {fmt::format("a control group lets processes on {} have {:.2f} of {:.2f} GiB of memory, of which {:.2f} are "
                     "left for {}",
                     host.name, gibibytes(host.memory_limit), gibibytes(host.memory), gibibytes(host.available),
                     counted(here, "rank")),
         "ask the batch system for more (sbatch --mem=0: all there is), or start the container with a larger --memory"});
  if (host.infiniband && below(limits.locked_memory, host.memory / 2))
    out.push_back(
        {fmt::format("a process on {} may pin {:.2f} GiB, and its InfiniBand needs to pin what it sends", host.name,
                     gibibytes(limits.locked_memory)),
         "let ulimit -l be unlimited (/etc/security/limits.conf, or LimitMEMLOCK of the daemon that starts the ranks)"});
  if (below(limits.open_files, base_files + 2 * static_cast<Index>(all_ranks)))
    out.push_back({fmt::format("a process on {} may have {} open files, and with connections to {} it needs more",
                               host.name, limits.open_files, counted(all_ranks, "rank")),
                   "raise ulimit -n (/etc/security/limits.conf, or LimitNOFILE of the daemon that starts the ranks)"});
  if (below(limits.stack, mebibyte))
    out.push_back({fmt::format("a thread on {} has a stack of {} KiB", host.name, limits.stack / 1024),
                   "set ulimit -s 8192, the usual one"});
  if (below(limits.processes, threads + base_threads * here))
    out.push_back({fmt::format("this user may have {} processes and threads on {}, and {} compute with {} threads",
                               limits.processes, host.name, counted(here, "rank"), threads),
                   "raise ulimit -u (containers: --pids-limit), or set a smaller OMP_NUM_THREADS"});
  if (std::abs(rank.clock_ahead) > max_clock_difference + rank.clock_error)
    out.push_back(
        {fmt::format("the clock of {} is {:.2f} s {} that of {}", host.name, std::abs(rank.clock_ahead),
                     rank.clock_ahead > 0 ? "ahead of" : "behind", first.host.name),
         "let chronyd or ntpd set it (chronyc tracking tells): times of files, logs and traces are compared"});
  if (host.unicode != first.host.unicode)
    out.push_back(
        {fmt::format("{} has {}, and {} has {}", host.name, host.unicode, first.host.name, first.host.unicode),
         "prepare data on machines with the same libraries: new characters may get other token ids"});
  std::map<std::string, Ranks> by_gpu;
  for (const RankFacts* r : ranks)
    if (!r->gpu.empty()) by_gpu[r->gpu].push_back(r);
  for (const auto& [gpu, sharing] : by_gpu)
    if (sharing.size() > 1)
      out.push_back(
          {fmt::format("{} share GPU {}, which {} refuses", rank_names(sharing), gpu, device_collectives().name),
           fmt::format("start {} there at most, a GPU for each, or set run.backend = cpu",
                       counted(by_gpu.size(), "rank"))});
  if (const auto broken = std::ranges::find(ranks, true, &RankFacts::broken); broken != ranks.end())
    out.push_back({fmt::format("{}: {}", host.name, (*broken)->missing),
                   "install one with which nvidia-smi works and shows the CUDA version of this build or a later one"});
}

void check_gpus(const HostFacts& host, std::vector<Problem>& out) {
  for (const cuda::Gpu& gpu : host.gpus) {
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

// A possible problem of the folder for runs. `who`: the ranks that have it; `f`: the folder as the
// first of them sees it. Only the first problem found is reported, as the others would follow from
// it.
struct FolderCheck {
  bool (*applies)(const RankFacts&);
  std::string (*describe)(const std::string& who, const FolderFacts& f);
  const char* remedy;
};
const FolderCheck folder_checks[] = {
    {[](const RankFacts& r) { return !r.folder.error.empty(); },
     [](const std::string& who, const FolderFacts& f) { return fmt::format("{}: {}", who, f.error); },
     "let --dir name a folder that is there, may be written and has room (df, quota)"},
    {[](const RankFacts& r) { return r.folder.seen_after < 0; },
     [](const std::string& who, const FolderFacts& f) {
       return fmt::format("what rank 0 writes in {} is not seen by {}", f.path, who);
     },
     "let run.dir and data.path be on a file system that all hosts share"},
    {[](const RankFacts& r) { return below(r.folder.free_bytes, gibibyte); },
     [](const std::string&, const FolderFacts& f) {
       return fmt::format("{} has {:.2f} GiB free", f.path, gibibytes(f.free_bytes));
     },
     "make room for checkpoints (run.keep says how many stay), or choose another run.dir"},
    {[](const RankFacts& r) { return below(r.folder.free_files, 1000); },
     [](const std::string&, const FolderFacts& f) {
       return fmt::format("in {} only {} more files can be made (df -i)", f.path, f.free_files);
     },
     "remove what is not needed, or choose another run.dir"},
    {[](const RankFacts& r) { return r.folder.type == "tmpfs" || r.folder.type == "ramfs"; },
     [](const std::string&, const FolderFacts& f) {
       return fmt::format("{} is in memory ({}), which it takes from training and does not outlive", f.path, f.type);
     },
     "choose a run.dir on a disk"},
    {[](const RankFacts& r) { return r.host.hdf5.locks && !r.folder.locks; },
     [](const std::string& who, const FolderFacts& f) {
       return fmt::format("{} lock HDF5 files by HDF5_USE_FILE_LOCKING, which {} ({}) does not allow", who, f.path,
                          f.type);
     },
     "unset HDF5_USE_FILE_LOCKING: without it checkpoints are not locked, and need not be"},
    {[](const RankFacts& r) { return r.folder.write_seconds > 0.5; },
     [](const std::string& who, const FolderFacts& f) {
       return fmt::format("{}: a small file is on the disk of {} ({}) after {:.1f} seconds", who, f.path, f.type,
                          f.write_seconds);
     },
     "see who else writes there, or choose another run.dir: each checkpoint waits for many such files"},
    {[](const RankFacts& r) { return r.folder.write_bandwidth >= 0 && r.folder.write_bandwidth < 10e6; },
     [](const std::string& who, const FolderFacts& f) {
       return fmt::format("{}: {} ({}) takes {:.1f} MB/s", who, f.path, f.type, f.write_bandwidth / 1e6);
     },
     "see who else writes there, choose another run.dir, or set a larger run.checkpoint_every"},
};

void check_folder(const std::vector<RankFacts>& ranks, std::vector<Problem>& out) {
  for (const FolderCheck& check : folder_checks) {
    const Ranks affected = ranks_with(ranks, check.applies);
    if (affected.empty()) continue;
    out.push_back({check.describe(rank_names(affected), affected.front()->folder), check.remedy});
    return;
  }
}

std::string device_of(const RankFacts& rank) {
  for (const cuda::Gpu& gpu : rank.host.gpus)
    if (gpu.id == rank.gpu) return gpu.name;
  return rank.host.processor;
}

// A setting that is harmful beside NCCL, which ranks with GPUs use if there are several.
struct NcclCheck {
  std::string RankFacts::*setting;  // empty: not set
  std::size_t least_hosts;          // number of hosts from which it is harmful
  const char *what, *remedy;
};
const NcclCheck nccl_checks[] = {
    {&RankFacts::gpu_aware_mpi, 1, "MPI handles GPU memory, too, and may block the GPU while NCCL waits for it",
     "set MPICH_GPU_SUPPORT_ENABLED=0 (Cray MPICH) or OMPI_MCA_opal_cuda_support=0 (Open MPI 4): only NCCL sends "
     "GPU memory here"},
    {&RankFacts::nccl_over_tcp, 2, "NCCL sends by TCP between the hosts, however fast their network is",
     "unset it, unless the hosts have Ethernet alone, and see with NCCL_DEBUG=INFO which network NCCL uses"},
};

void check_nccl(const std::vector<RankFacts>& ranks, std::size_t hosts, std::vector<Problem>& out) {
  if (ranks.size() < 2) return;
  for (const NcclCheck& check : nccl_checks) {
    const Ranks affected =
        ranks_with(ranks, [&](const RankFacts& r) { return !r.gpu.empty() && !(r.*check.setting).empty(); });
    if (affected.empty() || hosts < check.least_hosts) continue;
    out.push_back(
        {fmt::format("{}: {} ({})", rank_names(affected), check.what, affected.front()->*check.setting), check.remedy});
  }
}

// Returns what to do about a rank that is slower than another.
const char* slow_remedy(const RankFacts& slow, const RankFacts& other) {
  if (device_of(slow) != device_of(other))
    return "it has another processor or GPU, and all wait for the slowest: start on machines that are alike";
  if (slow.gpu.empty() && slow.threads < other.threads)
    return "it has fewer threads, and all wait for the slowest: give ranks equally many cores";
  return "all wait for the slowest: see what else runs there (top, nvidia-smi), and whether heat or a power limit lowers its clock "
         "(nvidia-smi -q -d PERFORMANCE, turbostat)";
}
// `ranks`: without those whose cores already have a reported problem, which explains their speed.
void check_speed(Ranks ranks, std::vector<Problem>& out) {
  std::erase_if(ranks, [](const RankFacts* r) { return r->speed <= 0; });
  if (ranks.empty()) return;
  Ranks by_speed = ranks;
  // The median of two ranks is the faster one.
  const auto median = by_speed.begin() + static_cast<Index>(by_speed.size() / 2);
  std::ranges::nth_element(by_speed, median, {}, &RankFacts::speed);
  const RankFacts& usual = **median;
  Ranks slow;
  for (const RankFacts* r : ranks)
    if (r->speed * 1.5 < usual.speed) slow.push_back(r);
  if (slow.empty()) return;
  const RankFacts& slowest = **std::ranges::min_element(slow, {}, &RankFacts::speed);
  out.push_back({fmt::format("{} {} {:.1f} times slower than the median rank ({:.1f} instead of {:.1f} GFLOP/s)",
                             rank_names(slow), slow.size() == 1 ? "is" : "are up to", usual.speed / slowest.speed,
                             slowest.speed / 1e9, usual.speed / 1e9),
                 slow_remedy(slowest, usual)});
}

}  // namespace

std::vector<Problem> find_problems(const std::vector<RankFacts>& ranks, const MpiInfo& mpi) {
  std::vector<Problem> out;
  if (mpi.started > static_cast<int>(ranks.size()))
    out.push_back(
        {fmt::format("the launcher has started {} processes, of which MPI sees {}", mpi.started, ranks.size()),
         fmt::format("use the mpirun of {}, or srun --mpi=pmix", mpi.library)});
  const Ranks no_gpu = ranks_with(ranks, [](const RankFacts& r) { return r.gpu.empty() && !r.broken; });
  const bool mixed = !no_gpu.empty() && std::ranges::any_of(ranks, [](const RankFacts& r) { return !r.gpu.empty(); });
  if (mixed)
    out.push_back(
        {fmt::format("{} has no GPU and other ranks have: {}", rank_names({no_gpu.front()}), no_gpu.front()->missing),
         "give each rank one, or set run.backend = cpu"});
  Ranks unexplained;
  for (const HostFacts& host : hosts_of(ranks)) {
    const Ranks here = ranks_with(ranks, [&](const RankFacts& r) { return r.host.name == host.name; });
    const std::size_t before = out.size();
    check_cores(host, here, out);
    if (out.size() == before) unexplained.insert(unexplained.end(), here.begin(), here.end());
    check_host(host, here, ranks.front(), ranks.size(), out);
    check_gpus(host, out);
  }
  check_nccl(ranks, hosts_of(ranks).size(), out);
  if (!mixed) check_speed(unexplained, out);
  check_folder(ranks, out);
  return out;
}

}  // namespace sy
