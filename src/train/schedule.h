#pragma once

#include "src/config.h"

namespace sy {

// Learning rate of step 1, 2, ..., train.steps: linear warm-up over train.warmup steps, then by train.schedule down to
// train.min_lr at the last step. wsd stays constant until the last tenth, of at least one step.
double learning_rate(const Config::Train& train, Index step);

}  // namespace sy
