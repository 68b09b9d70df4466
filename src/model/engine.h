// A model made runnable on this rank: backend, parameters, arenas, tables. Training, evaluation, generation and
// planning drive the same one.
#pragma once

#include <memory>
#include <span>

#include "src/model/transformer.h"

namespace sy {

class Engine {
 public:
  // `backend` may be the dry one; the mesh is one for host buffers. training: gradients and optimizer state are allocated
  // too. arena_bytes: what activations may take, as one block; 0: as much as turns out to be needed.
  Engine(const Config& config, Index vocab, std::unique_ptr<Backend> backend, Mesh mesh, bool training,
         Index arena_bytes = 0);
  Engine(const Engine&) = delete;

  const Config& config() const { return config_; }
  Backend& backend() { return *backend_; }
  const Mesh& mesh() const { return mesh_; }
  ParamStore& store() { return store_; }
  const Transformer& model() const { return *model_; }
  Arena& saved() { return saved_; }
  Arena& scratch() { return scratch_; }
  Index vocab() const { return vocab_; }

  // [MoE layers, E], on the host; empty when moe.bias_rate = 0. Setting throws InputError where their number is another.
  std::vector<float> router_bias() const;
  void set_router_bias(const std::vector<float>& bias);

  // One micro-batch of B sequences of S tokens. ids, targets: [B * S]. global_*: what the step averages over (Context).
  struct Batch {
    Index sequences, seq_len;
    std::span<const std::int32_t> ids, targets;
    Index global_tokens = 1, global_sequences = 1, micro_batches = 1;
  };
  // Forward and backward; what it found is added to the statistics. The host does not wait for it. layer_done: for the last
  // micro-batch of a step.
  void train(const Batch& batch, const Transformer::LayerDone& layer_done = {});
  // Forward alone.
  void evaluate(const Batch& batch, bool dropless);
  // What all passes found since the last call. Waits for them.
  Statistics take_statistics();
  // The logits [V] that follow ids: [S].
  std::vector<float> next_logits(std::span<const std::int32_t> ids);

  // Sees every decision from now on; an empty one ends that.
  void observe_routing(RoutingObserver observer) { observer_ = std::move(observer); }

 private:
  Arena make_arena(End end);
  StatisticsView statistics() const;
  template <class Run>
  auto with_context(const Batch& batch, bool dropless, Run run);

  Config config_;
  Index vocab_;
  std::unique_ptr<Backend> backend_;
  Mesh mesh_;
  ParamStore store_;
  std::unique_ptr<FixedBlock> block_;  // of both arenas, where their size is fixed
  Arena saved_, scratch_;
  Tensor rope_table_;   // [seq_len, rot / 2, 2]
  Tensor router_bias_;  // [MoE layers, E]
  Tensor statistics_;   // [MoE layers * RouterSums + 2] f64
  std::unique_ptr<Transformer> model_;
  RoutingObserver observer_;
};

}  // namespace sy
