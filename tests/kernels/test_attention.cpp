// Attention and its gradient against a double-precision reference that holds the whole S x S matrix; the
// reference's gradient against finite differences.
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include <gtest/gtest.h>
#include <omp.h>

#include "tests/kernels/op_case.h"

namespace sy::test {
namespace {

struct Case {
  Index B, S, H, K, hd;
  bool causal = true;
  Index window = 0;
  float softcap = 0;

  Index qkv_size() const { return B * S * (H + 2 * K) * hd; }
  Index out_size() const { return B * S * H * hd; }
  AttentionDesc desc() const { return {1.3f / std::sqrt(float(hd)), causal, window, softcap}; }
  // kind 0: query head `head`; 1, 2: its key and value head.
  Index at(Index b, Index s, int kind, Index head, Index c) const {
    const Index slot = kind == 0 ? head : H + (kind - 1) * K + head / (H / K);
    return ((b * S + s) * (H + 2 * K) + slot) * hd + c;
  }
  Index out_at(Index b, Index s, Index head, Index c) const { return ((b * S + s) * H + head) * hd + c; }
};

std::ostream& operator<<(std::ostream& out, const Case& c) {
  return out << "B " << c.B << " S " << c.S << " H " << c.H << " K " << c.K << " hd " << c.hd << " causal " << c.causal
             << " window " << c.window << " softcap " << c.softcap;
}

struct Reference {
  std::vector<double> out, lse, dqkv;
};

// Forward, and with dout also backward.
Reference reference(const Case& c, const std::vector<double>& qkv, const std::vector<double>* dout) {
  const AttentionDesc desc = c.desc();
  const double scale = desc.scale, cap = desc.softcap;
  Reference r{std::vector<double>(c.out_size()), std::vector<double>(c.B * c.H * c.S),
              std::vector<double>(dout ? c.qkv_size() : 0)};
  std::vector<double> score(c.S), p(c.S), dp(c.S);
  for (Index b = 0; b < c.B; ++b)
    for (Index h = 0; h < c.H; ++h)
      for (Index i = 0; i < c.S; ++i) {
        double sum = 0;
        for (Index j = 0; j < c.S; ++j) {
          const bool visible = (!c.causal || j <= i) && (c.window == 0 || j > i - c.window);
          double s = 0;
          for (Index l = 0; l < c.hd; ++l) s += qkv[c.at(b, i, 0, h, l)] * qkv[c.at(b, j, 1, h, l)];
          score[j] = cap > 0 ? cap * std::tanh(s * scale / cap) : s * scale;
          p[j] = visible ? std::exp(score[j]) : 0;
          sum += p[j];
        }
        r.lse[(b * c.H + h) * c.S + i] = std::log(sum);
        for (Index j = 0; j < c.S; ++j) {
          p[j] /= sum;
          for (Index l = 0; l < c.hd; ++l) r.out[c.out_at(b, i, h, l)] += p[j] * qkv[c.at(b, j, 2, h, l)];
        }
        if (!dout) continue;
        double mean = 0;
        for (Index j = 0; j < c.S; ++j) {
          dp[j] = 0;
          for (Index l = 0; l < c.hd; ++l) dp[j] += (*dout)[c.out_at(b, i, h, l)] * qkv[c.at(b, j, 2, h, l)];
          mean += p[j] * dp[j];
        }
        for (Index j = 0; j < c.S; ++j) {
          const double ds = p[j] * (dp[j] - mean) * scale * (cap > 0 ? 1 - (score[j] / cap) * (score[j] / cap) : 1);
          for (Index l = 0; l < c.hd; ++l) {
            r.dqkv[c.at(b, i, 0, h, l)] += ds * qkv[c.at(b, j, 1, h, l)];
            r.dqkv[c.at(b, j, 1, h, l)] += ds * qkv[c.at(b, i, 0, h, l)];
            r.dqkv[c.at(b, j, 2, h, l)] += p[j] * (*dout)[c.out_at(b, i, h, l)];
          }
        }
      }
  return r;
}

std::vector<float> random_floats(Index count, unsigned seed, float range = 1.5f) {
  std::mt19937 generator(seed);
  std::uniform_real_distribution<float> uniform(-range, range);
  std::vector<float> v(count);
  for (float& x : v) x = uniform(generator);
  return v;
}

struct Result {
  std::vector<float> out, lse, dqkv;
  bool operator==(const Result&) const = default;
};

class Attention : public testing::TestWithParam<Target> {
 protected:
  void SetUp() override {
    if (!GetParam().available()) GTEST_SKIP() << "no device";
    backend = GetParam().make();
  }

  static DType dtype() { return GetParam().dtype; }
  std::vector<float> random_operand(Index count, unsigned seed, float range = 1.5f) const {
    std::vector<float> v = random_floats(count, seed, range);
    if (dtype() == DType::bf16)
      for (float& x : v) x = float_of_bf16(bf16_of_float(x));
    return v;
  }

