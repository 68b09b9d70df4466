#pragma once

#include "src/config.h"

namespace sy {

// Returns the learning rate of step 1, 2, ..., train.steps. It rises linearly over train.warmup
// steps. `constant` then stays. `linear` and `cosine` (Loshchilov and Hutter, "SGDR", 2017) fall to
// train.min_lr at the last step. `wsd` (Hu et al., "MiniCPM", 2024) stays, and falls over the last
// train.decay_steps steps (0: a tenth of all steps) by train.decay_shape.
// If rewarmup_after >= 0, the result has the factor
// min(1, (step - rewarmup_after) / train.rewarmup).
double learning_rate(const Config::Train& train, Index step, Index rewarmup_after = -1);

}  // namespace sy
