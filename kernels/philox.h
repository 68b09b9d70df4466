// Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011). A pure
// function from (key, counter) to 128 random bits. All randomness in Switchyard comes from streams
// keyed by (seed, purpose) and indexed by a global index. So a number never depends on a rank, on a
// thread, or on earlier numbers.
#pragma once

#include <array>
#include <cmath>
#include <cstdint>
#include <string_view>

#include "kernels/formulas/host_device.h"

namespace sy {

using Philox4 = std::array<std::uint32_t, 4>;

constexpr Philox4 philox(std::uint64_t key, std::uint64_t counter, std::uint64_t stream = 0) {
  std::uint32_t k0 = static_cast<std::uint32_t>(key), k1 = static_cast<std::uint32_t>(key >> 32);
  Philox4 c = {static_cast<std::uint32_t>(counter), static_cast<std::uint32_t>(counter >> 32),
               static_cast<std::uint32_t>(stream), static_cast<std::uint32_t>(stream >> 32)};
  for (int round = 0; round < 10; ++round) {
    const std::uint64_t p0 = 0xD2511F53ull * c[0], p1 = 0xCD9E8D57ull * c[2];
    c = {static_cast<std::uint32_t>(p1 >> 32) ^ c[1] ^ k0, static_cast<std::uint32_t>(p1),
         static_cast<std::uint32_t>(p0 >> 32) ^ c[3] ^ k1, static_cast<std::uint32_t>(p0)};
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  return c;
}

// FNV-1a, 64 bits: turns a name into a stream.
constexpr std::uint64_t hash_name(std::string_view name) {
  std::uint64_t h = 0xcbf29ce484222325ull;
  for (char c : name) h = (h ^ static_cast<unsigned char>(c)) * 0x100000001b3ull;
  return h;
}

// A random stream: element i is a pure function of (seed, purpose, i).
class RandomStream {
 public:
  RandomStream(std::uint64_t seed, std::string_view purpose) : RandomStream(seed, hash_name(purpose)) {}
  SY_HOST_DEVICE RandomStream(std::uint64_t seed, std::uint64_t stream) : seed_(seed), stream_(stream) {}

  SY_HOST_DEVICE std::uint64_t bits(std::uint64_t i) const {
    const Philox4 r = philox(seed_, i, stream_);
    return static_cast<std::uint64_t>(r[1]) << 32 | r[0];
  }
  // Uniform in [0, 1), 53 bits.
  SY_HOST_DEVICE double uniform(std::uint64_t i) const { return static_cast<double>(bits(i) >> 11) * 0x1.0p-53; }
  // Uniform in [-1, 1), 53 bits.
  SY_HOST_DEVICE double symmetric(std::uint64_t i) const { return 2 * uniform(i) - 1; }
  // Standard normal, by Box and Muller from one Philox block.
  SY_HOST_DEVICE double normal(std::uint64_t i) const {
    const Philox4 r = philox(seed_, i, stream_);
    // (0, 1]: the logarithm is finite
    const double u = (static_cast<double>(r[0]) + 1.0) * 0x1.0p-32;
    const double v = static_cast<double>(r[1]) * 0x1.0p-32;
    return std::sqrt(-2.0 * std::log(u)) * std::cos(6.283185307179586 * v);
  }
  // Standard Gumbel, -log(-log u). The k largest z_i + gumbel_i are a sample of k without
  // replacement in proportion to softmax(z) (Kool et al., "Stochastic beams and where to find
  // them", 2019).
  SY_HOST_DEVICE double gumbel(std::uint64_t i) const {
    const Philox4 r = philox(seed_, i, stream_);
    // u lies within (0, 1)
    return -std::log(-std::log((static_cast<double>(r[0]) + 0.5) * 0x1.0p-32));
  }

 private:
  std::uint64_t seed_, stream_;
};

}  // namespace sy
