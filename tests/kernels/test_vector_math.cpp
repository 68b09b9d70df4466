#include "kernels/cpu/vector_math.h"

#include <cmath>
#include <limits>

#include <gtest/gtest.h>

namespace sy::cpu {
namespace {

constexpr float infinity = std::numeric_limits<float>::infinity();
constexpr float nan = std::numeric_limits<float>::quiet_NaN();

// Returns the distance of a float from the exact value, in units in the last place of that value.
double ulps(float got, double want) {
  const float near = std::fabs(float(want));
  return std::fabs(double(got) - want) / (double(std::nextafter(near, infinity)) - double(near));
}

// Returns the worst error over floats of every exponent and both signs for which within() is true.
template <class Within>
double worst_ulps(float (*f)(float), double (*exact)(double), Within within) {
  double worst = 0;
  for (std::uint64_t bits = 0; bits < 1ull << 32; bits += 1009) {
    const float x = std::bit_cast<float>(static_cast<std::uint32_t>(bits));
    if (within(x)) worst = std::max(worst, ulps(f(x), exact(double(x))));
  }
  return worst;
}

TEST(VectorMath, ExpIsWithinTwoUlps) {
  EXPECT_LT(worst_ulps([](float x) { return exp_(x); }, std::exp, [](float x) { return x > -86.9f && x < 88.7f; }), 2);
}

TEST(VectorMath, ExpIsExactAtTheLimits) {
  EXPECT_EQ(exp_(0.0f), 1.0f);
  EXPECT_EQ(exp_(-0.0f), 1.0f);
  EXPECT_EQ(exp_(-infinity), 0.0f);
  EXPECT_EQ(exp_(-std::numeric_limits<float>::max()), 0.0f);
  EXPECT_EQ(exp_(-88.0f), 0.0f);
  EXPECT_EQ(exp_(infinity), infinity);
  EXPECT_EQ(exp_(88.8f), infinity);
  EXPECT_TRUE(std::isfinite(exp_(88.7f)));
  EXPECT_TRUE(std::isnan(exp_(nan)));
}

TEST(VectorMath, TanhIsWithinFourUlps) {
  EXPECT_LT(worst_ulps([](float x) { return tanh_(x); }, std::tanh, [](float x) { return std::fabs(x) > 1e-30f; }), 4);
  EXPECT_EQ(tanh_(0.0f), 0.0f);
  EXPECT_EQ(tanh_(infinity), 1.0f);
  EXPECT_EQ(tanh_(-infinity), -1.0f);
  EXPECT_TRUE(std::isnan(tanh_(nan)));
}

TEST(VectorMath, SigmoidIsWithinFourUlps) {
  EXPECT_LT(worst_ulps([](float x) { return sigmoid_(x); }, [](double x) { return 1 / (1 + std::exp(-x)); },
                       [](float x) { return std::fabs(x) < 80; }),
            4);
  EXPECT_EQ(sigmoid_(0.0f), 0.5f);
  EXPECT_EQ(sigmoid_(infinity), 1.0f);
  EXPECT_EQ(sigmoid_(-infinity), 0.0f);
  EXPECT_TRUE(std::isnan(sigmoid_(nan)));
}

}  // namespace
}  // namespace sy::cpu
