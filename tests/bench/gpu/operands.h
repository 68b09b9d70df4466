// Random operands of the measured operations.
#pragma once

#include "kernels/ops/grouped_gemm.h"
#include "kernels/philox.h"
#include "tests/bench/gpu/bench.h"

namespace sy::bench {

// Tensors of one operation. `random` and `zeros` have the compute type if no type is passed.
class Operands {
 public:
  Operands(Device& device, DType dtype) : b(device), compute(dtype) {}

  Device& b;
  const DType compute;

  View zeros(Shape shape, DType dtype) {
    tensors_.push_back(b.tensor(shape, dtype));
    return tensors_.back();
  }
  View zeros(Shape shape) { return zeros(shape, compute); }
  View random(Shape shape, DType dtype) {
    const View x = zeros(shape, dtype);
    fill_normal(b, x, 1, std::to_string(tensors_.size()));
    return x;
  }
  View random(Shape shape) { return random(shape, compute); }
  View f32(Shape shape) { return random(shape, DType::f32); }
  View i32(Shape shape) { return zeros(shape, DType::i32); }
  View numbers(const std::vector<std::int32_t>& values) {
    const View x = i32({static_cast<Index>(values.size())});
    b.to_device(values.data(), x);
    return x;
  }
  // [n] random integers below `end`.
  View below(Index n, Index end) {
    const RandomStream random(1, "below");
    std::vector<std::int32_t> values(n);
    for (Index i = 0; i < n; ++i) values[i] = static_cast<std::int32_t>(random.bits(i) % end);
    return numbers(values);
  }
  // Row offsets of experts that have equal shares of `rows` rows.
  GroupOffsets groups(Index rows, Index experts) {
    offsets_.resize(experts + 1);
    for (Index e = 0; e <= experts; ++e) offsets_[e] = static_cast<std::int32_t>(rows * e / experts);
    return {numbers(offsets_), offsets_.data()};
  }

 private:
  std::vector<Tensor> tensors_;
  std::vector<std::int32_t> offsets_;
};

}  // namespace sy::bench
