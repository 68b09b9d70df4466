#include "kernels/ops/gemm.h"

#include <algorithm>

#include "kernels/device.h"
#include "kernels/ops/elementwise.h"
#include "kernels/ops/operands.h"

namespace sy::ops {

namespace {

void check_form(const Operands& check, const Device& device, ConstView weight, GemmPass pass,
                const PackedWeight& packed) {
  const WeightFormatInfo& format = info(packed.format);
  SY_ASSERT(device.supports(packed.format), "the {} device has no weight format {}", device.name(), format.name);
  const Index bytes = device.packed_weight_bytes(weight.shape(), weight.dtype(), pass, packed.format);
  check.is("packed", packed.elements, {bytes}, DType::u8);
  const ScaleBlock block = format.scale_block;
  if (block.present())
    check.is("scales", packed.scales, block.scales(weight.shape(), pass));
  else
    SY_ASSERT(!packed.scales, "{}: the weight format {} has no scales", check.operation(), format.name);
}

}  // namespace

void check_packed(const Operands& check, const Device& device, const Weight& w, GemmPass pass) {
  if (w.packed(pass)) check_form(check, device, w.values, pass, w.packed(pass));
}

void check(const Gemm& op) {
  const Operands check = Operands(op.name).real("a", op.a, 2).real("b", op.b.values, 2).real("c", op.c, 2);
  const Index m = op.c.dim(0), n = op.c.dim(1), q = op.depth();
  check.same("a", op.a, op.transpose_a ? Shape{q, m} : Shape{m, q}, op.a)
      .same("b", op.b.values, op.transpose_b ? Shape{n, q} : Shape{q, n}, op.a)
      .is("c", op.c, {m, n}, op.c.dtype() == DType::f32 ? DType::f32 : op.a.dtype())
      .optional("addend", op.addend, {m, n}, op.c.dtype());
  SY_ASSERT(!op.addend || !op.accumulate, "gemm: accumulates and has an addend");
}

Cost Gemm::cost() const {
  return Cost{.flops = 2 * static_cast<double>(a.elements()) * static_cast<double>(c.dim(1)),
              .size = std::min({c.dim(0), c.dim(1), depth()})}
      .reads(a, b.read(pass()), b.packed(pass()).scales, accumulate ? c : addend)
      .writes(c);
}

void run(Device& device, const Gemm& op) {
  check(op);
  check_packed(Operands(op.name), device, op.b, op.pass());
  Gemm product = op;
  if (op.addend && op.addend.bytes() == op.c.bytes()) {
    product.accumulate = true;
    product.addend = {};
  }
  if (op.c.elements() == 0 || (op.depth() == 0 && product.accumulate)) return;
  if (op.depth() > 0) return device.execute(product);
  if (!product.addend) return fill_zeros(device, op.c);
  run(device, Copy{.x = product.addend, .y = op.c});
}

void check(const PackWeight& op) {
  Operands(op.name)
      .real("weight", op.weight, op.weight.shape().size())
      .is("packed", op.packed, {op.packed.elements()}, DType::u8);
}

void run(Device& device, const PackWeight& op) {
  check(op);
  check_form(Operands(op.name), device, op.weight, op.pass, {op.format, op.packed, op.scales});
  if (op.packed.elements() > 0) device.execute(op);
}

}  // namespace sy::ops
