#include "src/data/sequence_pairs.h"

#include <numeric>

#include "src/config/span_lengths.h"
#include "src/data/masking.h"
#include "src/data/tokenizer.h"

namespace sy {
namespace {

// Number of random numbers that a sample has, at least twice its tokens.
constexpr std::uint64_t numbers_per_sample = std::uint64_t{1} << 30;

// Returns the id that ends documents, -1 if the data set has none.
std::int32_t end_of_text_of(const Dataset& dataset) {
  const auto of_tokenizer = [](const Tokenizer& tokenizer) { return std::vector<Index>{tokenizer.end_of_text()}; };
  return static_cast<std::int32_t>(dataset.tokenizer() == "none"
                                       ? dataset.description().end_of_text
                                       : dataset.tokenizer_numbers("end_of_text", of_tokenizer).front());
}

// Returns the id of <extra_id_0>, -1 if there is none, and the number of it and its successors,
// whose ids descend.
std::vector<Index> sentinels_of(const Tokenizer& tokenizer) {
  const Index first = tokenizer.find("<extra_id_0>");
  Index count = 0;
  while (first >= count && tokenizer.find(fmt::format("<extra_id_{}>", count)) == first - count) ++count;
  return {first, count};
}

// Copies a sequence and its end token to the first elements of `to`. Returns their number.
Index copy_with_end(std::span<const std::int32_t> ids, std::int32_t end, std::span<std::int32_t> to) {
  const Index with_end = std::ssize(to) - (end >= 0 ? 1 : 0);
  Index n = std::min(std::ssize(ids), with_end);
  std::copy_n(ids.begin(), n, to.begin());
  if (end >= 0) to[static_cast<std::size_t>(n++)] = end;
  return n;
}

}  // namespace

SequencePairs::SequencePairs(const Config& config, PairTokens tokens)
    : objective_(config.train.objective),
      density_(config.train.mask_rate),
      span_length_(config.train.span_length),
      tokens_(tokens),
      stream_(config.train.seed, "hidden spans and prefixes") {
  if (objective_ != Objective::span_corruption) return;
  const Index spans = span_lengths(config.model.seq_len, density_, span_length_).spans;
  if (spans > tokens.sentinels)
    bad_input(
        "train.objective = span_corruption hides {} spans of model.seq_len = {} tokens, and there are {} "
        "sentinels: lower model.seq_len, or raise train.span_length or model.sentinels",
        spans, config.model.seq_len, tokens.sentinels);
}

SequencePairs SequencePairs::keyed(RandomStream stream) const {
  SequencePairs same = *this;
  same.stream_ = stream;
  return same;
}

// Shuffles the positions between items, and cuts at the first count - 1 of them.
std::vector<Index> SequencePairs::random_lengths(Index items, Index count, std::uint64_t first) const {
  std::vector<Index> gaps(static_cast<std::size_t>(std::max<Index>(0, items - 1)));
  std::iota(gaps.begin(), gaps.end(), Index{1});
  const auto cuts = static_cast<std::ptrdiff_t>(std::min<Index>(count - 1, std::ssize(gaps)));
  for (std::ptrdiff_t i = 0; i < cuts; ++i) {
    const auto rest = static_cast<std::uint64_t>(std::ssize(gaps) - i);
    std::swap(gaps[static_cast<std::size_t>(i)],
              gaps[static_cast<std::size_t>(i) + stream_.bits(first + static_cast<std::uint64_t>(i)) % rest]);
  }
  gaps.resize(static_cast<std::size_t>(cuts));
  std::ranges::sort(gaps);
  gaps.push_back(items);
  std::vector<Index> lengths;
  for (Index begin = 0; const Index end : gaps) lengths.push_back(end - std::exchange(begin, end));
  lengths.resize(static_cast<std::size_t>(count), 0);
  return lengths;
}

void SequencePairs::make(std::span<const std::int32_t> text, Index number, const Sample& to) const {
  const std::uint64_t first = static_cast<std::uint64_t>(number) * numbers_per_sample;
  const auto T = static_cast<std::uint64_t>(text.size());
  if (objective_ == Objective::prefix) {
    const auto split = static_cast<std::size_t>(T < 2 ? 0 : 1 + stream_.bits(first) % (T - 1));
    return make(text.first(split), text.subspan(split), to);
  }
  const SpanLengths lengths = span_lengths(std::ssize(text), density_, span_length_);
  const std::vector<Index> visible = random_lengths(std::ssize(text) - lengths.hidden, lengths.spans, first),
                           hidden = random_lengths(lengths.hidden, lengths.spans, first + T);
  std::vector<std::int32_t> source, target;
  auto at = text.begin();
  for (std::size_t i = 0; i < visible.size(); ++i) {
    const std::int32_t sentinel = tokens_.first_sentinel - static_cast<std::int32_t>(i);
    source.insert(source.end(), at, at + visible[i]);
    source.push_back(sentinel);
    at += visible[i];
    target.push_back(sentinel);
    target.insert(target.end(), at, at + hidden[i]);
    at += hidden[i];
  }
  make(source, target, to);
}

void SequencePairs::make(std::span<const std::int32_t> source, std::span<const std::int32_t> target,
                         const Sample& to) const {
  const Index read = copy_with_end(source, tokens_.end, to.encoder_ids);
  std::ranges::fill(to.encoder_ids.subspan(static_cast<std::size_t>(read)), -1);
  const auto predicted = static_cast<std::size_t>(copy_with_end(target, tokens_.end, to.targets));
  std::ranges::fill(to.targets.subspan(predicted), -1);
  std::ranges::fill(to.ids, -1);
  if (predicted == 0) return;
  to.ids.front() = tokens_.start;
  std::copy_n(to.targets.begin(), predicted - 1, to.ids.begin() + 1);
}

std::optional<SequencePairs> training_pairs(const Config& config, const Dataset& dataset) {
  if (config.model.kind != ModelKind::encoder_decoder) return {};
  const bool wants_pairs = config.train.objective == Objective::seq2seq;
  for (const Domain& domain : dataset.domains()) {
    if (domain.loss_mask)
      bad_input("domain {} has conversations, and model.kind = encoder_decoder: prepare it with --pairs or --domain",
                domain.name);
    if (domain.pairs != wants_pairs)
      bad_input("domain {} has {}: set train.objective to {}, or prepare other data{}", domain.name,
                domain.pairs ? "sources and targets" : "texts without targets",
                domain.pairs ? "seq2seq" : "span_corruption or prefix",
                domain.pairs ? "" : fmt::format(" (`prepare --pairs {}=FILE.jsonl`)", domain.name));
  }
  const Config::Model m = with_special_tokens(config, dataset).model;
  return SequencePairs(config, {.start = static_cast<std::int32_t>(m.start_token),
                                .end = end_of_text_of(dataset),
                                .first_sentinel = static_cast<std::int32_t>(m.sentinel_token),
                                .sentinels = m.sentinels});
}

Config with_special_tokens(Config config, const Dataset& dataset) {
  config = with_mask_token(std::move(config), dataset);
  Config::Model& m = config.model;
  if (m.kind != ModelKind::encoder_decoder) return config;
  if (m.start_token < 0) m.start_token = std::max<Index>(0, end_of_text_of(dataset));
  if (config.train.objective != Objective::span_corruption || m.sentinel_token >= 0) return config;
  if (m.sentinels > 0) {
    m.sentinel_token = dataset.vocab() + m.sentinels - 1;
    return config;
  }
  if (dataset.tokenizer() != "none") {
    const std::vector<Index>& sentinels = dataset.tokenizer_numbers("sentinels", sentinels_of);
    m.sentinel_token = sentinels[0];
    m.sentinels = sentinels[1];
  }
  if (m.sentinels == 0)
    bad_input(
        "train.objective = span_corruption needs sentinels, and the tokenizer of {} has no <extra_id_0>: set "
        "model.sentinels, such as to 100, for ids of the model's own",
        dataset.dir().string());
  return config;
}

}  // namespace sy
