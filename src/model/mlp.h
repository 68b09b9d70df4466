// The dense feed-forward network: act(x W1) W2, or gated (act(x W1) * (x V)) W2 (Shazeer, "GLU variants", 2020). That of
// shared experts may be multiplied by sigmoid(w x) (Qwen team, "Qwen1.5-MoE", 2024).
#pragma once

#include <optional>

#include "src/model/linear.h"
#include "src/params/block_specs.h"

namespace sy {

class Mlp {
 public:
  // Fl: the part of the width that this rank holds.
  struct Saved {
    ConstView x;             // [B * S, D] the gathered input
    View h;                  // [B * S, halves * Fl]
    View gate_logits, gate;  // [B * S] f32: w x, and its sigmoid; or none
  };

  // gate: w [1, D], or none.
  Mlp(const MlpSpec& spec, Index d_model, ParamStore& store, const std::string& prefix, Param gate = {});

  // to: [T, D] mlp(x: [T, D])
  void forward(const Pass& pass, ConstView x, Output to, Saved& s) const;
  // dx: [T, D] = the gradient through the network of dy: [T, D]
  void backward(const Pass& pass, ConstView dy, const Saved& s, View dx) const;

 private:
  FfnActivation activation_;
  Index width_;  // Fl
  Linear up_, down_;
  std::optional<Linear> gate_;
};

}  // namespace sy
