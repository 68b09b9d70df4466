// Roofs, and tables of the measurements under them.
#include "kernels/device.h"
#include "kernels/ops/elementwise.h"
#include "kernels/ops/gemm.h"
#include "src/text/table.h"
#include "tests/bench/gpu/bench.h"

namespace sy::bench {
namespace {

struct Product {
  Index m, n, q;
};

// FLOP/s of y: [m, n] = x W^T, x: [m, q].
double product_rate(Device& b, const Setup& setup, DType dtype, const Product& p) {
  const Tensor x = b.tensor({p.m, p.q}, dtype), w = b.tensor({p.n, p.q}, dtype), y = b.tensor({p.m, p.n}, dtype);
  fill_normal(b, x, 1, "x");
  fill_normal(b, w, 1, "w");
  const Run run = [&] { ops::run(b, ops::Gemm{.a = x, .b = w, .transpose_b = true, .c = y}); };
  return 2.0 * static_cast<double>(p.m * p.n * p.q) / sample(b, repetitions(b, setup, run), run);
}

double best_product_rate(Device& b, const Setup& setup, DType dtype) {
  const std::vector<Product> products =
      setup.small              ? std::vector<Product>{{96, 96, 96}, {128, 64, 64}}
      : setup.backend == "cpu" ? std::vector<Product>{{1024, 1024, 1024}}
                               : std::vector<Product>{{4096, 4096, 4096}, {8192, 8192, 8192}, {8192, 28672, 4096}};
  double best = 0;
  for (const Product& p : products) best = std::max(best, product_rate(b, setup, dtype, p));
  return best;
}

// Bytes/s, read and written, of a copy or a sum, whichever is faster.
double memory_rate(Device& b, const Setup& setup) {
  const Index n = setup.small ? 1 << 14 : setup.backend == "cpu" ? 1 << 26 : 1 << 28;
  const Tensor x = b.tensor({n}), y = b.tensor({n});
  fill_normal(b, x, 1, "x");
  const auto rate = [&](double operands, const Run& run) {
    return operands * static_cast<double>(4 * n) / sample(b, repetitions(b, setup, run), run);
  };
  return std::max(rate(2, [&] { ops::run(b, ops::Copy{.x = x, .y = y}); }),
                  rate(3, [&] { ops::run(b, ops::Add{.x = x, .y = y}); }));
}

// Table in Markdown with padded columns, readable as plain text. The first row is its header.
std::string markdown_of(const std::vector<std::vector<std::string>>& rows) {
  std::vector<std::size_t> widths(rows[0].size());
  for (const auto& row : rows)
    for (std::size_t c = 0; c < row.size(); ++c)
      widths[c] = std::max(widths[c], static_cast<std::size_t>(display_width(row[c])));
  std::string out;
  for (std::size_t r = 0; r < rows.size(); ++r) {
    for (std::size_t c = 0; c < widths.size(); ++c)
      out +=
          "| " + rows[r][c] + std::string(widths[c] - static_cast<std::size_t>(display_width(rows[r][c])), ' ') + " ";
    out += "|\n";
    if (r > 0) continue;
    for (std::size_t width : widths) out += "| " + std::string(width, '-') + " ";
    out += "|\n";
  }
  return out;
}

std::string range(const Spread& x, double unit) {
  return fmt::format("{:.4g} ({:.4g} to {:.4g})", x.median / unit, x.least / unit, x.most / unit);
}

std::string table_of(const Roofs& roofs, const std::vector<Line>& lines) {
  std::vector<std::vector<std::string>> rows = {{"", "ms", "TFLOP/s", "TB/s", "share", "of", ""}};
  for (const Line& line : lines) {
    const double t = line.seconds.median, products = roofs.product_seconds(line.flops),
                 memory = roofs.memory_seconds(line.bytes);
    const auto rate = [&](double amount) { return amount > 0 ? fmt::format("{:.4g}", amount / t / 1e12) : ""; };
    const bool quoted = products + memory > 0;
    rows.push_back({line.what, range(line.seconds, 1e-3), rate(line.flops), rate(line.bytes),
                    quoted ? fmt::format("{:.0f} %", 100 * std::max(products, memory) / t) : "",
                    !quoted              ? ""
                    : products >= memory ? "products"
                                         : "memory",
                    line.note});
  }
  return markdown_of(rows);
}

}  // namespace

void Roofs::measure() {
  const std::unique_ptr<Device> b = setup_.make();
  memory_.push_back(memory_rate(*b, setup_));
  f32_.push_back(best_product_rate(*b, setup_, DType::f32));
  if (setup_.dtype == DType::bf16) bf16_.push_back(best_product_rate(*b, setup_, DType::bf16));
}

std::string Roofs::markdown() const {
  std::vector<std::vector<std::string>> rows = {{"roof", "median (least to most)"}};
  if (!bf16_.empty()) rows.push_back({"products, bf16, TFLOP/s", range(spread_of(bf16_), 1e12)});
  rows.push_back({"products, f32, TFLOP/s", range(spread_of(f32_), 1e12)});
  rows.push_back({"memory, TB/s", range(spread_of(memory_), 1e12)});
  return markdown_of(rows);
}

std::string report(const Roofs& roofs, const std::vector<Section>& sections) {
  std::string out = roofs.markdown();
  for (const Section& s : sections)
    out += fmt::format("\n## {}\n\n{}\n{}", s.title, s.about, s.lines.empty() ? "" : "\n" + table_of(roofs, s.lines));
  return out;
}

}  // namespace sy::bench
