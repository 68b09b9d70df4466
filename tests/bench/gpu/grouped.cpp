// Measures expert products by three ways of cuBLAS. They are a call for each expert in turn, one
// call for all, and a call for each on side streams. It also finds the size from which a call for
// each is faster than one for all.
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
  Index large_product;
  const char* small_products;
};
constexpr Index always_small = std::numeric_limits<Index>::max();
constexpr Way ways[] = {{"each", 0, "grouped"}, {"all", always_small, "grouped"}, {"streams", always_small, "streams"}};
std::unique_ptr<Device> device_of(const Setup& setup, const Way& way) {
  const Environment threshold("SWITCHYARD_LARGE_PRODUCT", std::to_string(way.large_product)),
      small("SWITCHYARD_SMALL_PRODUCTS", way.small_products);
  return setup.make();
}

}  // namespace

void measure_grouped(const Setup& setup, std::vector<Section>& sections) {
  sections.push_back({"Experts' products: a call of cuBLAS each, one for all, or each on side streams", "", {}});
  Section& section = sections.back();
  std::vector<std::unique_ptr<Device>> devices;
  for (const Way& way : ways) devices.push_back(device_of(setup, way));
  Device& first = *devices.front();
  std::vector<BothWays> pairs;
  for (const Experts& e : setup.small ? std::span<const Experts>(small_sizes) : sizes) {
    Operands weights(first, setup.dtype);
    const View w = weights.random({e.count, e.n, e.q}), dw = weights.zeros(w.shape(), DType::f32);
    for (Index rows : {32, 128, 512, 2048}) {
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
        const double each = spread_of(seconds[0]).median;
        pairs.push_back({multiplications, each, spread_of(seconds[1]).median});
        for (std::size_t way = 0; way < devices.size(); ++way) {
          const Spread spread = spread_of(seconds[way]);
          section.lines.push_back(
              {.what = fmt::format("{}, {} x {} rows, {}: {}", e.what, e.count, rows, what, ways[way].name),
               .flops = flops,
               .seconds = spread,
               .note = way == 0 ? "" : fmt::format("{:.2f} times", spread.median / each)});
        }
      }
    }
  }
  section.about = fmt::format(
      "{}. One call cannot compute gradients of weights in f32 from bf16: they run on side streams instead.\nLeast time in "
      "the geometric mean of \"each\" and \"all\": SWITCHYARD_LARGE_PRODUCT={} (multiplications of the mean expert). If "
      "\"streams\" is faster than \"all\" below it, set SWITCHYARD_SMALL_PRODUCTS=streams.",
      info(setup.dtype).name, best_threshold(pairs));
}

}  // namespace sy::bench
