#include "src/params/packed_weights.h"

namespace sy {

Weight PackedWeights::add(View values) {
  Weight weight(values);
  for (const GemmPass pass : passes_) {
    const Index bytes = device_.packed_weight_bytes(values.shape(), values.dtype(), pass);
    if (bytes == 0) continue;
    packed_.push_back({values, pass, device_.tensor({bytes}, DType::u8)});
    (pass == GemmPass::fprop ? weight.packed_fprop : weight.packed_dgrad) = packed_.back().packed;
    stale_ = true;
  }
  return weight;
}

void PackedWeights::refresh() {
  if (!stale_) return;
  if (!packed_.empty() || !derived_.empty()) wait_for_weights_();
  for (const Packed& weight : packed_)
    run(device_, ops::PackWeight{.weight = weight.values, .pass = weight.pass, .packed = weight.packed});
  for (const auto& compute : derived_) compute();
  stale_ = false;
}

Index PackedWeights::bytes() const {
  Index n = 0;
  for (const Packed& weight : packed_) n += weight.packed.size_bytes();
  return n;
}

}  // namespace sy
