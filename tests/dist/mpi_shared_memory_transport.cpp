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

#include "dist/shared_memory_transport.h"
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
                               {"round_robin", [](int r, int) { return r % 2; }},
                               {"every_third", [](int r, int) { return r % 3 == 0 ? 0 : 1; }},
                               {"one_each", [](int r, int) { return r; }},
                               {"none", [](int, int) { return -1; }}};
constexpr Index small_buffer_bytes = 1024;  // even small data takes many messages

std::shared_ptr<SharedMemoryTransport> make_transport(const Nodes& nodes, Index buffer_bytes) {
  std::string why;
  const int n = world().size();
  auto transport = SharedMemoryTransport::open(
      world().rank_context().blocked, MPI_COMM_WORLD, [&](int r) { return nodes.of(r, n); }, buffer_bytes, &why);
  int node_size = 0;
  for (int r = 0; r < n; ++r) node_size += nodes.of(r, n) >= 0 && nodes.of(r, n) == nodes.of(world().rank(), n);
  EXPECT_EQ(transport ? transport->size() : 1, std::max(node_size, 1)) << why;
  return transport;
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
void expect_same(const std::vector<T>& a, const std::vector<T>& b, const std::string& description) {
  ASSERT_EQ(a.size(), b.size()) << description;
  const auto x = std::as_bytes(std::span(a)), y = std::as_bytes(std::span(b));
  const auto at = static_cast<std::size_t>(std::mismatch(x.begin(), x.end(), y.begin()).first - x.begin()) / sizeof(T);
  if (at < a.size()) FAIL() << description << ": " << a[at] << " and " << b[at] << " at " << at;
}

// Runs each collective on the group, and returns the contents of the buffers.
// Every buffer begins `skew` elements after its allocation.
template <class T>
std::vector<T> all_collectives(Comm& comm, Index n, Index skew) {
  const int P = comm.size(), r = comm.rank();
  std::vector<T> results;
  const auto make_input = [&](Index elements, Index call) {
    std::vector<T> x(elements + skew);
    for (Index i = 0; i < elements; ++i) x[i + skew] = static_cast<T>(value(r, call, i) * 1e3f);
    return x;
  };
  const auto view = [&](std::vector<T>& x) { return view_of(x.data() + skew, {static_cast<Index>(x.size()) - skew}); };
  const auto append = [&](const std::vector<T>& x) { results.insert(results.end(), x.begin(), x.end()); };
  for (int root = 0; root < P; ++root) {
    std::vector<T> x = make_input(n, root);
    comm.broadcast(view(x), root);
    append(x);
  }
  std::vector<T> block = make_input(n, 100), all = make_input(n * P, 101), in = make_input(n * P, 102);
  comm.all_gather(view(block), view(all));
  append(all);
  comm.all_gather(view(in).rows(r * n, n), view(in));
  append(in);
  // Rank s sends (s + 2 d) % 3 * n elements to rank d; rank 1 sends five times as many.
  const auto rows = [&](int s, int d) { return (s + 2 * d) % 3 * n * (s == 1 ? 5 : 1); };
  std::vector<Index> send, receive;
  for (int d = 0; d < P; ++d) send.push_back(rows(r, d)), receive.push_back(rows(d, r));
  std::vector<T> out = make_input(std::reduce(receive.begin(), receive.end()), 103);
  in = make_input(std::reduce(send.begin(), send.end()), 104);
  comm.all_to_all_v(view(in), send, view(out), receive);
  append(out);
  comm.barrier();
  if constexpr (sizeof(T) == 1) return results;
  for (const Reduce op : {Reduce::sum, Reduce::max}) {
    std::vector<T> x = make_input(n, 105);
    comm.all_reduce(view(x), op);
    append(x);
  }
  if constexpr (!std::is_same_v<T, float>) return results;
  in = make_input(n * P, 106);
  comm.reduce_scatter(view(in), view(block));
  append(block);
  comm.reduce_scatter(view(in), view(in).rows(r * n, n));
  append(in);
  for (int root = 0; root < P; ++root) {
    std::vector<T> x = make_input(n, 107);
    comm.start_reduce(view(x), root).wait();
    if (r == root) append(x);
  }
  return results;
}

class TransportNodes : public ::testing::TestWithParam<Nodes> {};

// Compares with the results of MPI alone. They are the same for all nodes, and computed once.
template <class T>
void expect_mpi_results(Comm& comm, Index n, Index skew, const std::string& description) {
  static std::map<std::pair<Index, Index>, std::vector<T>> known;
  std::vector<T>& expected = known[{n, skew}];
  if (expected.empty())
    expected = all_collectives<T>(*make_comm_mpi(world().shared_context(), MPI_COMM_WORLD, false, nullptr), n, skew);
  expect_same(all_collectives<T>(comm, n, skew), expected,
              fmt::format("{}, {} elements, {} skewed", description, n, skew));
}

TEST_P(TransportNodes, EqualsMpiCollectives) {
  for (const Index buffer_bytes : {small_buffer_bytes, SharedMemoryTransport::default_buffer_bytes}) {
    const auto comm =
        make_comm_mpi(world().shared_context(), MPI_COMM_WORLD, false, make_transport(GetParam(), buffer_bytes));
    const std::string description = fmt::format("buffers of {} bytes", buffer_bytes);
    for (const Index n : {0, 1, 3, 1000}) expect_mpi_results<float>(*comm, n, 0, description);
    expect_mpi_results<float>(*comm, buffer_bytes == small_buffer_bytes ? 5003 : 70001, 1, description);
    for (const Index n : {3, 2501}) {
      expect_mpi_results<double>(*comm, n, 1, description);
      expect_mpi_results<std::int64_t>(*comm, n, 0, description);
      expect_mpi_results<std::uint8_t>(*comm, n, 1, description);
    }
  }
}

// Hundreds of small calls of several groups, by ranks with random delays.
TEST_P(TransportNodes, RunsManySmallCallsOfSeveralGroups) {
  const int P = world().size(), me = world().rank();
  const auto all =
      make_comm_mpi(world().shared_context(), MPI_COMM_WORLD, false, make_transport(GetParam(), small_buffer_bytes));
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

TEST_P(TransportNodes, BarrierWaitsForAllRanks) {
  const auto comm =
      make_comm_mpi(world().shared_context(), MPI_COMM_WORLD, false, make_transport(GetParam(), small_buffer_bytes));
  const auto now = [] { return std::chrono::steady_clock::now().time_since_epoch().count(); };
  for (int i = 0; i < 20; ++i) {
    if (i % comm->size() == comm->rank()) std::this_thread::sleep_for(std::chrono::milliseconds(i % 3 * 4));
    const Index entered = now();
    comm->barrier();
    const Index exited = now();
    EXPECT_GE(-world().max(-exited), world().max(entered)) << i;
  }
}

INSTANTIATE_TEST_SUITE_P(, TransportNodes, ::testing::ValuesIn(all_nodes), [](const auto& i) { return i.param.name; });

// Buffers begin at a cache line for any address of MPI's memory: two ranks never write to one line.
TEST(SharedMemoryTransport, AlignsBuffersToCacheLines) {
  const auto transport = make_transport(all_nodes[0], small_buffer_bytes);
  if (!transport) return;  // there is only one rank
  const int n = transport->size(), before = (transport->rank() + n - 1) % n;
  const std::byte value{42};
  transport->next_buffer();
  transport->send((transport->rank() + 1) % n, transport->write(&value, 1), 1);
  const std::span<const std::byte> received = transport->receive(before);
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(received.data()) % SharedMemoryTransport::line, 0);
  EXPECT_EQ(received[0], value);
  transport->acknowledge(before);
}

// If memory is short, all ranks agree on that and run without a window.
TEST(SharedMemoryTransport, IsNotOpenedIfMemoryIsShort) {
  std::string why;
  const auto transport = SharedMemoryTransport::open(
      world().rank_context().blocked, MPI_COMM_WORLD, [](int) { return 0; }, Index{1} << 50, &why);
  EXPECT_EQ(transport, nullptr);
  EXPECT_EQ(why.find("/dev/shm") != why.npos, world().size() > 1) << why;
}

}  // namespace
}  // namespace sy
