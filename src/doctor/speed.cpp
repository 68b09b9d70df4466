#include <algorithm>
#include <limits>

#include "kernels/device.h"
#include "kernels/ops/gemm.h"
#include "src/config.h"
#include "src/config/layout.h"
#include "src/doctor/probes.h"

namespace sy {
namespace {

// The GEMM y = a w; all three matrices are [width, width].
class SquareGemm {
 public:
  SquareGemm(Device& device, Index width)
      : device_(device),
        a_(device.tensor({width, width})),
        w_(device.tensor({width, width})),
        y_(device.tensor({width, width})) {
    const std::vector<float> values(static_cast<std::size_t>(width * width), 0.5f);
    device.to_device(values.data(), a_);
    device.to_device(values.data(), w_);
    seconds(1);  // warm-up: allocations, thread starts, kernel look-up
  }
  // Returns the seconds of `times` GEMMs in a row.
  double seconds(int times) const {
    const auto begin = std::chrono::steady_clock::now();
    for (int i = 0; i < times; ++i) run(device_, ops::Gemm{.a = a_, .b = w_.view(), .c = y_});
    device_.synchronize();
    return seconds_since(begin);
  }

 private:
  Device& device_;
  Tensor a_, w_, y_;
};

constexpr Index min_width = 256, max_width = 2048;

// Returns the smallest width whose GEMM takes a millisecond, or max_width.
Index choose_width(Device& device) {
  Index width = min_width;
  while (width < max_width && SquareGemm(device, width).seconds(1) < 1e-3) width *= 2;
  return width;
}

// Measures five times about 10 ms and takes the median. It shows a lowered clock or a shared CPU,
// but no short interruption.
double flops_per_second(Device& device, Index width) {
  const SquareGemm product(device, width);
  const int times = std::max(1, static_cast<int>(0.01 / std::max(product.seconds(1), 1e-6)));
  std::array<double, 5> seconds{};
  for (double& s : seconds) s = product.seconds(times);
  std::nth_element(seconds.begin(), seconds.begin() + 2, seconds.end());
  const auto n = static_cast<double>(width);
  return 2 * n * n * n * times / seconds[2];
}

}  // namespace

double time_of_day() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

// Each rank reports its clock after a broadcast of rank 0.
// It reads its clock after rank 0 has begun and before rank 0 has received the answers. These two
// times bound the reading by rank 0's clock (Cristian, "Probabilistic clock synchronization",
// 1989). The shortest of ten rounds counts.
std::pair<double, double> probe_clock(Comm& world, double (*clock)()) {
  const int ranks = world.size();
  // Difference of each rank's clock, and the error; times: the ranks' clocks.
  std::vector<double> best(static_cast<std::size_t>(ranks) + 1), times(best.size() - 1);
  best.back() = std::numeric_limits<double>::max();
  for (int round = 0; round < 10; ++round) {
    world.barrier();
    const double begin = clock();
    Index start = 0;
    world.broadcast(view_of(&start, {1}), 0);
    const double mine = clock();
    world.all_gather(view_of(&mine, {1}), view_of(times.data(), {ranks}));
    const double error = (clock() - begin) / 2;
    if (error >= best.back()) continue;
    for (int r = 0; r < ranks; ++r) best[r] = times[r] - (begin + error);
    best.back() = error;
  }
  world.broadcast(view_of(best.data(), {ranks + 1}), 0);
  return world.rank() == 0 ? std::pair(0.0, 0.0) : std::pair(best[world.rank()], best.back());
}

double probe_speed(Comm& world, int local_rank) {
  std::unique_ptr<Device> device;
  Index width = max_width;
  try {
    if (local_rank >= 0) {
      device = open_device("the backend", "auto", local_rank);
      device->publish_waits_to(block_state(world.shared_context()));
      width = choose_width(*device);
    }
  } catch (const Error&) {
    device.reset();  // the facts of its device give the reason
  }
  width = -world.max(-width);  // one size for all, and all at the same time
  try {
    return device ? flops_per_second(*device, width) : 0;
  } catch (const Error&) {
    return 0;
  }
}

}  // namespace sy
