// Masked language modelling (Devlin et al., "BERT", 2019): chosen tokens are hidden, and the model
// predicts them from all others.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "kernels/philox.h"
#include "src/data/dataset.h"
#include "src/data/tokenizer.h"

namespace sy {

// Chooses the tokens of a sample. A choice is a pure function of the seed, the purpose and the
// index of the token. With train.mask_whole_words it is that of the first token of the word.
class TokenMasking {
 public:
  // mask_token: id of a hidden token. vocab: random ids are below it.
  // letter_edges: [vocab] LetterEdge bits of each id, if whole words are masked; otherwise empty.
  TokenMasking(const Config::Train& train, std::int32_t mask_token, Index vocab,
               std::vector<std::uint8_t> letter_edges = {});

  // Returns the same rates with the choices of another stream.
  TokenMasking keyed(RandomStream stream) const;
  std::int32_t mask_token() const { return mask_token_; }
  // Replaces the chosen ids. Sets the targets of all other tokens to -1.
  // - sample: its targets are its ids, or -1 where no loss counts the token
  // - first_token: index of the sample's first token
  void apply(const Sample& sample, Index first_token) const;

 private:
  bool continues_letters(const Sample& sample, std::size_t token) const;

  double rate_, mask_share_, random_share_;
  std::int32_t mask_token_;
  Index vocab_;
  std::vector<std::uint8_t> letter_edges_;  // [vocab] LetterEdge bits of each id; or empty
  RandomStream stream_;
};

// Returns the masking of a configuration's training. Empty if train.objective is not masked.
// Opens the tokenizer if whole words are masked, or if model.mask_token is -1.
std::optional<TokenMasking> training_masking(const Config& config, const Dataset& dataset);

// Returns the configuration with model.mask_token for this data set, if train.objective is masked.
// If the key is -1, it becomes the tokenizer's mask token, or else the id after those of the data.
Config with_mask_token(Config config, const Dataset& dataset);
// Returns the number of rows of the embedding that training has. Opens the data at data.path.
Index training_vocab(const Config& config);

}  // namespace sy
