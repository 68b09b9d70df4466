// A program whose last rank alone fails, while it holds what cannot be freed, as memory of a GPU cannot while a collective
// waits there for other ranks: or_end_all must end all ranks nevertheless (ends.sh).
#include <chrono>
#include <thread>

#include "dist/runtime.h"

namespace {

struct Stuck {
  ~Stuck() { std::this_thread::sleep_for(std::chrono::hours(1)); }
};

}  // namespace

int main(int argc, char** argv) {
  sy::Runtime runtime(&argc, &argv);
  sy::Comm& world = runtime.world();
  return runtime.run([&] {
    const Stuck stuck;
    return sy::or_end_all(world, [&] {
      if (world.rank() == world.size() - 1) sy::bad_input("it fails alone");
      world.barrier();
      return 0;
    });
  });
}
