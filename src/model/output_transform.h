// Transform before the output of a masked language model: norm(gelu(x W^T + b)).
// Source: the prediction head of Devlin et al., "BERT", 2019.
#pragma once

#include "src/config.h"
#include "src/model/linear.h"
#include "src/model/norm.h"

namespace sy {

class OutputTransform {
 public:
  struct Saved {
    View hidden, activated;  // [T, D] before and after gelu
    View moments;            // of the norm (Norm::make_moments)
  };

  OutputTransform(const Config& config, ParamStore& store);

  // Returns the transform of x: [T, D], in layer.saved.
  View forward(const LayerContext& layer, ConstView x, Saved& s) const;
  // Adds the gradients of the parameters. x: [T, D] of forward.
  // d: [T, D]. In: gradient with respect to the output. Out: gradient with respect to x.
  void backward(const LayerContext& layer, ConstView x, const Saved& s, View d);

 private:
  Linear dense_;
  Norm norm_;
};

}  // namespace sy
