// Tests of the cases of src/numerics/op_case.h on all devices.
#pragma once

#include <gtest/gtest.h>

#include <string>
#include <string_view>
#include <vector>

#include "kernels/device.h"
#include "src/numerics/op_case.h"

namespace sy::test {

using namespace numerics;  // NOLINT(google-build-using-namespace): the cases

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

class DeviceOps : public testing::TestWithParam<Target> {
 protected:
  void SetUp() override {
    if (!GetParam().available()) GTEST_SKIP() << "no device";
    device = GetParam().make();
    OpCase::compute = GetParam().dtype;
  }
  template <class Case>
  void check(Case&& c) {
    SCOPED_TRACE(c.describe() + " on " + std::string(device->name()));
    for (const std::string& error : c.errors(*device)) ADD_FAILURE() << error;
  }
  std::unique_ptr<Device> device;
};

// Sizes: empty, one, odd, at and around powers of two, and above the ranges that threads share.
inline const Rows many_rows[] = {{0, 8},    {3, 0},   {1, 1},    {7, 3},     {33, 17},
                                 {2, 1023}, {64, 64}, {129, 65}, {1500, 31}, {3, 40000}};

}  // namespace sy::test
