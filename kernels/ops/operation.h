// Base of the headers of operations.
//
// An operation is a struct of named operands. Operation::name is its name in plans and machine
// files.
//   check     Checks shapes and types. A violation is a mistake in Switchyard, never the user's, so
//             it is an internal error.
//   cost      The work of the operation on any device. It reads no memory of operands.
//   is_empty  Whether there is nothing to do. The kernel is then not called. Without this function:
//             whether y has no elements, or x in an operation without y.
//   zero_if_empty  If the operation is empty, these outputs become zero. Most operations have none.
//   run       Checks the operands, handles empty ones, and calls the device's kernel. A device
//             without such a kernel is an internal error that names both. An operation that has
//             more to do than check and is_empty declares a run() of its own.
#pragma once

#include <array>
#include <string_view>

#include "kernels/cost.h"
#include "kernels/ops/list.h"
#include "kernels/tensor.h"
#include "kernels/types.h"
