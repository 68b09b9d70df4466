#include "src/model/rope.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "kernels/ops/rope.h"
#include "src/text/strings.h"

namespace sy {

namespace {

// Weight of the scaled frequency in YaRN's mean, for a pair of elements. It is 0 up to the pair
// with beta_fast rotations over the original length, and 1 from the pair with beta_slow on.
double yarn_ramp(const RopeSpec& r, Index pair) {
  const auto dimension = [&](double rotations) {
    const double wave = static_cast<double>(r.original_length) / (rotations * 2 * std::numbers::pi);
    return static_cast<double>(r.rotated) * std::log(wave) / (2 * std::log(r.theta));
  };
  double first = dimension(r.beta_fast), last = dimension(r.beta_slow);
  if (r.whole_dimensions) {
    first = std::floor(first);
    last = std::ceil(last);
  }
  first = std::max(first, 0.0);
  last = std::min(last, static_cast<double>(r.rotated - 1));
  if (first == last) last += 0.001;
  return std::clamp((static_cast<double>(pair) - first) / (last - first), 0.0, 1.0);
}

// Mean of frequency / s, with weight `low`, and of frequency.
double mean_of(double frequency, double low, double s) {
  return frequency / s * low + frequency * (1 - low);
}

// Appends [frequencies, 2] cos and sin of one position.
void add_row(const RopeSpec& rope, const std::vector<double>& frequencies, Index position, std::vector<float>& table) {
  for (const double frequency : frequencies) {
    const double angle = static_cast<double>(position) * frequency;
    table.push_back(static_cast<float>(rope.attention_factor * std::cos(angle)));
    table.push_back(static_cast<float>(rope.attention_factor * std::sin(angle)));
  }
}

// Calls f(const RopeSpec&) for each attention with rotary positions, in order.
template <class F>
void for_each_rope(const std::vector<BlockSpec>& blocks, const F& f) {
  for (const BlockSpec& block : blocks)
    for (const CoreAttentionSpec* attention : block.all<CoreAttentionSpec>())
      if (attention->rope) f(*attention->rope);
}

}  // namespace

Index scaled_length(const RopeSpec& r, Index length) {
  switch (r.scaling) {
    case RopeScaling::dynamic:
      return std::max(length, r.original_length);
    case RopeScaling::longrope: {
      const bool has_both = !r.short_factors.empty() && !r.long_factors.empty();
      return has_both && length > r.original_length ? r.original_length + 1 : r.original_length;
    }
    default:
      return 0;
  }
}

std::vector<double> rope_frequencies(const RopeSpec& r, Index length) {
  const double s = r.factor, L = static_cast<double>(r.original_length), dims = static_cast<double>(r.rotated);
  double theta = r.theta;
  if (r.scaling == RopeScaling::ntk || r.scaling == RopeScaling::dynamic) {
    const double scaled = static_cast<double>(scaled_length(r, length));
    theta *= std::pow(r.scaling == RopeScaling::ntk ? s : s * scaled / L - (s - 1), dims / (dims - 2));
  }
  const bool has_long = r.short_factors.empty() || (length > r.original_length && !r.long_factors.empty());
  const std::vector<double>& factors = has_long ? r.long_factors : r.short_factors;
  std::vector<double> frequencies;
  for (Index i = 0; i < r.rotated / 2; ++i) {
    double f = std::pow(theta, -2.0 * static_cast<double>(i) / dims);
    switch (r.scaling) {
      case RopeScaling::none:
      case RopeScaling::ntk:
      case RopeScaling::dynamic:
        break;
      case RopeScaling::linear:
        f /= s;
        break;
      case RopeScaling::llama3: {
        const double rotations = L * f / (2 * std::numbers::pi);
        const double high = (rotations - r.low_frequency) / (r.high_frequency - r.low_frequency);
        f = mean_of(f, 1 - std::clamp(high, 0.0, 1.0), s);
        break;
      }
      case RopeScaling::yarn:
        f = mean_of(f, yarn_ramp(r, i), s);
        break;
      case RopeScaling::longrope:
        f /= factors[static_cast<std::size_t>(i)];
        break;
    }
    frequencies.push_back(f);
  }
  return frequencies;
}

std::vector<float> rope_table(const RopeSpec& rope, Index length, Index positions) {
  const std::vector<double> frequencies = rope_frequencies(rope, length);
  std::vector<float> table;
  table.reserve(static_cast<std::size_t>(positions * rope.rotated));
  for (Index p = 0; p < positions; ++p) add_row(rope, frequencies, p, table);
  return table;
}

std::string training_rope_text(const std::vector<BlockSpec>& blocks) {
  std::vector<std::string> texts;
  for_each_rope(blocks, [&](const RopeSpec& rope) {
    std::string text;
    if (rope.scaling == RopeScaling::longrope && !rope.short_factors.empty() && !rope.long_factors.empty())
      text = fmt::format("longrope with {}, since model.seq_len = {} is {} model.rope_original_length = {}",
                         rope.length > rope.original_length ? "model.rope_long_factors" : "model.rope_short_factors",
                         rope.length, rope.length > rope.original_length ? "above" : "at most", rope.original_length);
    else if (rope.scaling == RopeScaling::dynamic)
      text = fmt::format("dynamic for a length of {}, model.seq_len", rope.length);
    if (!text.empty() && std::find(texts.begin(), texts.end(), text) == texts.end()) texts.push_back(text);
  });
  if (texts.empty()) return "";
  return fmt::format("\nrope      {}; evaluation and generation go by the length of each text", join(texts, "; "));
}

void rotate(Device& device, const RopeTable* table, View x, Index heads, ConstView rows, bool inverse,
            std::optional<RopePairs> pairs) {
  if (!table) return;
  run(device, ops::Rope{.x = x,
                        .heads = heads,
                        .positions = rows,
                        .table = table->rows,
                        .inverse = inverse,
                        .pairs = pairs.value_or(table->spec.pairs)});
}

RopeTables::RopeTables(Device& device, const std::vector<BlockSpec>& blocks, Index positions)
    : device_(device), positions_(positions) {
  for_each_rope(blocks, [&](const RopeSpec& rope) {
    if (of(rope)) return;
    entries_.push_back(std::make_unique<Entry>(
        Entry{{rope, device.tensor({positions, rope.rotated / 2, 2})}, scaled_length(rope, rope.length), positions}));
    write(*entries_.back(), rope_table(rope, rope.length, positions));
  });
}

const RopeTable* RopeTables::of(const std::optional<RopeSpec>& rope) const {
  for (const auto& entry : entries_)
    if (rope == entry->table.spec) return &entry->table;
  return nullptr;
}

bool RopeTables::depends_on_length() const {
  return std::any_of(entries_.begin(), entries_.end(), [](const auto& entry) {
    const RopeSpec& rope = entry->table.spec;
    return scaled_length(rope, rope.original_length) != scaled_length(rope, rope.original_length + 1);
  });
}

bool RopeTables::requires_recompute(Index length) const {
  return std::any_of(entries_.begin(), entries_.end(), [&](const auto& entry) {
    const RopeSpec& rope = entry->table.spec;
    return rope.scaling == RopeScaling::longrope && scaled_length(rope, length) != scaled_length(rope, length - 1);
  });
}

void RopeTables::set_length(Index length) {
  for (const auto& entry : entries_) {
    const Index scaled = scaled_length(entry->table.spec, length), rows = std::min(length, positions_);
    if (scaled == entry->scaled && rows <= entry->filled) continue;
    write(*entry, rope_table(entry->table.spec, length, rows));
    entry->scaled = scaled;
    entry->filled = rows;
  }
}

void RopeTables::set_tokens(std::span<const Token> tokens) {
  for (const auto& entry : entries_) {
    const RopeSpec& rope = entry->table.spec;
    std::vector<float> rows;
    std::vector<double> frequencies;
    Index of = -1;  // scaled length to which `frequencies` belong
    for (const Token& token : tokens) {
      const Index scaled = scaled_length(rope, token.length);
      if (scaled != of) frequencies = rope_frequencies(rope, token.length);
      of = scaled;
      add_row(rope, frequencies, token.position, rows);
    }
    if (std::ssize(tokens) > ConstView(entry->table.rows).dim(0))
      entry->table.rows = device_.tensor({std::ssize(tokens), rope.rotated / 2, 2});
    write(*entry, rows);
    entry->scaled = -1;
  }
}

void RopeTables::write(Entry& entry, const std::vector<float>& rows) {
  const View table = entry.table.rows;
  const Index count = std::ssize(rows) / entry.table.spec.rotated;
  if (count > 0) device_.to_device(rows.data(), table.rows(0, count));
}

}  // namespace sy
