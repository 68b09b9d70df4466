// One MoE layer of the product on random tokens: on one rank, or with its experts over all ranks of
// a group.
#pragma once

#include "src/model/moe.h"
#include "tests/bench/gpu/bench.h"

namespace sy::bench {

class Layer {
 public:
  // Collective over `world`, whose ranks share the experts. waits: computes nothing while tokens
  // are in flight.
  Layer(const ModelShape& shape, DType dtype, std::unique_ptr<Device> device, Comm& world, bool waits = false);

  Engine& engine() { return engine_; }
  Device& device() { return engine_.device(); }
  void forward() { pass(false); }
  void forward_backward() { pass(true); }
  // Throws Failure if a result is not finite, or all zero.
  void check();

 private:
  Layer(const ModelShape& shape, DType dtype, Mesh mesh, std::unique_ptr<Device>&& device);
  Tensor activations(const ModelShape& shape, const char* name);
  void pass(bool backward);

  Engine engine_;
  MoeSpec spec_;
  Moe moe_;
  Arena saved_;
  ExecutionContext context_;
  Batch batch_;
  Tensor x_, dy_, y_, dx_;
};

}  // namespace sy::bench
