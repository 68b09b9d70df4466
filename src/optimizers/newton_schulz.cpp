#include "src/optimizers/newton_schulz.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "kernels/ops/elementwise.h"
#include "kernels/ops/gemm.h"

namespace sy {
namespace {

constexpr int iterations = 5;
// X = a X + (b A + c A A) X with A = X X^T. A tall matrix uses A = X^T X, the smaller product.
void iterate(Device& device, View x, View scratch) {
  constexpr float a = 3.4445f, b = -4.7750f, c = 2.0315f;
  const Index rows = x.dim(0), columns = x.dim(1), n = std::min(rows, columns);
  const bool tall = rows > columns;
  const View square = scratch.rows(0, n * n).reshape({n, n}), polynomial = scratch.rows(n * n, n * n).reshape({n, n}),
             product = scratch.rows(2 * n * n, rows * columns).reshape({rows, columns});
  run(device, ops::Gemm{.a = x, .b = x, .transpose_a = tall, .transpose_b = !tall, .c = square});
  run(device, ops::Gemm{.a = square, .b = square, .c = polynomial});
  run(device, ops::Scale{.x = polynomial, .factor = c});
  run(device, ops::Scale{.x = square, .factor = b});
  run(device, ops::Add{.x = square, .y = polynomial});
  run(device, ops::Gemm{.a = tall ? x : polynomial, .b = tall ? polynomial : x, .c = product});
  run(device, ops::Scale{.x = x, .factor = a});
  run(device, ops::Add{.x = product, .y = x});
}

}  // namespace

Index newton_schulz_scratch(Index rows, Index columns) {
  const Index n = std::min(rows, columns);
  return 2 * n * n + rows * columns;
}

void newton_schulz(Device& device, std::span<const View> matrices, View squares, View scratch) {
  if (matrices.empty()) return;
  run(device, ops::Fill{.x = squares, .value = 0});
  for (std::size_t i = 0; i < matrices.size(); ++i)
    run(device, ops::SumSquares{.x = matrices[i], .out = squares.rows(static_cast<Index>(i), 1)});
  std::vector<double> sums(matrices.size());
  device.to_host(squares, sums.data());
  for (std::size_t i = 0; i < matrices.size(); ++i) {
    run(device, ops::Scale{.x = matrices[i], .factor = static_cast<float>(1 / (std::sqrt(sums[i]) + 1e-7))});
    for (int k = 0; k < iterations; ++k) iterate(device, matrices[i], scratch);
  }
}

}  // namespace sy
