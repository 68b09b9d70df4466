// An activation of a feed-forward layer on some columns of one row, for the loops that have a row in a cache.
#pragma once

#include "kernels/backend.h"

namespace sy::cpu {

struct ActivationPart {
  // out: [n] = scale * act(in: [n]) (* linear: [n] or none)
  void (*forward)(const FfnActivation& desc, const float* in, const float* linear, Index n, float scale, float* out);
  // g: [n] the gradient by forward's output. din: [n], dlinear: [n] or none; out: [n] as forward had it, or none.
  // dscale: [ceil(n / Epilogue::columns)] the sums of the gradient by `scale`, of so many columns each.
  void (*backward)(const FfnActivation& desc, const float* g, const float* in, const float* linear, Index n,
                   float scale, float* din, float* dlinear, float* out, float* dscale);
};
ActivationPart activation_part(const FfnActivation& desc);

}  // namespace sy::cpu
