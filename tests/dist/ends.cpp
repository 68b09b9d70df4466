// Two programs (ends.sh). Without an argument: the last rank alone fails, while it holds what cannot be freed, as memory of a
// GPU cannot while a collective waits there for other ranks: or_end_all must end all ranks nevertheless. With one: all ranks
// return 1, and the first, which has printed, is slow to leave: what it has printed must be out before the others leave.
#include <chrono>
#include <thread>

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

}  // namespace

int main(int argc, char** argv) {
  sy::Runtime runtime(&argc, &argv);
  sy::Comm& world = runtime.world();
  return runtime.run([&] {
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
