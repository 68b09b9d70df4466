// A runnable model on this rank: device, parameters, arenas and tables. Training, evaluation,
// generation and planning all use it.
#pragma once

#include <memory>
#include <optional>
#include <span>

#include "src/model/stage.h"

namespace sy {

// Model of a configuration, with the memory of this rank and the passes over it.
class Engine {
 public:
  // Allocates the model. The weights are zeros until store() is filled. Collective.
  // - device: may be the dry device
  // - mesh: for host buffers, or already for those of `device` (on_device)
  // - training: if true, gradients and optimizer state are allocated too. If false, there is no
  //   multi-token prediction.
  // - arenas: sizes of the activation memory; if 0, the memory grows as needed. On a device all
  //   other sizes are fixed blocks: one for each slot, and the last one has the scratch memory too.
  //   On a host they are the expected sizes, which cost nothing until they are written.
  // - slots: number of micro-batches that can be in flight, on any device
  // - positions: maximum number of tokens in a sequence, for the position tables; 0 means
  //   model.seq_len
  Engine(const Config& config, Index vocab, std::unique_ptr<Device> device, Mesh mesh, bool training,
         ArenaSizes arenas = {}, Index slots = 1, Index positions = 0);
  Engine(const Engine&) = delete;

  const Config& config() const { return config_; }
  Device& device() { return *device_; }
  const Mesh& mesh() const { return mesh_; }
  ParamStore& store() { return store_; }
  const Stage& model() const { return *model_; }
  // Saved activations of the micro-batch in a slot.
  const Arena& saved(Index slot = 0) const { return states_[static_cast<std::size_t>(slot)].saved; }
  Index slots() const { return std::ssize(states_); }
  Arena& scratch() { return scratch_; }
  Index vocab() const { return vocab_; }
  // Maximum logits, and at least 0, of this rank's query heads in the training passes of a step:
  // [query heads of all layers] (QkHeads::first). DistributedOptimizer resets them. Empty if
  // train.qk_clip = 0.
  View max_logits() const { return max_logits_; }

  // Selection biases [MoE layers, E], on the host. Empty if moe.bias_update_rate = 0 or no layer
  // has experts: then the setter is a no-op. Otherwise the setter throws InputError if the values
  // are not those of at least these layers. Values of multi-token prediction come last. They are
  // ignored if the model has none.
  std::vector<float> router_bias() const;
  void set_router_bias(const std::vector<float>& bias);

  // Running averages [batch norms, 2, D] of mean and variance, on the host (BatchNormState). Empty
  // if the model has no batch norm: then the setter is a no-op. Otherwise the setter throws
  // InputError if the values are not those of at least these norms. Values of multi-token
  // prediction come last.
  std::vector<float> batch_norm_averages() const;
  void set_batch_norm_averages(const std::vector<float>& averages);

  // One micro-batch of B sequences of S tokens, on the host. Passes copy the ids and targets.
  struct MicroBatch {
    Index sequences, seq_len;
    // [B * S]; an id of -1 is padding, and a target of -1 has no loss
    std::span<const std::int32_t> ids, targets;
    // Totals of the step, over which the losses are averaged (GlobalBatchSize).
    Index step_targets = 1, step_sequences = 1, step_micro_batches = 1;
    // Index of the first sequence within the training run. It keys random choices.
    Index first_sequence = 0;
    // [B * S] position in its sequence of the first token of each token's document. Attention stays
    // within a document, in which positions begin at 0. Empty: each sequence is one document.
    std::span<const std::int32_t> document_start = {};
    // [B * encoder_length] ids of the encoder, in an encoder-decoder; an id of -1 is padding, which
    // ends a sequence.
    Index encoder_length = 0;
    std::span<const std::int32_t> encoder_ids = {};
    // [B * S] end of the visible prefix of each token's document, as a position in its sequence, in
    // a model with one (Config::has_visible_prefix). Empty: no token sees a later one.
    std::span<const std::int32_t> prefix_end = {};
  };
  // Forward and backward of a training pass. Each forward must be followed by a backward in its
  // slot. Both are collective, and add their sums to the statistics on the device. On a GPU the
  // host waits for the row counts of MoE layers only (TokenDispatcher::finalize).
  // - slot: index of the micro-batch's state (MicroBatchState), less than slots()
  // - hooks: set for the last backward of a step, empty otherwise
  void forward(const MicroBatch& batch, Index slot = 0);
  void backward(Index slot = 0, const BackwardHooks& hooks = {});
  // Runs forward and then backward, in slot 0. Does not update the weights.
  void forward_backward(const MicroBatch& batch, const BackwardHooks& hooks = {}) {
    forward(batch);
    backward(0, hooks);
  }
  // Runs the forward of an evaluation in slot 0, and adds the loss to the statistics. Nothing is
  // drawn, and there is no load-balancing loss. Collective.
  // dropless: if true, experts have no capacity limit.
  void evaluate(const MicroBatch& batch, bool dropless) { forward_no_grad(batch, dropless).clear(); }
  // Runs evaluate(), and returns the most likely next id after each of the B * S tokens.
  // Collective.
  std::vector<std::int32_t> predict(const MicroBatch& batch, bool dropless);
  // Returns the logits [B * S, vocab] of all tokens of a batch without targets, dropless.
  // Collective.
  std::vector<float> logits(const MicroBatch& batch);
  // Returns this rank's sums of all passes since the last call, and clears them. Waits for the
  // device.
  Statistics take_statistics();

