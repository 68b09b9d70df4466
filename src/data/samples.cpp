#include <algorithm>
#include <cmath>

#include "src/data/dataset.h"
#include "src/data/permutation.h"

namespace sy {
namespace {

// floor(n * share / total); the product may need more than 64 bits.
Index proportion(Index n, Index share, Index total) {
  return static_cast<Index>(static_cast<__int128>(n) * share / total);
}

// Sets the targets that no loss counts to -1. targets: tokens from `begin` on.
void ignore_targets(const IndexedTokens& tokens, Index begin, std::span<std::int32_t> targets,
                    const Config::Data& data) {
  tokens.ignore_masked(begin, targets);
  if (!data.mask_eod_loss) return;
  for (const Index first : tokens.document_begins_in({begin, begin + std::ssize(targets)}))
    targets[static_cast<std::size_t>(first - begin)] = -1;
}

}  // namespace

SampleStream::SampleStream(const Dataset& dataset, Index seq_len, std::uint64_t seed, const Config::Data& data)
    : seq_len_(seq_len),
      vocab_(dataset.vocab()),
      data_(data),
      ignores_targets_(data.mask_eod_loss || dataset.has_loss_mask()),
      blocks_(seed, "mix of domains") {
  SY_ASSERT(seq_len > 0, "seq_len {}", seq_len);
  double weights = 0;
  for (const Domain& d : dataset.domains()) weights += std::max(d.weight, 0.0);
  for (std::size_t i = 0; i < dataset.domains().size(); ++i) {
    const Domain& d = dataset.domains()[i];
    const Index windows = d.train_tokens > 0 ? (d.train_tokens - 1) / seq_len : 0;
    if (windows == 0 && d.weight != 0)
      bad_input(
          "domain {} has {} training tokens, too few for model.seq_len = {} (a sample takes one more): "
          "give it more text{}",
          d.name, d.train_tokens, seq_len,
          d.train_tokens > 1 ? fmt::format(", or set model.seq_len to at most {}", d.train_tokens - 1) : "");
    // Weights become integers, so that shares are exact and equal on every machine.
    const Index share = d.weight < 0 ? windows : std::llround(d.weight / weights * 0x1p40);
    sources_.push_back({dataset.open(static_cast<int>(i), SplitName::train), windows, share,
                        RandomStream(seed, "windows of " + d.name)});
    total_share_ += share;
  }
}

SampleStream::Location SampleStream::locate(Index sample) const {
  SY_ASSERT(sample >= 0, "sample {}", sample);
  const Index block = sample / mixing_block;
  Index n = block * mixing_block +
            Permutation(mixing_block, blocks_.bits(static_cast<std::uint64_t>(block)))(sample % mixing_block);

  // The first domain gets floor(n * share / total_share_) of the first n samples. The others divide
  // the rest in the same way. Each count grows with n and their sum is n. So sample n belongs to
  // the one domain whose count grows from n to n + 1.
  Index rest = total_share_;
  for (std::size_t d = 0; d < sources_.size(); ++d) {
    const Source& s = sources_[d];
    if (s.share == 0) continue;
    const Index k = proportion(n, s.share, rest);
    if (proportion(n + 1, s.share, rest) > k) {
      const Permutation order(s.windows, s.epochs.bits(static_cast<std::uint64_t>(k / s.windows)));
      return {static_cast<int>(d), order(k % s.windows)};
    }
    n -= k;
    rest -= s.share;
  }
  SY_ASSERT(false, "sample {} belongs to no domain", sample);
  return {};
}

int SampleStream::read(Index sample, const Sample& to) const {
  const auto size = static_cast<std::size_t>(seq_len_);
  SY_ASSERT(to.ids.size() == size && to.targets.size() == size, "spans of {} and {}", to.ids.size(), to.targets.size());
  const auto [domain, window] = locate(sample);
  const IndexedTokens& tokens = sources_[static_cast<std::size_t>(domain)].tokens;
  const Index begin = window * seq_len_;
  tokens.read(begin, vocab_, to.ids);
  std::copy(to.ids.begin() + 1, to.ids.end(), to.targets.begin());
  tokens.read(begin + seq_len_, vocab_, to.targets.last(1));
  ignore_targets(tokens, begin + 1, to.targets, data_);
  return domain;
}

Index SampleStream::samples_per_epoch() const {
  Index n = 0;
  for (const Source& s : sources_)
    if (s.share > 0) n += s.windows;
  return n;
}

EvalStream::EvalStream(const Dataset& dataset, int domain, Index seq_len, Index stride, const Config::Data& data)
    : seq_len_(seq_len),
      stride_(stride > 0 ? stride : seq_len),
      vocab_(dataset.vocab()),
      data_(data),
      tokens_(dataset.open(domain, SplitName::valid)) {
  SY_ASSERT(seq_len > 0 && stride >= 0 && stride <= seq_len, "seq_len {}, stride {}", seq_len, stride);
}

void EvalStream::read(Index i, std::span<std::int32_t> inputs, std::span<std::int32_t> targets) const {
  const auto size = static_cast<std::size_t>(seq_len_);
  SY_ASSERT(i >= 0 && i < windows(), "window {} of {}", i, windows());
  SY_ASSERT(inputs.size() == size && targets.size() == size, "spans of {} and {}", inputs.size(), targets.size());
  const Index begin = i * stride_, predicted = i > 0 ? seq_len_ - stride_ : 0;
  const auto count = static_cast<std::size_t>(length(i));
  tokens_.read(begin, vocab_, inputs.first(count));
  tokens_.read(begin + 1, vocab_, targets.first(count));
  ignore_targets(tokens_, begin + 1, targets.first(count), data_);
  std::fill_n(targets.begin(), predicted, -1);
  std::fill(inputs.begin() + static_cast<std::ptrdiff_t>(count), inputs.end(), 0);
  std::fill(targets.begin() + static_cast<std::ptrdiff_t>(count), targets.end(), -1);
}

}  // namespace sy
