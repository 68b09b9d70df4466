// Test harness of all operations on all devices.
// A case is a struct. It declares operands, runs the operation on a Device, and gives the expected
// values in double precision, a scalar loss, or both. The harness checks:
// - Values: they are equal to the reference within the tolerance of the case.
// - Gradients: they are equal to central finite differences of the loss. Small arrays are checked
//   element by element. Large arrays are checked at a sample of elements, and along random
//   directions that include every element.
// - Sentinels: every operand lies between guards of NaNs, and every output starts as such NaNs.
//   After the run, guards and inputs are unchanged, and all elements of outputs are written.
#pragma once

#include <gtest/gtest.h>

#include <cstring>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/device.h"
#include "kernels/philox.h"
#include "tests/reference.h"

namespace sy::test {

using reference::Numbers;
using Values = std::map<std::string, Numbers>;

// A device and a type of weights and activations to test. Skipped if the device is missing.
struct Target {
  const char *name, *device;
  DType dtype;
  friend void PrintTo(const Target& t, std::ostream* out) { *out << t.name; }
  std::unique_ptr<Device> make() const { return make_device(device); }
  bool available() const { return std::string_view(device) == "cpu" || cuda_available(); }
};
inline const Target targets[] = {{"cpu", "cpu", DType::f32},
                                 {"cuda", "cuda", DType::f32},
                                 {"cpu_bf16", "cpu", DType::bf16},
                                 {"cuda_bf16", "cuda", DType::bf16}};
inline std::string target_name(const testing::TestParamInfo<Target>& info) {
  return info.param.name;
}
// Targets of f32, for tests whose results do not depend on the type.
inline std::vector<Target> f32_targets() {
  return {targets[0], targets[1]};
}

// Names of the operations that a case tests. They are complete when main begins, because each call
// of run_test in the program adds one.
inline std::set<std::string_view>& tested_operations() {
  static std::set<std::string_view> names;
  return names;
}
template <class Operation>
inline const bool is_tested = tested_operations().insert(Operation::name).second;
// Runs an operation whose result a test compares with a reference.
template <class Operation>
void run_test(Device& device, const Operation& op) {
  static_cast<void>(&is_tested<Operation>);
  run(device, op);
}

class OpCase {
 public:
  virtual ~OpCase() = default;
  // Type of weights and activations in cases constructed after it is set.
  static inline DType compute = DType::f32;

 protected:
  // Roles of operands:
  //   in_out     an input that the operation overwrites
  //   accumulate   an output that the operation adds to
  //   hidden       for the reference alone: the input, if only its gradient is computed
  enum class Role { in, out, accumulate, in_out, hidden };

  // ---- definition of a case ----
  // Calls run_test for each operation of the case.
  virtual void run(Device& device) = 0;
  // Replaces the outputs in v by the expected values.
  // NaN: the operation must not write the element.
  virtual void expect(Values& v) {}
  // Returns the scalar whose gradients are tested.
  virtual double loss(Values& v) { return 0; }

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

