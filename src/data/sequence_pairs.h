// Samples of encoder-decoders: the sequence that the encoder reads, and the one that the decoder
// predicts.
//
// A target begins with the start token in the decoder's input, which is shifted by one (teacher
// forcing), and ends with the end token. Padding of -1 follows both sequences.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "kernels/philox.h"
#include "src/data/dataset.h"

namespace sy {

// Ids with which sequences begin and end, and which stand for hidden spans.
struct PairTokens {
  std::int32_t start = 0;            // first input of the decoder
  std::int32_t end = -1;             // ends a source and a target; -1 if there is none
  std::int32_t first_sentinel = -1;  // those of later spans descend from it
  Index sentinels = 0;
};

class SequencePairs {
 public:
  // Throws InputError if there are fewer sentinels than hidden spans.
  SequencePairs(const Config& config, PairTokens tokens);

  // Returns the same rates with the choices of another stream.
  SequencePairs keyed(RandomStream stream) const;
  // True: a sample is a source and its target (seq2seq). False: it is made of a text.
  bool reads_pairs() const { return objective_ == Objective::seq2seq; }

  // Makes a sample of a text by span corruption or at a random end of a prefix. The choices are a
  // pure function of the seed, the purpose and the number of the sample.
  void make(std::span<const std::int32_t> text, Index number, const Sample& to) const;
  // Makes a sample of a source and its target. If one is too long, its last tokens are left out.
  void make(std::span<const std::int32_t> source, std::span<const std::int32_t> target, const Sample& to) const;

 private:
  // Returns the lengths of `count` runs of consecutive items, which together are `items`. Each run
  // has at least one item if there are enough. All divisions are equally likely.
  // first: index of the first of `items` random numbers
  std::vector<Index> random_runs(Index items, Index count, std::uint64_t first) const;

  Objective objective_;
  double density_;
  Index span_length_;
  PairTokens tokens_;
  RandomStream stream_;
};

// Returns how a training makes its samples. Empty unless model.kind = encoder_decoder. Throws
// InputError if the data set does not have what the objective needs.
std::optional<SequencePairs> training_pairs(const Config& config, const Dataset& dataset);
// The same for a validation split. It is the same in every run.
SequencePairs validation_pairs(const SequencePairs& training, const std::string& domain);

// Returns the configuration with the ids of special tokens that this data set has: model.mask_token
// (with_mask_token), model.sentinel_token, model.sentinels and model.start_token. Throws InputError
// if the objective needs sentinels and the tokenizer has none.
Config with_special_tokens(Config config, const Dataset& dataset);

}  // namespace sy
