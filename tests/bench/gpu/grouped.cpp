// Products of experts with a call of cuBLAS for each and with one for all, and from which size on the first is better.
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

// A backend that takes one of the ways, whatever the size.
std::unique_ptr<Backend> backend_of(const Setup& setup, Index large_product) {
  const Environment variable("SWITCHYARD_LARGE_PRODUCT", std::to_string(large_product));
  return setup.make();
}

}  // namespace

void measure_grouped(const Setup& setup, std::vector<Section>& sections) {
  sections.push_back({"Experts' products: a call of cuBLAS each, or one for all", "", {}});
  Section& section = sections.back();
  const std::unique_ptr<Backend> apart = backend_of(setup, 0),
                                 together = backend_of(setup, std::numeric_limits<Index>::max());
  std::vector<BothWays> pairs;
  for (const Experts& e : setup.small ? std::span<const Experts>(small_sizes) : sizes) {
    Operands weights(*apart, setup.dtype);
    const View w = weights.random({e.count, e.n, e.q}), dw = weights.zeros(w.shape(), DType::f32);
    for (Index rows : {32, 128, 512, 2048}) {
      Operands operands(*apart, setup.dtype);
      const View x = operands.random({e.count * rows, e.q}), y = operands.random({e.count * rows, e.n});
      const ExpertRows owned = operands.owned(e.count * rows, e.count);
      apart->synchronize();

      using Product = std::function<void(Backend&)>;
      const std::pair<const char*, Product> products[] = {
          {"forward", [&](Backend& b) { b.grouped_gemm(x, w, owned, y); }},
          {"weights' gradient", [&](Backend& b) { b.grouped_gemm_weight(y, x, owned, dw); }}};
      for (const auto& [what, product] : products) {
        const Run each = [&] { product(*apart); }, all = [&] { product(*together); };
        const Index n = repetitions(*apart, setup, each);
        std::vector<double> seconds_apart, seconds_together;
        for (int turn = 0; turn < setup.samples; ++turn) {
          seconds_apart.push_back(sample(*apart, n, each));
          seconds_together.push_back(sample(*together, n, all));
        }
        const Spread one_by_one = spread_of(seconds_apart), at_once = spread_of(seconds_together);
        const double multiplications = static_cast<double>(rows * e.n * e.q);
        pairs.push_back({multiplications, one_by_one.median, at_once.median});
        const std::string name = fmt::format("{}, {} x {} rows, {}", e.what, e.count, rows, what);
        const double flops = 2 * multiplications * static_cast<double>(e.count);
        section.lines.push_back({.what = name + ": each", .flops = flops, .seconds = one_by_one});
        section.lines.push_back({.what = name + ": all",
                                 .flops = flops,
                                 .seconds = at_once,
                                 .note = fmt::format("{:.2f} times", at_once.median / one_by_one.median)});
      }
    }
  }
  section.about = fmt::format(
      "{}. Gradients of weights in f32, which one call cannot compute from bf16, run on some streams instead.\nLeast time in "
      "the geometric mean of all: SWITCHYARD_LARGE_PRODUCT={} (multiplications of the mean expert).",
      info(setup.dtype).name, best_threshold(pairs));
}

}  // namespace sy::bench
