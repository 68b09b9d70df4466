// Measures expert products by three ways of cuBLAS and, in a build with SWITCHYARD_CUTLASS, by the
// kernel on top of CUTLASS. The ways of cuBLAS are a call for each expert in turn, a call for each
// on side streams, and one call for all. It also finds the sizes at which another of these becomes
// the fastest.
#include "kernels/ops/grouped_gemm.h"
#include "tests/bench/gpu/operands.h"
#include "tests/bench/gpu/threshold.h"

namespace sy::bench {
namespace {

// w: [count, n, q].
struct Experts {
  const char* what;
  Index count, n, q;
};
const Experts sizes[] = {{"Mixtral 8x7B, up", 8, 2 * 14336, 4096}, {"64 experts, up", 64, 2 * 1408, 2048}};
const Experts small_sizes[] = {{"small", 3, 24, 16}};

// A way of computing products, which its device uses for all sizes.
struct Way {
  const char* name;
  Index small_product, large_product;
  const char* cutlass = "0";
};
constexpr Index infinite = std::numeric_limits<Index>::max();
enum { each, streams, all };  // indices of `ways`
constexpr Way ways[] = {{"each", 0, 0}, {"streams", 0, infinite}, {"all", infinite, infinite}, {"CUTLASS", 0, 0, "1"}};
std::unique_ptr<Device> device_of(const Setup& setup, const Way& way) {
  const Environment small("SWITCHYARD_SMALL_PRODUCT", std::to_string(way.small_product)),
      large("SWITCHYARD_LARGE_PRODUCT", std::to_string(way.large_product)), cutlass("SWITCHYARD_CUTLASS", way.cutlass);
  return setup.make();
}

}  // namespace

void measure_grouped(const Setup& setup, std::vector<Section>& sections) {
  sections.push_back({"Experts' products: a call of cuBLAS each, each on side streams, or one for all", "", {}});
  Section& section = sections.back();
  std::vector<std::unique_ptr<Device>> devices;
  for (const Way& way : ways) devices.push_back(device_of(setup, way));
  // Without the kernel, the last way is the first one.
  if (!devices.back()->supports_gathered_rows(setup.dtype, {})) devices.pop_back();
  Device& first = *devices.front();
  std::vector<BothWays> small, large;
  for (const Experts& e : setup.small ? std::span<const Experts>(small_sizes) : sizes) {
    Operands weights(first, setup.dtype);
    const View w = weights.random({e.count, e.n, e.q}), dw = weights.zeros(w.shape(), DType::f32);
    for (Index rows : {64, 256, 1024, 2048}) {
      Operands operands(first, setup.dtype);
      const View x = operands.random({e.count * rows, e.q}), y = operands.random({e.count * rows, e.n});
      const GroupOffsets groups = operands.groups(e.count * rows, e.count);
      first.synchronize();

      using Product = std::function<void(Device&)>;
      const std::pair<const char*, Product> products[] = {
          {"forward", [&](Device& b) { ops::run(b, ops::GroupedGemm{.x = x, .w = w, .groups = groups, .y = y}); }},
          {"weights' gradient",
           [&](Device& b) { ops::run(b, ops::GroupedGemmWgrad{.dy = y, .x = x, .groups = groups, .dw = dw}); }}};
      for (const auto& [what, product] : products) {
        const auto run = [&](std::size_t way) { return [&, way] { product(*devices[way]); }; };
        const Index n = repetitions(first, setup, run(0));
        std::vector<std::vector<double>> seconds(devices.size());
        for (int round = 0; round < setup.samples; ++round)  // alternating, because clocks change
          for (std::size_t way = 0; way < devices.size(); ++way)
            seconds[way].push_back(sample(*devices[way], n, run(way)));
        const double multiplications = static_cast<double>(rows * e.n * e.q),
                     flops = 2 * multiplications * static_cast<double>(e.count);
        const auto median = [&](int way) { return spread_of(seconds[static_cast<std::size_t>(way)]).median; };
        // No single call computes gradients of weights in f32 from bf16: their `all` is `streams`.
        small.push_back({multiplications, median(streams), median(all)});
        large.push_back({multiplications, median(each), median(streams)});
        for (std::size_t way = 0; way < devices.size(); ++way) {
          const Spread spread = spread_of(seconds[way]);
          section.lines.push_back(
              {.what = fmt::format("{}, {} x {} rows, {}: {}", e.what, e.count, rows, what, ways[way].name),
               .flops = flops,
               .seconds = spread,
               .note = way == 0 ? "" : fmt::format("{:.2f} times", spread.median / median(each))});
        }
      }
    }
  }
  section.about = fmt::format(
      "{}. One call cannot compute gradients of weights in f32 from bf16: they run on side streams instead.\nLeast time "
      "in the geometric mean: SWITCHYARD_SMALL_PRODUCT={}, SWITCHYARD_LARGE_PRODUCT={} (multiplications of the mean "
      "expert).",
      info(setup.dtype).name, best_threshold(small), best_threshold(large));
}

}  // namespace sy::bench
