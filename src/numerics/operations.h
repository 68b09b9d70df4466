// The check of every operation of a device against the reference, on small operands.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/device.h"

namespace sy::numerics {

// Result of one operation on one device.
struct OperationResult {
  std::string_view operation;
  Index cases = 0;  // 0: the device has no such kernel, and needs none
  double seconds = 0;
  std::vector<std::string> errors;  // one line each, with the case; empty if all results are right
};

// Number of operations.
Index operation_count();

// Compares an operation of a device with the reference, in f32 and in bf16. An exception of the
// operation is one of its errors. Not for use by two threads at once (OpCase::compute).
// name: X::name of an operation; an unknown one is an internal error.
OperationResult check_operation(Device& device, std::string_view name);

// Compares every operation of a device.
// done: called with the number of checked operations, after each.
std::vector<OperationResult> check_operations(Device& device, const std::function<void(Index)>& done = {});

}  // namespace sy::numerics
