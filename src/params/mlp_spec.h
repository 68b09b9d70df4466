// Dense feed-forward network as data.
#pragma once

#include <string>

#include "src/params/param_list.h"

namespace sy {

// A feed-forward network of an inner width F.
struct MlpSpec {
  FfnActivation activation;  // with Activation::xielu, the layer has two more parameters
  Index width;               // F
  bool bias;                 // of both GEMMs
  // True: multiplies the output by sigmoid(w x). Only for shared experts: add_params() of MoeSpec
  // appends w: [1, D]. A gated activation is FfnActivation::gated.
  bool output_gate = false;
  // Number of projections of the first GEMM: gate and up, or up alone.
  Index num_projections() const { return activation.gated ? 2 : 1; }
};

void add_params(ParamList& list, const std::string& name, const MlpSpec& f);
inline SublayerCosts costs(const MlpSpec&, Index) {
  return {};
}
inline NamedSizes sizes_of(const MlpSpec&) {
  return {};
}

}  // namespace sy
