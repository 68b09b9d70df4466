// Pipeline stage: consecutive layers of the decoder. The first stage also has the embedding, the
// last one the final norm and the output. A stage of all layers is the whole model: in an
// encoder-decoder, it has the encoder, too.
//
// A training pass is a forward and a backward of one micro-batch, with a MicroBatchState. Several
// micro-batches may be in flight, and their states share nothing. The summed gradients depend only
// on the order of the backward passes.
#pragma once

#include <optional>
#include <vector>

#include "src/model/block.h"
#include "src/model/embedding.h"
#include "src/model/encoder.h"
#include "src/model/head.h"
#include "src/model/mtp.h"
#include "src/model/output_transform.h"
#include "src/model/reversible.h"
#include "src/model/rope.h"
#include "src/model/statistics.h"

namespace sy {

// State of one micro-batch in flight, which forward saves for backward.
struct MicroBatchState {
  explicit MicroBatchState(Arena arena) : saved(std::move(arena)) {}
  // Discards the micro-batch and frees its memory.
  void clear() {
    *this = MicroBatchState(std::move(saved));
    saved.clear();
  }

  Arena saved;
  Batch batch;
  StatisticsSink statistics;
  Encoder::Saved encoder;
  Embedding::Saved embedding;
  const Cache* cache = nullptr;   // in generation, else nullptr
  LoadBalanceState load_balance;  // of all routers but the encoder's
  BatchNormState batch_norm;      // of all batch norms of the model
  std::vector<Block::Saved> blocks;
  ReversibleStack::Saved reversible;
  // Ids, targets and weight of the loss of each module of multi-token prediction. Empty in
  // evaluation and generation, where the modules do not run.
  std::vector<Batch> mtp_batches;
  std::vector<MtpModule::Saved> mtp;
  View last, normed;  // [T, D] input and output of the final norm
  View moments;       // of the final norm (Norm::make_moments)
  OutputTransform::Saved transform;
  View output;  // [T, D] input of the head: `normed`, or its transform
};

// Runs the layers of one pipeline stage. forward(), backward(), loss() and logits() are collective.
class Stage {
 public:
  // - layers: range of the model's layers, not empty; all of them in an encoder-decoder
  // - store, rope: must outlive the stage; `rope` has the tables of at least these layers
  // - routers: tables of the stage's routers, [routers, E]
  Stage(const Config& config, ParamStore& store, Range layers, RouterTables routers, const RopeTables& rope);

  // Runs state.batch through the layers, and saves in the state the tensors that backward needs.
  // - x: [T, D] output of the previous stage; empty in the first stage, which reads the batch's ids
  // - Returns [T, D] in the state's memory. In the last stage this is the normalised output.
  // - Adds the routing sums to state.statistics.layers, except in generation.
  // - If state.cache is set, nothing is saved for backward.
  View forward(const ExecutionContext& context, MicroBatchState& state, View x);
  // Adds the gradients of the micro-batch's share of the step's loss to those of the parameters.
  // - d: [T, D]. In: gradient with respect to the stage's output. Out: gradient with respect to its
  //   input.
  // - The last stage does not read d. It computes the loss and its gradient here, so that logits
  //   need not be saved. It adds the loss to state.statistics.
  // - The caller clears the state afterwards.
  void backward(const ExecutionContext& context, MicroBatchState& state, View d, const BackwardHooks& hooks);

  // Computes the loss after a forward without backward, and adds it to state.statistics. For the
  // last stage.
  void loss(const ExecutionContext& context, const MicroBatchState& state) {
    head_->loss(context, state.batch, state.output, {}, state.statistics.loss);
  }
  // Returns the logits [count, vocab] after tokens [begin, begin + count) of the batch's B * S, on
  // the host. For the last stage, after forward.
  std::vector<float> logits(const ExecutionContext& context, const MicroBatchState& state, Range tokens,
                            Index vocab) const;

  // Returns the shape of each cache entry for a token: one for each attention.
  std::vector<CacheSpec> cache_specs() const;

  // Returns the layer of each router of the stage, among all blocks: multi-token prediction has the
  // last ones.
  const std::vector<std::int64_t>& moe_layer_ids() const { return moe_layer_ids_; }
  Index moe_layers() const { return static_cast<Index>(moe_layer_ids_.size()); }

 private:
  Index encoder_routers() const { return encoder_ ? encoder_->moe_layers() : 0; }
  // Number of routers, without the encoder's, that run with this micro-batch.
  Index active_routers(const MicroBatchState& state) const {
    return state.mtp_batches.empty() ? decoder_routers_ : moe_layers() - encoder_routers();
  }
  // Computes the losses of the routers that have run.
  void load_balancing(const LayerContext& layer, const MicroBatchState& state) const;
  // Index of the bucket of a layer of the stage.
  Index layer_bucket(std::size_t i) const { return bucket_of_layer(first_layer_ + static_cast<Index>(i)); }
  Index module_bucket(std::size_t module) const { return head_bucket() + 1 + static_cast<Index>(module); }
  Index head_bucket() const { return bucket_of_layer(end_layer_); }

  ParamStore& store_;
  Index first_layer_, end_layer_;
  Recompute recompute_;
  std::optional<Encoder> encoder_;      // in an encoder-decoder
  std::optional<Embedding> embedding_;  // first stage only
  // The layers. One of both is empty.
  std::vector<Block> blocks_;
  std::optional<ReversibleStack> reversible_;  // if train.reversible is set
  std::vector<MtpModule> mtp_;                 // last stage only
  Index decoder_routers_ = 0;                  // number of routers in the layers
  std::vector<std::int64_t> moe_layer_ids_;
  // spec of all MoE layers of the decoder, except physical_to_logical; or empty
  std::optional<MoeSpec> moe_;
  std::optional<Norm> final_norm_;            // last stage only
  std::optional<OutputTransform> transform_;  // if model.output_transform is set
  std::optional<Head> head_;
};

}  // namespace sy
