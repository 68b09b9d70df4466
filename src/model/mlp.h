// The dense feed-forward network: act(x W1) W2, or gated (act(x W1) * (x V)) W2 (Shazeer, "GLU variants", 2020).
#pragma once

#include "src/model/linear.h"
#include "src/params/block_specs.h"

namespace sy {

class Mlp {
 public:
  // Fl: the part of the width that this rank holds.
  struct Saved {
    ConstView x;  // [B * S, D] the gathered input
    View h;       // [B * S, halves * Fl]
    View a;       // [B * S, Fl]
  };

  Mlp(const MlpSpec& spec, Index d_model, ParamStore& store, const std::string& prefix);

  // to: [T, D] mlp(x: [T, D])
  void forward(const Pass& pass, ConstView x, Output to, Saved& s) const;
  // dx: [T, D] = the gradient through the network of dy: [T, D]
  void backward(const Pass& pass, ConstView dy, const Saved& s, View dx) const;

 private:
  FfnActivation activation_;
  Index width_;  // Fl
  Linear up_, down_;
};

}  // namespace sy
