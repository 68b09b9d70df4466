// Samples of encoder-decoders: the sequences of the encoder and of the decoder.
//
// The decoder reads the start token and then the target without its last token (teacher forcing).
// Sources and targets end with the end token, if there is one. Padding of -1 follows.
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
  std::int32_t first_sentinel = -1;  // sentinel of the first span; span i has first_sentinel - i
  Index sentinels = 0;               // number of sentinels
};

class SequencePairs {
 public:
  // Throws InputError if span corruption hides more spans of model.seq_len tokens than there are
  // sentinels.
  SequencePairs(const Config& config, PairTokens tokens);

  // Returns the same objective and tokens with the random choices of another stream.
  SequencePairs keyed(RandomStream stream) const;
  // True: a sample is made of a source and its target (seq2seq). False: a sample is made of a text.
  bool reads_pairs() const { return objective_ == Objective::seq2seq; }

  // Makes a sample of a text by span corruption, or by a cut at a random token. The source is then
  // the prefix before it, and the target is the rest. reads_pairs() must be false. The choices are
  // a pure function of the stream, the length of the text and `number`, the sample's.
  void make(std::span<const std::int32_t> text, Index number, const Sample& to) const;
  // Makes a sample of a source and its target. If one does not fit with its end token, its last
  // tokens are left out.
  void make(std::span<const std::int32_t> source, std::span<const std::int32_t> target, const Sample& to) const;

 private:
  // Returns `count` lengths whose sum is `items`. Each is at least 1 if there are enough items. All
  // results are equally likely. first: index of the first of up to `items` random numbers
  std::vector<Index> random_lengths(Index items, Index count, std::uint64_t first) const;

  Objective objective_;
  double density_;
  Index span_length_;
  PairTokens tokens_;
  RandomStream stream_;
};

// Returns the samples of a training. Empty unless model.kind = encoder_decoder. Throws InputError
// if a domain has conversations, or if it has pairs and train.objective is not seq2seq, or vice
// versa. Throws InputError if there are too few sentinels.
std::optional<SequencePairs> training_pairs(const Config& config, const Dataset& dataset);

// Returns the configuration with its special tokens: model.mask_token (with_mask_token),
// start_token, sentinel_token and sentinels. Set keys stay. The start token is the end of text, or
// else 0. If model.sentinels is set, sentinels are the ids after those of the data, otherwise
// <extra_id_N>. Throws InputError if the objective needs sentinels and there are none.
Config with_special_tokens(Config config, const Dataset& dataset);

}  // namespace sy
