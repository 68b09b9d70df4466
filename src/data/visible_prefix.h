// Prefix language modelling with a decoder. The first tokens of a text, up to a random one, see
// each other on both sides. The others are predicted, and see the tokens before them.
// Source: Raffel et al., "Exploring the Limits of Transfer Learning", 2020.
#pragma once

#include <optional>

#include "kernels/philox.h"
#include "src/data/dataset.h"

namespace sy {

// Chooses the prefix of each document of a sample, which is one document if it has no starts. Its
// length is uniform from 1 to the document's tokens in the sample less 1. A choice is a pure
// function of the seed, the purpose and the index of the document's first token.
class VisiblePrefix {
 public:
  explicit VisiblePrefix(RandomStream stream) : stream_(stream) {}

  // Sets the ends of prefixes, and the targets that are in a prefix to -1.
  // - sample: its targets are the next ids, or -1 where no loss counts them
  // - first_token: index of the sample's first token
  void apply(const Sample& sample, Index first_token) const;

 private:
  RandomStream stream_;
};

// Returns the prefixes of a configuration's training. Empty if the model has none
// (Config::has_visible_prefix).
std::optional<VisiblePrefix> training_prefix(const Config& config);

}  // namespace sy
