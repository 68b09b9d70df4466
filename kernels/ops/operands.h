// Checks of the operands of one operation. A violation is a mistake in Switchyard, never the
// user's. So it is an internal error that names the operation, the operand and both shapes.
#pragma once

#include <string_view>

#include "kernels/attention.h"
#include "kernels/tensor.h"

namespace sy::ops {

class Operands {
 public:
  explicit Operands(std::string_view operation) : operation_(operation) {}
  std::string_view operation() const { return operation_; }

  // The operand must have this shape and type, and memory unless it has no elements.
  const Operands& is(const char* name, ConstView v, const Shape& shape, DType dtype = DType::f32) const {
    SY_ASSERT(v.shape() == shape && v.dtype() == dtype, "{}: {} is {} {}, not {} {}", operation_, name,
              info(v.dtype()).name, v.shape().str(), info(dtype).name, shape.str());
    present(name, v);
    return *this;
  }
  // The same, but the operand may be empty.
  const Operands& optional(const char* name, ConstView v, const Shape& shape, DType dtype = DType::f32) const {
    return v ? is(name, v, shape, dtype) : *this;
  }
  // The same for weights, activations or their gradients, which have the type of `like`.
  const Operands& same(const char* name, ConstView v, const Shape& shape, ConstView like) const {
    return is(name, v, shape, like.dtype());
  }
  // The operand is f32 or bf16 and has this number of dimensions. Shapes of other operands follow
  // from it.
  const Operands& real(const char* name, ConstView v, int dims) const {
    SY_ASSERT(v.dtype() == DType::f32 || v.dtype() == DType::bf16, "{}: {} is {}, not f32 or bf16", operation_, name,
              info(v.dtype()).name);
    return this->dims(name, v, dims, v.dtype());
  }
  // The operand has this type and this number of dimensions. Shapes of other operands follow from
  // it.
  const Operands& dims(const char* name, ConstView v, int dims, DType dtype = DType::f32) const {
    SY_ASSERT(v.shape().size() == dims && v.dtype() == dtype, "{}: {} is {} {}, not {} with {} dimensions", operation_,
              name, info(v.dtype()).name, v.shape().str(), info(dtype).name, dims);
    present(name, v);
    return *this;
  }
  // Heads of this shape and of the type of `like`.
  const Operands& heads(const char* name, ConstHeads x, const Shape& shape, ConstHeads like) const {
    SY_ASSERT(x.shape() == shape && x.dtype == like.dtype, "{}: {} is {} {}, not {} {}", operation_, name,
              info(x.dtype).name, x.shape().str(), info(like.dtype).name, shape.str());
    SY_ASSERT(x.data || x.elements() == 0, "{}: {} {} has no memory", operation_, name, shape.str());
    return *this;
  }
  // The same for heads that are contiguous.
  const Operands& contiguous_heads(const char* name, ConstHeads x, const Shape& shape, ConstHeads like) const {
    heads(name, x, shape, like);
    SY_ASSERT(x.is_contiguous(), "{}: {} are columns of heads of {}", operation_, name, x.head_stride);
    return *this;
  }
  // Tokens that form segments of equal length.
  const Operands& segments(Index tokens, Index segments) const {
    SY_ASSERT(segments > 0 && tokens % segments == 0, "{}: {} tokens in {} segments", operation_, tokens, segments);
    return *this;
  }

 private:
  void present(const char* name, ConstView v) const {
    SY_ASSERT(v || v.elements() == 0, "{}: {} {} has no memory", operation_, name, v.shape().str());
  }

  std::string_view operation_;
};

}  // namespace sy::ops
