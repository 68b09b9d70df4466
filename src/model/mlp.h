// Dense feed-forward network: act(x W1) W2, or gated (act(x W1) * (x V)) W2 (Shazeer, "GLU
// variants", 2020). The output of shared experts may be multiplied by sigmoid(w x) (Qwen team,
// "Qwen1.5-MoE", 2024).
#pragma once

#include <optional>

#include "src/model/linear.h"
#include "src/model/sublayer.h"

namespace sy {

class Mlp {
 public:
  static constexpr const char* trace_name = "mlp";

  // Fl: width of this rank's shard.
  struct Saved {
    ConstView x;             // [B * S, D] the gathered input
    View h;                  // [B * S, num_projections * Fl]
    View gate_logits, gate;  // [B * S] f32: w x and its sigmoid, or empty
  };

  // output_gate: name of w [1, D], if the spec has one
  Mlp(const MlpSpec& spec, const SublayerContext& context, const std::string& prefix,
      const std::string& output_gate = "");

  // to: [T, D] = mlp(x: [T, D])
  void forward(const LayerContext& layer, ConstView x, Output to, Saved& s) const;
  // See Sublayer. With Recompute::experts the first product and the activation are computed.
  void recompute(const LayerContext& layer, ConstView x, Saved& s) const;
  // dx: [T, D] = gradient with respect to x; dy: [T, D], with respect to the output
  void backward(const LayerContext& layer, ConstView dy, const Saved& s, View dx);

 private:
  // Returns the shape of the inputs of the activation.
  Shape hidden_shape(const LayerContext& layer) const { return {layer.stream.tokens(), gate_up_.outputs()}; }

  // s.h and a: [B * S, Fl] = the first product of s.x, and its activation
  void first_product(const ExecutionContext& context, const Saved& s, View a) const;
  // Computes a: [B * S, Fl] again, and the gradients with respect to the first product and s.gate.
  // dy: [B * S, D], with respect to the output of the last product
  void backward_activation(const ExecutionContext& context, ConstView dy, const Saved& s, View dh, View dgate,
                           View a) const;

  FfnActivation activation_;
  Param xielu_;  // [2], or empty: ops::XieluForward::parameters
  Linear gate_up_, down_;
  std::optional<Linear> output_gate_;
};

}  // namespace sy
