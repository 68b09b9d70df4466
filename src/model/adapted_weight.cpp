#include "src/model/adapted_weight.h"

#include <functional>

#include "kernels/ops/elementwise.h"
#include "kernels/ops/permute.h"

namespace sy {
namespace {

Tensor index_tensor(Device& device, const std::vector<std::int32_t>& values) {
  Tensor tensor = device.tensor({std::ssize(values)}, DType::i32);
  device.to_device(values.data(), tensor);
  return tensor;
}

void scale(Device& device, View x, float factor) {
  if (factor != 1) run(device, ops::Scale{.x = x, .factor = factor});
}

// Returns matrices [N, Q] or [E, N, Q] as a stack.
template <class V>
V as_stack(V x) {
  const Shape& s = x.shape();
  return s.size() == 3 ? x : x.reshape({1, s[0], s[1]});
}

}  // namespace

// P * rank columns are those of all blocks.
struct AdaptedWeight::Products {
  std::function<void(View u)> x_a;                 // u: [rows, P * rank] = x A^T
  std::function<void(ConstView u, View db)> dy_u;  // db: [.., N, P * rank] f32 += dy^T u
  std::function<void(ConstView b, View v)> dy_b;   // v: [rows, P * rank] = dy B
  std::function<void(ConstView v)> v_x;            // dA += v^T x
};

AdaptedWeight::AdaptedWeight(ParamStore& store, const Param& param, const Shape& shape)
    : param_(store.register_matrix(param, shape)) {
  if (!param_.adapter) return;
  const Adapter& adapter = *param_.adapter;
  const ConstView w = as_stack(param_.weight.values), b = as_stack(ConstView(adapter.b.weight));
  const Index E = w.dim(0), N = w.dim(1), rows = b.dim(1), P = std::ssize(adapter.blocks);
  if (P == 1 && rows == N) return;
  std::vector<std::int32_t> spread(static_cast<std::size_t>(E * N * P), -1), gather;
  for (Index e = 0; e < E; ++e)
    for (Index p = 0; p < P; ++p)
      for (Index row = adapter.blocks[p].begin; row < adapter.blocks[p].end; ++row) {
        const Index at = (e * N + row) * P + p;
        spread[at] = static_cast<std::int32_t>(gather.size());
        gather.push_back(static_cast<std::int32_t>(at));
      }
  spread_ = index_tensor(store.device(), spread);
  gather_ = index_tensor(store.device(), gather);
}

ConstView AdaptedWeight::spread_b(const ExecutionContext& context) const {
  const Adapter& adapter = *param_.adapter;
  const ConstView b = adapter.b.weight;
  if (!spread_.view()) return b;
  const Index r = adapter.rank, n = spread_.view().elements();
  const View blocks = context.temp({n, r});
  run(context.device, ops::Fill{.x = blocks, .value = 0});
  run(context.device, ops::Permute{.x = b.reshape({b.elements() / r, r}), .index = spread_, .y = blocks});
  const Index P = std::ssize(adapter.blocks);
  Shape shape = param_.weight.values.shape();
  return shape.size() == 3 ? ConstView(blocks).reshape({shape[0], shape[1], P * r})
                           : ConstView(blocks).reshape({shape[0], P * r});
}

Weight AdaptedWeight::sum(const ExecutionContext& context) const {
  if (!param_.adapter) return param_.weight;
  const Adapter& adapter = *param_.adapter;
  const View sum = context.temp(param_.weight.values.shape());
  const Arena::Scope scope(context.scratch);
  ConstView a = as_stack(ConstView(adapter.a.weight));
  if (adapter.scale != 1) {
    const View scaled = context.temp(a.shape());
    run(context.device, ops::Copy{.x = a, .y = scaled});
    scale(context.device, scaled, adapter.scale);
    a = scaled;
  }
  const ConstView b = as_stack(spread_b(context)), w = as_stack(param_.weight.values);
  const auto matrix = [](auto stack, Index e) { return stack.rows(e, 1).reshape({stack.dim(1), stack.dim(2)}); };
  for (Index e = 0; e < w.dim(0); ++e)
    run(context.device,
        ops::Gemm{.a = matrix(b, e), .b = matrix(a, e), .addend = matrix(w, e), .c = matrix(as_stack(sum), e)});
  return ConstView(sum);
}

void AdaptedWeight::backward(const ExecutionContext& context, ConstView dy, ConstView x) {
  Device& device = context.device;
  if (!param_.adapter) {
    if (param_.grad)
      run(device,
          ops::Gemm{
              .a = dy, .b = x, .transpose_a = true, .accumulate = param_.take_accumulate_flag(), .c = param_.grad});
    return;
  }
  const Param a = param_.adapter->a;
  const auto add = [&](ConstView left, ConstView right, View to) {
    run(device, ops::Gemm{.a = left, .b = right, .transpose_a = true, .accumulate = true, .c = to});
  };
  backward_adapter(context, x.dim(0),
                   {.x_a = [&](View u) { run(device, ops::Gemm{.a = x, .b = a.weight, .transpose_b = true, .c = u}); },
                    .dy_u = [&](ConstView u, View db) { add(dy, u, db); },
                    .dy_b = [&](ConstView b, View v) { run(device, ops::Gemm{.a = dy, .b = b, .c = v}); },
                    .v_x = [&](ConstView v) { add(v, x, a.grad); }});
}

void AdaptedWeight::backward(const ExecutionContext& context, const GatheredRows& dy, const GatheredRows& x,
                             const GroupOffsets& groups) {
  Device& device = context.device;
  const auto add = [&](const GatheredRows& left, const GatheredRows& right, bool accumulate, View to) {
    run(device, ops::GroupedGemmWgrad{.dy = left, .x = right, .groups = groups, .accumulate = accumulate, .dw = to});
  };
  if (!param_.adapter) {
    if (param_.grad) add(dy, x, param_.take_accumulate_flag(), param_.grad);
    return;
  }
  const Param a = param_.adapter->a;
  backward_adapter(
      context, x.rows(),
      {.x_a = [&](View u) { run(device, ops::GroupedGemm{.x = x, .w = a.weight, .groups = groups, .y = u}); },
       .dy_u = [&](ConstView u, View db) { add(dy, u, true, db); },
       .dy_b = [&](ConstView b,
                   View v) { run(device, ops::GroupedGemmDgrad{.dy = dy, .w = b, .groups = groups, .dx = v}); },
       .v_x = [&](ConstView v) { add(v, x, true, a.grad); }});
}

// W + s B A has dB = s dy^T (x A^T) and dA = s (dy B)^T x. The rows of dB of a block need its own
// columns of u = x A^T, so the product with those of other blocks is left out.
void AdaptedWeight::backward_adapter(const ExecutionContext& context, Index rows, const Products& products) const {
  const Adapter& adapter = *param_.adapter;
  Device& device = context.device;
  const Arena::Scope scope(context.scratch);
  const Index r = adapter.rank;
  const View u = context.temp({rows, std::ssize(adapter.blocks) * r});
  products.x_a(u);
  scale(device, u, adapter.scale);
  const View db = adapter.b.grad;
  if (!spread_.view()) {
    products.dy_u(u, db);
  } else {
    const Arena::Scope blocks_scope(context.scratch);
    const ConstView b = spread_b(context);
    const View blocks = context.scratch.f32(b.shape()), gathered = context.scratch.f32({db.elements() / r, r});
    run(device, ops::Fill{.x = blocks, .value = 0});
    products.dy_u(u, blocks);
    run(device, ops::Permute{.x = blocks.reshape({blocks.elements() / r, r}), .index = gather_, .y = gathered});
    run(device, ops::Add{.x = gathered.reshape(db.shape()), .y = db});
  }
  products.dy_b(spread_b(context), u);
  scale(device, u, adapter.scale);
  products.v_x(u);
}

}  // namespace sy
