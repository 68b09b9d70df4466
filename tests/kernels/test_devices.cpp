// Devices and the list of their operations.
#include "kernels/ops/all.h"
#include "tests/kernels/op_case.h"

namespace sy::test {
namespace {

// A device without kernels.
class Bare final : public Device {
 public:
  Bare() : Device(no_kernels) {}
  std::string_view name() const override { return "bare"; }
  std::string describe() const override { return "bare"; }
  DeviceMemory allocate(Index bytes) override { return make_cpu()->allocate(bytes); }
  Index free_bytes() const override { return 0; }

 private:
  void do_to_device(const void*, View) override {}
  void do_to_host(ConstView, void*) override {}
  void do_begin_read(ConstView) override {}
  void do_end_read(void*, Index) override {}

  static inline const KernelTable no_kernels = {};
};

TEST(Operations, ErrorsNameDeviceAndMissingOperation) {
  Bare device;
  float x = 0;
  try {
    run(device, ops::Scale{.x = view_of(&x, {1}), .factor = 2});
    FAIL();
  } catch (const std::logic_error& e) {
    EXPECT_NE(std::string(e.what()).find("the bare device has no operation scale"), std::string::npos) << e.what();
  }
}

TEST(Devices, RejectsAnUnknownName) {
  try {
    make_device("tpu");
    FAIL();
  } catch (const NoDevice& e) {
    EXPECT_EQ(e.name, "tpu");
    EXPECT_EQ(e.missing, "there is no such backend");
  }
  EXPECT_EQ(make_device("cpu")->name(), "cpu");
  EXPECT_EQ(make_device("auto")->name(), cuda_available() ? "cuda" : "cpu");
  if (!cuda_available()) {
    EXPECT_THROW(make_device("cuda"), NoDevice);
  }
}

TEST(Devices, NamesTheSizeOfAFailedAllocation) {
  try {
    make_cpu()->allocate(Index{1} << 60);
    FAIL();
  } catch (const NoMemory& e) {
    EXPECT_NE(std::string(e.what()).find("1152921504606846976"), std::string::npos);
  }
}

}  // namespace
}  // namespace sy::test
