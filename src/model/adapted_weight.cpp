#include "src/model/adapted_weight.h"

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
  Shape spread = shape();
  spread[spread.size() - 1] = adapter_width();
  return blocks.reshape(spread);
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

// W + s B A has dB = s dy^T (x A^T) and dA = s (dy B)^T x. The rows of dB of a block need its own
// columns of u = x A^T, so the product with those of other blocks is left out.
void AdaptedWeight::backward_by(const ExecutionContext& context, Index rows, const auto& dy, const auto& x,
                                const auto& fprop, const auto& dgrad, const auto& wgrad) {
  if (!param_.adapter) {
    if (param_.grad) wgrad(dy, x, param_.take_accumulate_flag(), param_.grad);
    return;
  }
  const Adapter& adapter = *param_.adapter;
  Device& device = context.device;
  const Arena::Scope scope(context.scratch);
  const Index r = adapter.rank;
  const View u = context.temp({rows, adapter_width()});
  fprop(adapter.a.weight, u);
  scale(device, u, adapter.scale);
  const View db = adapter.b.grad;
  if (!spread_.view()) {
    wgrad(dy, u, true, db);
  } else {
    const Arena::Scope blocks_scope(context.scratch);
    const ConstView b = spread_b(context);
    const View blocks = context.scratch.f32(b.shape()), gathered = context.scratch.f32({db.elements() / r, r});
    run(device, ops::Fill{.x = blocks, .value = 0});
    wgrad(dy, u, true, blocks);
    run(device, ops::Permute{.x = blocks.reshape({blocks.elements() / r, r}), .index = gather_, .y = gathered});
    run(device, ops::Add{.x = gathered.reshape(db.shape()), .y = db});
  }
  dgrad(spread_b(context), u);
  scale(device, u, adapter.scale);
  wgrad(u, x, true, adapter.a.grad);
}

void AdaptedWeight::backward(const ExecutionContext& context, ConstView dy, ConstView x) {
  Device& b = context.device;
  backward_by(
      context, x.dim(0), dy, x,
      [&](ConstView w, View y) { run(b, ops::Gemm{.a = x, .b = w, .transpose_b = true, .c = y}); },
      [&](ConstView w, View dx) { run(b, ops::Gemm{.a = dy, .b = w, .c = dx}); },
      [&](ConstView left, ConstView right, bool accumulate, View dw) {
        run(b, ops::Gemm{.a = left, .b = right, .transpose_a = true, .accumulate = accumulate, .c = dw});
      });
}

void AdaptedWeight::backward(const ExecutionContext& context, const GatheredRows& dy, const GatheredRows& x,
                             const GroupOffsets& groups) {
  Device& b = context.device;
  backward_by(
      context, x.rows(), dy, x,
      [&](ConstView w, View y) { run(b, ops::GroupedGemm{.x = x, .w = w, .groups = groups, .y = y}); },
      [&](ConstView w, View dx) { run(b, ops::GroupedGemmDgrad{.dy = dy, .w = w, .groups = groups, .dx = dx}); },
      [&](const GatheredRows& left, const GatheredRows& right, bool accumulate, View dw) {
        run(b, ops::GroupedGemmWgrad{.dy = left, .x = right, .groups = groups, .accumulate = accumulate, .dw = dw});
      });
}

}  // namespace sy
