// Numbers of tokens and spans of span corruption: a pure function of three numbers.
#pragma once

#include "kernels/tensor.h"

namespace sy {

// Spans that are hidden in a text of some tokens, and the tokens of the two sequences made of it.
struct SpanLengths {
  Index hidden;            // number of hidden tokens; less than those of the text, unless it has 1
  Index spans;             // number of hidden spans, as many as there are visible ones
  Index encoder, decoder;  // tokens of the sequences, with sentinels and an end token each
};
// Returns the lengths of a text of at least 1 token (random_spans_noise_mask of T5, Raffel et al.,
// 2020). A text of 1 token is hidden. density: share of hidden tokens; span: mean number of hidden
// tokens in a span.
SpanLengths span_lengths(Index tokens, double density, Index span);

}  // namespace sy
