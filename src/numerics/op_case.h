// Harness of the cases of operations, on any device.
//
// A case is a struct with an operation. It declares the operands of the operation's fields, runs it
// on a Device, and gives the expected values in double precision, a scalar loss, or both. The
// harness checks:
// - Values: they are equal to the reference within the tolerance of the case.
// - Gradients: they are equal to central finite differences of the loss. Small arrays are checked
//   element by element. Large arrays are checked at a sample of elements, and along random
//   directions that include every element.
// - Sentinels: every operand lies between guards of NaNs, and every output starts as such NaNs.
//   After the run, guards and inputs are unchanged, and all elements of outputs are written.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "kernels/device.h"
#include "kernels/philox.h"
#include "src/numerics/reference/all.h"

namespace sy::numerics {

namespace ref = reference;
using reference::Numbers;
using Values = std::map<std::string, Numbers>;

struct Rows {
  Index t, d;
};

class OpCase {
 public:
  virtual ~OpCase() = default;
  // Type of weights and activations in cases constructed after it is set.
  static inline DType compute = DType::f32;

  // Runs the case on a device. Returns one line for each error; empty if the results are right.
  std::vector<std::string> errors(Device& device);
  // Returns the parameters of the case and the shapes of its operands.
  std::string describe() const;

 protected:
  // Roles of operands:
  //   in_out     an input that the operation overwrites
  //   accumulate   an output that the operation adds to
  //   hidden       for the reference alone: the input, if only its gradient is computed
  enum class Role { in, out, accumulate, in_out, hidden };

  // ---- definition of a case ----
  // Runs the operations of the case.
  virtual void run(Device& device) = 0;
  // Replaces the outputs in v by the expected values.
  // NaN: the operation must not write the element.
  virtual void expect(Values& /*v*/) {}
  // Returns the scalar whose gradients are tested.
  virtual double loss(Values& /*v*/) { return 0; }

  struct Gradient {
    std::string output;  // operand with the gradient of the loss with respect to `of`
    std::string of;
  };
  std::vector<Gradient> gradients;
  // |got - want| <= tolerance * (|want| + root mean square of want).
  // Values in bf16 may also differ by their own rounding. For rounded intermediate values they may
  // differ by bf16_tolerance times the root mean square.
  double tolerance = 1e-6;
  double gradient_tolerance = 1e-5;
  double bf16_tolerance = 4e-3;
  std::string note;  // parameters that are not visible in the shapes

  // Name of an operand. If there is a field of an operation, the operand on the device is assigned
  // to it before run(). `assign` may instead set several fields.
  struct Name {
    Name(const char* name_) : name(name_) {}
    Name(const char* name_, std::function<void(View)> assign_) : name(name_), assign(std::move(assign_)) {}
    template <class Field>
    Name(const char* name_, Field& field) : Name(name_, [&field](View x) { field = x; }) {}
    std::string name;
    std::function<void(View)> assign = [](View) {};
  };

  void operand(Name name, Role role, Shape shape, DType dtype, Numbers values);
  // Returns normal numbers.
  Numbers normal(const std::string& name, Shape shape, double deviation = 1) const;
  // Returns integers in [low, high).
  Numbers whole(const std::string& name, Shape shape, Index low, Index high) const;
  // Declare operands. The default type is the compute type.
  void in(const Name& name, Shape shape, DType dtype = compute) {
    operand(name, Role::in, shape, dtype, normal(name.name, shape));
  }
  void in_if(bool present, const Name& name, Shape shape, DType dtype = compute) {
    if (present) in(name, shape, dtype);
  }
  void in(const Name& name, Shape shape, Numbers values, DType dtype = compute) {
    operand(name, Role::in, shape, dtype, std::move(values));
  }
  void hidden(const char* name, Shape shape) { operand(name, Role::hidden, shape, compute, normal(name, shape)); }
  void out(const Name& name, Shape shape, DType dtype = compute) {
    operand(name, Role::out, shape, dtype, Numbers(static_cast<std::size_t>(shape.elements()), 0.0));
  }
  void accumulate(const Name& name, Shape shape, DType dtype = compute) {
    operand(name, Role::accumulate, shape, dtype, normal(name.name, shape));
  }
  // Declare "d" + of.name, the gradient of the loss with respect to `of`, which has the field.
  void out_gradient(const Name& of, Shape shape, DType dtype = compute) { out(gradient_of(of), shape, dtype); }
  void accumulate_gradient(const Name& of, Shape shape, DType dtype = compute) {
    accumulate(gradient_of(of), shape, dtype);
  }
  void in_out(const Name& name, Shape shape, DType dtype = compute) {
    operand(name, Role::in_out, shape, dtype, normal(name.name, shape));
  }
  void in_out(const Name& name, Shape shape, Numbers values, DType dtype) {
    operand(name, Role::in_out, shape, dtype, std::move(values));
  }

  // Returns the operand on the device; empty if the case has no operand of this name.
  View at(const std::string& name) const;
  Values& values() { return values_; }

 private:
  struct Operand {
    std::string name;
    std::function<void(View)> assign;
    Role role;
    Shape shape;
    DType dtype;
    View view;
  };

  Name gradient_of(Name of) {
    gradients.push_back({"d" + of.name, of.name});
    of.name = gradients.back().output;
    return of;
  }
  // Returns an operand without its values, between its guards.
  static std::vector<std::uint32_t> untouched(const Operand& o);
  void allocate_operands(Device& device);
  // Returns the operands' values after the run; NaN for elements that the run has not written.
  Values fetch(Device& device);
  void compare(const Operand& o, const Numbers& got, const Numbers& want, double allowed);
  void check_gradient(const Gradient& g, const Numbers& got);
  // Returns the error of an element that its rounding to bf16 allows; 0 for other types.
  double rounding(const Operand& o, double value, double rms) const;

  std::vector<Operand> operands_;
  Values values_;
  std::vector<DeviceMemory> memory_;
  std::vector<std::string> errors_;
};

// A case that runs one operation. Its constructor sets the fields of `op` that are no operands.
template <class Operation>
struct OperationCase : OpCase {
  Operation op{};
  void run(Device& device) override {
    using ops::run;  // the operation may have a run() of its own
    run(device, op);
  }
};

}  // namespace sy::numerics
