#include <algorithm>
#include <cmath>
#include <iterator>
#include <numeric>

#include "src/data/dataset.h"
#include "src/data/masking.h"
#include "src/data/permutation.h"
#include "src/data/sequence_pairs.h"
#include "src/data/visible_prefix.h"
#include "src/text/strings.h"

namespace sy {
namespace {

// floor(n * share / total); the product may need more than 64 bits.
Index proportion(Index n, Index share, Index total) {
  return static_cast<Index>(static_cast<__int128>(n) * share / total);
}

void check_sample(const Sample& to, Index seq_len, const Config::Data& data, bool has_prefix) {
  if (!to.encoder_ids.empty()) return;  // the lengths of pairs are those of the sample
  const auto size = static_cast<std::size_t>(seq_len), starts = data.documents == Documents::join ? 0 : size;
  SY_ASSERT(to.ids.size() == size && to.targets.size() == size && to.document_start.size() == starts,
            "spans of {}, {} and {}", to.ids.size(), to.targets.size(), to.document_start.size());
  SY_ASSERT(to.prefix_end.size() == (has_prefix ? size : 0), "ends of prefixes of {} tokens", to.prefix_end.size());
}

std::vector<std::int32_t> read_tokens(const IndexedTokens& tokens, Index vocab, Range range) {
  std::vector<std::int32_t> ids(static_cast<std::size_t>(range.size()));
  tokens.read(range.begin, vocab, ids);
  return ids;
}

// Reads a source and its target, or a text of up to seq_len tokens.
// number: of the sample, which keys random choices
void read_pair(const SequencePairs& pairs, const IndexedTokens& tokens, Index vocab, Index seq_len, Index window,
               Index number, const Sample& to) {
  SY_ASSERT(!to.encoder_ids.empty(), "a sample without memory for the encoder");
  if (pairs.reads_pairs()) {
    const auto document = [&](Index i) { return read_tokens(tokens, vocab, tokens.document(i)); };
    return pairs.make(document(2 * window), document(2 * window + 1), to);
  }
  const Index begin = window * seq_len;
  pairs.make(read_tokens(tokens, vocab, {begin, std::min(begin + seq_len, tokens.tokens())}), number, to);
}

// Sets the targets of a window that no loss counts to -1, and the document starts, unless they are
// empty. The ids are the tokens from `begin` on, and the targets those from `begin + ahead` on.
// ahead: 1 for next tokens. 0 for own tokens, where the first one of a document has a loss as well.
void mark_window(const IndexedTokens& tokens, Index begin, Index ahead, const Sample& window,
                 const Config::Data& data) {
  tokens.ignore_masked(begin + ahead, window.targets);
  if (!data.ignores_document_begins()) return;
  Index start = 0;
  const auto fill = [&](Index end) {
    if (!window.document_start.empty())
      std::fill(window.document_start.begin() + start, window.document_start.begin() + end,
                static_cast<std::int32_t>(start));
    start = end;
  };
  for (const Index first : tokens.document_begins_in({begin + 1, begin + std::ssize(window.ids) + ahead})) {
    if (ahead > 0) window.targets[static_cast<std::size_t>(first - begin - 1)] = -1;
    if (first - begin < std::ssize(window.ids)) fill(first - begin);
  }
  fill(std::ssize(window.ids));
}

void check_has_domain(const Dataset& dataset, const std::string& name) {
  std::vector<std::string> names;
  for (const Domain& d : dataset.domains()) names.push_back(d.name);
  if (std::ranges::find(names, name) == names.end())
    bad_input("data.blend_schedule names domain {}, and {} has the domains {}: correct the name", name,
              dataset.dir().string(), join(names, ", "));
}

// Returns nullptr for an empty optional.
template <class T>
std::shared_ptr<const T> shared(std::optional<T> value) {
  return value ? std::make_shared<const T>(*std::move(value)) : nullptr;
}

double weight_in(const SampleStream::BlendChange& change, const std::string& domain) {
  const auto found = std::ranges::find(change.weights, domain, &BlendSchedule::Weight::domain);
  return found == change.weights.end() ? 0 : found->weight;
}

}  // namespace

SampleStream::SampleStream(const Dataset& dataset, Index seq_len, std::uint64_t seed, const Config::Data& data,
                           std::shared_ptr<const TokenMasking> masking, const std::vector<BlendChange>& changes,
                           std::shared_ptr<const SequencePairs> pairs, std::shared_ptr<const VisiblePrefix> prefix)
    : seq_len_(seq_len),
      vocab_(dataset.vocab()),
      data_(data),
      masking_(std::move(masking)),
      pairs_(std::move(pairs)),
      prefix_(std::move(prefix)),
      ignores_targets_(data.ignores_document_begins() || dataset.has_loss_mask() || masking_ || pairs_ || prefix_) {
  SY_ASSERT(seq_len > 0, "seq_len {}", seq_len);
  for (const BlendChange& change : changes)
    for (const BlendSchedule::Weight& weight : change.weights) check_has_domain(dataset, weight.domain);
  const auto has_share = [&](const Domain& d) {
    const bool initially = d.weight != 0 && (changes.empty() || changes.front().first_sample > 0);
    return initially || std::ranges::any_of(changes, [&](const BlendChange& c) { return weight_in(c, d.name) > 0; });
  };
  for (std::size_t i = 0; i < dataset.domains().size(); ++i) {
    const Domain& d = dataset.domains()[i];
    const IndexedTokens tokens = dataset.open(static_cast<int>(i), SplitName::train);
    std::optional<Packing> packing;
    const bool used = has_share(d);
    if (data.documents == Documents::pack && used)
      packing.emplace(tokens, seq_len, RandomStream(seed, "packing of " + d.name));
    const bool reads_pairs = pairs_ && pairs_->reads_pairs();
    if (d.pairs != reads_pairs && used)
      bad_input("domain {} has {}: set train.objective to {}", d.name,
                d.pairs ? "sources and targets" : "no sources and targets",
                d.pairs ? "seq2seq and model.kind to encoder_decoder" : "another value");
    const Index windows = packing              ? packing->windows()
                          : reads_pairs        ? d.train_documents / 2
                          : d.train_tokens > 0 ? (d.train_tokens - 1) / seq_len
                                               : 0;
    if (windows == 0 && used)
      bad_input(
          "domain {} has {} training tokens, too few for model.seq_len = {} (a sample takes one more): "
          "give it more text{}",
          d.name, d.train_tokens, seq_len,
          d.train_tokens > 1 ? fmt::format(", or set model.seq_len to at most {}", d.train_tokens - 1) : "");
    sources_.push_back({tokens, std::move(packing), windows, RandomStream(seed, "windows of " + d.name)});
  }
  const auto add_blend = [&](Index first, const BlendChange* change) {
    const std::string name = first == 0 ? "mix of domains" : fmt::format("mix of domains from sample {}", first);
    std::vector<Index> before(sources_.size(), 0);
    if (!blends_.empty()) {
      blends_.back().end_sample = first;
      before = count(first);
    }
    std::vector<Index> shares = shares_of(dataset, change);
    const Index total = std::accumulate(shares.begin(), shares.end(), Index{0});
    blends_.push_back({first, INT64_MAX, std::move(shares), total, RandomStream(seed, name), std::move(before)});
  };
  if (changes.empty() || changes.front().first_sample > 0) add_blend(0, nullptr);
  for (std::size_t i = 0; i < changes.size(); ++i)
    if (i + 1 == changes.size() || changes[i].first_sample < changes[i + 1].first_sample)
      add_blend(changes[i].first_sample, &changes[i]);
}

// Weights become integers, so that shares are exact and equal on every machine.
std::vector<Index> SampleStream::shares_of(const Dataset& dataset, const BlendChange* change) const {
  const std::vector<Domain>& domains = dataset.domains();
  const auto weight = [&](const Domain& d) { return change ? weight_in(*change, d.name) : std::max(d.weight, 0.0); };
  double sum = 0;
  for (const Domain& d : domains) sum += weight(d);
  std::vector<Index> shares;
  for (std::size_t i = 0; i < domains.size(); ++i) {
    const bool by_size = !change && domains[i].weight < 0;
    shares.push_back(by_size ? sources_[i].windows : std::llround(weight(domains[i]) / sum * 0x1p40));
  }
  return shares;
}

const SampleStream::Blend& SampleStream::blend_of(Index sample) const {
  SY_ASSERT(sample >= 0, "sample {}", sample);
  return *std::prev(std::ranges::upper_bound(blends_, sample, {}, &Blend::first_sample));
}

SampleStream::DomainSample SampleStream::domain_sample(const Blend& blend, Index sample) const {
  const Index offset = sample - blend.first_sample, block = offset / mixing_block;
  const Index size = std::min(mixing_block, blend.end_sample - blend.first_sample - block * mixing_block);
  Index n = block * mixing_block +
            Permutation(size, blend.blocks.bits(static_cast<std::uint64_t>(block)))(offset % mixing_block);

  // The first domain gets floor(n * share / total_share) of the first n samples. The others divide
  // the rest in the same way. Each count grows with n and their sum is n. So sample n belongs to
  // the one domain whose count grows from n to n + 1.
  Index rest = blend.total_share;
  for (std::size_t d = 0; d < blend.shares.size(); ++d) {
    const Index share = blend.shares[d];
    if (share == 0) continue;
    const Index k = proportion(n, share, rest);
    if (proportion(n + 1, share, rest) > k) return {d, blend.before[d] + k};
    n -= k;
    rest -= share;
  }
  SY_ASSERT(false, "sample {} belongs to no domain", sample);
  return {};
}

std::vector<Index> SampleStream::count(Index n) const {
  if (n == 0) return std::vector<Index>(sources_.size(), 0);
  const Blend& blend = blend_of(n - 1);
  std::vector<Index> counts = blend.before;
  const Index whole =
      n == blend.end_sample ? n - blend.first_sample : (n - blend.first_sample) / mixing_block * mixing_block;
  Index left = whole, rest = blend.total_share;
  for (std::size_t d = 0; d < counts.size(); ++d) {
    if (blend.shares[d] == 0) continue;
    const Index k = proportion(left, blend.shares[d], rest);
    counts[d] += k;
    left -= k;
    rest -= blend.shares[d];
  }
  for (Index sample = blend.first_sample + whole; sample < n; ++sample) ++counts[domain_sample(blend, sample).domain];
  return counts;
}

std::vector<double> SampleStream::epochs(Index n) const {
  const std::vector<Index> counts = count(n);
  std::vector<double> epochs;
  for (std::size_t d = 0; d < counts.size(); ++d)
    epochs.push_back(counts[d] > 0 ? static_cast<double>(counts[d]) / static_cast<double>(sources_[d].windows) : 0);
  return epochs;
}

SampleStream::Location SampleStream::locate(Index sample) const {
  const auto [domain, k] = domain_sample(blend_of(sample), sample);
  const Source& s = sources_[domain];
  const Permutation order(s.windows, s.epochs.bits(static_cast<std::uint64_t>(k / s.windows)));
  return {static_cast<int>(domain), order(k % s.windows)};
}

int SampleStream::read(Index sample, const Sample& to) const {
  check_sample(to, seq_len_, data_, prefix_ != nullptr);
  const auto [domain, window] = locate(sample);
  const Source& source = sources_[static_cast<std::size_t>(domain)];
  if (pairs_) {
    read_pair(*pairs_, source.tokens, vocab_, seq_len_, window, sample, to);
    return domain;
  }
  if (source.packing) {
    read_packed(source, window, to);
  } else {
    const Index begin = window * seq_len_, ahead = masking_ ? 0 : 1;
    source.tokens.read(begin, vocab_, to.ids);
    std::copy(to.ids.begin() + ahead, to.ids.end(), to.targets.begin());
    source.tokens.read(begin + seq_len_, vocab_, to.targets.last(static_cast<std::size_t>(ahead)));
    mark_window(source.tokens, begin, ahead, to, data_);
  }
  if (masking_) masking_->apply(to, sample * seq_len_);
  if (prefix_) prefix_->apply(to, sample * seq_len_);
  return domain;
}

void SampleStream::read_packed(const Source& source, Index window, const Sample& to) const {
  std::size_t at = 0;
  for (const auto& [tokens, ends_document] : source.packing->window(window)) {
    const auto size = static_cast<std::size_t>(tokens.size());
    const auto ids = to.ids.subspan(at, size), targets = to.targets.subspan(at, size);
    source.tokens.read(tokens.begin, vocab_, ids);
    if (masking_) {
      std::ranges::copy(ids, targets.begin());
      source.tokens.ignore_masked(tokens.begin, targets);
    } else {
      std::copy(ids.begin() + 1, ids.end(), targets.begin());
      if (ends_document)
        targets.back() = -1;
      else
        source.tokens.read(tokens.end, vocab_, targets.last(1));
      source.tokens.ignore_masked(tokens.begin + 1, ends_document ? targets.first(size - 1) : targets);
    }
    std::ranges::fill(to.document_start.subspan(at, size), static_cast<std::int32_t>(at));
    at += size;
  }
  // Each token of padding is a document, which costs attention the least.
  for (; at < to.ids.size(); ++at) {
    to.ids[at] = to.targets[at] = -1;
    to.document_start[at] = static_cast<std::int32_t>(at);
  }
}

Index SampleStream::samples_per_epoch() const {
  Index n = 0;
  for (std::size_t d = 0; d < sources_.size(); ++d)
    if (std::ranges::any_of(blends_, [&](const Blend& blend) { return blend.shares[d] > 0; })) n += sources_[d].windows;
  return n;
}

SampleStream training_samples(const Dataset& dataset, const Config& config, Index steps, Index samples) {
  // Steps whose samples would be before the first one have none.
  const Index earlier = samples - config.train.samples_before(steps + 1);
  std::vector<SampleStream::BlendChange> changes;
  for (const auto& [step, weights] : config.data.blend_schedule.changes)
    changes.push_back({std::max<Index>(0, config.train.samples_before(step) + earlier), weights});
  return {dataset,
          config.model.seq_len,
          config.train.seed,
          config.data,
          shared(training_masking(config, dataset)),
          changes,
          shared(training_pairs(config, dataset)),
          shared(training_prefix(config))};
}

EvalStream::EvalStream(const Dataset& dataset, int domain, Index seq_len, Index stride, const Config::Data& data,
                       const TokenMasking* masking, const SequencePairs* pairs, bool has_prefix)
    : seq_len_(seq_len),
      stride_(stride > 0 ? stride : seq_len),
      vocab_(dataset.vocab()),
      data_(data),
      tokens_(dataset.open(domain, SplitName::valid)) {
  SY_ASSERT(seq_len > 0 && stride >= 0 && stride <= seq_len, "seq_len {}, stride {}", seq_len, stride);
  SY_ASSERT((!masking && !pairs && !has_prefix) || stride_ == seq_len,
            "masked tokens, pairs or visible prefixes in windows of {} that begin every {}", seq_len, stride_);
  const std::string& name = dataset.domains()[static_cast<std::size_t>(domain)].name;
  if (masking)
    masking_ = std::make_shared<TokenMasking>(masking->keyed(RandomStream(0, "masked validation tokens of " + name)));
  if (pairs)
    pairs_ = std::make_shared<SequencePairs>(
        pairs->keyed(RandomStream(0, "hidden spans and prefixes of the validation of " + name)));
  if (has_prefix)
    prefix_ = std::make_shared<VisiblePrefix>(RandomStream(0, "visible prefixes of the validation of " + name));
}

Index EvalStream::windows() const {
  if (pairs_) return pairs_->reads_pairs() ? tokens_.documents() / 2 : ceil_div(tokens_.tokens(), seq_len_);
  return targets() > 0 ? 1 + ceil_div(std::max<Index>(0, targets() - seq_len_), stride_) : 0;
}

Sample EvalStream::read_window(Index i, Index ahead, const Sample& to) const {
  check_sample(to, seq_len_, data_, prefix_ != nullptr);
  SY_ASSERT(i >= 0 && i < windows(), "window {} of {}", i, windows());
  const Index begin = i * stride_;
  const auto count = static_cast<std::size_t>(length(i));
  const Sample window{to.ids.first(count),
                      to.targets.first(count),
                      to.document_start.first(std::min(count, to.document_start.size())),
                      {},
                      to.prefix_end.first(std::min(count, to.prefix_end.size()))};
  tokens_.read(begin, vocab_, window.ids);
  tokens_.read(begin + ahead, vocab_, window.targets);
  mark_window(tokens_, begin, ahead, window, data_);
  std::ranges::fill(to.ids.subspan(count), 0);
  std::ranges::fill(to.targets.subspan(count), -1);
  return window;
}

void EvalStream::read_hidden(Index i, Index position, const Sample& to) const {
  read_window(i, 0, to);
  for (Index p = 0; p < seq_len_; ++p)
    if (p != position) to.targets[static_cast<std::size_t>(p)] = -1;
  to.ids[static_cast<std::size_t>(position)] = masking_->mask_token();
}

void EvalStream::read(Index i, const Sample& to) const {
  if (pairs_) return read_pair(*pairs_, tokens_, vocab_, seq_len_, i, i, to);
  const Sample window = read_window(i, masking_ ? 0 : 1, to);
  if (masking_) return masking_->apply(to, i * stride_);
  if (prefix_) {
    prefix_->apply(window, i * stride_);
    std::ranges::fill(to.prefix_end.subspan(window.ids.size()), static_cast<std::int32_t>(window.ids.size()));
  }
  if (i > 0) std::fill_n(to.targets.begin(), seq_len_ - stride_, -1);
}

}  // namespace sy
