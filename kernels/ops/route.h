// Router: the choice of experts for each token, from its logits, and the gradient.
#pragma once

#include "kernels/ops/operation.h"

namespace sy {

struct RouteDesc {
  Score score = Score::softmax;
  int top_k = 2;
  bool renormalize = true;  // divide the scores of a token's experts by their sum
  float scale = 1.0f;       // factor of all routing weights
  int groups = 1;           // the experts form this many equal groups
  // a token chooses experts in this many groups only, those with the largest group scores
  int topk_groups = 1;
  // Score of a group: the sum of its two best selection scores (DeepSeek-V3), or the best one
  // (DeepSeek-V2).
  GroupScore group_score = GroupScore::top2;
  // If true, the selection score is computed from the logit, not from the score.
  bool select_by_logit = false;
  // Expert probability of the load-balancing loss. True: score divided by the sum of all experts'
  // scores (DeepSeek-AI, "DeepSeek-V3", 2024, eq. 19). False: softmax(logits). Both are the same if
  // the score is softmax.
  bool balance_by_score = false;
  constexpr bool balances_by_score() const { return balance_by_score && score != Score::softmax; }
};

namespace ops {

// Chooses k experts for each token, by falling selection score. Ties go to the lower index. Bias
// and noise are added to the selection score alone.
//   weight = scale * score; if renormalize, divided by the sum of the token's k scores
// Padding has no experts: its k experts are -1 and its weights 0. It takes no part in the sums.
// If `replay` is set, `experts` is an input: the choice of an earlier call, which bias and noise do
// not change. Weights and sums are computed from the logits.
struct RouteForward {
  static constexpr std::string_view name = "route_forward";
  ConstView logits;           // [T, E]
  ConstView bias = {};        // [E] or empty
  ConstView noise = {};       // [T, E] or empty
  ConstView token_mask = {};  // [T] i32 or empty; 0 if the token is padding
  RouteDesc desc = {};
  bool replay = false;
  View experts;      // [T, k] i32
  View weights;      // [T, k]
  View counts;       // [G, E] i32 assignments of each segment
  View probability;  // [G, E] sums of the probabilities of each segment
  View z_squared;    // [1] f64 = sum over tokens of logsumexp(logits)^2
  bool is_empty() const { return logits.dim(0) == 0; }
  auto zero_if_empty() const { return std::array{counts, probability, z_squared}; }
  Cost cost() const { return Cost().reads(logits, noise, token_mask).writes(experts, weights, counts, probability); }
};

// dlogits = the sum of three gradients:
//   * through the weights
//   * through the probabilities
//   * z_factor * 2 * logsumexp * softmax
// The gradient of padding, whose experts are -1, is 0.
struct RouteBackward {
  static constexpr std::string_view name = "route_backward";
  ConstView logits;    // [T, E]
  ConstView experts;   // [T, k] i32
  ConstView weights;   // [T, k]
  ConstView dweights;  // [T, k]
  // [G, E] gradient with respect to the sums of each segment
  ConstView dprobability;
  RouteDesc desc = {};
  float z_factor = 0;
  View dlogits;  // [T, E] c
  bool is_empty() const { return logits.dim(0) == 0; }
  Cost cost() const { return Cost().reads(logits, experts, weights, dweights).writes(dlogits); }
};

}  // namespace ops

}  // namespace sy
