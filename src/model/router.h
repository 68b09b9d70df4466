// The router: which experts each token is sent to, with which weights, and what balance costs.
//
//   z_t = W_r x_t,  s_t = a score of z_t;  the top k of s_t + bias + noise;  capacity drops what does not fit.
//
// While training, x_t may have jitter, and z_t noise of a size that is learned.
//
// A new way to choose (hash, expert choice) is a new score or order in Backend::route_forward; a new balancing loss
// belongs to balance.h.
#pragma once

#include "dist/exchange.h"
#include "src/model/linear.h"
#include "src/model/statistics.h"
#include "src/params/block_specs.h"

namespace sy {

// Where each token goes. An expert that is split over etp ranks is so many partial experts, to each of which the token is
// sent, and whose outputs add up.
struct Routing {
  View weights;  // [T, k] of each choice
  Sends sends;   // whose places and counts are of the forward pass alone
};

// What a router reads that is no parameter; each may be none.
struct RouterTables {
  View bias;         // [E] is added to the scores for the selection alone
  ConstView places;  // [E] i32 the place of each expert (ExpertSplit)
};

class Router {
 public:
  struct Saved {
    View logits;      // [T, E]
    View noise_size;  // [T, E] of learned noise, before its softplus
    View experts;     // [T, k] i32
    Routing routing;
  };

  Router(const MoeSpec& spec, Index d_model, ParamStore& store, const std::string& prefix, RouterTables tables);

  // x: [T, D]. What it decided is told to the observer, if there is one, and to pass.balance. The places and the counts of its
  // sends are taken from scratch.
  void forward(const Pass& pass, ConstView x, Saved& s, const RoutingObserver* observer) const;
  // dx: [T, D] += the gradient through the logits of dweights: [T, k], the load-balance loss and the z-loss.
  void backward(const Pass& pass, ConstView dweights, ConstView x, const Saved& s, View dx) const;

  Index experts() const { return experts_; }
  ExpertRanks ranks(const Device& device) const { return {device.mesh.layout, tables_.places}; }
  Index top_k() const { return spec_.route.top_k; }

 private:
  // keep: [T, k] i32 for the own tokens.
  void drop(const Pass& pass, ConstView experts, ConstView weights, View keep) const;
  // A random stream, keyed by the run.
  static Draw keyed(Draw draw, const Batch& batch);
  // Whether the logits get noise of a learned size.
  bool sizes_noise(const Pass& pass) const { return noise_size_ && pass.batch.token_numbers; }
  // What the logits are computed of: x, or, while training, x with jitter, taken from scratch.
  ConstView input(const Pass& pass, ConstView x) const;

  RouterSpec spec_;
  Index experts_;
  Linear logits_;
  std::optional<Linear> noise_size_;
  RouterTables tables_;
};

// C = ceil(factor * k * tokens / experts), at least 1; 0 (no limit) for factor 0.
Index expert_capacity(double factor, Index top_k, Index tokens, Index experts);

}  // namespace sy
