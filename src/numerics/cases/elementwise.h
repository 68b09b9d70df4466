// Cases of memory operations and sums of squares (op_case.h).
#pragma once

#include <bit>

#include "kernels/ops/elementwise.h"
#include "src/numerics/op_case.h"

namespace sy::numerics {

struct FillCase : OpCase {
  explicit FillCase(Index n) {
    out("filled", {n}, DType::f32);
    out("zeros", {n}, DType::i32);
  }
  void run(Device& device) override {
    ops::run(device, ops::Fill{.x = at("filled"), .value = 0.75f});
    ops::run(device, ops::Fill{.x = at("zeros"), .value = 0});
  }
  void expect(Values& v) override { v["filled"].assign(v["filled"].size(), 0.75); }
};

struct CopyCase : OperationCase<ops::Copy> {
  explicit CopyCase(Index n) {
    in({"x", op.x}, {n});
    out({"copied", op.y}, {n});
  }
  void expect(Values& v) override { v["copied"] = v["x"]; }
};

struct ConvertCase : OpCase {
  explicit ConvertCase(Index n) {
    in("numbers", {n}, DType::f32);
    out("narrow", {n}, DType::bf16);
    out("wide", {n}, DType::f32);
  }
  void run(Device& device) override {
    ops::run(device, ops::Convert{.x = at("numbers"), .y = at("narrow")});
    ops::run(device, ops::Convert{.x = at("narrow"), .y = at("wide")});
  }
  void expect(Values& v) override {
    for (std::size_t i = 0; i < v["numbers"].size(); ++i)
      v["narrow"][i] = v["wide"][i] =
          static_cast<double>(float_of_bf16(bf16_of_float(static_cast<float>(v["numbers"][i]))));
  }
};

struct AddCase : OperationCase<ops::Add> {
  explicit AddCase(Index n) {
    in({"x", op.x}, {n});
    in_out({"sum", op.y}, {n});
  }
  void expect(Values& v) override {
    for (std::size_t i = 0; i < v["x"].size(); ++i) v["sum"][i] += v["x"][i];
  }
};

struct ScaleCase : OpCase {
  explicit ScaleCase(Index n) { in_out("scaled", {n}); }
  void run(Device& device) override { ops::run(device, ops::Scale{.x = at("scaled"), .factor = -1.7f}); }
  void expect(Values& v) override {
    for (double& x : v["scaled"]) x *= static_cast<double>(-1.7f);
  }
};

struct SumSquaresCase : OperationCase<ops::SumSquares> {
  explicit SumSquaresCase(Index n) {
    in({"numbers", op.x}, {n}, DType::f32);
    operand({"squares", op.out}, Role::accumulate, {1}, DType::f64, {2.5});
  }
  void expect(Values& v) override { v["squares"] = {2.5 + ref::dot(v["numbers"], v["numbers"])}; }
};

// Whole numbers are compared exactly.
struct BitSumCase : OperationCase<ops::BitSum> {
  BitSumCase(Index n, DType type) : narrow(type == DType::bf16) {
    tolerance = 0;
    in({"x", op.x}, {n}, type);
    operand({"sum", op.out}, Role::accumulate, {1}, DType::i32, {-7});
  }
  void expect(Values& v) override {
    std::uint32_t sum = 0;
    for (const double x : v["x"]) {
      const auto value = static_cast<float>(x);
      sum += narrow ? bf16_of_float(value) : std::bit_cast<std::uint32_t>(value);
    }
    v["sum"] = {static_cast<double>(static_cast<std::int32_t>(sum - 7))};
  }
  bool narrow;
};

}  // namespace sy::numerics
