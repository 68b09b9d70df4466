// The loss of large vocabularies, whose bf16 gradients overwrite the logits in place.
//
// The tests also run on the CUDA emulator. It notices if a thread block reads memory that another
// block of the same launch writes.
#include <gtest/gtest.h>

#include "kernels/ops/cross_entropy.h"
#include "kernels/ops/gemm.h"
#include "src/model/engine.h"
#include "src/model/head.h"

namespace sy {
namespace {

constexpr Index head_width = 8, head_tokens = 70;

class LargeVocabulary : public ::testing::TestWithParam<Index> {
 protected:
  const Index V = GetParam();
  const std::unique_ptr<Comm> self = make_comm_self();
  Engine engine{parse_config("[model]\nlayers=1\nd_model=8\nheads=1\nd_ff=8\nseq_len=70\n[run]\ndtype=bf16\n", "test"),
                V, make_device("auto", 0), make_mesh(*self, {}), true};
  Device& device = engine.device();
  const ExecutionContext context{device, engine.mesh(), engine.scratch(), DType::bf16};

  // Gradients in memory of their own, in chunks of as many tokens as the device takes at a time.
  std::vector<std::uint16_t> gradients_apart(ConstView x, ConstView targets, ConstView total, View dw) {
    const View w = engine.store().get("output.weight").weight;
    const Tensor dx = device.tensor({head_tokens, head_width}, DType::bf16);
    const Index chunk = std::clamp<Index>(device.logits_chunk() / V, 64, 4096);
    for (Index at = 0; at < head_tokens; at += chunk) {
      const Index n = std::min(chunk, head_tokens - at);
      const Tensor logits = device.tensor({n, V}), partial = device.tensor({1, n, 3}), lse = device.tensor({n}),
                   loss = device.tensor({n}), dlogits = device.tensor({n, V}, DType::bf16);
      run(device, ops::Gemm{.a = x.rows(at, n), .b = w, .transpose_b = true, .c = logits});
      run(device,
          ops::CrossEntropyForward{
              .logits = logits, .targets = targets.rows(at, n), .desc = {}, .partial = partial.view().reshape({n, 3})});
      run(device, ops::CrossEntropyLoss{.partials = partial, .targets = targets.rows(at, n), .lse = lse, .loss = loss});
      run(device, ops::CrossEntropyBackward{.logits = logits,
                                            .targets = targets.rows(at, n),
                                            .lse = lse,
                                            .total = total,
                                            .desc = {},
                                            .dlogits = dlogits});
      run(device, ops::Gemm{.a = dlogits.view(), .b = w, .c = dx.view().rows(at, n)});
      run(device,
          ops::Gemm{.a = dlogits.view(), .b = x.rows(at, n), .transpose_a = true, .accumulate = at > 0, .c = dw});
    }
    return contents<std::uint16_t>(dx);
  }
  template <class Element>
  std::vector<Element> contents(ConstView x) {
    std::vector<Element> values(x.elements());
    device.to_host(x, values.data());
    return values;
  }
};

TEST_P(LargeVocabulary, GradientsEqualSeparateBuffers) {
  Head head(engine.config(), engine.store(), engine.store().get("output.weight"), 0);
  engine.store().initialize(3);
  engine.store().packed_weights().refresh();
  const RandomStream random(5, "head");
  std::vector<std::uint16_t> values(head_tokens * head_width);
  for (Index i = 0; i < head_tokens * head_width; ++i) values[i] = bf16_of_float(static_cast<float>(random.normal(i)));
  std::vector<std::int32_t> ids(head_tokens);
  for (Index t = 0; t < head_tokens; ++t)
    ids[t] = t % 9 == 4 ? -1 : static_cast<std::int32_t>(random.bits(head_tokens * head_width + t) % V);
  const Tensor x = device.tensor({head_tokens, head_width}, DType::bf16),
               dx = device.tensor({head_tokens, head_width}, DType::bf16),
               targets = device.tensor({head_tokens}, DType::i32), total = device.tensor({1}, DType::f64);
  const double with_target = 62;
  device.to_device(values.data(), x);
  device.to_device(ids.data(), targets);
  device.to_device(&with_target, total);

  const Tensor dw = device.tensor({V, head_width});
  const auto expected = gradients_apart(x, targets, total, dw);
  engine.store().clear_gradients();
  head.loss(context,
            {.streams = {{.sequences = 1, .seq_len = head_tokens, .ids = {}, .positions = {}}},
             .targets = targets,
             .step = {total, 1, 1}},
            x, dx, {});
  EXPECT_TRUE(contents<std::uint16_t>(dx) == expected);
  EXPECT_TRUE(contents<float>(engine.store().get("output.weight").grad) == contents<float>(dw));
}

// One chunk of tokens with an even and an odd vocabulary. The third vocabulary gives chunks of 64
// and 6 tokens.
INSTANTIATE_TEST_SUITE_P(Cases, LargeVocabulary, testing::Values(8192, 8201, 65600),
                         [](const auto& p) { return std::to_string(p.param); });

}  // namespace
}  // namespace sy
