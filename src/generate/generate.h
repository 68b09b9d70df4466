// Continues many texts at once, on any layout.
//
// Prompts go to the data-parallel ranks round-robin, and each rank computes `batch` of them at a
// time. A rank first computes its prompts one after the other into a cache, `prefill` tokens per
// pass. After that each pass computes the next token of all its sequences.
// When a sequence ends, the last one moves to its slot, so that the remaining ones are contiguous.
// Every rank knows all tokens, and therefore which ranks are still active. A rank without sequences
// takes part with an empty batch while others need its experts.
#pragma once

#include <functional>
#include <span>
#include <vector>

#include "src/generate/sample.h"
#include "src/model/engine.h"

namespace sy {

struct GenerateOptions {
  SampleOptions sampling;
  Index tokens = 200;  // maximum number of tokens added to a prompt
  // Each choice is a pure function of the seed, the prompt's number and the position.
  std::uint64_t seed = 1;
  // Only the first `token_ids` rows of the vocabulary are tokens; 0 means all.
  Index token_ids = 0;
  // Token that ends a text and is not part of it; -1 if there is none.
  std::int32_t end_of_text = -1;
  Index batch = 16;  // sequences per data-parallel rank at a time
  // Tokens of a prompt per pass. In a model with a visible prefix, one pass computes all of them.
  Index prefill = 256;
  // Returns whether a text ends after the tokens added so far, for example at a stop string. If
  // empty, no text ends this way.
  std::function<bool(std::size_t prompt, std::span<const std::int32_t> added)> stops = {};
};

enum class Finish { length, end_of_text, stop };

struct Continuation {
  std::vector<std::int32_t> added;
  Finish finish = Finish::length;
};

// Called on every rank with all tokens added to a prompt, after each new token.
using GenerateProgress = std::function<void(std::size_t prompt, std::span<const std::int32_t> added)>;

// Continues all prompts. Collective.
// prompts: no prompt is empty; the same on all ranks. progress: may be empty.
std::vector<Continuation> generate(Engine& engine, std::span<const std::vector<std::int32_t>> prompts,
                                   const GenerateOptions& options, const GenerateProgress& progress = {});

// Returns the number of cache positions that these prompts and their continuations need.
Index required_positions(std::span<const std::vector<std::int32_t>> prompts, Index tokens);

}  // namespace sy