  Result run(const Case& c, const std::vector<float>& qkv, const std::vector<float>& dout, int threads = 2) {
    const int before = omp_get_max_threads();
    omp_set_num_threads(threads);
    const Shape qkv_shape = {c.B, c.S, c.H + 2 * c.K, c.hd}, out_shape = {c.B, c.S, c.H, c.hd};
    const Guarded q(*backend, qkv_shape, dtype(), qkv), d(*backend, out_shape, dtype(), dout);
    const Guarded out(*backend, out_shape, dtype()), lse(*backend, {c.B, c.H, c.S}, DType::f32);
    const Guarded dqkv(*backend, qkv_shape, dtype());
    backend->attention_forward(c.desc(), q.view, out.view, lse.view);
    backend->attention_backward(c.desc(), d.view, q.view, out.view, lse.view, dqkv.view);
    omp_set_num_threads(before);
    return {out.values(), lse.values(), dqkv.values()};
  }

  void check(const Case& c, float range = 1.5f) {
    SCOPED_TRACE(testing::Message() << c);
    const std::vector<float> qkv = random_operand(c.qkv_size(), 1, range), dout = random_operand(c.out_size(), 2);
    const std::vector<double> dout_exact(dout.begin(), dout.end());
    const Reference want = reference(c, {qkv.begin(), qkv.end()}, &dout_exact);
    const Result got = run(c, qkv, dout);
    expect_near(got.lse, want.lse, 1e-5, "lse");
    if (dtype() == DType::bf16) {
      // Single elements may be off by several times what they are rounded by: D is a difference.
      expect_near_in_sum(got.out, want.out, 4e-3, "out");
      expect_near_in_sum(got.dqkv, want.dqkv, 7e-3 * range, "dqkv");
    } else {
      expect_near(got.out, want.out, 1e-5, "out");
      expect_near(got.dqkv, want.dqkv, 2e-5 * range, "dqkv");
    }
  }

  std::unique_ptr<Backend> backend;

 private:
  // An operand between margins that must stay. An output starts as NaNs, to find what is left unwritten.
  struct Guarded {
    static constexpr Index margin = 64;
    static constexpr float untouched = 12352.0f;  // in bf16 too

    Backend& backend;
    Tensor all;
    View view;

    Guarded(Backend& b, Shape shape, DType type, const std::vector<float>& values = {})
        : backend(b),
          all(b.tensor({shape.elements() + 2 * margin}, type)),
          view(all.view().bytes() + margin * size_of(type), shape, type) {
      std::vector<float> host(all.view().elements(), untouched);
      if (values.empty())
        std::fill_n(host.begin() + margin, shape.elements(), std::numeric_limits<float>::quiet_NaN());
      else
        std::copy(values.begin(), values.end(), host.begin() + margin);
      const Tensor exact = b.tensor(all.shape());
      b.to_device(host.data(), exact);
      b.convert(exact, all);
    }
    std::vector<float> values() const {
      const Tensor exact = backend.tensor(all.shape());
      backend.convert(all, exact);
      std::vector<float> host(all.view().elements());
      backend.to_host(exact, host.data());
      for (Index i = 0; i < margin; ++i) {
        EXPECT_EQ(host[i], untouched) << "wrote before the output";
        EXPECT_EQ(host[host.size() - 1 - i], untouched) << "wrote behind the output";
      }
      return {host.begin() + margin, host.end() - margin};
    }
  };

