// Router: the experts and weights of each token, and the balancing losses.
//
//   z_t = W_r x_t,  s_t = score(z_t);  the top k of s_t + bias + noise;  capacity drops the excess.
//
// While training, x_t may have jitter, and z_t noise with a learned standard deviation.
//
// A new selection method (hash, expert choice) is a new score or order in ops::RouteForward. A
// new balancing loss belongs in load_balancing.h.
#pragma once

#include "dist/token_dispatcher.h"
#include "src/model/linear.h"
#include "src/model/sublayer.h"

namespace sy {

class Router {
 public:
  // State that forward saves for backward.
  struct Saved {
    View logits;        // [T, E] including learned noise
    View noise_stddev;  // [T, E] its softplus scales the noise; empty without a learned deviation
    View experts;       // [T, k] i32 logical expert of each choice
    View weights;       // [T, k] weight of each choice, dropped ones included
    // Its `physical_experts` and `counts` are in scratch memory. If etp > 1, a token goes to all
    // etp ranks that split a chosen expert, and their partial outputs are summed.
    DispatchLayout dispatch_layout;
  };

  // prefix: of the MoE layer's parameters
  Router(const MoeSpec& spec, const SublayerContext& context, const std::string& prefix);

  // Chooses the experts of x: [T, D], and drops assignments beyond the capacity.
  // - Writes the decisions to `s`, and their sums to layer.load_balance. Records them in
  //   layer.decisions, or replays those.
  // - Calls layer.routing_hook with them, if it is not nullptr.
  // - `physical_experts` and `counts` of s.dispatch_layout live until the caller's scope of
  //   the scratch arena ends.
  // - Collective over tp, because the capacity may be that of a sequence that tp ranks split.
  void forward(const LayerContext& layer, ConstView x, Saved& s) const;
  // dx: [T, D] += gradient with respect to x, through the logits. dweights: [T, k] gradient with
  // respect to the weights. Includes the load-balancing loss and the z-loss. Adds the gradients of
  // the router's parameters to those of the store.
  void backward(const LayerContext& layer, ConstView dweights, ConstView x, const Saved& s, View dx);

  ExpertPlacement placement(const ExecutionContext& context) const {
    ExpertPlacement placement(context.mesh.layout, tables_.logical_to_physical);
    placement.groups = spec_.route.groups;
    placement.topk_groups = spec_.route.topk_groups;
    return placement;
  }
  Index top_k() const { return spec_.route.top_k; }

 private:
  // Returns how many assignments an expert accepts in one capacity scope; 0 means unlimited.
  Index capacity(const LayerContext& layer) const;
  // dispatch_mask: [T, k] i32 = 0 if the assignment of an own token exceeds the capacity, else 1
  void apply_capacity(const LayerContext& layer, ConstView experts, ConstView weights, View dispatch_mask) const;
  // Returns the random stream, keyed by the run's seed.
  static RandomDesc with_seed(RandomDesc desc, const Batch& batch);
  // Returns true if the logits get noise with a learned standard deviation.
  bool scales_noise(const LayerContext& layer) const { return noise_stddev_ && layer.stream.token_numbers; }
  // Returns the input of the logits: x, or x with jitter while training, in scratch memory.
  ConstView jittered_input(const LayerContext& layer, ConstView x) const;

  RouterSpec spec_;
  Index experts_;
  Linear logits_;
  std::optional<Linear> noise_stddev_;
  Index index_;  // of this router in LayerContext::load_balance
  RouterTables tables_;
};

// Returns C = ceil(factor * k * tokens / experts), at least 1. 0 (no limit) if factor is 0.
Index expert_capacity(double factor, Index top_k, Index tokens, Index experts);

}  // namespace sy
