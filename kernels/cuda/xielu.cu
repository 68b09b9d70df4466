// xIELU: an activation with two learned parameters.
#include "kernels/ops/activation.h"

#include "kernels/cuda/cuda_device.h"
#include "kernels/cuda/rows.h"
#include "kernels/formulas/xielu.h"

namespace sy::cuda {

namespace {

using formulas::XieluPoint;

struct XieluMath {
  SY_HOST_DEVICE static float exp(float x) { return expf(x); }
};
using XieluFunction = formulas::Xielu<XieluMath>;

// A block takes a row. An element of y costs 2w bytes and about 25 FLOPs.
template <class T, int N>
__global__ void xielu(Index width, In<T> h, In<float> parameters, Out<T> y) {
  const float positive = XieluFunction::softplus(parameters[0]).value;
  const float negative = 0.5f + XieluFunction::softplus(parameters[1]).value;
  const Index start = Index{blockIdx.x} * width;
  for_row<N>(width, [&](Index i) {
    const auto x = load<N>(h, start + i);
    store<N>(y, start + i,
             pack_of<T, N>([&](int e) { return XieluFunction::at(to_float(x[e]), positive, negative).value; }));
  });
}

// A block takes a row. dparameters: [R, 2] or nullptr. An element of dy costs 3w bytes and about 35
// FLOPs.
template <class T, int N>
__global__ void xielu_gradient(Index width, In<T> dy, In<T> h, In<float> parameters, Out<T> dh,
                               Out<float> dparameters) {
  const formulas::Point positive = XieluFunction::softplus(parameters[0]),
                        negative = XieluFunction::softplus(parameters[1]);
  const Index start = Index{blockIdx.x} * width;
  float by_positive = 0, by_negative = 0;
  for_row<N>(width, [&](Index i) {
    const auto g = load<N>(dy, start + i), x = load<N>(h, start + i);
    Pack<T, N> dx;
    for (int e = 0; e < N; ++e) {
      const XieluPoint p = XieluFunction::at(to_float(x[e]), positive.value, 0.5f + negative.value);
      const float ge = to_float(g[e]);
      dx[e] = from_float<T>(ge * p.slope);
      by_positive += ge * p.by_positive;
      by_negative += ge * p.by_negative;
    }
    store<N>(dh, start + i, dx);
  });
  if (!dparameters) return;
  by_positive = block_sum(by_positive);
  by_negative = block_sum(by_negative);
  if (threadIdx.x != 0) return;
  dparameters[2 * Index{blockIdx.x}] = by_positive * positive.slope;
  dparameters[2 * Index{blockIdx.x} + 1] = by_negative * negative.slope;
}

}  // namespace

void execute(CudaDevice& device, const ops::XieluForward& op) {
  const Index width = op.y.dim(1);
  with_type_and_packs(width, {op.h, op.y}, [&]<class T, int N>(T, PackSize<N>) {
    launch(device.context(), {.x = op.y.dim(0), .threads = row_threads(blocks_of(width, N))}, xielu<T, N>, width, op.h,
           op.parameters, op.y);
  });
}

void execute(CudaDevice& device, const ops::XieluBackward& op) {
  const Index width = op.dy.dim(1);
  with_type_and_packs(width, {op.dy, op.h, op.dh}, [&]<class T, int N>(T, PackSize<N>) {
    launch(device.context(), {.x = op.dy.dim(0), .threads = row_threads(blocks_of(width, N))}, xielu_gradient<T, N>,
           width, op.dy, op.h, op.parameters, op.dh, op.dparameters);
  });
}

}  // namespace sy::cuda