  static void expect_near(const std::vector<float>& got, const std::vector<double>& want, double tolerance,
                          const char* what) {
    ASSERT_EQ(got.size(), want.size());
    for (std::size_t i = 0; i < got.size(); ++i)
      ASSERT_NEAR(got[i], want[i], tolerance * (1 + std::fabs(want[i]))) << what << " at " << i;
  }
  static void expect_near_in_sum(const std::vector<float>& got, const std::vector<double>& want, double tolerance,
                                 const char* what) {
    ASSERT_EQ(got.size(), want.size());
    double error = 0, sum = 0;
    for (std::size_t i = 0; i < got.size(); ++i) {
      error += (got[i] - want[i]) * (got[i] - want[i]);
      sum += want[i] * want[i];
    }
    EXPECT_LE(std::sqrt(error), tolerance * std::sqrt(sum)) << what;
  }
};
INSTANTIATE_TEST_SUITE_P(On, Attention, testing::ValuesIn(targets), target_name);

TEST(AttentionReference, TheGradientMatchesFiniteDifferences) {
  for (const Case& c : {Case{1, 5, 2, 1, 3}, Case{2, 4, 2, 2, 2, false}, Case{1, 6, 1, 1, 3, true, 2},
                        Case{1, 5, 2, 1, 3, true, 0, 1.5f}, Case{1, 5, 2, 1, 2, false, 3, 2.0f}}) {
    SCOPED_TRACE(testing::Message() << c);
    const std::vector<float> values = random_floats(c.qkv_size(), 3), weights = random_floats(c.out_size(), 4);
    std::vector<double> qkv(values.begin(), values.end());
    const std::vector<double> dout(weights.begin(), weights.end());
    const Reference r = reference(c, qkv, &dout);
    const auto loss = [&] {
      const Reference at = reference(c, qkv, nullptr);
      double sum = 0;
      for (Index i = 0; i < c.out_size(); ++i) sum += at.out[i] * dout[i];
      return sum;
    };
    for (Index i = 0; i < c.qkv_size(); ++i) {
      const double x = qkv[i], step = 1e-5;
      qkv[i] = x + step;
      const double above = loss();
      qkv[i] = x - step;
      const double below = loss();
      qkv[i] = x;
      ASSERT_NEAR(r.dqkv[i], (above - below) / (2 * step), 1e-8) << "at " << i;
    }
  }
}

TEST_P(Attention, EveryCombination) {
  for (Index S : {1, 2, 67, 130})
    for (const auto& [H, K] : {std::pair<Index, Index>{3, 3}, {4, 2}, {3, 1}})
      for (bool causal : {true, false})
        for (Index window : {0, 1, 20})
          for (float softcap : {0.0f, 2.0f}) check({2, S, H, K, 16, causal, window, softcap});
}

TEST_P(Attention, HeadWidths) {
  for (Index hd : {1, 4, 17, 32, 40, 64, 80, 96, 128, 150, 192, 256}) check({1, 67, 2, 1, hd});
}

TEST_P(Attention, SequencesOfSeveralBlocks) {
  for (Index S : {256, 257, 530})
    for (const auto& [causal, window] :
         {std::pair<bool, Index>{true, 0}, {false, 0}, {true, 100}, {true, 300}, {false, 230}})
      check({1, S, 2, 1, 8, causal, window});
  check({1, 700, 1, 1, 8, true, 30, 5.0f});
}

TEST_P(Attention, LargeScoresStayFinite) {
  check({1, 40, 1, 1, 16, true, 0, 0}, 20.0f);
}

TEST_P(Attention, NansOfOneCallLeaveNoTraceInTheNext) {
  for (const Case& c : {Case{1, 20, 2, 1, 20}, Case{1, 300, 2, 1, 20}, Case{1, 300, 2, 1, 20, false},
                        Case{1, 400, 2, 1, 20, true, 10}}) {
    run(c, std::vector<float>(c.qkv_size(), std::numeric_limits<float>::quiet_NaN()),
        std::vector<float>(c.out_size(), std::numeric_limits<float>::quiet_NaN()));
    check(c);
  }
}

TEST_P(Attention, EmptySizes) {
  for (const Case& c : {Case{0, 5, 2, 1, 4}, Case{2, 0, 2, 1, 4}}) {
    const Result r = run(c, {}, {});
    EXPECT_TRUE(r.out.empty() && r.lse.empty() && r.dqkv.empty());
  }
}

// With one kv head, more threads than that share its blocks.
TEST_P(Attention, ThreadsChangeNoBit) {
  for (const Case& c : {Case{2, 300, 4, 2, 16}, Case{1, 500, 2, 1, 24, true, 250}, Case{1, 300, 3, 1, 8, false, 40},
                        Case{1, 700, 1, 1, 8}}) {
    SCOPED_TRACE(testing::Message() << c);
    const std::vector<float> qkv = random_operand(c.qkv_size(), 5), dout = random_operand(c.out_size(), 6);
    const Result one = run(c, qkv, dout, 1);
    for (int threads : {2, 3, 8}) EXPECT_TRUE(run(c, qkv, dout, threads) == one) << threads << " threads";
  }
}

TEST_P(Attention, ASequenceAloneIsBitwiseThatOfTheBatch) {
  const Case batch{3, 230, 4, 2, 16}, alone{1, 230, 4, 2, 16};
  const std::vector<float> qkv = random_operand(batch.qkv_size(), 7), dout = random_operand(batch.out_size(), 8);
  const Result whole = run(batch, qkv, dout);
  for (Index b = 0; b < batch.B; ++b) {
    const auto part = [b](const std::vector<float>& v) {
      const auto size = std::ssize(v) / 3;
      return std::vector<float>(v.begin() + b * size, v.begin() + (b + 1) * size);
    };
    EXPECT_TRUE((run(alone, part(qkv), part(dout)) == Result{part(whole.out), part(whole.lse), part(whole.dqkv)}));
  }
}

TEST_P(Attention, ACausalRowDoesNotSeeWhatFollows) {
  const Case longer{1, 300, 2, 1, 16}, shorter{1, 111, 2, 1, 16};
  const std::vector<float> qkv = random_operand(longer.qkv_size(), 9), dout(longer.out_size());
  const Result all = run(longer, qkv, dout);
  const Result prefix =
      run(shorter, {qkv.begin(), qkv.begin() + shorter.qkv_size()}, std::vector<float>(shorter.out_size()));
  EXPECT_EQ(std::memcmp(prefix.out.data(), all.out.data(), prefix.out.size() * sizeof(float)), 0);
}

}  // namespace
}  // namespace sy::test
