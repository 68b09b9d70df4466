// Tests of the list of operations on the cuda device.
#include <algorithm>

#include "host_test.h"
#include "kernels/cuda/cuda_device.h"
#include "kernels/kernel_table.h"
#include "kernels/ops/all.h"

namespace sy::cuda {
namespace {

class OperationsTest : public HostTest {};

// Operations of packed weights, and of attention by hashing.
constexpr std::string_view missing_operations[] = {"pack_weight", "lsh_sort", "lsh_attention_forward",
                                                   "lsh_attention_backward"};

TEST_F(OperationsTest, OnlyListedOnesAreMissing) {
  const KernelTable& kernels = kernel_table<CudaDevice>();
#define SY_EXPECT(Operation)                                                  \
  EXPECT_EQ(kernels.kernel_of_##Operation == nullptr,                         \
            std::ranges::count(missing_operations, ops::Operation::name) > 0) \
      << #Operation;
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
