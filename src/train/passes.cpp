#include "src/train/passes.h"

namespace sy {

std::vector<PassCall> one_forward_one_backward(Index micro_batches, Index in_flight) {
  using enum PassCall::Half;
  std::vector<PassCall> calls;
  Index begun = 0;
  for (Index ended = 0; ended < micro_batches; ++ended) {
    while (begun < micro_batches && begun < ended + in_flight) calls.push_back({forward, begun++});
    calls.push_back({backward, ended});
  }
  return calls;
}

}  // namespace sy