  void operand(const std::string& name, Role role, Shape shape, DType dtype, Numbers values) {
    SY_ASSERT(static_cast<Index>(values.size()) == shape.elements(), "{}: {} values", name, values.size());
    operands_.push_back({name, role, shape, dtype, {}});
    for (double& x : values) x = rounded(dtype, x);
    values_[name] = std::move(values);
  }
  // Returns normal numbers.
  Numbers normal(const std::string& name, Shape shape, double deviation = 1) const {
    const RandomStream stream(1, name + shape.str());
    Numbers x(shape.elements());
    for (std::size_t i = 0; i < x.size(); ++i) x[i] = stream.normal(i) * deviation;
    return x;
  }
  // Returns integers in [low, high).
  Numbers whole(const std::string& name, Shape shape, Index low, Index high) const {
    const RandomStream stream(1, name + shape.str());
    Numbers x(shape.elements());
    for (std::size_t i = 0; i < x.size(); ++i)
      x[i] = static_cast<double>(low) + std::floor(stream.uniform(i) * static_cast<double>(high - low));
    return x;
  }
  // Declare operands. The default type is the compute type.
  void in(const std::string& name, Shape shape, DType dtype = compute) {
    operand(name, Role::in, shape, dtype, normal(name, shape));
  }
  void in_if(bool present, const std::string& name, Shape shape, DType dtype = compute) {
    if (present) in(name, shape, dtype);
  }
  void in(const std::string& name, Shape shape, Numbers values, DType dtype = compute) {
    operand(name, Role::in, shape, dtype, std::move(values));
  }
  void hidden(const std::string& name, Shape shape) {
    operand(name, Role::hidden, shape, compute, normal(name, shape));
  }
  void out(const std::string& name, Shape shape, DType dtype = compute) {
    operand(name, Role::out, shape, dtype, Numbers(shape.elements(), 0.0));
  }
  void accumulate(const std::string& name, Shape shape, DType dtype = compute) {
    operand(name, Role::accumulate, shape, dtype, normal(name, shape));
  }
  void in_out(const std::string& name, Shape shape, DType dtype = compute) {
    operand(name, Role::in_out, shape, dtype, normal(name, shape));
  }
  void in_out(const std::string& name, Shape shape, Numbers values, DType dtype) {
    operand(name, Role::in_out, shape, dtype, std::move(values));
  }

  // Returns the operand on the device; empty if the case has no operand of this name.
  View at(const std::string& name) const {
    for (const Operand& o : operands_)
      if (o.name == name) return o.view;
    return {};
  }
  Values& values() { return values_; }

  // ---- the harness ----
 public:
  void check(Device& device) {
    SCOPED_TRACE(describe() + " on " + std::string(device.name()));
    allocate_operands(device);
    run(device);
    device.synchronize();
    const Values got = fetch(device);
    Values want = values_;
    expect(want);
    for (const Operand& o : operands_) {
      const bool is_gradient =
          std::any_of(gradients.begin(), gradients.end(), [&](const Gradient& g) { return g.output == o.name; });
      if (o.role == Role::hidden || (is_gradient && want.at(o.name) == values_.at(o.name))) continue;
      compare(o, got.at(o.name), want.at(o.name), o.role == Role::in ? 0.0 : tolerance);
    }
    for (const Gradient& g : gradients) check_gradient(g, got.at(g.output));
  }

 private:
  struct Operand {
    std::string name;
    Role role;
    Shape shape;
    DType dtype;
    View view;
  };

  // Bit patterns of guards, and initial value of outputs (`pattern`).
  // They are NaN as f32, as bf16 and (two of them) as f64, and above all indices as i32. The guards
  // of accumulated operands are finite, since adding to a NaN would not change it. The NaNs differ:
  // a NaN that is read beyond one operand is detected when it is written beyond another.
  static constexpr std::uint32_t pattern = 0x7ff57ff5u, around_inputs = 0x7ff37ff3u, around_sums = 0x449a449au;
  static std::uint32_t guard_of(Role role) {
    return role == Role::in ? around_inputs : role == Role::out ? pattern : around_sums;
  }
  static constexpr Index guard = 1024;

  std::string describe() const {
    std::string s = note;
    for (const Operand& o : operands_) s += (s.empty() ? "" : " ") + o.name + o.shape.str();
    return s;
  }

  void allocate_operands(Device& device) {
    memory_.clear();
    for (Operand& o : operands_) {
      if (o.role == Role::hidden) continue;
      const Numbers& values = values_.at(o.name);
      const Index bytes = o.shape.elements() * size_of(o.dtype), padded = (bytes + 3) / 4 * 4;
      std::vector<std::uint32_t> host((padded + 2 * guard) / 4, guard_of(o.role));
      auto* const begin = reinterpret_cast<std::byte*>(host.data()) + guard;
      if (o.role != Role::out)
        for (std::size_t i = 0; i < values.size(); ++i) store(o.dtype, begin, i, values[i]);
      memory_.push_back(device.allocate(padded + 2 * guard));
      const Shape whole = {static_cast<Index>(host.size())};
      device.to_device(host.data(), View(memory_.back().get(), whole, DType::i32));
      o.view = View(memory_.back().get() + guard, o.shape, o.dtype);
    }
  }

