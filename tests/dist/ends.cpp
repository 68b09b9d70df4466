// Programs that end (ends.sh). Without an argument: the last rank alone fails, while it holds what cannot be freed, as memory of a
// GPU cannot while a collective waits there for other ranks: or_end_all must end all ranks nevertheless. With "slow": all ranks
// return 1, and the first, which has printed, is slow to leave: what it has printed must be out before the others leave. With
// "differ" and a case: the last of the ranks does something else than the others (dist/compare.h).
#include <chrono>
#include <thread>

#include <vector>

#include "dist/activity.h"
#include "dist/runtime.h"

namespace {

struct Stuck {
  ~Stuck() { std::this_thread::sleep_for(std::chrono::hours(1)); }
};

struct Slow {
  ~Slow() { std::this_thread::sleep_for(wait); }
  std::chrono::seconds wait{0};
};
Slow slow;  // destroyed before what was printed is flushed

void differ(sy::Comm& world, std::string_view what) {
  using sy::Index, sy::view_of;
  const int n = world.size();
  const bool other = world.rank() == n - 1;
  // All but the first rank, in a communicator of their own.
  const auto part = world.split([](int rank) { return rank > 0; });
  world.barrier();
  const sy::Doing doing(other && what == "layer" ? "backward pass" : "forward pass", 2);
  std::vector<float> x(static_cast<std::size_t>(8 * n)), all(static_cast<std::size_t>(8 * n * n));
  if (what == "operation" && other) world.all_gather(view_of(x.data(), {4}), view_of(all.data(), {4 * n}));
  if (what == "size" && other) return world.all_reduce(view_of(x.data(), {5}));
  if (what == "barrier" && other) return world.barrier();
  if (what == "group" && world.rank() > 0) part->all_reduce(view_of(x.data(), {other ? 3 : 2}));
  if (what == "elsewhere" && other) part->barrier();
  if (what == "counts") {
    // Everyone has a row for everyone, and the last rank expects two from the first one.
    std::vector<Index> send(static_cast<std::size_t>(n), 1), receive = send;
    if (other) receive[0] = 2;
    return world.all_to_all_v(view_of(x.data(), {n, 2}), send, view_of(all.data(), {other ? n + 1 : n, 2}), receive);
  }
  world.all_reduce(view_of(x.data(), {4}));
}

}  // namespace

int main(int argc, char** argv) {
  sy::Runtime runtime(&argc, &argv);
  sy::Comm& world = runtime.world();
  return runtime.run([&] {
    if (argc > 2) {
      differ(world, argv[2]);
      return 0;
    }
    if (argc > 1) {
      if (world.rank() == 0) {
        fmt::print("all that it found");
        slow.wait = std::chrono::seconds(10);
      }
      return 1;
    }
    const Stuck stuck;
    return sy::or_end_all(world, [&] {
      if (world.rank() == world.size() - 1) sy::bad_input("it fails alone");
      world.barrier();
      return 0;
    });
  });
}
