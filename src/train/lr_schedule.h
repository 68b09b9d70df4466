#pragma once

#include "src/config.h"

namespace sy {

// Returns the learning rate of step 1, 2, ..., train.steps. It warms up linearly over train.warmup
// steps, then follows train.schedule to train.min_lr at the last step.
// The schedule `wsd` stays constant until the last train.decay_steps steps (0: the last tenth).
// If rewarmup_after >= 0, the result is multiplied by a factor that rises linearly. It rises over
// train.rewarmup steps, from 0 at the step rewarmup_after to 1.
double learning_rate(const Config::Train& train, Index step, Index rewarmup_after = -1);

}  // namespace sy
