// xIELU: an activation with two learned parameters.
#include "kernels/ops/activation.h"

#include "kernels/cpu/cpu_device.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/rows.h"
#include "kernels/cpu/vector_math.h"
#include "kernels/formulas/xielu.h"

namespace sy::cpu {

namespace {

using formulas::XieluPoint;

struct VectorMath {
  static float exp(float x) { return exp_(x); }
};
using Function = formulas::Xielu<VectorMath>;

// Value of the function's factors and their derivatives with respect to the parameters.
struct Factors {
  formulas::Point positive, negative;
  explicit Factors(ConstView parameters)
      : positive(Function::softplus(parameters.f32()[0])), negative(Function::softplus(parameters.f32()[1])) {
    negative.value += 0.5f;
  }
};

// 47 FLOPs for each element.
void forward(float positive, float negative, const float* x, Index n, float* y) {
#pragma omp simd
  for (Index i = 0; i < n; ++i) y[i] = Function::at(x[i], positive, negative).value;
}

struct Sums {
  float positive, negative;
};
// 56 FLOPs for each element. Returns the gradient with respect to both factors.
Sums backward(float positive, float negative, const float* g, const float* x, Index n, float* dx) {
  float by_positive = 0, by_negative = 0;
#pragma omp simd reduction(+ : by_positive, by_negative)
  for (Index i = 0; i < n; ++i) {
    const XieluPoint p = Function::at(x[i], positive, negative);
    dx[i] = g[i] * p.slope;
    by_positive += g[i] * p.by_positive;
    by_negative += g[i] * p.by_negative;
  }
  return {by_positive, by_negative};
}

}  // namespace

// An element of y costs 8 bytes.
void execute(CpuDevice&, const ops::XieluForward& op) {
  const Index f = op.y.dim(1);
  const Factors factors(op.parameters);
  for_chunks(op.y.dim(0), rows_per_chunk(f), [&](Index begin, Index end) {
    Floats inputs(op.h, f);
    Results outputs(op.y, f);
    for (Index r = begin; r < end; ++r)
      forward(factors.positive.value, factors.negative.value, inputs.at(r * f), f, outputs.begin(r * f));
  });
}

// An element of dy costs 12 bytes.
void execute(CpuDevice&, const ops::XieluBackward& op) {
  const Index f = op.dy.dim(1);
  const Factors factors(op.parameters);
  for_chunks(op.dy.dim(0), rows_per_chunk(f), [&](Index begin, Index end) {
    Floats gradients(op.dy, f), inputs(op.h, f);
    Results outputs(op.dh, f);
    for (Index r = begin; r < end; ++r) {
      const Sums sums = backward(factors.positive.value, factors.negative.value, gradients.at(r * f), inputs.at(r * f),
                                 f, outputs.begin(r * f));
      if (!op.dparameters) continue;
      op.dparameters.f32()[2 * r] = sums.positive * factors.positive.slope;
      op.dparameters.f32()[2 * r + 1] = sums.negative * factors.negative.slope;
    }
  });
}

}  // namespace sy::cpu
