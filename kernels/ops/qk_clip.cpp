#include "kernels/ops/qk_clip.h"

#include "kernels/ops/operands.h"

namespace sy::ops {

void check(const MaxLogits& op) {
  Operands(op.name).dims("largest", op.largest, 3).is("max_logits", op.max_logits, {op.largest.dim(1)});
}

void check(const QkClip& op) {
  Operands(op.name)
      .is("coefficient", op.coefficient, {1})
      .dims("max_logits", op.max_logits, 1)
      .dims("w", op.w, 1)
      .optional("rounded", op.rounded, op.w.shape(), DType::bf16);
  const Index heads = op.max_logits.dim(0), of_parameter = op.keys ? op.kv_heads : heads;
  SY_ASSERT(op.kv_heads > 0 && heads % op.kv_heads == 0, "{}: {} query heads for {} of keys", op.name, heads,
            op.kv_heads);
  SY_ASSERT(op.head_elements > 0 && 0 <= op.offset && op.offset + op.w.elements() <= of_parameter * op.head_elements,
            "{}: elements from {} to {} of {} heads of {}", op.name, op.offset, op.offset + op.w.elements(),
            of_parameter, op.head_elements);
}

}  // namespace sy::ops
