#include "src/numerics/operations.h"

#include <algorithm>
#include <chrono>
#include <memory>

#include "kernels/ops/all.h"
#include "src/numerics/cases/dense_lists.h"
#include "src/numerics/cases/model_lists.h"

namespace sy::numerics {
namespace {

// The cases of an operation in the type OpCase::compute.
Cases cases_of(std::string_view operation) {
  Cases cases{operation};
  for (const auto& add : {add_memory, add_gemms, add_norms, add_rotations_and_qk_norms, add_ffns, add_attention,
                          add_indexers, add_hashing, add_routing, add_dispatch, add_losses, add_optimizers})
    add(cases);
  SY_ASSERT(!cases.all.empty(), "no cases of {}", operation);
  return cases;
}

// Appends the errors of all cases in one type of weights and activations.
void check_cases(DType dtype, Device& device, OperationResult& result) {
  OpCase::compute = dtype;
  const Cases cases = cases_of(result.operation);
  for (const auto& make : cases.all) {
    ++result.cases;
    std::string description = "a case that could not be made";
    const auto add_error = [&](std::string_view error) {
      result.errors.push_back(fmt::format("{}, {}: {}", info(dtype).name, description, error));
    };
    try {
      const std::unique_ptr<OpCase> one = make();
      description = one->describe();
      for (const std::string& error : one->errors(device)) add_error(error);
    } catch (const std::exception& e) {
      add_error(e.what());
    }
  }
}

}  // namespace

Index operation_count() {
  return std::ssize(ops::operation_names);
}

OperationResult check_operation(Device& device, std::string_view name) {
  const std::string_view* const operation = std::ranges::find(ops::operation_names, name);
  SY_ASSERT(operation != std::end(ops::operation_names), "no operation {}", name);
  OperationResult result;
  result.operation = *operation;
  const auto start = std::chrono::steady_clock::now();
  if (device.has_kernel(name))
    for (DType dtype : {DType::f32, DType::bf16}) check_cases(dtype, device, result);
  result.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return result;
}

std::vector<OperationResult> check_operations(Device& device, const std::function<void(Index)>& done) {
  std::vector<OperationResult> results;
  for (const std::string_view operation : ops::operation_names) {
    results.push_back(check_operation(device, operation));
    if (done) done(std::ssize(results));
  }
  return results;
}

}  // namespace sy::numerics
