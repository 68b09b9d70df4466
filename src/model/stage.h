// A run of the decoder's layers, with what stands before the first of all (the embedding) and behind the last (the norm and
// the output). One stage of all layers is the whole decoder.
//
// A training pass is forward, then backward, of one micro-batch in a slot of its own. Several may be in flight: their slots
// share nothing, and the gradients that they add up depend on the order of the backward passes alone.
#pragma once

#include <optional>
#include <vector>

#include "src/model/block.h"
#include "src/model/embedding.h"
#include "src/model/head.h"
#include "src/model/rope.h"
#include "src/model/statistics.h"

namespace sy {

// The memory of one micro-batch in flight: what forward leaves to backward.
struct Slot {
  explicit Slot(Arena arena) : saved(std::move(arena)) {}
  // Forgets the micro-batch and gives its memory back.
  void clear();

  Arena saved;
  Batch batch;
  Report report;
  Embedding::Saved embedding;
  const Cache* cache = nullptr;  // of generation
  Balance balance;               // of all MoE layers
  std::vector<Block::Saved> blocks;
  std::vector<View> inputs;    // [T, D] of each block
  View last, normed, moments;  // [T, D] the last block's output, [T, D] and [T, 2] of the final norm
};

class Stage {
 public:
  // layers: those of the decoder that this stage has, not empty. routers: of each MoE layer of these, [MoE layers, E]. rope: of
  // these layers at least; it must outlive the stage.
  Stage(const Config& config, ParamStore& store, Range layers, RouterTables routers, const RopeTables& rope);

  // Runs slot.batch through the layers, and keeps in the slot what backward needs. x: [T, D] what the stage before returned;
  // none in the first stage, which starts from the batch's ids. Returns [T, D]: of the last stage, the normalised output.
  View forward(const Device& device, Slot& slot, View x) const;
  // Adds to the parameters' gradients those of the slot's part of the step's loss. d: [T, D] the gradient by what forward
  // returned becomes that by its x. In the last stage d is not read: the gradient comes from the loss, which is
  // computed here, so that logits need not be kept.
  void backward(const Device& device, Slot& slot, View d, const BackwardProgress& progress) const;

  // Of the last stage, after forward. The loss alone, told to slot.report.
  void loss(const Device& device, const Slot& slot) const;
  // The same. [count, vocab] the logits behind tokens [begin, begin + count) of the batch's B * S, on the host.
  std::vector<float> logits(const Device& device, const Slot& slot, Range tokens, Index vocab) const;

  // What each layer keeps of a token in generation.
  std::vector<CacheSpec> cache_specs() const;

  // The numbers of the layers that are MoE layers.
  const std::vector<std::int64_t>& moe_layer_ids() const { return moe_layer_ids_; }
  Index moe_layers() const { return static_cast<Index>(moe_layer_ids_.size()); }

 private:
  Index head_part() const { return part_of_layer(first_layer_ + std::ssize(blocks_)); }  // in the last stage

  const ParamStore& store_;
  Index d_model_, first_layer_;
  bool recompute_;
  std::optional<Embedding> embedding_;  // of the first stage
  std::vector<Block> blocks_;
  std::vector<std::int64_t> moe_layer_ids_;
  std::optional<MoeSpec> moe_;      // what all MoE layers are, but for their order of experts; none where there is none
  std::optional<Norm> final_norm_;  // of the last stage
  std::optional<Head> head_;
};

}  // namespace sy
