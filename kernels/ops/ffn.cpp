#include "kernels/ops/ffn.h"

#include <algorithm>

#include "kernels/device.h"
#include "kernels/ops/activation.h"
#include "kernels/ops/bias.h"
#include "kernels/ops/operands.h"

namespace sy::ops {

namespace {

// Calls f(operation) for each operation that the fused one consists of, in order.
template <class F>
void for_each_step(const FfnForward& op, const F& f) {
  if (op.groups.host) {
    f(GroupedGemm{.x = op.x, .w = op.w, .groups = op.groups, .y = op.h});
    if (op.bias) f(GroupedBiasForward{.bias = op.bias, .groups = op.groups, .y = op.h});
  } else {
    f(Gemm{.a = op.x.values, .b = op.w, .transpose_b = true, .c = op.h});
    if (op.bias) f(BiasForward{.bias = op.bias, .y = op.h});
  }
  f(ActivationForward{.h = op.h, .row_scale = op.row_scale, .activation = op.activation, .y = op.y});
}

// y holds its own gradient until the last step writes it.
template <class F>
void for_each_step(const FfnBackward& op, const F& f) {
  if (op.groups.host)
    f(GroupedGemmDgrad{.dy = op.dout, .w = op.w, .groups = op.groups, .dx = op.y});
  else
    f(Gemm{.a = op.dout.values, .b = op.w, .c = op.y});
  f(ActivationBackward{.dy = op.y,
                       .h = op.h,
                       .row_scale = op.row_scale,
                       .activation = op.activation,
                       .dh = op.dh,
                       .drow_scale = op.drow_scale,
                       .y = op.y});
}

template <class Operation>
Cost cost_unfused(const Operation& op) {
  Cost total;
  for_each_step(op, [&](const auto& step) {
    const Cost c = step.cost();
    total.flops += c.flops;
    total.bytes_read += c.bytes_read;
    total.bytes_written += c.bytes_written;
    total.size = std::max(total.size, c.size);
  });
  return total;
}

// w: [E, out, in], or [out, in] if `groups` is empty, of the type of y.
void check_ffn_weight(const Operands& check, const Weight& w, const GroupOffsets& groups, Index rows, Index out,
                      Index in, ConstView y) {
  const bool stack = groups.host != nullptr;
  check.real("w", w.values, stack ? 3 : 2);
  const Index experts = stack ? w.values.dim(0) : 1;
  check.same("w", w.values, stack ? Shape{experts, out, in} : Shape{out, in}, y);
  if (stack) check_groups(check, groups, experts, rows);
}

}  // namespace

void check(const FfnForward& op) {
  const Operands check(op.name);
  SY_ASSERT(op.activation.act != Activation::xielu, "{}: see XieluForward", op.name);
  check.real("y", op.y, 2);
  const Index r = op.y.dim(0), f = op.y.dim(1), width = op.activation.gated ? 2 * f : f,
              d = op.w.values.dim(op.w.values.shape().size() - 1);
  check_gathered_rows(check, "x", op.x, r, d, op.y);
  check_ffn_weight(check, op.w, op.groups, r, width, d, op.y);
  check.same("h", op.h, {r, width}, op.y).optional("row_scale", op.row_scale, {r});
  check.optional("bias", op.bias, op.groups.host ? Shape{op.w.values.dim(0), width} : Shape{width}, op.y.dtype());
}

Cost FfnForward::cost() const {
  return cost_unfused(*this);
}

void run(Device& device, const FfnForward& op) {
  check(op);
  check_gather(op.name, device, "x", op.x, {op.x.values.dim(1), op.y.dim(1)});
  check_packed(Operands(op.name), device, op.w, GemmPass::fprop);
  if (op.y.elements() > 0) device.execute(op);
}

void run_unfused(Device& device, const FfnForward& op) {
  for_each_step(op, [&](const auto& step) { run(device, step); });
}

void check(const FfnBackward& op) {
  const Operands check(op.name);
  SY_ASSERT(op.activation.act != Activation::xielu, "{}: see XieluForward", op.name);
  check.real("y", op.y, 2);
  const Index r = op.y.dim(0), f = op.y.dim(1), width = op.activation.gated ? 2 * f : f, d = op.dout.values.dim(1);
  check_gathered_rows(check, "dout", op.dout, r, d, op.y);
  check_ffn_weight(check, op.w, op.groups, r, d, f, op.y);
  check.same("h", op.h, {r, width}, op.y)
      .same("dh", op.dh, {r, width}, op.y)
      .optional("row_scale", op.row_scale, {r})
      .optional("drow_scale", op.drow_scale, {r});
}

Cost FfnBackward::cost() const {
  return cost_unfused(*this);
}

void run(Device& device, const FfnBackward& op) {
  check(op);
  check_gather(op.name, device, "dout", op.dout, {op.dout.values.dim(1), op.y.dim(1)});
  check_packed(Operands(op.name), device, op.w, GemmPass::dgrad);
  if (op.y.elements() > 0) return device.execute(op);
  fill_zeros(device, op.drow_scale);
}

void run_unfused(Device& device, const FfnBackward& op) {
  for_each_step(op, [&](const auto& step) { run(device, step); });
}

}  // namespace sy::ops
