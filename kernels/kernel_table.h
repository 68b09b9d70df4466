// Makes the table of kernels of a device class.
#pragma once

#include "kernels/device.h"

namespace sy {

// The kernel of an operation on a device class D is the function execute(D&, const Operation&) in
// the namespace of D. D::lacks<Operation> is true if there is none.
template <class D>
const KernelTable& kernel_table() {
  static const KernelTable table = [] {
    KernelTable t;
#define SY_ENTRY(Operation)                         \
  if constexpr (!D::template lacks<ops::Operation>) \
    t.kernel_of_##Operation = [](Device& device, const ops::Operation& op) { execute(static_cast<D&>(device), op); };
    SY_OPERATIONS(SY_ENTRY)
#undef SY_ENTRY
    return t;
  }();
  return table;
}

}  // namespace sy
