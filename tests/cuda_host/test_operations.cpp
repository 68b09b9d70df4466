// Tests of the list of operations on the cuda device.
#include "host_test.h"
#include "kernels/cuda/cuda_device.h"
#include "kernels/kernel_table.h"
#include "kernels/ops/all.h"

namespace sy::cuda {
namespace {

class OperationsTest : public HostTest {};

TEST_F(OperationsTest, OnlyPackWeightIsMissing) {
  const KernelTable& kernels = kernel_table<CudaDevice>();
#define SY_EXPECT(Operation) \
  EXPECT_EQ(kernels.kernel_of_##Operation == nullptr, ops::Operation::name == "pack_weight") << #Operation;
  SY_OPERATIONS(SY_EXPECT)
#undef SY_EXPECT
  try {
    make_cuda()->execute(ops::PackWeight{});
    FAIL();
  } catch (const std::logic_error& e) {
    EXPECT_NE(std::string(e.what()).find("the cuda device has no operation pack_weight"), std::string::npos)
        << e.what();
  }
}

}  // namespace
}  // namespace sy::cuda
