// Tests that a replayed pass notices every changed argument. CUDA graphs would repeat the recorded
// operations, whatever the pass requests now. An argument is a number, or a tensor inside a struct.
#include <bit>

#include "host_test.h"
#include "kernels/cuda/cuda.h"

namespace sy::cuda {
namespace {

class ReplayTest : public HostTest {
 protected:
  // Expects that `operation` is recorded with argument 0, and refused with argument 1.
  void notices(const std::string& what, const std::function<void(int)>& operation) {
    const auto pass = [&](int which) { backend->graph_region(what, [&] { operation(which); }); };
    for (int run = 0; run < 4; ++run) pass(0);
    EXPECT_THROW(pass(1), Failure) << what;
    backend->synchronize();
  }
  View filled(Shape shape, DType type = DType::f32) {
    const View x = memory(shape, type);
    backend->fill(x, 0);
    return x;
  }
  const std::unique_ptr<Backend> backend = make_cuda();
};

TEST_F(ReplayTest, DetectsAChangedAdamWArgument) {
  const View factor = filled({1}), step_scalars = filled({3}), rounded = filled({64}, DType::bf16);
  const std::vector<View> x = {filled({64}), filled({64}), filled({64}), filled({64})},
                          y = {filled({64}), filled({64})};
  const AdamW plain{0.9f, 0.95f, 1e-8f, 0.1f};
  const auto update = [&](const AdamW& desc, View g, View w, View m, View v, View low) {
    backend->adamw(desc, factor, step_scalars, g, w, m, v, low);
  };
  for (float AdamW::*number : {&AdamW::beta1, &AdamW::beta2, &AdamW::eps, &AdamW::weight_decay})
    notices("a number", [&](int which) {
      AdamW desc = plain;
      desc.*number =
          std::bit_cast<float>(std::bit_cast<std::uint32_t>(desc.*number) + static_cast<std::uint32_t>(which));
      update(desc, x[0], x[1], x[2], x[3], rounded);
    });
  notices("gradients", [&](int which) { update(plain, which ? y[0] : x[0], x[1], x[2], x[3], rounded); });
  notices("weights", [&](int which) { update(plain, x[0], which ? y[0] : x[1], x[2], x[3], rounded); });
  notices("moments", [&](int which) { update(plain, x[0], x[1], x[which ? 3 : 2], x[which ? 2 : 3], rounded); });
  notices("rounded weights", [&](int which) { update(plain, x[0], x[1], x[2], x[3], which ? View{} : rounded); });
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
      backend->attention_forward(desc, qkv_heads(0), qkv_heads(1), qkv_heads(2), out, lse);
    });
  };
  notices_desc("scale", [](AttentionDesc& d) { d.scale = 0.41f; });
  notices_desc("cap", [](AttentionDesc& d) { d.softcap = 30; });
  notices_desc("window", [](AttentionDesc& d) { d.mask.window = 5; });
  notices("heads", [&](int which) {
    backend->attention_forward(plain, qkv_heads(which), qkv_heads(1), qkv_heads(2), out, lse);
  });
}

TEST_F(ReplayTest, DetectsChangedScalarsOfOtherOperations) {
  const View x = filled({16}), bf16_x = filled({16}, DType::bf16), logits = filled({2, 16}), lse = filled({2}),
             total = filled({1}, DType::f64), targets = filled({2}, DType::i32), norm = filled({2, 16}),
             weight = filled({16}), moments = filled({2, 2});
  notices("a value", [&](int which) { backend->fill(x, 2 + static_cast<float>(which)); });
  notices("a factor", [&](int which) { backend->scale(x, 2 + static_cast<float>(which)); });
  notices("a tensor", [&](int which) { backend->convert(which ? weight : x, bf16_x); });
  notices("a z loss", [&](int which) {
    backend->cross_entropy_backward({0, 0, which * 1e-3}, logits, targets, lse, total, norm);
  });
  notices("a cap of logits", [&](int which) {
    backend->cross_entropy_backward({0, which ? 20.0f : 30.0f, 0}, logits, targets, lse, total, logits);
  });
  notices("an eps", [&](int which) {
    backend->norm_forward({NormKind::rmsnorm, which ? 1e-6f : 1e-5f}, logits, weight, {}, norm, moments);
  });
}

}  // namespace
}  // namespace sy::cuda
