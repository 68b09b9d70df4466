// Tests that a replayed pass notices every changed argument. CUDA graphs would repeat the recorded
// operations, whatever the pass requests now. An argument is a number, or a tensor inside a struct.
#include <bit>
#include <utility>

#include "host_test.h"
#include "kernels/cuda/context.h"
#include "kernels/ops/attention.h"
#include "kernels/ops/cross_entropy.h"
#include "kernels/ops/elementwise.h"
#include "kernels/ops/norm.h"
#include "kernels/ops/optimizer.h"

namespace sy::cuda {
namespace {

class ReplayTest : public HostTest {
 protected:
  // Expects that `operation` is recorded with argument 0, and refused with argument 1.
  void notices(const std::string& what, const std::function<void(int)>& operation) {
    const auto pass = [&](int which) { device->graph_region(what, [&] { operation(which); }); };
    for (int run = 0; run < 4; ++run) pass(0);
    EXPECT_THROW(pass(1), Failure) << what;
    device->synchronize();
  }
  View filled(Shape shape, DType type = DType::f32) {
    const View x = memory(shape, type);
    run(*device, ops::Fill{.x = x, .value = 0});
    return x;
  }
  const std::unique_ptr<Device> device = make_cuda();
};

TEST_F(ReplayTest, DetectsAChangedAdamWArgument) {
  const View other = filled({64});
  const ops::AdamW plain{.coefficient = filled({1}),
                         .step_scalars = filled({3}),
                         .g = filled({64}),
                         .beta1 = 0.9f,
                         .beta2 = 0.95f,
                         .eps = 1e-8f,
                         .weight_decay = 0.1f,
                         .w = filled({64}),
                         .m = filled({64}),
                         .v = filled({64}),
                         .rounded = filled({64}, DType::bf16)};
  const auto notices_change = [&](const std::string& what, auto change) {
    notices(what, [&](int which) {
      ops::AdamW op = plain;
      if (which) change(op);
      run(*device, op);
    });
  };
  for (float ops::AdamW::*number :
       {&ops::AdamW::beta1, &ops::AdamW::beta2, &ops::AdamW::eps, &ops::AdamW::weight_decay})
    notices_change("a number", [&](ops::AdamW& op) {
      op.*number = std::bit_cast<float>(std::bit_cast<std::uint32_t>(op.*number) + 1);
    });
  notices_change("gradients", [&](ops::AdamW& op) { op.g = other; });
  notices_change("weights", [&](ops::AdamW& op) { op.w = other; });
  notices_change("moments", [&](ops::AdamW& op) { std::swap(op.m, op.v); });
  notices_change("rounded weights", [&](ops::AdamW& op) { op.rounded = {}; });
  const Tensor sums = device->tensor({2}, DType::i32);
  notices_change("sums of bits", [&](ops::AdamW& op) { op.bit_sums = sums; });
}

TEST_F(ReplayTest, DetectsAChangedAttentionArgument) {
  constexpr Index B = 2, S = 24, H = 4, hd = 8;
  const View qkv = filled({B, S, 3 * H, hd}), out = filled({B, S, H, hd}), lse = filled({B, H, S});
  const auto qkv_heads = [&](Index i) { return heads_of(qkv, i * H, H); };
  const AttentionDesc plain{0.4f};
  const auto notices_desc = [&](const std::string& what, auto change) {
    notices(what, [&](int which) {
      AttentionDesc desc = plain;
      if (which) change(desc);
      run(*device, ops::AttentionForward{
                       .q = qkv_heads(0), .k = qkv_heads(1), .v = qkv_heads(2), .desc = desc, .out = out, .lse = lse});
    });
  };
  notices_desc("scale", [](AttentionDesc& d) { d.scale = 0.41f; });
  notices_desc("cap", [](AttentionDesc& d) { d.softcap = 30; });
  notices_desc("window", [](AttentionDesc& d) { d.mask.window = 5; });
  notices("heads", [&](int which) {
    run(*device,
        ops::AttentionForward{
            .q = qkv_heads(which), .k = qkv_heads(1), .v = qkv_heads(2), .desc = plain, .out = out, .lse = lse});
  });
}

TEST_F(ReplayTest, DetectsChangedScalarsOfOtherOperations) {
  const View x = filled({16}), bf16_x = filled({16}, DType::bf16), logits = filled({2, 16}), lse = filled({2}),
             total = filled({1}, DType::f64), targets = filled({2}, DType::i32), norm = filled({2, 16}),
             weight = filled({16}), moments = filled({2, 2});
  notices("a value", [&](int which) { run(*device, ops::Fill{.x = x, .value = 2 + static_cast<float>(which)}); });
  notices("a factor", [&](int which) { run(*device, ops::Scale{.x = x, .factor = 2 + static_cast<float>(which)}); });
  notices("a tensor", [&](int which) { run(*device, ops::Convert{.x = which ? weight : x, .y = bf16_x}); });
  notices("a z loss", [&](int which) {
    run(*device, ops::CrossEntropyBackward{.logits = logits,
                                           .targets = targets,
                                           .lse = lse,
                                           .total = total,
                                           .desc = {0, 0, which * 1e-3},
                                           .dlogits = norm});
  });
  notices("a cap of logits", [&](int which) {
    run(*device, ops::CrossEntropyBackward{.logits = logits,
                                           .targets = targets,
                                           .lse = lse,
                                           .total = total,
                                           .desc = {0, which ? 20.0f : 30.0f, 0},
                                           .dlogits = logits});
  });
  notices("an eps", [&](int which) {
    run(*device, ops::NormForward{.x = logits,
                                  .weight = weight,
                                  .desc = {NormKind::rmsnorm, which ? 1e-6f : 1e-5f},
                                  .y = norm,
                                  .moments = moments});
  });
}

}  // namespace
}  // namespace sy::cuda
