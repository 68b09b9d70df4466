// The tables of cos and sin by which attention rotates queries and keys.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "kernels/backend.h"
#include "src/params/block_specs.h"

namespace sy {

// Returns the length by which the scaling of a text of `length` tokens goes: texts of one scaled
// length have one table. 0 for scalings that do not depend on the length; dynamic and longrope do.
Index scaled_length(const RopeSpec& rope, Index length);

// [rotated / 2] angles by which each pair turns from one position to the next in a text of `length`
// tokens: theta^(-2i / rotated), scaled. With factor s, original length L, and
// n = L * frequency / (2 pi), the turns of a pair over the original length, the scalings are
//   linear    frequency / s                                            (Chen et al., "Extending context window", 2023)
//   ntk       theta * s^(rotated / (rotated - 2)) in place of theta    (bloc97, "NTK-aware scaled RoPE", 2023)
//   dynamic   the same with s * length / L - (s - 1) in place of s, where the length is more than L
//   llama3    frequency / s below n = low, frequency above n = high, between them a mean of both, linear in n
//             (Grattafiori et al., "The Llama 3 herd of models", 2024)
//   yarn      the same with beta_slow and beta_fast, the mean being linear in i (Peng et al., "YaRN", 2023)
//   longrope  frequency / a factor of its own: one of two lists, for lengths up to L and above L
//             (Ding et al., "LongRoPE", 2024)
std::vector<double> rope_frequencies(const RopeSpec& rope, Index length);

// [positions, rotated / 2, 2] cos and sin of position * frequency, computed in double precision, times the attention
// factor.
std::vector<float> rope_table(const RopeSpec& rope, Index length, Index positions);

// Says which table training uses, as a line that begins with a newline, if one depends on the
// length of a text. Empty otherwise.
std::string training_rope_text(const std::vector<BlockSpec>& blocks);

// The table of one way of rotating, on the backend.
struct RopeTable {
  RopeSpec spec;
  Tensor rows;  // [rows, rotated / 2, 2] cos and sin
};

// A table for each way of rotating that the layers have between them. Row p belongs to position p.
// In generation with a scaling that depends on the length it belongs to token p of the pass
// (Batch::rope_rows). The length is that of Hugging Face's transformers: of a sequence in training
// and evaluation, of the text so far in generation.
class RopeTables {
 public:
  // Makes the tables of training.
  RopeTables(Backend& backend, const std::vector<BlockSpec>& blocks, Index positions);
  // Returns the table of one way of rotating, at an address that stays; nullptr without rotation.
  const RopeTable* of(const std::optional<RopeSpec>& rope) const;
  // Those that a sequence may have, for all tables by position or distance.
  Index positions() const { return positions_; }

  // Whether a table depends on the length of a text.
  bool depends_on_length() const;
  // Whether the cache of a text must be computed again when the text becomes `length` tokens long:
  // the other factors of longrope begin there. With dynamic, cached keys stay as they are, and only
  // new tokens follow the new length.
  bool restarts_at(Index length) const;
  // Sets row p to that of position p in a text of `length` tokens, for p < length.
  void set_length(Index length);
  // Sets row t to that of token t of a pass.
  struct Token {
    Index position, length;  // length: tokens of its text
  };
  void set_tokens(std::span<const Token> tokens);

 private:
  struct Entry {
    RopeTable table;
    // scaled_length of the rows and their number. scaled -1: they are those of a pass's tokens.
    Index scaled, filled;
  };
  void write(Entry& entry, const std::vector<float>& rows);

  Backend& backend_;
  Index positions_;
  std::vector<std::unique_ptr<Entry>> entries_;
};

}  // namespace sy
