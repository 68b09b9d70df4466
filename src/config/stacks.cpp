// Defaults and checks of encoder-decoders.
#include <array>
#include <cmath>

#include "src/config/check.h"
#include "src/config/keys.h"
#include "src/config/span_lengths.h"
#include "src/config/values.h"

namespace sy {
namespace {

bool is_of_pairs(Objective objective) {
  return objective == Objective::span_corruption || objective == Objective::prefix || objective == Objective::seq2seq;
}

// Minimum numbers of positions of the encoder's and the decoder's sequences.
std::array<Index, 2> minimum_lengths(const Config& c) {
  const Index text = c.model.seq_len;
  if (c.train.objective == Objective::span_corruption) {
    const SpanLengths lengths = span_lengths(text, c.train.mask_rate, c.train.span_length);
    return {lengths.encoder, lengths.decoder};
  }
  if (c.train.objective == Objective::prefix) return {text, text};
  return {1, 1};  // longer sources and targets are cut
}

// Sets the lengths of the sequences that the sections do not set.
void complete_lengths(Config& c, Problems& problems) {
  const std::array<Index, 2> minimum = minimum_lengths(c);
  for (std::size_t i = 0; i < c.stacks.size(); ++i) {
    Config::Kind& stack = c.stacks[i];
    const Index needed = minimum[i];
    const std::string key = stack.name + ".seq_len";
    // A multiple of 8 lets tensor-parallel ranks share a sequence.
    if (std::ranges::find(stack.own_keys, key) == stack.own_keys.end())
      stack.model.seq_len = c.train.objective == Objective::seq2seq ? c.model.seq_len : (needed + 7) / 8 * 8;
    else if (stack.model.seq_len < needed)
      problems.add(key,
                   "{} = {} is less than the {} tokens that train.objective = {} makes of model.seq_len = {}: "
                   "raise it, or lower model.seq_len",
                   key, stack.model.seq_len, needed, show(c.train.objective), c.model.seq_len);
  }
}

// Refuses keys that encoder-decoders do not have.
void check_unsupported(const Config& c, Problems& problems) {
  const auto refuse = [&](bool is_set, const std::string& key, const char* to) {
    problems.refuse(is_set, c, key, "model.kind = encoder_decoder, which has none", to);
  };
  const auto& m = c.model;
  for (const Config::Kind& stack : c.stacks)
    refuse(stack.model.position == Position::axial, stack.name + ".position", "another position");
  refuse(!m.pattern.segments.empty(), "model.pattern", "nothing");
  refuse(m.mtp_depth > 0, "model.mtp_depth", "0");
  refuse(m.kv_lora_rank > 0, "model.kv_lora_rank", "0");
  refuse(m.parallel_block, "model.parallel_block", "false");
  refuse(m.segments > 0, "model.segments", "0");
  refuse(c.train.lora_rank > 0, "train.lora_rank", "0");
  refuse(c.train.qk_clip > 0, "train.qk_clip", "0");
  refuse(c.data.documents != Documents::join, "data.documents", "join");
  refuse(c.data.mask_eod_loss, "data.mask_eod_loss", "false");
}

void check_experts(const Config& c, Problems& problems) {
  bool any = false;
  for (const Config::Kind& stack : c.stacks) {
    any = any || stack.moe.experts > 0;
    problems.refuse(stack.moe.experts != 0 && stack.moe.experts != c.moe.experts, c, stack.name + ".experts",
                    fmt::format("moe.experts = {}: both stacks have equally many experts, or none", c.moe.experts),
                    c.moe.experts > 0 ? fmt::format("one of {} and 0", c.moe.experts)
                                      : fmt::format("0, or moe.experts to {}", stack.moe.experts));
  }
  if (c.moe.experts > 0 && !any)
    problems.add("moe.experts", "moe.experts = {}, but neither the encoder nor the decoder has experts: set it to 0",
                 c.moe.experts);
}

}  // namespace

SpanLengths span_lengths(Index tokens, double density, Index span) {
  const auto rounded = [](double x) { return static_cast<Index>(std::llround(x)); };
  SpanLengths lengths{};
  lengths.hidden = std::clamp<Index>(rounded(static_cast<double>(tokens) * density), 1, std::max<Index>(1, tokens - 1));
  lengths.spans = std::max<Index>(1, rounded(static_cast<double>(lengths.hidden) / static_cast<double>(span)));
  lengths.spans = std::min(lengths.spans, std::max<Index>(1, tokens - lengths.hidden));
  lengths.encoder = tokens - lengths.hidden + lengths.spans + 1;
  lengths.decoder = lengths.hidden + lengths.spans + 1;
  return lengths;
}

void check_objective_of_pairs(const Config& c, Problems& problems) {
  const bool pairs = c.model.kind == ModelKind::encoder_decoder;
  if (pairs == is_of_pairs(c.train.objective) || c.has_visible_prefix()) return;
  problems.add("train.objective", "train.objective = {} with model.kind = {}: set it to {}, or model.kind to {}",
               show(c.train.objective), show(c.model.kind),
               pairs                                ? "span_corruption, prefix or seq2seq"
               : c.model.kind == ModelKind::encoder ? "masked"
                                                    : "causal or prefix",
               pairs ? (c.train.objective == Objective::masked ? "encoder" : "decoder") : "encoder_decoder");
}

void complete_stacks(Config& c, Problems& problems) {
  check_unsupported(c, problems);
  check_experts(c, problems);
  if (c.model.seq_len < 2)
    return problems.add("model.seq_len", "model.seq_len = {} with model.kind = encoder_decoder: raise it to 2 or more",
                        c.model.seq_len);
  if (is_of_pairs(c.train.objective)) complete_lengths(c, problems);
  c.model.layers = 0;
  for (Config::Kind& stack : c.stacks) c.model.layers += stack.model.layers;
  // The written configuration has all values of a stack that differ from those of [model].
  for (Config::Kind& stack : c.stacks)
    for (const Key& key : key_table())
      if (key.by_stack) keep_own_value(c, stack, key);
}

}  // namespace sy
