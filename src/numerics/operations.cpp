#include "src/numerics/operations.h"

#include <algorithm>
#include <chrono>
#include <memory>

#include "src/numerics/cases/dense_lists.h"
#include "src/numerics/cases/model_lists.h"

namespace sy::numerics {
namespace {

struct OperationCases {
  std::string_view name;
  void (*add)(Cases&);
};

constexpr OperationCases operations[] = {
#define SY_CASES(Operation) {ops::Operation::name, add_cases<ops::Operation>},
    SY_OPERATIONS(SY_CASES)
#undef SY_CASES
};

// Appends the errors of all cases in one type of weights and activations.
void check_cases(const OperationCases& operation, DType dtype, Device& device, OperationResult& result) {
  OpCase::compute = dtype;
  Cases cases;
  operation.add(cases);
  for (const auto& make : cases.all()) {
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
  return std::ssize(operations);
}

OperationResult check_operation(Device& device, std::string_view name) {
  const OperationCases* operation = std::ranges::find(operations, name, &OperationCases::name);
  SY_ASSERT(operation != std::end(operations), "no operation {}", name);
  OperationResult result;
  result.operation = operation->name;
  const auto start = std::chrono::steady_clock::now();
  if (device.has_kernel(name))
    for (DType dtype : {DType::f32, DType::bf16}) check_cases(*operation, dtype, device, result);
  result.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return result;
}

std::vector<OperationResult> check_operations(Device& device, const std::function<void(Index)>& done) {
  std::vector<OperationResult> results;
  for (const OperationCases& operation : operations) {
    results.push_back(check_operation(device, operation.name));
    if (done) done(std::ssize(results));
  }
  return results;
}

}  // namespace sy::numerics
