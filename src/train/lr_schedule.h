#pragma once

#include "src/config.h"

namespace sy {

// Returns the learning rate of step 1, 2, ..., train.steps. It warms up linearly over train.warmup
// steps, then follows train.schedule to train.min_lr at the last step.
// The schedule `wsd` stays constant until the last tenth (at least one step).
double learning_rate(const Config::Train& train, Index step);

}  // namespace sy