  // Returns the operands' values after the run; NaN for elements that still have the pattern.
  Values fetch(Device& device) const {
    Values got;
    for (const Operand& o : operands_) {
      if (o.role == Role::hidden) continue;
      const Index bytes = o.shape.elements() * size_of(o.dtype), padded = (bytes + 3) / 4 * 4;
      std::vector<std::uint32_t> host((padded + 2 * guard) / 4);
      const std::vector<std::uint32_t> untouched(host.size(), guard_of(o.role));
      device.to_host(ConstView(o.view.bytes() - guard, {static_cast<Index>(host.size())}, DType::i32), host.data());
      const auto* const all = reinterpret_cast<const std::byte*>(host.data());
      const auto* const before = reinterpret_cast<const std::byte*>(untouched.data());
      const Index end = guard + bytes;
      EXPECT_TRUE(std::equal(all, all + guard, before) && std::equal(all + end, all + padded + 2 * guard, before + end))
          << "wrote outside " << o.name << ", within " << guard << " bytes";
      Numbers& values = got[o.name];
      for (Index i = 0; i < o.shape.elements(); ++i) values.push_back(load(o.dtype, all + guard, i));
    }
    return got;
  }

  static double rounded(DType dtype, double x) {
    if (dtype == DType::f32) return static_cast<float>(x);
    if (dtype == DType::bf16) return float_of_bf16(bf16_of_float(static_cast<float>(x)));
    return x;
  }
  static void store(DType dtype, std::byte* to, std::size_t i, double value) {
    const auto put = [&](auto x) { std::memcpy(to + i * sizeof x, &x, sizeof x); };
    if (dtype == DType::f32) put(static_cast<float>(value));
    if (dtype == DType::bf16) put(bf16_of_float(static_cast<float>(value)));
    if (dtype == DType::f64) put(value);
    if (dtype == DType::i32) put(static_cast<std::int32_t>(value));
    if (dtype == DType::i64) put(static_cast<std::int64_t>(value));
  }
  static double load(DType dtype, const std::byte* from, std::size_t i) {
    if (dtype == DType::bf16) {
      std::uint16_t bits;
      std::memcpy(&bits, from + i * sizeof bits, sizeof bits);
      return bits == (pattern & 0xffff) ? std::nan("") : static_cast<double>(float_of_bf16(bits));
    }
    const auto get = [&](auto x) {
      std::uint32_t first;
      std::memcpy(&first, from + i * sizeof x, sizeof first);
      std::memcpy(&x, from + i * sizeof x, sizeof x);
      return first == pattern ? std::nan("") : static_cast<double>(x);
    };
    return dtype == DType::f32   ? get(0.0f)
           : dtype == DType::f64 ? get(0.0)
           : dtype == DType::i64 ? get(std::int64_t{0})
                                 : get(std::int32_t{0});
  }
  // Returns the error of an element that its rounding to bf16 allows; 0 for other types.
  double rounding(const Operand& o, double value, double rms) const {
    return o.dtype == DType::bf16 ? 0x1p-8 * std::abs(value) + bf16_tolerance * rms : 0.0;
  }

  static double root_mean_square(const Numbers& x) {
    double sum = 0, n = 0;
    for (double v : x)
      if (std::isfinite(v)) {
        sum += v * v;
        ++n;
      }
    return n > 0 ? std::sqrt(sum / n) : 0;
  }

  static bool close(double got, double want, double allowed) {
    if (std::isnan(want) || std::isnan(got)) return std::isnan(want) && std::isnan(got);
    return got == want || std::abs(got - want) <= allowed;
  }

