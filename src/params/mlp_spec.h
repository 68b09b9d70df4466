// Dense feed-forward network as data.
#pragma once

#include <string>

#include "src/params/param_list.h"

namespace sy {

// A feed-forward network of `width`.
struct MlpSpec {
  FfnActivation activation;
  Index width;
  bool bias;
  bool gate = false;  // true: multiplies the output by sigmoid(w x)
  // Number of projections of the first GEMM: gate and up, or up alone.
  Index num_projections() const { return activation.gated ? 2 : 1; }
};

void add_params(ParamList& list, const std::string& name, const MlpSpec& f);
SublayerCosts costs(const MlpSpec& f, Index seq_len);

}  // namespace sy
