#include "src/params/prepared.h"

namespace sy {

Weight PreparedWeights::add(View values) {
  Weight weight(values);
  for (const WeightUse use : uses_) {
    const Index bytes = backend_.prepared_bytes(values.shape(), values.dtype(), use);
    if (bytes == 0) continue;
    forms_.push_back({values, use, backend_.tensor({bytes}, DType::u8)});
    (use == WeightUse::output ? weight.output : weight.input) = forms_.back().prepared;
    stale_ = true;
  }
  return weight;
}

void PreparedWeights::refresh() {
  if (!stale_) return;
  if (!forms_.empty() || !derived_.empty()) whole_();
  for (const Form& form : forms_) backend_.prepare(form.values, form.use, form.prepared);
  for (const auto& make : derived_) make();
  stale_ = false;
}

Index PreparedWeights::bytes() const {
  Index n = 0;
  for (const Form& form : forms_) n += form.prepared.size_bytes();
  return n;
}

}  // namespace sy
