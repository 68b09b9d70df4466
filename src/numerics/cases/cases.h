// The cases of an operation: they are made when they run.
#pragma once

#include <functional>
#include <memory>
#include <string_view>
#include <vector>

#include "src/numerics/op_case.h"

namespace sy::numerics {

// Cases of one operation. Each is made when it runs, so that one case at a time holds memory.
struct Cases {
  std::string_view operation;
  std::vector<std::function<std::unique_ptr<OpCase>()>> all = {};
  // Adds a case of Operation. The cases of other operations are left out.
  template <class Operation, class Case, class... Arguments>
  void add(Arguments... arguments) {
    if (Operation::name == operation) all.push_back([=] { return std::make_unique<Case>(arguments...); });
  }
};

// Sizes of rows: few elements, and more than a vector in each dimension.
inline constexpr Rows rows_of_elements[] = {{1, 1}, {7, 3}, {33, 67}};
inline constexpr Index vector_sizes[] = {1, 7, 1000, 16385};

}  // namespace sy::numerics
