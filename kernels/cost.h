// The work of one operation, from which plans estimate its time.
#pragma once

#include "kernels/attention.h"
#include "kernels/tensor.h"

namespace sy {

// Cost of an operation. Example: Cost{.flops = 2.0 * m * n * k}.reads(a, b).writes(c)
struct Cost {
  double flops = 0;  // of GEMMs and attention; a multiply-add counts as two
  // Bytes of the operands. An empty operand counts as 0. An operand to which the operation adds is
  // both read and written.
  double bytes_read = 0, bytes_written = 0;
  // GEMM: the least of rows, columns and depth, of one expert if it is grouped. Attention: the
  // width of a query head. Other operations: 0. The speed of a device depends on it.
  Index size = 0;

  double bytes() const { return bytes_read + bytes_written; }

  // Each adds the bytes of its operands, and returns *this. An operand is a view or heads.
  template <class... Operand>
  Cost& reads(const Operand&... operand) {
    ((bytes_read += bytes_of(operand)), ...);
    return *this;
  }
  template <class... Operand>
  Cost& writes(const Operand&... operand) {
    ((bytes_written += bytes_of(operand)), ...);
    return *this;
  }
  template <class... Operand>
  Cost& updates(const Operand&... operand) {
    return reads(operand...).writes(operand...);
  }

 private:
  template <class Byte>
  static double bytes_of(BasicView<Byte> x) {
    return x ? static_cast<double>(x.size_bytes()) : 0;
  }
  template <class Byte>
  static double bytes_of(const BasicHeads<Byte>& x) {
    return static_cast<double>(x.elements() * size_of(x.dtype));
  }
};

}  // namespace sy