  void compare(const Operand& o, const Numbers& got, const Numbers& want, double allowed) const {
    const std::string& name = o.name;
    ASSERT_EQ(got.size(), want.size()) << name;
    const double rms = root_mean_square(want);
    Index wrong = 0;
    for (std::size_t i = 0; i < want.size(); ++i)
      if (!close(got[i], want[i], allowed > 0 ? allowed * (std::abs(want[i]) + rms) + rounding(o, want[i], rms) : 0) &&
          ++wrong <= 3)
        ADD_FAILURE() << name << "[" << i << "] = " << got[i] << ", expected " << want[i]
                      << (std::isnan(got[i]) ? " (NaN, or left unwritten)" : "");
    EXPECT_EQ(wrong, 0) << name << ": wrong elements of " << want.size();
  }

  void check_gradient(const Gradient& g, const Numbers& got) {
    const Operand& o =
        *std::find_if(operands_.begin(), operands_.end(), [&](const Operand& x) { return x.name == g.output; });
    Numbers gradient = got;
    if (o.role == Role::accumulate)
      for (std::size_t i = 0; i < gradient.size(); ++i) gradient[i] -= values_.at(g.output)[i];
    Values v = values_;
    Numbers& x = v.at(g.of);
    ASSERT_EQ(x.size(), gradient.size()) << g.output;
    // Derivative of the loss along a direction. direction(j): change of element j.
    const Numbers start = x;
    const auto slope = [&](const auto& direction) {
      constexpr double h = 1e-4;
      double side[2];
      for (int i : {0, 1}) {
        for (std::size_t j = 0; j < x.size(); ++j) x[j] = start[j] + (i == 0 ? h : -h) * direction(j);
        side[i] = loss(v);
      }
      x = start;
      return (side[0] - side[1]) / (2 * h);
    };

    constexpr std::size_t all = 120, sample = 24, directions = 3;
    const RandomStream random(2, g.output);
    const double rms = root_mean_square(gradient);
    // An accumulated gradient includes the rounding error of the sum.
    const double sum = o.role == Role::accumulate ? root_mean_square(got) : 0;
    const double allowed = gradient_tolerance * rms + (sum > 0 ? 1e-6 : 1e-9) + rounding(o, 6 * sum, rms);
    for (std::size_t i = 0; i < std::min(x.size(), x.size() <= all ? all : sample); ++i) {
      const std::size_t at = x.size() <= all ? i : random.bits(i) % x.size();
      const double want = slope([&](std::size_t j) { return j == at ? 1.0 : 0.0; });
      EXPECT_TRUE(close(gradient[at], want, allowed + gradient_tolerance * std::abs(want) + rounding(o, want, 0)))
          << g.output << "[" << at << "] = " << gradient[at] << ", finite difference " << want;
    }
    if (x.size() <= all) return;
    for (std::size_t d = 0; d < directions; ++d) {
      const auto direction = [&](std::size_t j) { return random.bits((d + 1) << 40 | j) & 1 ? 1.0 : -1.0; };
      double got_slope = 0;
      for (std::size_t j = 0; j < x.size(); ++j) got_slope += gradient[j] * direction(j);
      // The sum of bf16 roundings is sometimes several times its standard deviation.
      EXPECT_NEAR(got_slope, slope(direction),
                  (allowed + rounding(o, 0, rms)) * std::sqrt(static_cast<double>(x.size())))
          << g.output << " along random direction " << d;
    }
  }

  std::vector<Operand> operands_;
  Values values_;
  std::vector<DeviceMemory> memory_;
};

class DeviceOps : public testing::TestWithParam<Target> {
 protected:
  void SetUp() override {
    if (!GetParam().available()) GTEST_SKIP() << "no device";
    device = GetParam().make();
    OpCase::compute = GetParam().dtype;
  }
  template <class Case>
  void check(Case&& c) {
    c.check(*device);
  }
  std::unique_ptr<Device> device;
};

struct Rows {
  Index t, d;
};
// Sizes: empty, one, odd, at and around powers of two, and above the ranges that threads share.
inline const Rows many_rows[] = {{0, 8},    {3, 0},   {1, 1},    {7, 3},     {33, 17},
                                 {2, 1023}, {64, 64}, {129, 65}, {1500, 31}, {3, 40000}};

}  // namespace sy::test
