// Problems that follow from facts about the ranks and machines.
#include <gtest/gtest.h>

#include <functional>
#include <numeric>

#include "kernels/control_groups.h"
#include "src/doctor/facts.h"
#include "src/doctor/probes.h"
#include "tests/src/temp_folder.h"

namespace sy {
namespace {

constexpr Index gib = Index{1} << 30;

std::vector<int> cpus(int first, int n) {
  std::vector<int> list(static_cast<std::size_t>(n));
  std::iota(list.begin(), list.end(), first);
  return list;
}

cuda::Gpu gpu(int number) {
  cuda::Gpu device;
  device.id = fmt::format("0000:{:02x}:00", number);
  device.capability = "9.0";
  device.bytes = device.free_bytes = 80 * gib;
  device.tried = true;
  return device;
}

// Facts without problems: `per_host` ranks on each of two machines, which share its 16 cores, and a
// GPU for each rank.
std::vector<RankFacts> cluster(int per_host) {
  std::vector<RankFacts> ranks;
  for (int i = 0; i < 2 * per_host; ++i) {
    RankFacts r;
    const int local = i % per_host;
    r.rank = i;
    r.host.name = i < per_host ? "east" : "west";
    r.host.cpus = cpus(0, 16);
    r.host.memory = r.host.available = r.host.shared_memory = 64 * gib;
    for (int g = 0; g < per_host; ++g) r.host.gpus.push_back(gpu(g + 1));
    r.cpus = cpus(16 / per_host * local, 16 / per_host);
    r.threads = 16 / per_host;
    r.gpu = gpu(local + 1).id;
    r.speed = 30e9 + 1e9 * i;
    r.clock_ahead = i < per_host ? 0 : 0.02, r.clock_error = 0.001;
    r.host.limits = {1024, 4096, 8 << 20, 8 << 20, 0};
    r.folder = {"/runs", "nfs", "", 900 * gib, 1000000, 0.01, local == 0 ? 0.01 : -1, local == 0 ? 500e6 : -1};
    ranks.push_back(r);
  }
  return ranks;
}

const MpiInfo launched{"MPI", "funneled", "no", 0};

// Expects exactly one problem, which contains both texts.
void expect_problem(const std::vector<RankFacts>& ranks, const std::string& what, const std::string& remedy,
                    const MpiInfo& mpi = launched) {
  const std::vector<Problem> found = find_problems(ranks, mpi);
  ASSERT_EQ(found.size(), 1u) << (found.empty() ? "" : found.back().what);
  EXPECT_NE(found[0].what.find(what), std::string::npos) << found[0].what;
  EXPECT_NE(found[0].remedy.find(remedy), std::string::npos) << found[0].remedy;
}

TEST(Doctor, FindsNothingOnAHealthyCluster) {
  for (int per_host : {1, 2, 4}) EXPECT_EQ(find_problems(cluster(per_host), launched), std::vector<Problem>{});
}

TEST(Doctor, AcceptsMachinesWithoutGpus) {
  auto ranks = cluster(2);
  for (RankFacts& r : ranks) r.gpu = "", r.missing = "there is no GPU", r.host.gpus.clear();
  EXPECT_EQ(find_problems(ranks, launched), std::vector<Problem>{});
}

TEST(Doctor, ReportsMoreRanksThanCores) {
  auto ranks = cluster(4);
  for (RankFacts& r : ranks)
    if (r.host.name == "west") r.host.cpus = r.cpus = cpus(0, 3);
  expect_problem(ranks, "ranks 4-7 on west share 3 cores", "start 3 ranks");
  // The same cores as hardware threads.
  for (RankFacts& r : ranks)
    if (r.host.name == "west") r.host.cpus = r.cpus = cpus(0, 6), r.host.threads_per_core = 2;
  expect_problem(ranks, "share 3 cores", "start 3 ranks");
}

TEST(Doctor, ReportsRanksBoundToOneCore) {
  auto ranks = cluster(2);
  for (RankFacts& r : ranks) r.threads = 1;
  for (int i : {0, 1}) ranks[i].cpus = {5};
  expect_problem(ranks, "ranks 0, 1 on east are bound to 1 core of 16", "--bind-to none");
  expect_problem(ranks, "ranks 0, 1 on east are bound to 1 core of 16", "srun --cpus-per-task=N");
}

TEST(Doctor, ReportsRanksBoundToOneCoreEach) {
  auto ranks = cluster(2);
  for (int i : {2, 3}) ranks[i].cpus = {i}, ranks[i].threads = 1;
  expect_problem(ranks, "ranks 2, 3 on west are bound to one core each, and there are 16", "--bind-to none");
  for (int i : {2, 3}) ranks[i].threads = 8;  // so it is not OMP_NUM_THREADS=1
  expect_problem(ranks, "one core each", "--bind-to none");
  for (int i : {2, 3}) ranks[i].cpus = cpus(2 * i, 2), ranks[i].host.threads_per_core = 2;
  expect_problem(ranks, "one core each, and there are 8", "--bind-to none");
  for (int i : {2, 3}) ranks[i].host.cpus = cpus(4, 4), ranks[i].threads = 2;  // all of the job
  EXPECT_EQ(find_problems(ranks, launched), std::vector<Problem>{});
}

TEST(Doctor, ReportsMoreThreadsThanCpus) {
  auto ranks = cluster(4);
  ranks[5].threads = 5;
  expect_problem(ranks, "ranks 4-7 on west compute with 17 threads on 16 CPUs", "OMP_NUM_THREADS=4");
}

TEST(Doctor, ReportsMoreThreadsThanTheCpuQuota) {
  auto ranks = cluster(4);
  const auto west = [&](int quota) {
    for (RankFacts& r : ranks)
      if (r.host.name == "west") r.host.cpu_time = quota;
  };
  west(16);
  EXPECT_EQ(find_problems(ranks, launched), std::vector<Problem>{});
  west(15);
  expect_problem(ranks, "ranks 4-7 on west compute with 16 threads, and a control group grants 15 CPUs of time",
                 "set OMP_NUM_THREADS=3");
  west(1);
  expect_problem(ranks, "ranks 4-7 on west compute with 16 threads, and a control group grants 1 CPU of time",
                 "start 1 rank there at most");
}

TEST(Doctor, ReportsRanksThatShareAGpu) {
  auto ranks = cluster(4);
  ranks[6].gpu = ranks[5].gpu;
  expect_problem(ranks, "ranks 5, 6 on west share GPU 0000:02:00", "start 3 ranks");
}

TEST(Doctor, ReportsRanksWithoutAGpu) {
  auto ranks = cluster(2);
  ranks[3].gpu = "";
  ranks[3].missing = "CUDA_VISIBLE_DEVICES hides it";
  expect_problem(ranks, "rank 3 on west has no GPU and other ranks have: CUDA_VISIBLE_DEVICES hides it", "cpu");
}

TEST(Doctor, ReportsAnOldDriver) {
  auto ranks = cluster(2);
  for (int i : {2, 3}) ranks[i].gpu = "", ranks[i].missing = "the driver is too old", ranks[i].broken = true;
  expect_problem(ranks, "west: the driver is too old", "nvidia-smi");
}

TEST(Doctor, ReportsUnusableAndFullGpus) {
  auto ranks = cluster(2);
  ranks[1].host.gpus[1].error = "no kernel of this build runs on it";
  ranks[0].host.gpus[1].tried = false;  // the result of a rank that tried takes precedence
  expect_problem(ranks, "GPU 0000:02:00 of east (compute capability 9.0) cannot be used: no kernel",
                 "SWITCHYARD_CUDA_ARCHITECTURES");
  ranks[1].host.gpus[1] = gpu(2);
  ranks[1].host.gpus[1].free_bytes = 60 * gib;
  expect_problem(ranks, "GPU 0000:02:00 of east has only 60.0 of 80.0 GiB free", "nvidia-smi");
}

TEST(Doctor, ReportsLimitsOfAHost) {
  auto ranks = cluster(2);
  const auto west = [&](const std::function<void(HostFacts&)>& change) {
    ranks = cluster(2);
    for (int i : {2, 3}) change(ranks[i].host);
  };
  west([](HostFacts& h) { h.shared_memory = gib / 16; });
  expect_problem(ranks, "/dev/shm of west has 0.06 GiB free for 2 ranks", "--shm-size");
  west([](HostFacts& h) { h.limits.locked_memory = 8 << 20; });
  EXPECT_EQ(find_problems(ranks, launched), std::vector<Problem>{});
  west([](HostFacts& h) { h.infiniband = true, h.limits.locked_memory = -1; });
  EXPECT_EQ(find_problems(ranks, launched), std::vector<Problem>{});
  west([](HostFacts& h) { h.infiniband = true, h.limits.locked_memory = 8 << 20; });
  expect_problem(ranks, "a process on west may pin 0.01 GiB", "ulimit -l");
}

TEST(Doctor, ReportsLittleMemoryOfAControlGroup) {
  auto ranks = cluster(2);
  const auto west = [&](Index limit, Index available) {
    for (int i : {2, 3}) ranks[i].host.memory_limit = limit, ranks[i].host.available = available;
  };
  west(4 * gib, gib);
  expect_problem(ranks, "processes on west have 4.00 of 64.00 GiB of memory, of which 1.00 are left for 2 ranks",
                 "--mem=0");
  west(4 * gib, 2 * gib);
  EXPECT_EQ(find_problems(ranks, launched), std::vector<Problem>{});
  // Memory of other programs is the user's business.
  west(-1, gib);
  EXPECT_EQ(find_problems(ranks, launched), std::vector<Problem>{});
}

TEST(Doctor, ReportsLowResourceLimits) {
  auto ranks = cluster(2);
  const auto west = [&](const Limits& limits) {
    for (int i : {2, 3}) ranks[i].host.limits = limits;
    return find_problems(ranks, launched);
  };
  const Limits any, least{256 + 2 * 4, 16 + 2 * 8, -1, 1 << 20, 0};
  EXPECT_EQ(west(any), std::vector<Problem>{});
  EXPECT_EQ(west(least), std::vector<Problem>{});
  Limits limits = least;
  --limits.open_files;
  west(limits);
  expect_problem(ranks, "a process on west may have 263 open files, and with connections to 4 ranks", "ulimit -n");
  limits = least;
  limits.stack = 512 << 10;
  west(limits);
  expect_problem(ranks, "a thread on west has a stack of 512 KiB", "ulimit -s");
  limits = least;
  --limits.processes;
  west(limits);
  expect_problem(ranks, "31 processes and threads on west, and 2 ranks compute with 16 threads", "ulimit -u");
}

TEST(Doctor, ReportsClockDifferences) {
  auto ranks = cluster(2);
  const auto west = [&](double ahead, double error) {
    for (int i : {2, 3}) ranks[i].clock_ahead = ahead, ranks[i].clock_error = error;
  };
  west(3.2, 0.01);
  expect_problem(ranks, "the clock of west is 3.20 s ahead of that of east", "chrony");
  west(-0.06, 0.005);
  expect_problem(ranks, "the clock of west is 0.06 s behind that of east", "chrony");
  west(-0.06, 0.02);  // within the error, it may be less
  EXPECT_EQ(find_problems(ranks, launched), std::vector<Problem>{});
}

TEST(Doctor, ReportsRanksBoundToTheSameCpus) {
  auto ranks = cluster(4);
  for (RankFacts& r : ranks) r.threads = 2;
  ranks[5].cpus = ranks[6].cpus = cpus(4, 3);
  expect_problem(ranks, "ranks 5, 6 on west are bound to the same CPUs, fewer than their threads", "--bind-to core");
  ranks[6].cpus = cpus(6, 2), ranks[4].cpus = cpus(2, 3), ranks[4].threads = 4;  // they overlap
  expect_problem(ranks, "ranks 4-6 on west are bound to the same CPUs", "--cpus-per-task");
  ranks[4].threads = 2, ranks[6].threads = 1;  // enough CPUs for all
  EXPECT_EQ(find_problems(ranks, launched), std::vector<Problem>{});
  ranks = cluster(4);
  for (RankFacts& r : ranks) r.cpus = cpus(0, 16);  // not bound
  EXPECT_EQ(find_problems(ranks, launched), std::vector<Problem>{});
}

TEST(Doctor, ReportsSlowRanks) {
  auto ranks = cluster(4);
  for (RankFacts& r : ranks) r.speed = 40e9;
  ranks[6].speed = 20e9;
  expect_problem(ranks, "rank 6 on west is 2.0 times slower than the median rank (20.0 instead of 40.0 GFLOP/s)",
                 "what else runs there");
  ranks[1].speed = 10e9;
  expect_problem(ranks, "ranks 1, 6 on east and 1 other host are up to 4.0 times slower", "what else runs there");
  ranks[1].speed = 0;  // not measured
  expect_problem(ranks, "rank 6 on west is 2.0 times slower", "");
  ranks[6].speed = 27e9;
  EXPECT_EQ(find_problems(ranks, launched), std::vector<Problem>{});
  for (int i : {1, 4, 5, 6, 7}) ranks[i].speed = i == 1 ? 40e9 : 20e9;  // half of the ranks
  expect_problem(ranks, "ranks 4-7 on west are up to 2.0 times slower", "");
}

TEST(Doctor, ExplainsSlowRanks) {
  auto ranks = cluster(2);
  for (RankFacts& r : ranks) r.gpu = "", r.host.gpus.clear();
  ranks[3].speed = 10e9;
  expect_problem(ranks, "rank 3 on west is", "what else runs there");
  ranks[3].threads = 4;
  expect_problem(ranks, "rank 3 on west is", "fewer threads");
  ranks[3].host.processor = "another";
  expect_problem(ranks, "rank 3 on west is", "another processor");
  ranks[3].cpus = {15}, ranks[3].threads = 1;  // a problem of the cores alone
  ranks[2].cpus = {14}, ranks[2].threads = 1;
  expect_problem(ranks, "bound to one core each", "--bind-to none");
  ranks = cluster(2);
  ranks[3].speed = 10e9;
  ranks[3].host.gpus[1].name = "another";
  expect_problem(ranks, "rank 3 on west is", "another processor or GPU");
  ranks = cluster(2);
  ranks[3].gpu = "", ranks[3].missing = "hidden", ranks[3].speed = 1e9;
  expect_problem(ranks, "rank 3 on west has no GPU", "cpu");
}

TEST(Doctor, ReportsFolderProblems) {
  std::vector<RankFacts> ranks;
  const auto expect = [&](const std::function<void(RankFacts&)>& change, const std::string& what,
                          const std::string& remedy) {
    ranks = cluster(2);
    for (int i : {2, 3}) change(ranks[i]);
    if (!what.empty()) return expect_problem(ranks, what, remedy);
    EXPECT_EQ(find_problems(ranks, launched), std::vector<Problem>{});
  };
  expect([](RankFacts& r) { r.folder.error = "cannot write in /runs: Permission denied"; },
         "ranks 2, 3 on west: cannot write in /runs: Permission denied", "--dir");
  expect([](RankFacts& r) { r.folder.error = "x", r.folder.seen_after = -1, r.folder.free_bytes = 0; }, "west: x", "");
  expect([](RankFacts& r) { r.folder.seen_after = -1; },
         "what rank 0 writes in /runs is not seen by ranks 2, 3 on west", "all hosts share");
  expect([](RankFacts& r) { r.folder.free_bytes = gib / 2; }, "/runs has 0.50 GiB free", "run.keep");
  expect([](RankFacts& r) { r.folder.free_bytes = gib; }, "", "");
  expect([](RankFacts& r) { r.folder.free_files = 999; }, "in /runs only 999 more files", "choose another");
  expect([](RankFacts& r) { r.folder.free_files = -1; }, "", "");
  expect([](RankFacts& r) { r.folder.type = "tmpfs"; }, "/runs is in memory (tmpfs)", "disk");
  expect([](RankFacts& r) { r.folder.locks = false; }, "", "");
  expect([](RankFacts& r) { r.host.hdf5.locks = true; }, "", "");
  expect([](RankFacts& r) { r.host.hdf5.locks = true, r.folder.locks = false; },
         "lock HDF5 files by HDF5_USE_FILE_LOCKING, which /runs (nfs) does not allow", "unset HDF5_USE_FILE_LOCKING");
  expect([](RankFacts& r) { r.host.unicode = "ICU 90"; }, "west has ICU 90, and east has ", "prepare data on machines");
  expect([](RankFacts& r) { r.folder.write_seconds = 0.6; },
         "a small file is on the disk of /runs (nfs) after 0.6 seconds", "");
  expect([](RankFacts& r) { r.folder.write_bandwidth = 4e6; }, "ranks 2, 3 on west: /runs (nfs) takes 4.0 MB/s", "");
}

// ---- facts of the probes ----

TEST(Doctor, ReadsMemoryLimitOfControlGroups) {
  const TempFolder root;
  // The lowest limit, and the least free bytes, of all groups.
  const auto limit = [&] {
    std::pair lowest(Index{-1}, Index{-1});
    for (const MemoryLimit& found : memory_limits(root.path())) {
      lowest.first = lower_limit(lowest.first, found.bytes);
      lowest.second = lower_limit(lowest.second, found.free);
    }
    return lowest;
  };
  EXPECT_EQ(limit(), std::pair(Index{-1}, Index{-1}));
  // Version 2: the least limit of a group and those around it. The used memory of each is
  // subtracted, without cached files.
  root.write("proc/self/cgroup", "0::/job/step\n");
  const std::string v2 = "sys/fs/cgroup/";
  root.write(v2 + "job/step/memory.max", "max\n");
  root.write(v2 + "job/memory.max", "5000\n");
  root.write(v2 + "job/memory.current", "3000\n");
  root.write(v2 + "job/memory.stat", "anon 2500\ninactive_file 500\n");
  EXPECT_EQ(limit(), std::pair(Index{5000}, Index{2500}));
  root.write(v2 + "job/step/memory.max", "4000\n");
  root.write(v2 + "job/step/memory.current", "1000\n");
  EXPECT_EQ(limit(), std::pair(Index{4000}, Index{2500}));
  EXPECT_EQ(memory_limits(root.path()).front().group, root.path() / v2 / "job/step");
  EXPECT_EQ(memory_limits(root.path()).back().group, root.path() / v2 / "job");
  root.write(v2 + "job/memory.current", "9000\n");
  EXPECT_EQ(limit(), std::pair(Index{4000}, Index{0}));
  // Version 1, in a container that does not see the group's own folder. Limits of other controllers
  // do not count.
  root.write("proc/self/cgroup", "5:cpuset:/other\n4:hugetlb,memory:/docker/abc\n");
  root.write("sys/fs/cgroup/cpuset/memory.limit_in_bytes", "1\n");
  EXPECT_EQ(limit(), std::pair(Index{-1}, Index{-1}));
  root.write("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
  EXPECT_EQ(limit(), std::pair(Index{-1}, Index{-1}));
  root.write("sys/fs/cgroup/memory/memory.limit_in_bytes", "8000\n");
  root.write("sys/fs/cgroup/memory/memory.usage_in_bytes", "6000\n");
  root.write("sys/fs/cgroup/memory/memory.stat", "inactive_file 1\ntotal_inactive_file 1000\n");
  EXPECT_EQ(limit(), std::pair(Index{8000}, Index{3000}));
}

TEST(Doctor, ReadsCpuQuotaOfControlGroups) {
  const TempFolder root;
  const auto quota = [&] { return cpu_quota(cpu_time(root.path())); };
  EXPECT_EQ(quota(), 0);
  // Version 2: the least of a group and those around it, rounded up.
  root.write("proc/self/cgroup", "0::/job/step\n");
  const std::string v2 = "sys/fs/cgroup/", v1 = "sys/fs/cgroup/cpu/";
  root.write(v2 + "job/step/cpu.max", "max 100000\n");
  EXPECT_EQ(quota(), 0);
  root.write(v2 + "job/cpu.max", "250000 100000\n");
  EXPECT_EQ(quota(), 3);
  root.write(v2 + "job/step/cpu.max", "400000 100000\n");
  EXPECT_EQ(quota(), 3);
  root.write(v2 + "cpu.max", "20000 10000\n");
  EXPECT_EQ(quota(), 2);
  root.write(v2 + "job/step/cpu.max", "1000 100000\n");
  EXPECT_EQ(quota(), 1);
  root.write(v2 + "cpu.max", "nonsense\n");
  root.write(v2 + "job/step/cpu.max", "\n");
  EXPECT_EQ(quota(), 3);
  // Version 1, in a container that does not see the group's own folder. Limits of other controllers
  // do not count.
  root.write("proc/self/cgroup", "5:cpuset:/other\n4:cpu,cpuacct:/docker/abc\n");
  EXPECT_EQ(quota(), 0);
  root.write(v1 + "cpu.cfs_period_us", "100000\n");
  root.write(v1 + "cpu.cfs_quota_us", "-1\n");
  EXPECT_EQ(quota(), 0);
  root.write(v1 + "cpu.cfs_quota_us", "150000\n");
  EXPECT_EQ(quota(), 2);
  root.write(v1 + "docker/cpu.cfs_period_us", "100000\n");
  root.write(v1 + "docker/cpu.cfs_quota_us", "50000\n");
  EXPECT_EQ(quota(), 1);
}

TEST(Doctor, ProbesAFolderOnOneRank) {
  const auto alone = make_comm_self();
  const TempFolder folder;
  const FolderFacts facts = probe_folder(*alone, folder.path() / ".", true);
  EXPECT_EQ(facts.error, "");
  EXPECT_EQ(facts.path, folder.path().string());
  EXPECT_FALSE(facts.type.empty());
  EXPECT_GE(facts.free_bytes, 0);
  EXPECT_GE(facts.seen_after, 0);
  EXPECT_GT(facts.write_seconds, 0);
  EXPECT_GT(facts.write_bandwidth, 0);
  EXPECT_TRUE(std::filesystem::is_empty(folder.path()));

  const std::filesystem::path none = folder.path() / "none";
  EXPECT_TRUE(has(probe_folder(*alone, none, true).error, "No such file"));
  EXPECT_FALSE(std::filesystem::exists(none));
  EXPECT_TRUE(has(probe_folder(*alone, folder.write("file", ""), true).error, "Not a directory"));
  std::filesystem::remove(folder.path() / "file");
  for (const char* operation : {"write", "sync", "rename"}) {
    file_activity().write_fault = [&](std::string_view what, const std::filesystem::path&) {
      if (what == operation) fail("no {}", operation);
    };
    EXPECT_EQ(probe_folder(*alone, folder.path(), true).error, fmt::format("no {}", operation));
    file_activity().write_fault = nullptr;
    EXPECT_TRUE(std::filesystem::is_empty(folder.path())) << operation;
  }
}

TEST(Doctor, NamesFileSystems) {
  EXPECT_EQ(file_system_name(0x6969), "nfs");
  EXPECT_EQ(file_system_name(0x0bd00bd0), "lustre");
  EXPECT_EQ(file_system_name(0x794c7630), "overlay");
  EXPECT_EQ(file_system_name(0x12345), "0x12345");
}

TEST(Doctor, MeasuresSpeedAndClockOfOneRank) {
  const auto alone = make_comm_self();
  EXPECT_GT(probe_speed(*alone, 0), 1e6);
  EXPECT_EQ(probe_speed(*alone, -1), 0);
  EXPECT_EQ(probe_clock(*alone), std::pair(0.0, 0.0));
}

TEST(Doctor, ReportsGpuAwareMpiBesideNccl) {
  auto ranks = cluster(2);
  for (int i : {2, 3}) ranks[i].gpu_aware_mpi = "MPICH_GPU_SUPPORT_ENABLED=1";
  expect_problem(ranks, "ranks 2, 3 on west: MPI handles GPU memory, too", "set MPICH_GPU_SUPPORT_ENABLED=0");
  expect_problem(ranks, "(MPICH_GPU_SUPPORT_ENABLED=1)", "OMPI_MCA_opal_cuda_support=0");
  EXPECT_EQ(find_problems({ranks[2]}, launched), std::vector<Problem>{});  // alone, without NCCL
  for (RankFacts& r : ranks) r.gpu = "", r.missing = "there is no GPU", r.host.gpus.clear();
  EXPECT_EQ(find_problems(ranks, launched), std::vector<Problem>{});
}

TEST(Doctor, ReportsNcclOverTcpBetweenHosts) {
  auto ranks = cluster(2);
  for (RankFacts& r : ranks) r.nccl_over_tcp = "NCCL_NET=Socket";
  expect_problem(ranks, "ranks 0-3 on east and 1 other host: NCCL sends by TCP between the hosts", "unset it");
  expect_problem(ranks, "(NCCL_NET=Socket)", "NCCL_DEBUG=INFO");
  ranks.resize(2);  // one host
  EXPECT_EQ(find_problems(ranks, launched), std::vector<Problem>{});
}

TEST(Doctor, ReadsTheSettingsOfMpiAndNccl) {
  const auto with = [](const char* name, const char* value, const std::function<std::string()>& read) {
    const char* const before = std::getenv(name);
    const std::string saved = before ? before : "";
    setenv(name, value, 1);
    const std::string setting = read();
    before ? setenv(name, saved.c_str(), 1) : unsetenv(name);
    return setting;
  };
  const auto mpi = [] { return gpu_aware_mpi_setting("no"); };
  const auto cuda_mpi = [] { return gpu_aware_mpi_setting("yes"); };
  EXPECT_EQ(mpi(), "");
  EXPECT_EQ(gpu_aware_mpi_setting("unknown"), "");
  EXPECT_EQ(cuda_mpi(), "the default of an MPI with CUDA");
  EXPECT_EQ(with("MPICH_GPU_SUPPORT_ENABLED", "1", mpi), "MPICH_GPU_SUPPORT_ENABLED=1");
  EXPECT_EQ(with("MPICH_GPU_SUPPORT_ENABLED", "0", mpi), "");
  EXPECT_EQ(with("OMPI_MCA_opal_cuda_support", "true", mpi), "OMPI_MCA_opal_cuda_support=true");
  EXPECT_EQ(with("OMPI_MCA_opal_cuda_support", "0", cuda_mpi), "");
  EXPECT_EQ(nccl_over_tcp_setting(), "");
  EXPECT_EQ(with("NCCL_NET", "Socket", nccl_over_tcp_setting), "NCCL_NET=Socket");
  EXPECT_EQ(with("NCCL_NET", "AWS Libfabric", nccl_over_tcp_setting), "");
  EXPECT_EQ(with("NCCL_IB_DISABLE", "1", nccl_over_tcp_setting), "NCCL_IB_DISABLE=1");
  EXPECT_EQ(with("NCCL_IB_DISABLE", "0", nccl_over_tcp_setting), "");
}

TEST(Doctor, ReportsTheLauncherOfAnotherMpi) {
  std::vector<RankFacts> ranks{cluster(1)[0]};
  expect_problem(ranks, "started 4 processes, of which MPI sees 1", "the mpirun of MPI", {"MPI", "funneled", "no", 4});
  EXPECT_EQ(find_problems(ranks, {"MPI", "funneled", "no", 1}), std::vector<Problem>{});
}

TEST(Doctor, MergesTheGpusSeenByRanks) {
  auto ranks = cluster(2);
  for (int i = 0; i < 4; ++i) ranks[i].host.gpus = {gpu(2 - i % 2)};  // each rank sees its own
  const auto hosts = hosts_of(ranks);
  ASSERT_EQ(hosts.size(), 2u);
  EXPECT_EQ(hosts[1].name, "west");
  ASSERT_EQ(hosts[1].gpus.size(), 2u);
  EXPECT_EQ(hosts[1].gpus[0].id, "0000:01:00");
  EXPECT_EQ(hosts[1].gpus[1].id, "0000:02:00");
}

TEST(Doctor, FormatsRankLists) {
  EXPECT_EQ(format_rank_list({}), "");
  EXPECT_EQ(format_rank_list({4}), "4");
  EXPECT_EQ(format_rank_list({0, 1}), "0, 1");
  EXPECT_EQ(format_rank_list({0, 1, 2, 3, 8, 10, 11}), "0-3, 8, 10, 11");
}

}  // namespace
}  // namespace sy
