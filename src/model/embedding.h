// Embedding: looks up the table rows of token ids. If configured, it then scales them, adds
// positions and normalises. Vocabulary-parallel: each rank holds the V rows of the table from
// first_row_ on.
#pragma once

#include <array>
#include <optional>

#include "src/config.h"
#include "src/model/norm.h"

namespace sy {

class Embedding {
 public:
  struct Saved {
    View sum, moments;  // [T, D] input and moments of the norm; empty without a norm
  };

  // - config: of the stack that it begins
  // - positions: maximum number of tokens in a sequence
  // - prefix: of the names of its parameters, but for the table, which all stacks share
  Embedding(const Config& config, ParamStore& store, Index positions, const std::string& prefix);

  // Returns the embeddings of the rank's own tokens: [T, D], allocated from layer.saved.
  View forward(const LayerContext& layer, Saved& s) const;
  // Adds the gradients of the parameters. d: [T, D], gradient with respect to the output for the
  // rank's own tokens. It is overwritten.
  void backward(const LayerContext& layer, const Saved& s, View d) const;

 private:
  // Calls body(table, rows, columns) for both axes of axial positions. No-op without them.
  // - rows: [T] i32 of the rank's own tokens in the table of the axis
  // - columns: those of x: [T, D] that belong to the axis
  template <class Body>
  void for_axes(const ExecutionContext& context, const TokenStream& stream, View x, const Body& body) const;

  Param table_;  // [V, D]
  Index first_row_;
  float scale_;                 // 1: no scaling
  Param positions_;             // [positions, D] learned positions, or empty
  std::array<Param, 2> axial_;  // [rows, width] of both axes of axial positions, or empty
  Param segments_;              // [segments, D] segment vectors, or empty
  Tensor sines_;                // [positions, D] sinusoidal positions, or empty
  std::optional<Norm> norm_;
};

// Returns [positions, D]: sin(p / 10000^(2i / D)) in column 2i, its cosine in column 2i + 1
// (Vaswani et al., "Attention is all you need", 2017).
std::vector<float> sinusoidal_positions(Index positions, Index d_model);

}  // namespace sy
