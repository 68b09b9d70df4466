// Tables of cos and sin for rotary position embeddings.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "kernels/device.h"
#include "src/params/block_specs.h"

namespace sy {

// Returns the length that determines the scaling of a text of `length` tokens. Texts of equal
// scaled length share a table. 0 for scalings that do not depend on the length; dynamic and
// longrope do.
Index scaled_length(const RopeSpec& rope, Index length);

// Returns [rotated / 2] frequencies: angles of rotation from one position to the next, per pair.
// Pair i has theta^(-2i / rotated), scaled for a text of `length` tokens. Let s be the factor, L
// the original length, and n = L * frequency / (2 pi) a pair's rotations over L. The scalings are
//   linear    frequency / s (Chen et al., "Extending context window", 2023)
//   ntk       theta * s^(rotated / (rotated - 2)) instead of theta
//             (bloc97, "NTK-aware scaled RoPE", 2023)
//   dynamic   as ntk; if length > L, with s * length / L - (s - 1) instead of s, otherwise unscaled
//   llama3    frequency / s if n < low, frequency if n > high, otherwise a mean, linear in n
//             (Grattafiori et al., "The Llama 3 herd of models", 2024)
//   yarn      as llama3 with beta_slow and beta_fast; the mean is linear in i
//             (Peng et al., "YaRN", 2023)
//   longrope  frequency / factor of the pair, from one of two lists: for lengths up to L, above L
//             (Ding et al., "LongRoPE", 2024)
std::vector<double> rope_frequencies(const RopeSpec& rope, Index length);

// Returns [positions, rotated / 2, 2]: cos and sin of position * frequency, times the attention
// factor. Computed in double precision.
std::vector<float> rope_table(const RopeSpec& rope, Index length, Index positions);

// Describes the table that training uses, if it depends on the length of a text. The result is a
// line that begins with a newline. Empty otherwise.
std::string training_rope_text(const std::vector<BlockSpec>& blocks);

// Table of one RopeSpec, on the device.
struct RopeTable {
  RopeSpec spec;
  Tensor rows;  // [rows, rotated / 2, 2] cos and sin
};

// Rotates the first `heads` heads of x: [tokens, heads or more, width], or back if `inverse`. No-op
// if `table` is nullptr.
// - rows: [tokens] i32 rows of the table
// - pairs: empty: those of the table's spec
void rotate(Device& device, const RopeTable* table, View x, Index heads, ConstView rows, bool inverse,
            std::optional<RopePairs> pairs = {});

// Tables of all RopeSpecs of the layers. Row p belongs to position p. In generation with a scaling
// that depends on the length, row p belongs to token p of the pass (TokenStream::rope_rows). As in
// transformers, the length is that of a sequence in training and evaluation, and of the text so far
// in generation.
class RopeTables {
 public:
  // Makes the tables of training.
  RopeTables(Device& device, const std::vector<BlockSpec>& blocks, Index positions);
  // Returns the table of a RopeSpec, at a stable address. nullptr without rotary positions.
  const RopeTable* of(const std::optional<RopeSpec>& rope) const;
  // Maximum number of tokens in a sequence, for all tables by position or distance.
  Index positions() const { return positions_; }

  // Returns true if a table depends on the length of a text.
  bool depends_on_length() const;
  // Returns true if the cache of a text must be computed again when the text reaches `length`
  // tokens, because longrope changes its factors there. With dynamic, cached keys stay, and only
  // new tokens follow the new length.
  bool requires_recompute(Index length) const;
  // Sets the rows for a text of `length` tokens: row p for position p < length.
  void set_length(Index length);
  // Sets row t for token t of a pass.
  struct Token {
    Index position, length;  // length: number of tokens of its text
  };
  void set_tokens(std::span<const Token> tokens);

 private:
  struct Entry {
    RopeTable table;
    // scaled_length and number of the valid rows. scaled = -1: the rows belong to a pass's tokens.
    Index scaled, filled;
  };
  void write(Entry& entry, const std::vector<float>& rows);

  Device& device_;
  Index positions_;
  std::vector<std::unique_ptr<Entry>> entries_;
};

}  // namespace sy
