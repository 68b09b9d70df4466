#include "src/params/packed_weights.h"

namespace sy {

PackedWeights::PackedWeights(Device& device, WeightPacking packing, std::function<void()> wait_for_weights)
    : device_(device), packing_(std::move(packing)), wait_for_weights_(std::move(wait_for_weights)) {
  SY_ASSERT(device.supports(packing_.format), "the {} device has no weight format {}", device.name(),
            info(packing_.format).name);
}

Weight PackedWeights::add(View values) {
  Weight weight(values);
  const ScaleBlock block = info(packing_.format).scale_block;
  for (const GemmPass pass : packing_.passes) {
    const Index bytes = device_.packed_weight_bytes(values.shape(), values.dtype(), pass, packing_.format);
    if (bytes == 0) continue;
    packed_.push_back({values, pass, device_.tensor({bytes}, DType::u8),
                       block.present() ? device_.tensor(block.scales(values.shape(), pass)) : Tensor()});
    (pass == GemmPass::fprop ? weight.packed_fprop : weight.packed_dgrad) =
        PackedWeight{packing_.format, packed_.back().elements, packed_.back().scales};
    stale_ = true;
  }
  return weight;
}

void PackedWeights::refresh() {
  if (!stale_) return;
  if (!packed_.empty() || !derived_.empty()) wait_for_weights_();
  for (const Packed& weight : packed_)
    run(device_, ops::PackWeight{.weight = weight.values,
                                 .pass = weight.pass,
                                 .format = packing_.format,
                                 .packed = weight.elements,
                                 .scales = weight.scales});
  for (const auto& compute : derived_) compute();
  stale_ = false;
}

Index PackedWeights::bytes() const {
  Index n = 0;
  for (const Packed& weight : packed_) n += weight.elements.size_bytes() + weight.scales.size_bytes();
  return n;
}

}  // namespace sy
