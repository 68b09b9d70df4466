// Texts that a model continues: many at once, on any layout.
//
// Prompts go to the data-parallel ranks in turn, `batch` of them at a time to each. A rank computes its prompts one after
// the other, `prefill` tokens at once, into a cache; from there on each pass computes the next token of all of them. A
// sequence that has ended leaves its slot to the last one, so that those still going on lie side by side. Every rank knows
// all tokens, and with them who is still at work: a rank without work takes part with an empty batch, as long as others need
// its experts.
#pragma once

#include <functional>
#include <span>
#include <vector>

#include "src/generate/sample.h"
#include "src/model/engine.h"

namespace sy {

struct GenerateOptions {
  SampleOptions sampling;
  Index tokens = 200;             // that are added to a prompt at most
  std::uint64_t seed = 1;         // a choice is a pure function of this, the prompt's number and the position
  Index token_ids = 0;            // only the first so many rows of the vocabulary are tokens; 0: all
  std::int32_t end_of_text = -1;  // the token that ends a text and is not part of it; -1: none
  Index batch = 16;               // sequences that a data-parallel rank computes at a time
  Index prefill = 256;            // tokens of a prompt that are computed at once
  // Whether a text ends with what has been added so far, stop strings for instance; none: no text does.
  std::function<bool(std::size_t prompt, std::span<const std::int32_t> added)> stops = {};
};

enum class Finish { length, end_of_text, stop };

struct Continuation {
  std::vector<std::int32_t> added;
  Finish finish = Finish::length;
};

// prompts: none empty; the same on all ranks. progress, where given, is called on every rank with all that has been added
// to a prompt, whenever that is more. Collective.
std::vector<Continuation> generate(
    Engine& engine, std::span<const std::vector<std::int32_t>> prompts, const GenerateOptions& options,
    const std::function<void(std::size_t prompt, std::span<const std::int32_t> added)>& progress = {});

// The positions that these prompts and their continuations take.
Index positions_of(std::span<const std::vector<std::int32_t>> prompts, Index tokens);

}  // namespace sy
