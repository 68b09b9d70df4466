// A model made runnable on this rank: backend, parameters, arenas, tables. Training, evaluation, generation and
// planning drive the same one.
#pragma once

#include <memory>
#include <span>

#include "src/model/stage.h"

namespace sy {

class Engine {
 public:
  // `backend` may be the dry one; the mesh is one for host buffers. training: gradients and optimizer state are allocated
  // too. arena_bytes: what activations may take, as one block, which one slot uses; on a host what they are expected to take, which
  // costs nothing until it is written; 0: unknown.
  // slots: micro-batches that can be in flight. positions: those that a sequence may have, for tables of them; 0:
  // model.seq_len.
  Engine(const Config& config, Index vocab, std::unique_ptr<Backend> backend, Mesh mesh, bool training,
         Index arena_bytes = 0, Index slots = 1, Index positions = 0);
  Engine(const Engine&) = delete;

  const Config& config() const { return config_; }
  Backend& backend() { return *backend_; }
  const Mesh& mesh() const { return mesh_; }
  ParamStore& store() { return store_; }
  const Stage& model() const { return *model_; }
  const Arena& saved(Index slot = 0) const { return slots_[static_cast<std::size_t>(slot)].saved; }
  Index slots() const { return std::ssize(slots_); }
  Arena& scratch() { return scratch_; }
  Index vocab() const { return vocab_; }

  // [MoE layers, E], on the host; empty when moe.bias_rate = 0. Setting throws InputError where their number is another.
  std::vector<float> router_bias() const;
  void set_router_bias(const std::vector<float>& bias);

  // One micro-batch of B sequences of S tokens, on the host.
  struct MicroBatch {
    Index sequences, seq_len;
    std::span<const std::int32_t> ids, targets;                          // [B * S]; a target of -1 carries no loss
    Index step_targets = 1, step_sequences = 1, step_micro_batches = 1;  // what the step averages over (StepSize)
    Index first_sequence = 0;  // the number in the run of the first of them, which random choices are keyed by
  };
  // The two halves of a training pass; what they find is added to the statistics, and the host does not wait for it. Each
  // forward is followed by a backward in its slot. progress: for the last backward of a step.
  void forward(const MicroBatch& batch, Index slot = 0);
  void backward(Index slot = 0, const BackwardProgress& progress = {});
  // Both, one after the other.
  void train(const MicroBatch& batch, const BackwardProgress& progress = {});
  // Forward alone, and the loss.
  void evaluate(const MicroBatch& batch, bool dropless);
  // The same; returns the likeliest id behind each of the B * S tokens.
  std::vector<std::int32_t> predict(const MicroBatch& batch, bool dropless);
  // What all passes found since the last call. Waits for them.
  Statistics take_statistics();

  // Generation. A cache for so many sequences of this rank's, of up to so many positions each; a pass may add `at_once` tokens
  // to one of them.
  Cache make_cache(Index sequences, Index positions, Index at_once);
  // Computes the next tokens of the sequences in `sequences` slots of the cache from `first` on. ids: one of each, or, where it
  // is one sequence, several. Returns the logits [sequences, vocab] behind the last token of each where they are wanted,
  // otherwise nothing. Collective: ranks that have nothing to do call it with no sequences, since the others need their
  // experts. The ranks of one tensor-parallel group call it alike. length: tokens of the whole text,
  // if more of it follow; rope tables may depend on it (RopeTables).
  std::vector<float> extend(Cache& cache, Index first, Index sequences, std::span<const std::int32_t> ids, bool wanted,
                            Index length = 0);
  // Whether the cache of a text must be computed again when it becomes `length` tokens long.
  bool restarts_at(Index length) const { return rope_.restarts_at(length); }

  // Sees every decision from now on; an empty one ends that.
  void observe_routing(RoutingObserver observer) { observer_ = std::move(observer); }

 private:
  Arena make_arena(End end);
  std::vector<Slot> make_slots(Index slots);
  Device device() { return {*backend_, mesh_, scratch_, config_.dtype()}; }
  Report report() const;
  // A cache's, with the padding of a pass.
  Index room_for(Index positions) const { return positions + mesh_.layout.tp - 1; }
  // The slot, holding nothing but the batch. positions: [B * S]; none: each sequence's from 0 on.
  Slot& open(Index slot, const MicroBatch& batch, bool dropless, std::vector<std::int32_t> positions = {});
  // The forward pass and the loss of an evaluation.
  Slot& forward_alone(const MicroBatch& batch, bool dropless);
  // Runs a half of a training pass.
  void run(const char* half, const Slot& slot, const std::function<void()>& body);

  Config config_;
  Index vocab_;
  std::unique_ptr<Backend> backend_;
  Mesh mesh_;
  ParamStore store_;
  std::unique_ptr<FixedBlock> block_;  // of the arenas, where their size is fixed
  Index expected_;                     // bytes that an arena is to take, where it is not
  std::vector<Slot> slots_;
  Arena scratch_;
  RopeTables rope_;
  Tensor router_bias_;    // [MoE layers, E]
  Tensor expert_places_;  // [MoE layers, E] i32 the place of each expert
  Tensor statistics_;     // [MoE layers * RouterSums + 2] f64
  std::unique_ptr<Stage> model_;
  RoutingObserver observer_;
};

}  // namespace sy
