// An activation of a feed-forward layer on some columns of one row, for loops that have a row in a
// cache.
#pragma once

#include "kernels/types.h"

namespace sy::cpu {

struct ActivationKernels {
  // out: [n] = scale * act(in: [n]) (* linear: [n], unless nullptr)
  void (*forward)(const FfnActivation& desc, const float* in, const float* linear, Index n, float scale, float* out);
  //   g: [n] gradient with respect to the output of forward
  //   din: [n]; dlinear: [n] or nullptr; out: [n] = the output of forward, or nullptr
  //   dscale: [ceil(n / epilogue_columns)] = gradient with respect to `scale`, summed over
  //           epilogue_columns columns each
  void (*backward)(const FfnActivation& desc, const float* g, const float* in, const float* linear, Index n,
                   float scale, float* din, float* dlinear, float* out, float* dscale);
};
ActivationKernels activation_kernels(const FfnActivation& desc);

}  // namespace sy::cpu
