#include "src/model/relative_bias.h"

#include <cmath>
#include <cstdlib>

#include "kernels/ops/elementwise.h"
#include "kernels/ops/gemm.h"

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

Index t5_bucket_of_both_sides(Index distance, Index buckets, Index max_distance) {
  const Index half = buckets / 2;
  return t5_bucket(std::abs(distance), half, max_distance) + (distance < 0 ? half : 0);
}

RelativeBias::RelativeBias(const RelativeSpec& spec, bool causal, Index distances, Index all_heads, Range heads,
                           ParamStore& store, const std::string& prefix) {
  Device& device = store.device();
  const Index n = causal ? distances : 2 * distances - 1;
  std::vector<float> values;  // [Hl or buckets, n], in descending order of distance
  bias_ = device.tensor({heads.size(), n});
  if (spec.kind == Position::alibi) {
    const std::vector<float> slopes = alibi_slopes(all_heads);
    for (Index head = heads.begin; head < heads.end; ++head)
      for (Index i = 0; i < n; ++i)
        values.push_back(0 - static_cast<float>(spec.scale) * slopes[head] *
                                 static_cast<float>(std::abs(distances - 1 - i)));
    device.to_device(values.data(), bias_);
    return;
  }
  values.resize(static_cast<std::size_t>(spec.buckets * n));
  for (Index i = 0; i < n; ++i) {
    const Index distance = distances - 1 - i;
    values[(causal ? t5_bucket(distance, spec.buckets, spec.max_distance)
                   : t5_bucket_of_both_sides(distance, spec.buckets, spec.max_distance)) *
               n +
           i] = 1;
  }
  basis_ = device.tensor({spec.buckets, n});
  device.to_device(values.data(), basis_);
  learned_ = store.get((spec.shared ? spec.stack : prefix) + "relative_bias.weight");
  const ConstView table = learned_.weight;
  if (table.dtype() != DType::f32) learned_f32_ = device.tensor(table.shape());
  store.packed_weights().derive(
      [&device, table, f32 = learned_f32_.view(), basis = basis_.view(), bias = bias_.view()] {
        if (f32) run(device, ops::Convert{.x = table, .y = f32});
        run(device, ops::Gemm{.a = f32 ? ConstView(f32) : table, .b = basis, .c = bias});
      });
}

void RelativeBias::backward(const ExecutionContext& context, ConstView dbias) const {
  run(context.device, ops::Gemm{.a = dbias, .b = basis_, .transpose_b = true, .accumulate = true, .c = learned_.grad});
}

ConstView as_f32(const ExecutionContext& context, ConstView x) {
  if (x.dtype() == DType::f32) return x;
  const View y = context.scratch.f32(x.shape());
  run(context.device, ops::Convert{.x = x, .y = y});
  return y;
}

}  // namespace sy
