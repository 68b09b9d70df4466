// Measures attention at the shapes of a training step: milliseconds, and the share of the FMA peak
// of the same run. A causal product counts half of the S x S scores: per head, 4 S^2/2 hd FLOP
// forward and 10 S^2/2 hd backward.
#include <cmath>
#include <cstdio>
#include <vector>

#include "kernels/device.h"
#include "kernels/ops/attention.h"
#include "tests/bench/arguments.h"
#include "tests/bench/peak.h"

namespace {

using sy::Index;

struct Shape {
  Index B, S, H, K, hd;
};

constexpr Shape shapes[] = {{8, 256, 8, 8, 32},  {8, 256, 8, 2, 32},  {2, 1024, 8, 8, 32},  {8, 256, 4, 4, 64},
                            {2, 1024, 8, 8, 64}, {2, 1024, 8, 2, 64}, {1, 2048, 8, 1, 128}, {1, 4096, 4, 4, 64}};

int run() {
  const auto device = sy::make_cpu();
  const double peak = sy::bench::measured_fma_peak();
  std::printf("%s: FMA peak %.1f GFLOP/s\n\n", device->describe().c_str(), peak / 1e9);
  std::printf("%4s %5s %3s %3s %4s %12s %5s %12s %5s\n", "B", "S", "H", "K", "hd", "forward ms", "peak", "backward ms",
              "peak");
  for (const Shape& s : shapes) {
    const auto filled = [](Index size) {
      std::vector<float> v(size);
      for (Index i = 0; i < size; ++i) v[i] = float((i * 7919) % 1009) / 1009 - 0.5f;
      return v;
    };
    std::vector<float> qkv = filled(s.B * s.S * (s.H + 2 * s.K) * s.hd), dqkv = qkv;
    std::vector<float> dout = filled(s.B * s.S * s.H * s.hd), out = dout, lse(s.B * s.H * s.S);
    const sy::View dout_view = sy::view_of(dout.data(), {s.B, s.S, s.H, s.hd});
    const sy::View out_view = sy::view_of(out.data(), dout_view.shape());
    const sy::View lse_view = sy::view_of(lse.data(), {s.B, s.H, s.S});
    const auto slice = [&](std::vector<float>& all, Index first, Index count) {
      return sy::heads_of(sy::view_of(all.data(), {s.B, s.S, s.H + 2 * s.K, s.hd}), first, count);
    };
    const auto q = [&](std::vector<float>& all) { return slice(all, 0, s.H); };
    const auto k = [&](std::vector<float>& all) { return slice(all, s.H, s.K); };
    const auto v = [&](std::vector<float>& all) { return slice(all, s.H + s.K, s.K); };
    const sy::AttentionDesc desc{1 / std::sqrt(float(s.hd))};
    const double forward = sy::bench::best_seconds([&] {
      sy::ops::run(*device, sy::ops::AttentionForward{
                                .q = q(qkv), .k = k(qkv), .v = v(qkv), .desc = desc, .out = out_view, .lse = lse_view});
    });
    const double backward = sy::bench::best_seconds([&] {
      sy::ops::run(*device, sy::ops::AttentionBackward{.dout = dout_view,
                                                       .q = q(qkv),
                                                       .k = k(qkv),
                                                       .v = v(qkv),
                                                       .out = out_view,
                                                       .lse = lse_view,
                                                       .desc = desc,
                                                       .dq = q(dqkv),
                                                       .dk = k(dqkv),
                                                       .dv = v(dqkv)});
    });
    // B H S^2 hd: forward has 2 of these in FLOP, backward 5.
    const double product = double(s.B) * double(s.H) * double(s.S) * double(s.S) * double(s.hd);
    std::printf("%4td %5td %3td %3td %4td %12.2f %4.0f%% %12.2f %4.0f%%\n", s.B, s.S, s.H, s.K, s.hd, forward * 1e3,
                200 * product / forward / peak, backward * 1e3, 500 * product / backward / peak);
    std::fflush(stdout);
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  return sy::bench::exit_code_of("bench_attention", argv, [&] {
    boost::program_options::options_description options;
    boost::program_options::variables_map values;
    const bool measures = sy::bench::read_arguments(
        argc, argv, "bench_attention", "Measures attention at the shapes of a training step.", options, values);
    return measures ? run() : 0;
  });
}
