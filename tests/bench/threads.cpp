// Computes how many threads a training step on one rank could use, on a machine that has fewer.
//
// It measures the processor time of each parallel region and of each of its tasks. It then assigns
// them to N threads as OpenMP would.
//
//   bench_threads [--threads N[,N...]] [--least SPEED-UP] [--d-model N] [--layers N] [--heads N]
//                 [--experts N] [--top-k N] [--d-ff N] [--vocab N] [--seq-len N] [--batch N]
//                 [--uneven 1]
//
// For each number of threads it prints the longest path through a step, and how many times shorter
// that is than all work. It also prints where the path loses most: to work that one thread does
// alone, and to tasks that are too few or unequal. Memory is ignored: a thread computes as fast
// beside many others as beside one. --uneven 1: the first experts get most of the rows. --least:
// exit code 1 if the last number of threads has a smaller speed-up.
#include <dlfcn.h>
#include <omp.h>
#include <unistd.h>

#include <boost/program_options.hpp>
#include <ctime>
#include <iostream>
#include <map>
#include <queue>

#include "dist/phase.h"
#include "src/model/engine.h"
#include "src/text/strings.h"
#include "src/train/distributed_optimizer.h"
#include "tests/bench/arguments.h"

namespace sy::bench {
namespace {

double thread_seconds() {
  timespec t{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
}

// Work of one thread in a region.
struct Share {
  double seconds = 0;  // all of its work
  // Tasks that it took from a dynamic loop, included in `seconds`.
  std::vector<double> tasks;
  double task_began = -1;
};

// The work of the threads of a parallel region, or the work of one thread between two regions.
struct Region {
  std::string where;
  std::vector<Share> shares;
};

bool recording = false;
std::vector<Region> regions;
thread_local Share* own = nullptr;
double alone_since = 0;
RankContext* traced_rank = nullptr;

// Name of the innermost open span.
std::string where() {
  if (traced_rank && traced_rank->trace_spans)
    for (auto s = traced_rank->trace_spans->rbegin(); s != traced_rank->trace_spans->rend(); ++s)
      if (s->end == decltype(s->end){}) return s->name;
  return "step";
}

void end_task() {
  if (!own || own->task_began < 0) return;
  own->tasks.push_back(thread_seconds() - own->task_began);
  own->task_began = -1;
}
void begin_task() {
  if (own) own->task_began = thread_seconds();
}

// Longest path through a region: the work of a thread outside of tasks, then the tasks, each taken
// by the next free thread.
double path(const Region& region, std::size_t threads) {
  double beside = 0;
  std::vector<double> tasks;
  for (const Share& s : region.shares) {
    double rest = s.seconds;
    for (const double t : s.tasks) rest -= t, tasks.push_back(t);
    beside = std::max(beside, rest);
  }
  std::priority_queue<double, std::vector<double>, std::greater<>> free_at;
  for (std::size_t i = 0; i < threads; ++i) free_at.push(0);
  double last = 0;
  for (const double t : tasks) {
    const double end = free_at.top() + t;
    free_at.pop();
    free_at.push(end);
    last = std::max(last, end);
  }
  return beside + last;
}

double work(const Region& region) {
  double sum = 0;
  for (const Share& s : region.shares) sum += s.seconds;
  return sum;
}

template <class F>
F* next(const char* name) {
  return reinterpret_cast<F*>(dlsym(RTLD_NEXT, name));
}

}  // namespace
}  // namespace sy::bench

// Functions that GCC calls for `#pragma omp parallel` and for dynamic loops. They measure, and call
// libgomp.
extern "C" {

void GOMP_parallel(void (*body)(void*), void* data, unsigned threads, unsigned flags) {
  using namespace sy::bench;
  static auto* const gomp = next<void(void (*)(void*), void*, unsigned, unsigned)>("GOMP_parallel");
  if (!recording || omp_in_parallel()) return gomp(body, data, threads, flags);
  regions.push_back({where(), {{thread_seconds() - alone_since, {}, -1}}});
  Region region{where(), std::vector<Share>(threads > 0 ? threads : static_cast<unsigned>(omp_get_max_threads()))};
  struct Call {
    void (*body)(void*);
    void* data;
    Region* region;
  } call{body, data, &region};
  gomp(
      [](void* p) {
        const Call& c = *static_cast<Call*>(p);
        Share& share = c.region->shares[static_cast<std::size_t>(omp_get_thread_num())];
        own = &share;
        const double began = thread_seconds();
        c.body(c.data);
        share.seconds = thread_seconds() - began;
        own = nullptr;
      },
      &call, threads, flags);
  regions.push_back(std::move(region));
  alone_since = thread_seconds();
}

bool GOMP_loop_nonmonotonic_dynamic_start(long begin, long end, long step, long chunk, long* first, long* last) {
  static auto* const gomp =
      sy::bench::next<bool(long, long, long, long, long*, long*)>("GOMP_loop_nonmonotonic_dynamic_start");
  const bool some = gomp(begin, end, step, chunk, first, last);
  if (some) sy::bench::begin_task();
  return some;
}

bool GOMP_loop_nonmonotonic_dynamic_next(long* first, long* last) {
  static auto* const gomp = sy::bench::next<bool(long*, long*)>("GOMP_loop_nonmonotonic_dynamic_next");
  sy::bench::end_task();
  const bool some = gomp(first, last);
  if (some) sy::bench::begin_task();
  return some;
}
}

namespace sy::bench {
namespace {

int run(int argc, char** argv) {
  namespace po = boost::program_options;
  Index d_model = 0, layers = 0, heads = 0, experts = 0, top_k = 0, d_ff = 0, vocab = 0, seq_len = 0, batch = 0,
        uneven = 0;
  double least = 0;
  std::string threads;
  po::options_description options;
  const auto number = [&](const char* name, Index* to, Index value) {
    options.add_options()(name, po::value<Index>(to)->default_value(value));
  };
  number("d-model", &d_model, 256);
  number("layers", &layers, 4);
  number("heads", &heads, 8);
  number("experts", &experts, 8);
  number("top-k", &top_k, 2);
  number("d-ff", &d_ff, 704);
  number("vocab", &vocab, 257);
  number("seq-len", &seq_len, 256);
  number("batch", &batch, 8);
  number("uneven", &uneven, 0);
  options.add_options()("threads", po::value(&threads)->default_value("1,4,16,64"));
  options.add_options()("least", po::value(&least)->default_value(0));
  po::variables_map values;
  if (!read_arguments(argc, argv, "bench_threads",
                      "Computes how many threads a training step could use, from the time of its tasks.", options,
                      values))
    return 0;

  const Config config = parse_config(
      fmt::format("[model]\nlayers={}\nd_model={}\nheads={}\nseq_len={}\n[moe]\nexperts={}\ntop_k={}\nd_ff={}\n"
                  "capacity_factor=0\n[train]\nmicro_batch={}\nglobal_batch={}\n",
                  layers, d_model, heads, seq_len, experts, top_k, d_ff, batch, batch),
      "bench");
  const auto self = make_comm_self();
  Engine engine(config, vocab, make_cpu(), make_mesh(*self, {}), true);
  engine.store().initialize(1);
  DistributedOptimizer optimizer(engine.mesh(), engine.store());
  const Index T = batch * seq_len;
  std::vector<std::int32_t> ids(T), targets(T);
  const RandomStream random(1, "bench");
  for (Index i = 0; i < T; ++i) {
    // Few different tokens choose few experts.
    const Index kinds = uneven ? 3 : vocab;
    ids[i] = static_cast<std::int32_t>(random.bits(2 * i) % static_cast<std::uint64_t>(kinds));
    targets[i] = static_cast<std::int32_t>(random.bits(2 * i + 1) % static_cast<std::uint64_t>(vocab));
  }
  Index done = 0;
  const auto step = [&] {
    engine.forward_backward({batch, seq_len, ids, targets, T, batch, 1});
    optimizer.step(config.train, 1e-4, ++done);
  };

  std::vector<TraceSpan> spans;
  traced_rank = &engine.mesh().rank_context();
  double speed_up = 0;
  for (const std::string& text : split_list(threads)) {
    const auto n = static_cast<std::size_t>(std::stoul(text));
    omp_set_num_threads(static_cast<int>(n));
    step();
    // Keeps the step with the shortest path: the system, and other programs, disturb some of them.
    std::vector<Region> of_best;
    double shortest = 0;
    for (int i = 0; i < 5; ++i) {
      traced_rank->trace_spans = &spans;
      recording = true;
      alone_since = thread_seconds();
      step();
      regions.push_back({"step", {{thread_seconds() - alone_since, {}, -1}}});
      recording = false;
      traced_rank->trace_spans = nullptr;
      double length = 0;
      for (const Region& r : regions) length += path(r, n);
      if (i == 0 || length < shortest) shortest = length, of_best.swap(regions);
      regions.clear();
      spans.clear();
    }

    double all = 0, longest = 0, alone = 0;
    struct Lost {
      double alone = 0, unequal = 0;
    };
    std::map<std::string, Lost> lost;
    for (const Region& r : of_best) {
      const double w = work(r), p = path(r, n);
      all += w;
      longest += p;
      if (r.shares.size() == 1) alone += w;
      (r.shares.size() == 1 ? lost[r.where].alone : lost[r.where].unequal) += p - w / static_cast<double>(n);
    }
    speed_up = all / longest;
    fmt::print("{} threads: {:.1f} ms of work, longest path {:.2f} ms, speed-up {:.1f}; alone {:.2f} ms\n", n,
               1e3 * all, 1e3 * longest, speed_up, 1e3 * alone);
    std::vector<std::pair<std::string, Lost>> most(lost.begin(), lost.end());
    std::sort(most.begin(), most.end(), [](const auto& a, const auto& b) {
      return a.second.alone + a.second.unequal > b.second.alone + b.second.unequal;
    });
    for (std::size_t i = 0; i < std::min<std::size_t>(n > 1 ? 6 : 0, most.size()); ++i)
      fmt::print("  {:<24} loses {:.2f} ms of the path to one thread alone, {:.2f} ms to tasks too few or unequal\n",
                 most[i].first, 1e3 * most[i].second.alone, 1e3 * most[i].second.unequal);
  }
  if (speed_up >= least) return 0;
  fmt::print("the speed-up is below {}\n", least);
  return 1;
}

}  // namespace
}  // namespace sy::bench

int main(int argc, char** argv) {
  // Threads that wait in a region must not take processor time, which would count as theirs.
  const char* const policy = std::getenv("OMP_WAIT_POLICY");
  if (!policy || std::string_view(policy) != "passive") {
    setenv("OMP_WAIT_POLICY", "passive", 1);
    execv("/proc/self/exe", argv);
  }
  return sy::bench::exit_code_of("bench_threads", argv, [&] { return sy::bench::run(argc, argv); });
}
