// Numbers of tokens of span corruption: a pure function of the length of a text.
#pragma once

#include "kernels/tensor.h"

namespace sy {

// Spans that are hidden in a text of some tokens, and the tokens of the two sequences made of it.
struct SpanLengths {
  Index hidden;            // number of hidden tokens, from 1 to that of the text less 1
  Index spans;             // number of hidden spans, as many as there are visible ones
  Index encoder, decoder;  // tokens of the sequences, with sentinels and an end token each
};
// Returns the lengths of a text of at least 2 tokens (random_spans_noise_mask of T5, Raffel et al.,
// 2020). density: share of hidden tokens; span: their mean number in a span
SpanLengths span_lengths(Index tokens, double density, Index span);

}  // namespace sy
