// Enumerations and lists that are values of keys.
#pragma once

#include <string>
#include <vector>

#include "kernels/types.h"

namespace sy {

// The tokens of a decoder see earlier tokens, and those of an encoder the tokens on both sides. In
// an encoder_decoder, the tokens of a decoder also see all outputs of an encoder.
enum class ModelKind { decoder, encoder, encoder_decoder };
enum class NormPosition { pre, post, both, output, residual };
enum class NormBias { automatic, present, absent };
enum class Biases { none, all, qkv, mlp, attention };
enum class Position { none, sinusoidal, learned, axial, t5, alibi, rope };
enum class AttentionPattern { causal, full, strided, fixed, longformer, local, indexed, lsh };
// Output of reversible layers, which have two residual streams.
enum class ReversibleOutput { mean, concat };
// The stages of training sparse attention with an indexer: the indexer alone, beside attention to
// all keys; then all parameters, with attention to the selected keys.
enum class IndexerStage { warmup, sparse };
enum class Renormalize { automatic, on, off };
enum class Choice { top, noisy, sampled, balanced };
enum class RopeScaling { none, linear, ntk, dynamic, llama3, yarn, longrope };
enum class AuxProbability { softmax, score };
enum class QkNormKind { none, head, whole, head_layernorm };
// `rank` and `micro_batch` mean the tokens that one rank routes in a micro-batch.
// With tensor parallelism these are 1 / tp of its tokens (sequence parallelism), not whole
// sequences. `global_batch` means the tokens that all ranks compute at once: dp * train.micro_batch
// sequences, not the whole step.
enum class CapacityScope { sequence, rank };
enum class AuxScope { sequence, micro_batch, global_batch };
enum class AuxLayers { each, joint };
// Activations that backward computes again instead of reading them from memory, from the cheapest
// mode to the dearest (docs/design/memory.md).
enum class Recompute { none, norms, experts, attention, block };
// The targets of the loss: the next tokens, or chosen tokens that are hidden, or the tokens after a
// visible prefix (src/data/visible_prefix.h). The others, and prefix too, are of encoder-decoders
// (src/data/sequence_pairs.h).
enum class Objective { automatic, causal, masked, span_corruption, prefix, seq2seq };
enum class Schedule { constant, cosine, linear, wsd };
enum class DecayShape { linear, cosine, one_minus_sqrt };

// Changes of the global batch, as in "1000:32, 5000:64": from step 1000 on it is 32 sequences.
// Steps are at least 2 and ascend.
struct BatchRamp {
  struct Change {
    Index step = 0, batch = 0;
  };
  std::vector<Change> changes;
};
// Changes of the weights of domains, as in "1000:web=7 code=3, 5000:code=1": from step 1000 on, 7
// of 10 samples are of domain web. Steps are at least 1 and ascend. In each change, a domain occurs
// once, and one weight at least is above 0.
struct BlendSchedule {
  struct Weight {
    std::string domain;
    double weight = 0;
    bool operator==(const Weight&) const = default;
  };
  struct Change {
    Index step = 0;
    std::vector<Weight> weights;
  };
  std::vector<Change> changes;
};
// How samples treat the borders of documents. join: as other tokens; mask: attention and loss stay
// within a document; pack: as mask, and windows hold whole documents.
enum class Documents { join, mask, pack };
// Whether ranks keep digests of the weights and of the optimizer state that they own.
enum class MemoryCheck { off, digest };

// The sequence of layer kinds, as in "local*5, global". It repeats over the layers, and the last
// repetition may be cut off. If it is empty, all layers have one kind without a name.
struct Pattern {
  // Consecutive layers of one kind.
  struct Segment {
    std::string kind;
    Index layers = 1;
  };
  std::vector<Segment> segments;
  const std::string& kind_of(Index layer) const;  // empty if the kind has no name
};

}  // namespace sy
