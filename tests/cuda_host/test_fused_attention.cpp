// Tests of the choice between cuDNN's attention and the kernels of this project. A stand-in takes
// the place of cuDNN, which only a card can run.
#include "host_test.h"
#include "kernels/cuda/context.h"
#include "kernels/cuda/fused_attention.h"

namespace sy::cuda {
namespace {

class Recorder final : public FusedAttention {
 public:
  bool run(const ops::AttentionForward&) override { return ++forwards, computes; }
  bool run(const ops::AttentionBackward&) override { return ++backwards, computes; }
  int forwards = 0, backwards = 0;
  bool computes = false;
};

class FusedAttentionTest : public HostTest {
 protected:
  static constexpr Index B = 2, S = 24, H = 4, K = 2, hd = 16;
  FusedAttentionTest() : device(make_cuda()) {}
  Tensor tensor(Index heads, DType type = DType::bf16) const { return device->tensor({B, S, heads, hd}, type); }

  std::unique_ptr<Device> device;
};

TEST_F(FusedAttentionTest, CoversPlainCausalAndFullAttentionInBf16) {
  const Tensor q = tensor(H), k = tensor(K), v = tensor(K);
  const auto covers = [&](const AttentionDesc& desc) { return is_fused(q.view(), k.view(), v.view(), desc); };
  EXPECT_TRUE(covers({}));
  EXPECT_TRUE(covers({.mask = {.causal = false}}));
  const Tensor numbers = device->tensor({B, S}, DType::i32), floats = device->tensor({H, S});
  EXPECT_FALSE(covers({.softcap = 1}));
  EXPECT_FALSE(covers({.mask = {.window = 3}}));
  EXPECT_FALSE(covers({.mask = {.query_offset = 1}}));
  EXPECT_FALSE(covers({.mask = {.document_start = numbers}}));
  EXPECT_FALSE(covers({.mask = {.sparse = SparsePattern::strided(2)}}));
  EXPECT_FALSE(covers({.mask = {.query_offsets = numbers}}));
  EXPECT_FALSE(covers({.mask = {.causal = false, .key_lengths = numbers}}));
  EXPECT_FALSE(covers({.bias = floats}));
  EXPECT_FALSE(covers({.sinks = floats}));
}

TEST_F(FusedAttentionTest, CoversHeadsOfEqualAlignedWidthUpTo128) {
  const auto covers = [&](Index keys, Index width, Index values, DType type, Index first = 0) {
    const Tensor x = device->tensor({B, S, 6, 200}, type);
    const auto heads = [&](Index count, Index w) { return ConstHeads(x.view(), 0, count).columns(first, w); };
    ConstHeads k = heads(2, width), v = heads(2, values);
    k.positions = v.positions = keys;
    return is_fused(heads(4, width), k, v, {});
  };
  EXPECT_TRUE(covers(S, 128, 128, DType::bf16));
  EXPECT_TRUE(covers(S, 8, 8, DType::bf16));
  EXPECT_FALSE(covers(S, 136, 136, DType::bf16));
  EXPECT_FALSE(covers(S, 12, 12, DType::bf16));
  EXPECT_FALSE(covers(S, 64, 56, DType::bf16));
  EXPECT_FALSE(covers(S, 64, 64, DType::f32));
  EXPECT_FALSE(covers(S - 1, 64, 64, DType::bf16));
  EXPECT_FALSE(covers(S, 64, 64, DType::bf16, 4));  // not aligned to 16 bytes
}

// The kernels of this project compute if the stand-in does not, and leave the rest to it.
TEST_F(FusedAttentionTest, ReplacesTheKernelsThatItComputes) {
  Recorder recorder;
  context_of(*device).fused_attention = &recorder;
  const Tensor q = tensor(H), k = tensor(K), v = tensor(K), out = tensor(H), dout = tensor(H),
               lse = device->tensor({B, H, S}), dq = tensor(H), dk = tensor(K), dv = tensor(K);
  const auto launches = [&](float softcap) {
    const auto before = cuda_host::counters().launches;
    const AttentionDesc desc{.scale = 0.25f, .softcap = softcap};
    run(*device,
        ops::AttentionForward{.q = q.view(), .k = k.view(), .v = v.view(), .desc = desc, .out = out, .lse = lse});
    run(*device, ops::AttentionBackward{.dout = dout,
                                        .q = q.view(),
                                        .k = k.view(),
                                        .v = v.view(),
                                        .out = out,
                                        .lse = lse,
                                        .desc = desc,
                                        .dq = dq.view(),
                                        .dk = dk.view(),
                                        .dv = dv.view()});
    device->synchronize();
    return cuda_host::counters().launches - before;
  };
  EXPECT_GT(launches(0), 1);
  EXPECT_EQ(recorder.forwards, 1);
  EXPECT_EQ(recorder.backwards, 1);
  recorder.computes = true;
  EXPECT_EQ(launches(0), 0);
  EXPECT_GT(launches(1), 1);  // a cap is not covered
  EXPECT_EQ(recorder.forwards, 2);
  EXPECT_EQ(recorder.backwards, 2);
}

}  // namespace
}  // namespace sy::cuda
