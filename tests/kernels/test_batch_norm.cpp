// Batch normalisation: its operations, and PyTorch's results.
#include <gtest/gtest.h>

#include "src/numerics/cases/batch_norm.h"
#include "tests/kernels/op_case.h"

namespace sy::test {
namespace {

class BatchNormOps : public DeviceOps {};
INSTANTIATE_TEST_SUITE_P(Targets, BatchNormOps, testing::ValuesIn(targets), target_name);

TEST_P(BatchNormOps, MatchesReference) {
  for (Rows s : many_rows) {
    if (s.d == 0) continue;
    for (RealTokens real : {RealTokens::all, RealTokens::some, RealTokens::none}) {
      for (double deviation : {1.0, 1e-3, 1e4}) check(BatchNormSums(s, real, deviation));
      check(BatchNormBackward(s, real));
    }
    for (bool biased : {false, true}) {
      check(BatchNormForward(s, biased));
      check(BatchNormGradientSums(s, RealTokens::all, biased));
      check(BatchNormGradientSums(s, RealTokens::some, biased));
    }
  }
  for (Index d : {1, 31, 64, 1023, 40000})
    for (double count : {-1.0, 0.0, 1.0, 2.0, 3.0, 1e9})
      for (bool averaged : {false, true})
        if (averaged || count >= 0) check(BatchNormMoments(d, count, averaged));
}

// The tensors of one layer on a device.
class BatchNormLayer {
 public:
  BatchNormLayer(Device& device, Index rows, const std::vector<float>& weight, const std::vector<float>& bias)
      : device_(device),
        rows_(rows),
        d_(std::ssize(weight)),
        weight_(tensor({d_}, weight)),
        bias_(tensor({d_}, bias)),
        averages_(device.tensor({2, d_})),
        moments_(device.tensor({2 * d_ + 1})) {
    std::vector<float> start(static_cast<std::size_t>(2 * d_), 0.0f);
    std::fill(start.begin() + d_, start.end(), 1.0f);
    device.to_device(start.data(), averages_);
  }
  Tensor tensor(Shape shape, const std::vector<float>& values) const {
    Tensor t = device_.tensor(shape);
    device_.to_device(values.data(), t);
    return t;
  }
  std::vector<float> host(View view) const {
    std::vector<float> values(static_cast<std::size_t>(view.elements()));
    device_.to_host(view, values.data());
    return values;
  }
  std::vector<float> forward(const std::vector<float>& values, bool training) {
    const Tensor x = tensor({rows_, d_}, values), y = device_.tensor({rows_, d_}),
                 sums = device_.tensor({2 * d_ + 1}, DType::f64);
    if (training) run(device_, ops::BatchNormSums{.x = x, .sums = sums});
    run(device_,
        ops::BatchNormMoments{.sums = training ? sums.view() : View{}, .averages = averages_, .moments = moments_});
    run(device_, ops::BatchNormForward{.x = x, .weight = weight_, .bias = bias_, .moments = moments_, .y = y});
    return host(y);
  }
  struct Gradients {
    std::vector<float> dx, dweight, dbias;
  };
  Gradients backward(const std::vector<float>& values, const std::vector<float>& gradient) {
    const Tensor x = tensor({rows_, d_}, values), dy = tensor({rows_, d_}, gradient), dx = device_.tensor({rows_, d_}),
                 dweight = device_.tensor({d_}), dbias = device_.tensor({d_}),
                 sums = device_.tensor({2, d_}, DType::f64);
    run(device_, ops::BatchNormGradientSums{
                     .dy = dy, .x = x, .moments = moments_, .dweight = dweight, .dbias = dbias, .sums = sums});
    run(device_,
        ops::BatchNormBackward{.dy = dy, .x = x, .weight = weight_, .moments = moments_, .sums = sums, .dx = dx});
    return {host(dx), host(dweight), host(dbias)};
  }
  std::vector<float> averages() const { return host(averages_); }

 private:
  Device& device_;
  Index rows_, d_;
  Tensor weight_, bias_, averages_, moments_;
};

void expect_near(const std::vector<float>& got, const std::vector<double>& want, const char* what) {
  ASSERT_EQ(got.size(), want.size()) << what;
  for (std::size_t i = 0; i < want.size(); ++i) EXPECT_NEAR(got[i], want[i], 2e-6) << what << ", element " << i;
}

class BatchNormOfPyTorch : public DeviceOps {};
INSTANTIATE_TEST_SUITE_P(Targets, BatchNormOfPyTorch, testing::ValuesIn(f32_targets()), target_name);

// torch.nn.BatchNorm1d(3) of PyTorch 2.15, in f64: forward and backward of x, forward of 2 x - 1,
// then eval() and forward of x.
TEST_P(BatchNormOfPyTorch, GivesTheSameNumbers) {
  const std::vector<float> x = {0.5f,  -1.25f, 3.0f, 2.0f,  0.75f, 3.5f,  -1.5f, 0.25f,
                                2.75f, 0.25f,  4.0f, 3.25f, 1.0f,  -2.5f, 2.5f},
                           dy = {1.0f, 0.5f,  -0.25f, -0.5f, 2.0f,  1.5f, 0.75f, -1.0f,
                                 0.5f, 0.25f, -0.75f, -2.0f, 1.25f, 1.0f, 0.75f};
  BatchNormLayer layer(*device, 5, {1.5f, -0.5f, 0.25f}, {0.1f, -0.2f, 0.3f});
  expect_near(layer.forward(x, true),
              {0.16552755563500277, 0.14143823340243353, 0.30000001192092884, 2.131354179981602, -0.31381274844112084,
               0.6535392612270505, -2.455574610160463, -0.20000000298023224, 0.12323038726786803, -0.16211021508943046,
               -1.0535955939368966, 0.47676963657398963, 0.8208030970838692, 0.425970097054655, -0.053539237385192784},
              "y");
  const BatchNormLayer::Gradients gradients = layer.backward(x, dy);
  expect_near(
      gradients.dx,
      {0.6052543893809982, 0.041043196939220775, -0.24747747451428512, -0.8953801726550497, -0.4006444002134281,
       1.1313142854285996, -0.3426394644241706, 0.30729441274439917, 0.21212920575916783, -0.45519093317739356,
       0.062420488570236514, -1.4141626533999814, 1.0879561808756155, -0.010113698040428332, 0.31819663672649917},
      "dx");
  expect_near(gradients.dweight, {-1.354236118994324, -2.4185208410438825, -0.7070784986122433}, "dweight");
  expect_near(gradients.dbias, {2.75, 1.75, 0.5}, "dbias");
  std::vector<float> second;
  for (const float value : x) second.push_back(2 * value - 1);
  layer.forward(second, true);
  expect_near(layer.averages(), {0.0305, -0.0275, 0.77, 1.612375, 3.7653125, 0.8865625}, "averages");
  expect_near(layer.forward(x, false),
              {0.6546161122536255, 0.11500524007663425, 0.8920900357461327, 2.426552568367074, -0.40034076083439474,
               1.0248456464692726, -1.7079658292309725, -0.2715042606066375, 0.8257122303845628, 0.35929336956805075,
               -1.2377780123148168, 0.9584678411077026, 1.245261597624775, 0.4370964906460274, 0.7593344250229929},
              "y of evaluation");
}

}  // namespace
}  // namespace sy::test
