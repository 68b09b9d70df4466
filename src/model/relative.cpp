#include "src/model/relative.h"

#include <cmath>

namespace sy {

std::vector<float> alibi_slopes(Index heads) {
  Index power = 1;
  while (2 * power <= heads) power *= 2;
  const auto slope = [](Index i, Index of) {
    return static_cast<float>(std::exp2(-8.0 * static_cast<double>(i) / static_cast<double>(of)));
  };
  std::vector<float> slopes;
  for (Index i = 1; i <= power; ++i) slopes.push_back(slope(i, power));
  for (Index i = 1; std::ssize(slopes) < heads; i += 2) slopes.push_back(slope(i, 2 * power));
  return slopes;
}

Index t5_bucket(Index distance, Index buckets, Index max_distance) {
  const Index exact = buckets / 2;
  if (distance < exact) return distance;
  const double ratio = std::log(static_cast<double>(distance) / static_cast<double>(exact)) /
                       std::log(static_cast<double>(max_distance) / static_cast<double>(exact));
  return std::min(buckets - 1, exact + static_cast<Index>(ratio * static_cast<double>(buckets - exact)));
}

RelativeBias::RelativeBias(const RelativeSpec& spec, Index distances, Index all_heads, Range heads, ParamStore& store,
                           const std::string& prefix) {
  Backend& backend = store.backend();
  const bool t5 = spec.kind == Position::t5;
  const Index n = distances, rows = t5 ? spec.buckets : 1;
  std::vector<float> basis(static_cast<std::size_t>(rows * n));
  for (Index distance = 0; distance < n; ++distance) {
    float* const column = basis.data() + n - 1 - distance;
    if (t5)
      column[t5_bucket(distance, spec.buckets, spec.max_distance) * n] = 1;
    else
      *column = -static_cast<float>(distance);
  }
  basis_ = backend.tensor({rows, n});
  backend.to_device(basis.data(), basis_);
  if (t5) {
    learned_ = store.get(spec.shared ? "relative_bias.weight" : prefix + "relative_bias.weight");
  } else {
    slopes_ = backend.tensor({heads.size(), 1});
    backend.to_device(alibi_slopes(all_heads).data() + heads.begin, slopes_);
  }
}

View RelativeBias::bias(const Device& device) const {
  const ConstView table = learned_ ? as_f32(device, learned_.weight) : ConstView(slopes_);
  const View bias = device.scratch.f32({table.dim(0), basis_.shape()[1]});
  device.backend.gemm({}, table, basis_, bias);
  return bias;
}

void RelativeBias::backward(const Device& device, ConstView dbias) const {
  device.backend.gemm({.transpose_b = true, .accumulate = true}, dbias, basis_, learned_.grad);
}

ConstView as_f32(const Device& device, ConstView x) {
  if (x.dtype() == DType::f32) return x;
  const View y = device.scratch.f32(x.shape());
  device.backend.convert(x, y);
  return y;
}

}  // namespace sy