  // Makes a cache for generation.
  // - sequences: maximum number of this rank's sequences
  // - positions: maximum number of tokens in each sequence; at most `positions` of the engine. If
  //   the engine is for training and tp > 1, it is at most tp - 1 less.
  // - tokens_per_pass: maximum number of tokens that a pass adds to one sequence
  // - encoder_positions: maximum number of tokens of a source, in an encoder-decoder; at most
  //   `positions` of the engine
  Cache make_cache(Index sequences, Index positions, Index tokens_per_pass, Index encoder_positions = 0);
  // Appends `ids` to the sequences in cache slots [first, first + sequences), and computes them.
  // - ids: one id for each sequence, and `first` = 0; or any number of ids of a single sequence
  //   In a model with a visible prefix, the prefix is the ids that are the first of their sequence.
  // - length: number of tokens of the whole text if later calls append more of it; otherwise 0.
  //   Rope tables may depend on it (RopeTables).
  // - source: of an encoder-decoder, whose encoder reads it before the decoder computes a single
  //   sequence. The cache keeps its keys and values for later passes, which have no source.
  // - Returns the logits [sequences, vocab] after the last id of each; empty if `return_logits` is
  //   false.
  // Collective. A rank without work calls it with no sequences and an empty source, because other
  // ranks need its experts. The ranks of a tensor-parallel group must make the same calls.
  std::vector<float> decode(Cache& cache, Index first, Index sequences, std::span<const std::int32_t> ids,
                            bool return_logits, Index length = 0,
                            std::optional<std::span<const std::int32_t>> source = {});
  // Returns whether a text that grows to `length` tokens needs its cache computed again.
  bool requires_recompute(Index length) const { return rope_.requires_recompute(length); }

  // Sets the hook that is called with every routing decision from now on. An empty hook removes it.
  void set_routing_hook(RoutingHook hook) { routing_hook_ = std::move(hook); }

 private:
  std::vector<FixedBlock> make_fixed_blocks(ArenaSizes arenas, Index slots);
  Arena make_arena(Index slot, End end);
  std::vector<MicroBatchState> make_states(Index slots);
  ExecutionContext execution_context() { return {*device_, mesh_, scratch_, config_.dtype()}; }
  StatisticsSink statistics_sink() const;
  // Returns the capacity of a cache for these positions: a pass adds up to tp - 1 of padding.
  Index cache_capacity(Index positions) const { return positions + mesh_.layout.tp - 1; }
  // Returns the number of positions of the tables. Training needs no positions for padding.
  Index table_positions(bool training, Index positions) const;
  // Resets the state of the slot and copies the batch to it.
  // positions: [B * S]; if empty, each sequence starts at 0.
  MicroBatchState& begin_micro_batch(Index slot, const MicroBatch& batch, bool dropless,
                                     std::vector<std::int32_t> positions = {});
  // Copies the stream of the ids of a batch to the micro-batch. positions: as above. is_encoder: of
  // an encoder-decoder, whose sequences may end with padding that no token sees.
  TokenStream make_stream(MicroBatchState& s, const MicroBatch& batch, std::vector<std::int32_t> positions,
                          bool is_encoder);
  // Adds the batches of multi-token prediction: ids and targets of later tokens.
  void add_mtp_batches(MicroBatchState& s, const MicroBatch& batch);
  // Returns the tokens of the loss of an objective that reads few of them: masked, or prefix in a
  // decoder. Empty for other objectives.
  TargetRows target_rows(MicroBatchState& s, const MicroBatch& batch);
  // Returns the segment [B * S] of each token (model.segment_token).
  std::vector<std::int32_t> segments_of(const MicroBatch& batch) const;
  // Copies values to memory that lives as long as the micro-batch.
  template <class T>
  View upload(MicroBatchState& s, const T* host, Shape shape);
  // Runs the forward pass of an evaluation. If `with_loss`, it computes the loss.
  MicroBatchState& forward_no_grad(const MicroBatch& batch, bool dropless, bool with_loss = true);
  // Runs the forward or the backward of a training pass, as a graph region if possible. Each slot
  // has its own regions, because its tensors have their own addresses.
  void run_pass(const std::string& name, Index slot, const std::function<void()>& body);

  Config config_;
  Index vocab_;
  std::unique_ptr<Device> device_;
  Mesh mesh_;
  ParamStore store_;
  std::vector<FixedBlock> fixed_blocks_;  // [slots] blocks of the arenas; empty if they grow
  Index expected_bytes_;                  // expected bytes of a growing arena
  std::vector<MicroBatchState> states_;
  Arena scratch_;
  RopeTables rope_;
  bool has_window_ = false;     // queries of some layer see the keys of a window alone
  Tensor router_bias_;          // [MoE layers, E]
  Tensor logical_to_physical_;  // [MoE layers, E] i32 physical expert of each logical one
  Tensor statistics_;           // f64: StatisticsSink, one after the other
  Tensor batch_norm_averages_;  // [batch norms, 2, D]; empty without any
  Tensor max_logits_;           // [query heads of all layers]; empty without QK-clip
  std::unique_ptr<Stage> model_;
  RoutingHook routing_hook_;
};

}  // namespace sy
