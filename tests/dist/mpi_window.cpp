// Collectives through shared memory on simulated nodes: the tests choose the ranks that share a
// window, and the size of its buffers.
// Results must be bitwise equal to those of MPI alone, and to sums in rank order.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <map>
#include <numeric>
#include <span>
#include <thread>

#include "dist/window.h"
#include "kernels/philox.h"
#include "tests/mpi_world.h"

namespace sy {
namespace {

using test::world;

struct Nodes {
  const char* name;
  int (*of)(int rank, int size);  // node of a rank; negative: the rank shares no window
};
constexpr Nodes all_nodes[] = {{"one", [](int, int) { return 0; }},
                               {"pairs", [](int r, int) { return r / 2; }},
                               {"last_alone", [](int r, int n) { return r == n - 1 ? -1 : 0; }},
                               {"first_alone", [](int r, int) { return r == 0 ? 0 : 1; }},
                               {"by_turns", [](int r, int) { return r % 2; }},
                               {"threes_by_turns", [](int r, int) { return r % 3 == 0 ? 0 : 1; }},
                               {"one_each", [](int r, int) { return r; }},
                               {"none", [](int, int) { return -1; }}};
constexpr Index smallest_half = 1024;  // bytes: even small data takes many messages

std::shared_ptr<Window> window_of(const Nodes& nodes, Index half) {
  std::string why;
  const int n = world().size();
  auto window = Window::open(
      MPI_COMM_WORLD, [&](int r) { return nodes.of(r, n); }, half, &why);
  int mates = 0;
  for (int r = 0; r < n; ++r) mates += nodes.of(r, n) >= 0 && nodes.of(r, n) == nodes.of(world().rank(), n);
  EXPECT_EQ(window ? window->size() : 1, std::max(mates, 1)) << why;
  return window;
}

// Test values that any rank can compute for any other rank.
float value(int rank, Index call, Index i) {
  return static_cast<float>(((Index{7919} * (rank + 1) + call * 104729 + i * 31) * 2654435761u >> 7) % 2000003) *
             1e-3f -
         1000.0f;
}
std::vector<float> values(int rank, Index call, Index n) {
  std::vector<float> x(n);
  for (Index i = 0; i < n; ++i) x[i] = value(rank, call, i);
  return x;
}

// Compares bytes, since NaN is not equal to itself.
template <class T>
void expect_same(const std::vector<T>& a, const std::vector<T>& b, const std::string& what) {
  ASSERT_EQ(a.size(), b.size()) << what;
  const auto x = std::as_bytes(std::span(a)), y = std::as_bytes(std::span(b));
  const auto at = static_cast<std::size_t>(std::mismatch(x.begin(), x.end(), y.begin()).first - x.begin()) / sizeof(T);
  if (at < a.size()) FAIL() << what << ": " << a[at] << " and " << b[at] << " at " << at;
}

// Runs each collective on the group, and returns the contents of the buffers.
// Every buffer begins `skew` elements after its allocation.
template <class T>
std::vector<T> all_collectives(Comm& comm, Index n, Index skew) {
  const int P = comm.size(), r = comm.rank();
  std::vector<T> left;
  const auto made = [&](Index elements, Index call) {
    std::vector<T> x(elements + skew);
    for (Index i = 0; i < elements; ++i) x[i + skew] = static_cast<T>(value(r, call, i) * 1e3f);
    return x;
  };
  const auto view = [&](std::vector<T>& x) { return view_of(x.data() + skew, {static_cast<Index>(x.size()) - skew}); };
  const auto keep = [&](const std::vector<T>& x) { left.insert(left.end(), x.begin(), x.end()); };
  for (int root = 0; root < P; ++root) {
    std::vector<T> x = made(n, root);
    comm.broadcast(view(x), root);
    keep(x);
  }
  std::vector<T> part = made(n, 100), all = made(n * P, 101), in = made(n * P, 102);
  comm.all_gather(view(part), view(all));
  keep(all);
  comm.all_gather(view(in).rows(r * n, n), view(in));
  keep(in);
  // Rank s sends (s + 2 d) % 3 * n elements to rank d; rank 1 sends five times as many.
  const auto rows = [&](int s, int d) { return (s + 2 * d) % 3 * n * (s == 1 ? 5 : 1); };
  std::vector<Index> send, receive;
  for (int d = 0; d < P; ++d) send.push_back(rows(r, d)), receive.push_back(rows(d, r));
  std::vector<T> out = made(std::reduce(receive.begin(), receive.end()), 103);
  in = made(std::reduce(send.begin(), send.end()), 104);
  comm.all_to_all_v(view(in), send, view(out), receive);
  keep(out);
  comm.barrier();
  if constexpr (sizeof(T) == 1) return left;
  for (const Reduce op : {Reduce::sum, Reduce::max}) {
    std::vector<T> x = made(n, 105);
    comm.all_reduce(view(x), op);
    keep(x);
  }
  if constexpr (!std::is_same_v<T, float>) return left;
  in = made(n * P, 106);
  comm.reduce_scatter(view(in), view(part));
  keep(part);
  comm.reduce_scatter(view(in), view(in).rows(r * n, n));
  keep(in);
  for (int root = 0; root < P; ++root) {
    std::vector<T> x = made(n, 107);
    comm.start_reduce(view(x), root);
    comm.wait();
    if (r == root) keep(x);
  }
  return left;
}

class WindowNodes : public ::testing::TestWithParam<Nodes> {};

// Compares with the results of MPI alone. They are the same for all nodes, and computed once.
template <class T>
void expect_what_mpi_gives(Comm& comm, Index n, Index skew, const std::string& what) {
  static std::map<std::pair<Index, Index>, std::vector<T>> known;
  std::vector<T>& expected = known[{n, skew}];
  if (expected.empty()) expected = all_collectives<T>(*make_comm_mpi(MPI_COMM_WORLD, false, nullptr), n, skew);
  expect_same(all_collectives<T>(comm, n, skew), expected, fmt::format("{}, {} elements, {} skewed", what, n, skew));
}

TEST_P(WindowNodes, GiveWhatMpiAloneGives) {
  for (const Index half : {smallest_half, Window::default_half}) {
    const auto comm = make_comm_mpi(MPI_COMM_WORLD, false, window_of(GetParam(), half));
    const std::string what = fmt::format("halves of {} bytes", half);
    for (const Index n : {0, 1, 3, 1000}) expect_what_mpi_gives<float>(*comm, n, 0, what);
    expect_what_mpi_gives<float>(*comm, half == smallest_half ? 5003 : 70001, 1, what);
    for (const Index n : {3, 2501}) {
      expect_what_mpi_gives<double>(*comm, n, 1, what);
      expect_what_mpi_gives<std::int64_t>(*comm, n, 0, what);
      expect_what_mpi_gives<std::uint8_t>(*comm, n, 1, what);
    }
  }
}

// Hundreds of small calls of several groups, by ranks with random delays.
TEST_P(WindowNodes, ManyCallsInARow) {
  const int P = world().size(), me = world().rank();
  const auto all = make_comm_mpi(MPI_COMM_WORLD, false, window_of(GetParam(), smallest_half));
  struct Group {
    std::unique_ptr<Comm> comm;
    std::vector<int> ranks;
  };
  std::vector<Group> groups;
  for (const auto color : {+[](int) { return 0; }, +[](int r) { return r % 2; }, +[](int r) { return r / 2; },
                           +[](int r) { return r == 0 ? 1 : 0; }}) {
    Group g{all->split(color), {}};
    for (int r = 0; r < P; ++r)
      if (color(r) == color(me)) g.ranks.push_back(r);
    groups.push_back(std::move(g));
  }
  const RandomStream random(5, "window"), late(5 + me, "late");
  const int calls = 500;
  for (Index call = 0; call < calls; ++call) {
    const Group& g = groups[random.bits(3 * call) % groups.size()];
    const Index n = static_cast<Index>(random.bits(3 * call + 1) % (random.bits(3 * call + 1) % 8 == 0 ? 3000 : 40));
    const std::uint64_t lateness = late.bits(call) % 64;
    if (lateness < 2) std::this_thread::sleep_for(std::chrono::microseconds(lateness == 0 ? 30 : 1000));
    const int size = g.comm->size(), r = g.comm->rank();
    std::vector<float> x = values(me, call, n), expected;
    switch (random.bits(3 * call + 2) % 5) {
      case 0: {
        g.comm->all_reduce(view_of(x.data(), {n}));
        expected = values(g.ranks[0], call, n);
        for (int s = 1; s < size; ++s)
          for (Index i = 0; i < n; ++i) expected[i] += value(g.ranks[s], call, i);
        break;
      }
      case 1: {
        std::vector<float> gathered(n * size);
        g.comm->all_gather(view_of(x.data(), {n}), view_of(gathered.data(), {n * size}));
        x = gathered;
        for (const int rank : g.ranks)
          for (const float v : values(rank, call, n)) expected.push_back(v);
        break;
      }
      case 2: {  // n / size rows to each rank
        std::vector<Index> rows(size, n / size);
        const std::vector<float> in = values(me, call, n / size * size);
        x.assign(n / size * size, 0);
        g.comm->all_to_all_v(view_of(in.data(), {n / size * size}), rows, view_of(x.data(), {n / size * size}), rows);
        for (const int rank : g.ranks)
          for (Index i = 0; i < n / size; ++i) expected.push_back(value(rank, call, r * (n / size) + i));
        break;
      }
      case 3: {
        const int root = static_cast<int>(n % size);
        g.comm->broadcast(view_of(x.data(), {n}), root);
        expected = values(g.ranks[root], call, n);
        break;
      }
      default: {
        const std::vector<float> in = values(me, call, n * size);
        g.comm->reduce_scatter(view_of(in.data(), {n * size}), view_of(x.data(), {n}));
        for (Index i = 0; i < n; ++i) {
          expected.push_back(value(g.ranks[0], call, r * n + i));
          for (int s = 1; s < size; ++s) expected[i] += value(g.ranks[s], call, r * n + i);
        }
      }
    }
    expect_same(x, expected, fmt::format("call {} on {} ranks", call, size));
  }
}

TEST_P(WindowNodes, NobodyLeavesABarrierBeforeAllAreThere) {
  const auto comm = make_comm_mpi(MPI_COMM_WORLD, false, window_of(GetParam(), smallest_half));
  const auto now = [] { return std::chrono::steady_clock::now().time_since_epoch().count(); };
  for (int i = 0; i < 20; ++i) {
    if (i % comm->size() == comm->rank()) std::this_thread::sleep_for(std::chrono::milliseconds(i % 3 * 4));
    const Index came = now();
    comm->barrier();
    const Index left = now();
    EXPECT_GE(-world().max(-left), world().max(came)) << i;
  }
}

INSTANTIATE_TEST_SUITE_P(, WindowNodes, ::testing::ValuesIn(all_nodes), [](const auto& i) { return i.param.name; });

// Buffers begin at a cache line for any address of MPI's memory: two ranks never write to one line.
TEST(Window, BeginsWithACacheLine) {
  const auto window = window_of(all_nodes[0], smallest_half);
  if (!window) return;  // there is only one rank
  const int n = window->size(), before = (window->rank() + n - 1) % n;
  const std::byte word{42};
  window->turn();
  window->send((window->rank() + 1) % n, window->put(&word, 1), 1);
  const std::span<const std::byte> received = window->take(before);
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(received.data()) % Window::line, 0);
  EXPECT_EQ(received[0], word);
  window->done(before);
}

// If memory is short, all ranks agree on that and run without a window.
TEST(Window, TooLargeForTheMachine) {
  std::string why;
  const auto window = Window::open(
      MPI_COMM_WORLD, [](int) { return 0; }, Index{1} << 50, &why);
  EXPECT_EQ(window, nullptr);
  EXPECT_EQ(why.find("/dev/shm") != why.npos, world().size() > 1) << why;
}

}  // namespace
}  // namespace sy
