#include "src/data/masking.h"

#include <algorithm>

#include "src/data/sequence_pairs.h"
#include "src/params/specs.h"

namespace sy {
namespace {

// Bits of an id: whether its text begins or ends with a letter, a digit or a part of UTF-8.
enum LetterEdge : std::uint8_t { begins_with_letter = 1, ends_with_letter = 2 };

bool is_letter(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || (c & 0x80) != 0;
}

// Decoders may treat the first token differently. The text of an id is thus that of its second
// occurrence.
std::vector<Index> letter_edges_of(const Tokenizer& tokenizer) {
  std::vector<Index> edges(static_cast<std::size_t>(tokenizer.vocab()));
  for (std::int32_t id = 0; id < tokenizer.vocab(); ++id) {
    const std::string text = tokenizer.decode({id, id}).substr(tokenizer.decode({id}).size());
    if (text.empty()) continue;
    edges[static_cast<std::size_t>(id)] =
        (is_letter(text.front()) ? begins_with_letter : 0) | (is_letter(text.back()) ? ends_with_letter : 0);
  }
  return edges;
}

std::vector<Index> mask_token_of(const Tokenizer& tokenizer) {
  return {tokenizer.mask_token()};
}

}  // namespace

TokenMasking::TokenMasking(const Config::Train& train, std::int32_t mask_token, Index vocab,
                           std::vector<std::uint8_t> letter_edges)
    : rate_(train.mask_rate),
      mask_share_(train.mask_token_share),
      random_share_(train.mask_random_share),
      mask_token_(mask_token),
      vocab_(vocab),
      letter_edges_(std::move(letter_edges)),
      stream_(train.seed, "masked tokens") {
  SY_ASSERT(mask_token >= 0 && vocab > 0, "mask token {} with {} ids", mask_token, vocab);
}

TokenMasking TokenMasking::keyed(RandomStream stream) const {
  TokenMasking same = *this;
  same.stream_ = stream;
  return same;
}

bool TokenMasking::continues_letters(const Sample& sample, std::size_t token) const {
  if (letter_edges_.empty() || token == 0) return false;
  if (!sample.document_start.empty() && sample.document_start[token] == static_cast<std::int32_t>(token)) return false;
  const std::int32_t before = sample.targets[token - 1], own = sample.targets[token];
  if (before < 0 || own < 0) return false;
  return (letter_edges_[static_cast<std::size_t>(before)] & ends_with_letter) != 0 &&
         (letter_edges_[static_cast<std::size_t>(own)] & begins_with_letter) != 0;
}

void TokenMasking::apply(const Sample& sample, Index first_token) const {
  // First token of the run of letters, which is a word, that has each token.
  std::vector<std::size_t> first(sample.ids.size());
  for (std::size_t i = 0; i < first.size(); ++i) first[i] = continues_letters(sample, i) ? first[i - 1] : i;
  for (std::size_t i = 0; i < first.size(); ++i) {
    // Each token has three numbers of the stream.
    const auto numbers_of = [&](std::size_t token) { return 3 * (static_cast<std::uint64_t>(first_token) + token); };
    if (sample.targets[i] < 0 || stream_.uniform(numbers_of(first[i])) >= rate_) {
      sample.targets[i] = -1;
      continue;
    }
    const double kind = stream_.uniform(numbers_of(i) + 1);
    if (kind < mask_share_)
      sample.ids[i] = mask_token_;
    else if (kind < mask_share_ + random_share_)
      sample.ids[i] = static_cast<std::int32_t>(stream_.bits(numbers_of(i) + 2) % static_cast<std::uint64_t>(vocab_));
  }
}

std::optional<TokenMasking> training_masking(const Config& config, const Dataset& dataset) {
  if (config.train.objective != Objective::masked) return {};
  std::vector<std::uint8_t> letter_edges;
  if (config.train.mask_whole_words) {
    const std::vector<Index>& edges = dataset.tokenizer_numbers("letter_edges", letter_edges_of);
    letter_edges.assign(edges.begin(), edges.end());
    // A data set may have more ids than its tokenizer.
    letter_edges.resize(std::max(letter_edges.size(), static_cast<std::size_t>(dataset.vocab())));
  }
  const Index mask_token = with_mask_token(config, dataset).model.mask_token;
  return TokenMasking(config.train, static_cast<std::int32_t>(mask_token), dataset.vocab(), std::move(letter_edges));
}

Config with_mask_token(Config config, const Dataset& dataset) {
  if (config.train.objective != Objective::masked || config.model.mask_token >= 0) return config;
  const bool has_tokenizer = dataset.tokenizer() != "none";
  if (has_tokenizer) config.model.mask_token = dataset.tokenizer_numbers("mask_token", mask_token_of).front();
  if (config.model.mask_token < 0) config.model.mask_token = dataset.vocab();
  return config;
}

Index training_vocab(const Config& config) {
  const Dataset dataset = open_training_data(config);
  return model_vocab(with_special_tokens(config, dataset), dataset.vocab());
}

}  // namespace sy
