// The check of all operations of a device (src/numerics/operations.h), as `switchyard selftest`
// runs it.
#include "kernels/kernel_table.h"
#include "kernels/ops/all.h"
#include "src/numerics/operations.h"
#include "tests/kernels/op_case.h"

namespace sy::test {
namespace {

std::string errors_of(const std::vector<numerics::OperationResult>& results) {
  std::string text;
  for (const auto& r : results)
    for (const std::string& error : r.errors) text += fmt::format("{}: {}\n", r.operation, error);
  return text;
}

class Numerics : public testing::TestWithParam<Target> {};
INSTANTIATE_TEST_SUITE_P(Targets, Numerics, testing::ValuesIn(f32_targets()), target_name);

TEST_P(Numerics, EveryOperationIsRight) {
  if (!GetParam().available()) GTEST_SKIP() << "no device";
  const auto device = GetParam().make();
  Index calls = 0;
  const auto results = numerics::check_operations(*device, [&](Index done) { EXPECT_EQ(done, ++calls); });
  EXPECT_EQ(calls, numerics::operation_count());
  EXPECT_EQ(errors_of(results), "");
  for (const auto& r : results) EXPECT_TRUE(r.cases > 0 || !device->on_host()) << r.operation;
}

// The cpu device, except that one operation does nothing, or fails.
class Faulty final : public Device {
 public:
  explicit Faulty(std::string_view wrong, bool throws = false)
      : Device(kernel_table<Faulty>()), wrong_(wrong), throws_(throws) {}
  std::string_view name() const override { return "faulty"; }
  std::string describe() const override { return "faulty"; }
  DeviceMemory allocate(Index bytes) override { return cpu_->allocate(bytes); }
  Index free_bytes() const override { return cpu_->free_bytes(); }
  Index packed_weight_bytes(const Shape& weight, DType dtype, GemmPass pass, WeightFormat format) const override {
    return cpu_->packed_weight_bytes(weight, dtype, pass, format);
  }
  bool supports_gathered_rows(DType, std::initializer_list<Index>) const override { return true; }

  template <class Operation>
  friend void execute(Faulty& device, const Operation& op) {
    if (Operation::name != device.wrong_) return device.cpu_->execute(op);
    if (device.throws_) fail("the kernel cannot start");
  }

 private:
  void do_to_device(const void* host, View x) override { cpu_->to_device(host, x); }
  void do_to_host(ConstView x, void* host) override { cpu_->to_host(x, host); }
  void do_begin_read(ConstView) override {}
  void do_end_read(void*, Index) override {}

  std::unique_ptr<Device> cpu_ = make_cpu();
  std::string_view wrong_;
  bool throws_;
};

TEST(Numerics, NoticesEachMissingKernel) {
  for (const std::string_view name : {
#define SY_NAME(Operation) ops::Operation::name,
           SY_OPERATIONS(SY_NAME)
#undef SY_NAME
       }) {
    Faulty device(name);
    EXPECT_FALSE(numerics::check_operation(device, name).errors.empty()) << name;
  }
}

TEST(Numerics, ReportsAnExceptionOfAKernel) {
  Faulty device("rope", true);
  const auto result = numerics::check_operation(device, "rope");
  EXPECT_EQ(std::ssize(result.errors), result.cases);
  for (const std::string& error : result.errors)
    EXPECT_NE(error.find("the kernel cannot start"), std::string::npos) << error;
}

}  // namespace
}  // namespace sy::test
