#include "src/model/rope.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace sy {

namespace {

// The part of a low frequency in yarn's mean, by pair: 0 up to the dimension that makes beta_fast turns over the original
// length, 1 from that of beta_slow turns on.
double yarn_ramp(const RopeSpec& r, Index pair) {
  const auto dimension = [&](double turns) {
    const double wave = static_cast<double>(r.original_length) / (turns * 2 * std::numbers::pi);
    return static_cast<double>(r.rotated) * std::log(wave) / (2 * std::log(r.theta));
  };
  double first = dimension(r.beta_fast), last = dimension(r.beta_slow);
  if (r.whole_dimensions) {
    first = std::floor(first);
    last = std::ceil(last);
  }
  first = std::max(first, 0.0);
  last = std::min(last, static_cast<double>(r.rotated - 1));
  if (first == last) last += 0.001;
  return std::clamp((static_cast<double>(pair) - first) / (last - first), 0.0, 1.0);
}

// A frequency where the part `low` of it is divided by s.
double mean_of(double frequency, double low, double s) {
  return frequency / s * low + frequency * (1 - low);
}

}  // namespace

std::vector<double> rope_frequencies(const RopeSpec& r) {
  const double s = r.factor, L = static_cast<double>(r.original_length), dims = static_cast<double>(r.rotated);
  double theta = r.theta;
  if (r.scaling == RopeScaling::ntk || r.scaling == RopeScaling::dynamic) {
    const double length = std::max(static_cast<double>(r.length), L);
    theta *= std::pow(r.scaling == RopeScaling::ntk ? s : s * length / L - (s - 1), dims / (dims - 2));
  }
  std::vector<double> frequencies;
  for (Index i = 0; i < r.rotated / 2; ++i) {
    double f = std::pow(theta, -2.0 * static_cast<double>(i) / dims);
    switch (r.scaling) {
      case RopeScaling::none:
      case RopeScaling::ntk:
      case RopeScaling::dynamic:
        break;
      case RopeScaling::linear:
        f /= s;
        break;
      case RopeScaling::llama3: {
        const double turns = L * f / (2 * std::numbers::pi);
        const double high = (turns - r.low_frequency) / (r.high_frequency - r.low_frequency);
        f = mean_of(f, 1 - std::clamp(high, 0.0, 1.0), s);
        break;
      }
      case RopeScaling::yarn:
        f = mean_of(f, yarn_ramp(r, i), s);
        break;
      case RopeScaling::longrope:
        f /= r.factors[static_cast<std::size_t>(i)];
        break;
    }
    frequencies.push_back(f);
  }
  return frequencies;
}

std::vector<float> rope_table(const RopeSpec& rope, Index positions) {
  const std::vector<double> frequencies = rope_frequencies(rope);
  std::vector<float> table;
  table.reserve(static_cast<std::size_t>(positions * rope.rotated));
  for (Index p = 0; p < positions; ++p)
    for (const double frequency : frequencies) {
      const double angle = static_cast<double>(p) * frequency;
      table.push_back(static_cast<float>(rope.attention_factor * std::cos(angle)));
      table.push_back(static_cast<float>(rope.attention_factor * std::sin(angle)));
    }
  return table;
}

RopeTables::RopeTables(Backend& backend, const std::vector<BlockSpec>& blocks, Index positions)
    : positions_(positions) {
  for (const BlockSpec& block : blocks) {
    const std::optional<RopeSpec>& rope = block.attention.rope;
    if (!rope || of(rope)) continue;
    tables_.emplace_back(*rope, backend.tensor({positions, rope->rotated / 2, 2}));
    backend.to_device(rope_table(*rope, positions).data(), tables_.back().second);
  }
}

ConstView RopeTables::of(const std::optional<RopeSpec>& rope) const {
  for (const auto& [spec, table] : tables_)
    if (rope == spec) return table;
  return {};
}

}  // namespace sy
