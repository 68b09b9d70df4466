// Name of an update rule within the program, and the hyperparameters of all rules.
#pragma once

#include <cstdint>

namespace sy {

// Index of a row of update_rules() (src/optimizers/update_rule.h). AdamW is the first row, the
// default, and the rule of the parameters that a rule over whole matrices does not update.
enum class Optimizer : std::uint8_t { adamw };

// Hyperparameters of the update rules, all with keys in [train].
struct Hyperparameters {
  double weight_decay = 0.1;
  double beta1 = 0.9, beta2 = 0.95, eps = 1e-8;  // of adamw
  double momentum = 0.9;                         // of sgd
  double muon_momentum = 0.95;
  double qk_clip = 0;  // maximum logit, 0: unlimited (kernels/ops/qk_clip.h)
};

}  // namespace sy
