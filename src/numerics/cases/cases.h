// The cases of an operation: they are added by add_cases, and made when they run.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "src/numerics/op_case.h"

namespace sy::numerics {

// Cases of an operation. Each is made when it runs, so that one case at a time holds memory.
class Cases {
 public:
  template <class Case, class... Arguments>
  void add(Arguments... arguments) {
    make_.push_back([=]() -> std::unique_ptr<OpCase> { return std::make_unique<Case>(arguments...); });
  }
  const std::vector<std::function<std::unique_ptr<OpCase>()>>& all() const { return make_; }

 private:
  std::vector<std::function<std::unique_ptr<OpCase>()>> make_;
};

// Adds the small cases of an operation. An operation without a specialisation does not compile.
// Sizes are odd, and some exceed a vector, a tile and a block of the kernels.
template <class Operation>
void add_cases(Cases& cases) = delete;

// Sizes of rows: few elements, and more than a vector in each dimension.
inline constexpr Rows rows_of_elements[] = {{1, 1}, {7, 3}, {33, 67}};
inline constexpr Index vector_sizes[] = {1, 7, 1000, 16385};

}  // namespace sy::numerics
