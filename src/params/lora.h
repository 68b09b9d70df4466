// Adapters of LoRA (Hu et al., "LoRA", 2021): W + alpha / rank * B A, where W is frozen.
//
// The linear map of W has Q inputs and N outputs. A parameter may have several maps, which its
// first dimensions index: experts, and the gate and up projection of an FFN.
//   A  [stack..., rank, inputs...]    uniform within 1 / sqrt(Q), as PEFT draws it
//   B  [stack..., outputs..., rank]   zeros
// A and B have the splits of the dimensions that they share with W. If one of them is replicated,
// its gradients are summed over its replicas, because each replica has those of its shard of W.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "src/params/specs.h"

namespace sy {

// One of both matrices of an adapter.
enum class LoraMatrix : std::uint8_t { a, b };

// Returns the name of a matrix of a weight's adapter: "layers.0.attention.q.lora_a" of
// "layers.0.attention.q.weight".
std::string lora_name(const std::string& weight, LoraMatrix matrix);

// Numbers of dimensions of a weight, in order.
struct LinearDims {
  int stack, outputs, inputs;
};
// Returns the dimensions of a weight's linear maps. The weight must have ParamSpec::matrix.
LinearDims linear_dims(const ParamSpec& weight);

// Returns the spec of a matrix of a weight's adapter.
ParamSpec lora_spec(const ParamSpec& weight, LoraMatrix matrix, Index rank, double scale);

// Returns the configuration of the model without adapters: the keys of LoRA have their defaults.
Config without_lora(Config config);

// Freezes all specs, and returns them with the adapters of train.lora_targets. The adapters of
// fused weights are fused too: first all A, then all B.
std::vector<ParamSpec> with_adapters(std::vector<ParamSpec> specs, const Config& config);

// Adds scale * B A to a box of a weight, in f64.
// - box: of the weight
// - a: [stack..., rank, inputs...] and b: [stack..., outputs..., rank] have the box's range of each
//   dimension that they share with the weight, and all of `rank`
// - values: the box in row-major order
void add_adapter(const ParamSpec& weight, const Box& box, Index rank, double scale, std::span<const float> a,
                 std::span<const float> b, std::span<float> values);

// Returns the box of a matrix of the adapter that determines `box` of the weight.
Box lora_box(const ParamSpec& weight, LoraMatrix matrix, const Box& box, Index rank);

}  // namespace sy
