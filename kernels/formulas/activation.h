// Formulas of the activations of feed-forward layers, and of their derivatives, for all devices.
// A new activation is a struct here, a line of Activations, and a value of enum Activation.
//
// Math has the elementary functions of a device:
//   static float sigmoid(float x);
//   static Normal normal(float x);
#pragma once

#include "kernels/formulas/host_device.h"
#include "kernels/types.h"

namespace sy::formulas {

// A function at one point: its value and its derivative.
struct Point {
  float value, slope;
};

// The standard normal distribution at x: Phi(x), and e^(-x^2 / 2), its density times sqrt(2 pi).
struct Normal {
  float phi, exponential;
};

// Default treatment of the up projection: unchanged.
struct PassThrough {
  SY_HOST_DEVICE static Point linear(float l, const FfnActivation&) { return {l, 1}; }
};

struct Relu : PassThrough {
  SY_HOST_DEVICE static Point at(float x, const FfnActivation&) { return {x > 0 ? x : 0.0f, x > 0 ? 1.0f : 0.0f}; }
};

struct Relu2 : PassThrough {
  SY_HOST_DEVICE static Point at(float x, const FfnActivation&) {
    const float r = x > 0 ? x : 0.0f;
    return {r * r, 2 * r};
  }
};

template <class Math>
struct Sigmoid : PassThrough {
  SY_HOST_DEVICE static Point at(float x, const FfnActivation&) {
    const float s = Math::sigmoid(x);
    return {s, s * (1 - s)};
  }
};

template <class Math>
struct Silu : PassThrough {
  SY_HOST_DEVICE static Point at(float x, const FfnActivation& desc) {
    const float u = desc.beta * x, s = Math::sigmoid(u);
    return {x * s, s * (1 + u * (1 - s))};
  }
};

template <class Math>
struct SiluClamped {
  SY_HOST_DEVICE static Point at(float x, const FfnActivation& desc) {
    const Point p = Silu<Math>::at(x > desc.limit ? desc.limit : x, desc);
    return {p.value, x > desc.limit ? 0.0f : p.slope};
  }
  SY_HOST_DEVICE static Point linear(float l, const FfnActivation& desc) {
    const float inside = l > desc.limit ? desc.limit : l < -desc.limit ? -desc.limit : l;
    return {inside + 1, inside == l ? 1.0f : 0.0f};
  }
};

// x * Phi(x)
template <class Math>
struct Gelu : PassThrough {
  SY_HOST_DEVICE static Point at(float x, const FfnActivation&) {
    const Normal n = Math::normal(x);
    return {x * n.phi, n.phi + x * n.exponential * 0.39894228f};
  }
};

// 1/2 x (1 + tanh u), u = sqrt(2/pi) (x + 0.044715 x^3), where 1/2 (1 + tanh u) = sigmoid(2u).
template <class Math>
struct GeluTanh : PassThrough {
  SY_HOST_DEVICE static Point at(float x, const FfnActivation&) {
    const float s = Math::sigmoid(1.59576912f * (x + 0.044715f * x * x * x));
    return {x * s, s + x * s * (1 - s) * 1.59576912f * (1 + 0.134145f * x * x)};
  }
};

struct Identity : PassThrough {
  SY_HOST_DEVICE static Point at(float x, const FfnActivation&) { return {x, 1.0f}; }
};

struct Hardtanh : PassThrough {
  SY_HOST_DEVICE static Point at(float x, const FfnActivation& desc) {
    const bool below = x < -desc.limit;
    const bool above = x > desc.limit;
    return {below ? -desc.limit : above ? desc.limit : x, below || above ? 0.0f : 1.0f};
  }
};

template <class... Act>
struct ActivationList {};

// In the order of enum Activation, without xielu.
template <class Math>
using Activations = ActivationList<Relu, Gelu<Math>, GeluTanh<Math>, Silu<Math>, Relu2, Sigmoid<Math>, Identity,
                                   SiluClamped<Math>, Hardtanh>;

}  // namespace sy::formulas
