// Which problems follow from which facts.
#include <gtest/gtest.h>

#include <functional>
#include <numeric>

#include "src/doctor/facts.h"

namespace sy {
namespace {

constexpr Index gib = Index{1} << 30;

std::vector<int> cpus(int first, int n) {
  std::vector<int> list(static_cast<std::size_t>(n));
  std::iota(list.begin(), list.end(), first);
  return list;
}

cuda::Device gpu(int number) {
  cuda::Device device;
  device.id = fmt::format("0000:{:02x}:00", number);
  device.capability = "9.0";
  device.bytes = device.free_bytes = 80 * gib;
  device.tried = true;
  return device;
}

// Ranks as they should be: `per_host` on each of two machines with 16 cores, which they share out, and a GPU for each.
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
    ranks.push_back(r);
  }
  return ranks;
}

const MpiInfo launched{"MPI", "funneled", "no", 0};

// Exactly one problem, with both parts in it.
void expect_problem(const std::vector<RankFacts>& ranks, const std::string& what, const std::string& remedy,
                    const MpiInfo& mpi = launched) {
  const std::vector<Problem> found = find_problems(ranks, mpi);
  ASSERT_EQ(found.size(), 1u) << (found.empty() ? "" : found.back().what);
  EXPECT_NE(found[0].what.find(what), std::string::npos) << found[0].what;
  EXPECT_NE(found[0].remedy.find(remedy), std::string::npos) << found[0].remedy;
}

TEST(Doctor, NothingIsWrong) {
  for (int per_host : {1, 2, 4}) EXPECT_EQ(find_problems(cluster(per_host), launched), std::vector<Problem>{});
}

TEST(Doctor, NoGpuIsNoProblem) {
  auto ranks = cluster(2);
  for (RankFacts& r : ranks) r.gpu = "", r.missing = "there is no GPU", r.host.gpus.clear();
  EXPECT_EQ(find_problems(ranks, launched), std::vector<Problem>{});
}

TEST(Doctor, MoreRanksThanCores) {
  auto ranks = cluster(4);
  for (RankFacts& r : ranks)
    if (r.host.name == "west") r.host.cpus = r.cpus = cpus(0, 3);
  expect_problem(ranks, "ranks 4-7 on west share 3 cores", "start 3 ranks");
  // The same cores as hardware threads.
  for (RankFacts& r : ranks)
    if (r.host.name == "west") r.host.cpus = r.cpus = cpus(0, 6), r.host.threads_per_core = 2;
  expect_problem(ranks, "share 3 cores", "start 3 ranks");
}

TEST(Doctor, AllBoundToOneCore) {
  auto ranks = cluster(2);
  for (RankFacts& r : ranks) r.threads = 1;
  for (int i : {0, 1}) ranks[i].cpus = {5};
  expect_problem(ranks, "ranks 0, 1 on east are bound to 1 core of 16", "--bind-to none");
}

TEST(Doctor, EachBoundToOneCore) {
  auto ranks = cluster(2);
  for (int i : {2, 3}) ranks[i].cpus = {i}, ranks[i].threads = 1;
  expect_problem(ranks, "ranks 2, 3 on west are bound to one core each, and there are 16", "--bind-to none");
  for (int i : {2, 3}) ranks[i].threads = 8;  // then not OMP_NUM_THREADS=1
  expect_problem(ranks, "one core each", "--bind-to none");
  for (int i : {2, 3}) ranks[i].cpus = cpus(2 * i, 2), ranks[i].host.threads_per_core = 2;
  expect_problem(ranks, "one core each, and there are 8", "--bind-to none");
  for (int i : {2, 3}) ranks[i].host.cpus = cpus(4, 4), ranks[i].threads = 2;  // the job has no more
  EXPECT_EQ(find_problems(ranks, launched), std::vector<Problem>{});
}

TEST(Doctor, MoreThreadsThanCpus) {
  auto ranks = cluster(4);
  ranks[5].threads = 5;
  expect_problem(ranks, "ranks 4-7 on west compute with 17 threads on 16 CPUs", "OMP_NUM_THREADS=4");
}

