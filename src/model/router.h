// Router: the experts and weights of each token, and the balancing losses.
//
//   z_t = W_r x_t,  s_t = score(z_t);  the top k of s_t + bias + noise;  capacity drops the excess.
//
// While training, x_t may have jitter, and z_t noise with a learned standard deviation.
//
// A new selection method (hash, expert choice) is a new score or order in Backend::route_forward. A
// new balancing loss belongs in balance.h.
#pragma once

#include "dist/exchange.h"
#include "src/model/linear.h"
#include "src/model/statistics.h"
#include "src/params/block_specs.h"

namespace sy {

// Routing decisions of the tokens. If etp > 1, a token goes to all etp ranks that split a chosen
// expert, and their partial outputs are summed.
struct Routing {
  View weights;  // [T, k] weight of each choice, dropped ones included
  Sends sends;   // its `places` and `counts` are in scratch memory (Router::forward)
};

// Inputs of a router that are not parameters. Each may be empty.
struct RouterTables {
  View bias;         // [E] selection bias: added to the scores for the selection only
  ConstView places;  // [E] i32 physical expert of each logical one (ExpertSplit)
};

class Router {
 public:
  // State that forward saves for backward.
  struct Saved {
    View logits;      // [T, E] with learned noise
    View noise_size;  // [T, E] its softplus scales the learned noise; empty without such noise
    View experts;     // [T, k] i32 logical expert of each choice
    Routing routing;
  };

  Router(const MoeSpec& spec, Index d_model, ParamStore& store, const std::string& prefix, RouterTables tables);

  // Chooses the experts of x: [T, D], and drops assignments beyond the capacity.
  // - Writes the decisions to `s`, and their sums to pass.balance.
  // - Calls the observer with them; nullptr if there is no observer.
  // - `places` and `counts` of s.routing.sends live until the caller's scope of the scratch arena
  //   ends.
  // - Collective over tp, because the capacity may be that of a sequence that tp ranks split.
  void forward(const Pass& pass, ConstView x, Saved& s, const RoutingObserver* observer) const;
  // dx: [T, D] += gradient with respect to x, through the logits. dweights: [T, k] gradient with
  // respect to the weights. Includes the load-balancing loss and the z-loss. Adds the gradients of
  // the router's parameters to those of the store.
  void backward(const Pass& pass, ConstView dweights, ConstView x, const Saved& s, View dx) const;

  Index experts() const { return experts_; }
  ExpertRanks ranks(const Device& device) const { return {device.mesh.layout, tables_.places}; }
  Index top_k() const { return spec_.route.top_k; }

 private:
  // keep: [T, k] i32 = dispatch mask of the rank's own tokens.
  void drop(const Pass& pass, ConstView experts, ConstView weights, View keep) const;
  // Returns the random stream, keyed by the run's seed.
  static Draw keyed(Draw draw, const Batch& batch);
  // Returns true if the logits get noise with a learned standard deviation.
  bool sizes_noise(const Pass& pass) const { return noise_size_ && pass.batch.token_numbers; }
  // Returns the input of the logits: x, or x with jitter while training, in scratch memory.
  ConstView input(const Pass& pass, ConstView x) const;

  RouterSpec spec_;
  Index experts_;
  Linear logits_;
  std::optional<Linear> noise_size_;
  RouterTables tables_;
};

// Returns C = ceil(factor * k * tokens / experts), at least 1. 0 (no limit) if factor is 0.
Index expert_capacity(double factor, Index top_k, Index tokens, Index experts);

}  // namespace sy