TEST(Doctor, RanksShareAGpu) {
  auto ranks = cluster(4);
  ranks[6].gpu = ranks[5].gpu;
  expect_problem(ranks, "ranks 5, 6 on west share GPU 0000:02:00", "start 3 ranks");
}

TEST(Doctor, SomeRanksHaveNoGpu) {
  auto ranks = cluster(2);
  ranks[3].gpu = "";
  ranks[3].missing = "CUDA_VISIBLE_DEVICES hides it";
  expect_problem(ranks, "rank 3 on west has no GPU and other ranks have: CUDA_VISIBLE_DEVICES hides it", "cpu");
}

TEST(Doctor, DriverServesNotTheBuild) {
  auto ranks = cluster(2);
  for (int i : {2, 3}) ranks[i].gpu = "", ranks[i].missing = "the driver is too old", ranks[i].broken = true;
  expect_problem(ranks, "west: the driver is too old", "nvidia-smi");
}

TEST(Doctor, GpusThatCannotBeUsedOrAreFull) {
  auto ranks = cluster(2);
  ranks[1].host.gpus[1].error = "no kernel of this build runs on it";
  ranks[0].host.gpus[1].tried = false;  // what a rank has not tried counts less than what another has
  expect_problem(ranks, "GPU 0000:02:00 of east (compute capability 9.0) cannot be used: no kernel",
                 "SWITCHYARD_CUDA_ARCHITECTURES");
  ranks[1].host.gpus[1] = gpu(2);
  ranks[1].host.gpus[1].free_bytes = 60 * gib;
  expect_problem(ranks, "GPU 0000:02:00 of east has only 60.0 of 80.0 GiB free", "nvidia-smi");
}

TEST(Doctor, Machine) {
  auto ranks = cluster(2);
  const auto west = [&](const std::function<void(HostFacts&)>& change) {
    ranks = cluster(2);
    for (int i : {2, 3}) change(ranks[i].host);
  };
  west([](HostFacts& h) { h.shared_memory = gib / 16; });
  expect_problem(ranks, "/dev/shm of west has 0.06 GiB free for 2 ranks", "--shm-size");
  west([](HostFacts& h) { h.locked_memory = 8 << 20; });
  EXPECT_EQ(find_problems(ranks, launched), std::vector<Problem>{});
  west([](HostFacts& h) { h.infiniband = true; });
  EXPECT_EQ(find_problems(ranks, launched), std::vector<Problem>{});
  west([](HostFacts& h) { h.infiniband = true, h.locked_memory = 8 << 20; });
  expect_problem(ranks, "a process on west may pin 0.01 GiB", "ulimit -l");
  west([](HostFacts& h) { h.kernels_run = false; });
  expect_problem(ranks, "which west lacks", "SWITCHYARD_ARCH");
}

TEST(Doctor, LauncherOfAnotherMpi) {
  std::vector<RankFacts> ranks{cluster(1)[0]};
  expect_problem(ranks, "started 4 processes, of which MPI sees 1", "the mpirun of MPI", {"MPI", "funneled", "no", 4});
  EXPECT_EQ(find_problems(ranks, {"MPI", "funneled", "no", 1}), std::vector<Problem>{});
}

TEST(Doctor, HostsMergeWhatTheirRanksSee) {
  auto ranks = cluster(2);
  for (int i = 0; i < 4; ++i) ranks[i].host.gpus = {gpu(2 - i % 2)};  // each rank sees its own
  const auto hosts = hosts_of(ranks);
  ASSERT_EQ(hosts.size(), 2u);
  EXPECT_EQ(hosts[1].name, "west");
  ASSERT_EQ(hosts[1].gpus.size(), 2u);
  EXPECT_EQ(hosts[1].gpus[0].id, "0000:01:00");
  EXPECT_EQ(hosts[1].gpus[1].id, "0000:02:00");
}

TEST(Doctor, Ranges) {
  EXPECT_EQ(ranges({}), "");
  EXPECT_EQ(ranges({4}), "4");
  EXPECT_EQ(ranges({0, 1}), "0, 1");
  EXPECT_EQ(ranges({0, 1, 2, 3, 8, 10, 11}), "0-3, 8, 10, 11");
}

}  // namespace
}  // namespace sy
