#include "src/analyse/routing.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "src/analyse/experts.h"
#include "src/model/router.h"
#include "src/text/numbers.h"

namespace sy {
namespace {

constexpr double nan = std::numeric_limits<double>::quiet_NaN();
constexpr Index max_position_ranges = 16, preferred_ids = 5, listed_paths = 5;

double ratio(Index n, Index of) {
  return of > 0 ? static_cast<double>(n) / static_cast<double>(of) : nan;
}

double mean_of(const std::vector<double>& values) {
  double sum = 0, n = 0;
  for (double v : values)
    if (std::isfinite(v)) {
      sum += v;
      ++n;
    }
  return n > 0 ? sum / n : nan;
}

std::span<const Index> row_of(const std::vector<Index>& values, Index row, Index width) {
  return std::span(values).subspan(static_cast<std::size_t>(row * width), static_cast<std::size_t>(width));
}

}  // namespace

Index count_drops(std::span<const std::int32_t> experts, Index num_experts, Index capacity) {
  if (capacity == 0) return 0;
  std::vector<Index> load(static_cast<std::size_t>(num_experts));
  for (std::int32_t e : experts) ++load[e];
  Index dropped = 0;
  for (Index n : load) dropped += std::max<Index>(0, n - capacity);
  return dropped;
}

RoutingMeasures::RoutingMeasures(RoutingShape shape)
    : shape_(std::move(shape)), position_ranges_(std::min(max_position_ranges, shape_.seq_len)) {
  const Index L = layers(), E = shape_.experts, D = std::ssize(shape_.domains);
  if (2 * L * E * E * Index{sizeof(Index)} > pair_bytes)
    bad_input("{} layers of {} experts have too many pairs of experts to count: look at one layer with --layer", L, E);
  tokens_.resize(D);
  targets_.resize(D);
  nats_.resize(D);
  range_tokens_.resize(position_ranges_);
  domain_.resize(L * D * E);
  pairs_.resize(L * E * E);
  paths_.resize(L * E * E);
  position_.resize(L * position_ranges_ * E);
  factor_drops_.resize(L * std::ssize(shape_.factors));
  domain_drops_.resize(L * D);
  same_.resize(L);
}

void RoutingMeasures::add(const ReplayBatch& batch, const ReplayResult& found) {
  const Index E = shape_.experts, k = shape_.top_k, T = batch.tokens(), D = std::ssize(shape_.domains);
  tokens_[batch.domain] += T;
  targets_[batch.domain] += batch.counted_targets();
  nats_[batch.domain] += found.nats;
  const auto range_of = [&](Index token) { return token % batch.seq_len * position_ranges_ / shape_.seq_len; };
  for (Index t = 0; t < T; ++t) ++range_tokens_[range_of(t)];
  for (Index l = 0; l < layers(); ++l) {
    const std::vector<std::int32_t>& chosen = found.layers[shape_.layers[l]].experts;
    // The next MoE layer, if it is measured too.
    const bool path = l + 1 < layers() && shape_.layers[l + 1] == shape_.layers[l] + 1;
    const std::vector<std::int32_t>* next = path ? &found.layers[shape_.layers[l + 1]].experts : nullptr;
    for (Index t = 0; t < T; ++t) {
      const std::int32_t* const of_token = &chosen[t * k];
      for (Index i = 0; i < k; ++i) {
        ++domain_[(l * D + batch.domain) * E + of_token[i]];
        ++position_[(l * position_ranges_ + range_of(t)) * E + of_token[i]];
        for (Index j = 0; j < k; ++j) ++pairs_[(l * E + of_token[i]) * E + of_token[j]];
      }
      if (next) ++paths_[(l * E + of_token[0]) * E + (*next)[t * k]];
    }
    const Index scope = shape_.scope == CapacityScope::sequence ? batch.seq_len : T;
    for (Index first = 0; first < T; first += scope) {
      const auto of_scope = std::span(chosen).subspan(first * k, scope * k);
      const auto drops = [&](double factor) { return count_drops(of_scope, E, expert_capacity(factor, k, scope, E)); };
      for (std::size_t f = 0; f < shape_.factors.size(); ++f)
        factor_drops_[l * std::ssize(shape_.factors) + f] += drops(shape_.factors[f]);
      domain_drops_[l * D + batch.domain] += drops(shape_.configured_factor);
    }
  }
  for (Index t = 0; t < T; ++t) {
    count_id(input_, batch.ids[t], t, found);
    if (!found.predicted.empty()) count_id(predicted_, found.predicted[t], t, found);
  }
}

void RoutingMeasures::count_id(Vocabulary& v, std::int32_t id, Index token, const ReplayResult& found) {
  const Index E = shape_.experts, k = shape_.top_k, width = layers() * E;
  auto at = v.row.find(id);
  if (at == v.row.end()) {
    if (std::ssize(v.counts) + width > vocabulary_bytes / Index{sizeof(std::uint32_t)}) {
      ++v.skipped_tokens;
      return;
    }
    at = v.row.emplace(id, v.ids.size()).first;
    v.ids.push_back(id);
    v.seen.push_back(0);
    v.counts.resize(v.counts.size() + width);
  }
  const Index row = static_cast<Index>(at->second);
  ++v.seen[row];
  for (Index l = 0; l < layers(); ++l)
    for (Index i = 0; i < k; ++i)
      ++v.counts[row * width + l * E + found.layers[shape_.layers[l]].experts[token * k + i]];
}

void RoutingMeasures::add_other(const ReplayResult& found, const ReplayResult& other) {
  const Index k = shape_.top_k, T = std::ssize(found.layers[0].experts) / k;
  compared_ += T;
  for (Index l = 0; l < layers(); ++l) {
    const auto &a = found.layers[shape_.layers[l]].experts, &b = other.layers[shape_.layers[l]].experts;
    for (Index t = 0; t < T; ++t)
      for (Index i = 0; i < k; ++i) same_[l] += std::count(&b[t * k], &b[t * k] + k, a[t * k + i]);
  }
}

void RoutingMeasures::add_vocabulary(Section& section, const Vocabulary& v, const std::string& which,
                                     const std::function<std::string(std::int32_t)>& decode) const {
  const Index L = layers(), E = shape_.experts, width = L * E;
  std::vector<std::size_t> rows;
  for (std::size_t r = 0; r < v.ids.size(); ++r)
    if (v.seen[r] >= shape_.least_count) rows.push_back(r);
  const auto share = [&](std::size_t row, Index column) { return ratio(v.counts[row * width + column], v.seen[row]); };

  const Dimension by_layer = numbered_dimension("layer", shape_.layer_ids);
  Figure mean{
      "vocabulary_" + which,
      "vocabulary, " + which + " ids",
      "share",
      fmt::format("Vocabulary specialisation: the largest share of an id's tokens that one expert got, mean over the "
                  "{} {} ids with {} tokens or more; {} where ids do not matter.{}",
                  rows.size(), which, shape_.least_count, percent_text(chance()),
                  v.skipped_tokens > 0
                      ? fmt::format(" {} tokens of ids that came late were passed over, for want of memory.",
                                    count_text(v.skipped_tokens))
                      : ""),
      {by_layer}};
  for (Index l = 0; l < L; ++l) {
    std::vector<double> largest;
    for (std::size_t r : rows) {
      double most = 0;
      for (Index e = 0; e < E; ++e) most = std::max(most, share(r, l * E + e));
      largest.push_back(most);
    }
    mean.values.push_back(mean_of(largest));
  }
  const std::vector<Dimension> ranked{by_layer, counted_dimension("expert", E),
                                      counted_dimension("rank", preferred_ids)};
  Figure ids{"preferred_" + which + "_id",
             "preferred " + which + " ids",
             "id",
             "The ids of which the expert got the largest shares.",
             ranked,
             {},
             Look::none};
  Figure shares{"preferred_" + which + "_share",
                "their shares",
                "share",
                "Vocabulary specialisation of these ids: the share of their tokens that went to the expert.",
                ranked,
                {},
                Look::none};
  Listing listing{
      "preferred_" + which,
      "Preferred tokens by " + which + " id",
      fmt::format("Of each expert the {} tokens of whose occurrences it got the largest shares, among ids with {} "
                  "occurrences or more.",
                  which, shape_.least_count),
      {"layer", "expert", "tokens, with the share of each that came here"},
      {},
      2};
  for (Index l = 0; l < L; ++l)
    for (Index e = 0; e < E; ++e) {
      const Index column = l * E + e;
      std::vector<std::size_t> best;
      for (std::size_t r : rows)
        if (v.counts[r * width + column] > 0) best.push_back(r);
      const auto better = [&](std::size_t a, std::size_t b) {
        const double x = share(a, column), y = share(b, column);
        return x != y ? x > y : v.seen[a] != v.seen[b] ? v.seen[a] > v.seen[b] : v.ids[a] < v.ids[b];
      };
      const auto some = std::min<std::ptrdiff_t>(preferred_ids, std::ssize(best));
      std::partial_sort(best.begin(), best.begin() + some, best.end(), better);
      std::string text;
      for (Index i = 0; i < preferred_ids; ++i) {
        ids.values.push_back(i < some ? v.ids[best[i]] : nan);
        shares.values.push_back(i < some ? share(best[i], column) : nan);
        if (i < some)
          text += fmt::format("{}'{}' {}", i ? ", " : "", decode(v.ids[best[i]]), percent_text(shares.values.back()));
      }
      listing.rows.push_back({shape_.layer_ids[l], e, text});
    }
  for (Figure* f : {&mean, &ids, &shares}) section.figures.push_back(std::move(*f));
  section.listings.push_back(std::move(listing));
}

Section RoutingMeasures::section(const std::function<std::string(std::int32_t)>& decode) const {
  const Index L = layers(), E = shape_.experts, D = std::ssize(shape_.domains);
  const Index all = std::accumulate(tokens_.begin(), tokens_.end(), Index{0});
  const Dimension by_layer = numbered_dimension("layer", shape_.layer_ids), by_expert = counted_dimension("expert", E);
  const Dimension by_domain{"domain", shape_.domains};
  Section out{"replay", "Validation text, token by token"};
  out.text = fmt::format(
      "{} tokens went through the model, and nothing was dropped. Definitions: OLMoE, arXiv 2409.02060, section 5.",
      count_text(all));
  auto& figures = out.figures;

  Figure tokens{"tokens", "tokens", "tokens", "Tokens of the domain.", {by_domain}};
  Figure loss{"loss", "loss", "nats per token", "Mean cross-entropy, dropless.", {by_domain}};
  for (Index d = 0; d < D; ++d) {
    tokens.values.push_back(static_cast<double>(tokens_[d]));
    loss.values.push_back(targets_[d] > 0 ? nats_[d] / static_cast<double>(targets_[d]) : nan);
  }
  for (Figure* f : {&tokens, &loss}) figures.push_back(std::move(*f));

  if (compared_ > 0) {
    Figure saturation{
        "saturation",
        "saturation",
        "share",
        fmt::format("Router saturation: of the {} experts of a token, the mean share that the other checkpoint "
                    "chose too; {} by chance.",
                    shape_.top_k, percent_text(chance())),
        {by_layer}};
    for (Index l = 0; l < L; ++l) saturation.values.push_back(ratio(same_[l], compared_ * shape_.top_k));
    figures.push_back(std::move(saturation));
  }

  // Domains.
  Figure domain{"domain",
                "domain specialisation",
                "share",
                "Share of a domain's tokens that had the expert among their choices.",
                {by_layer, by_domain, by_expert},
                {},
                Look::relative,
                chance()};
  Figure domain_most{
      "domain_largest",
      "domain",
      "share",
      fmt::format("Domain specialisation of the expert that has the most of a domain's tokens, mean of the "
                  "domains; at least {}, where all experts have as many.",
                  percent_text(chance())),
      {by_layer}};
  for (Index l = 0; l < L; ++l) {
    std::vector<double> largest;
    for (Index d = 0; d < D; ++d) {
      const auto counts = row_of(domain_, l * D + d, E);
      for (Index n : counts) domain.values.push_back(ratio(n, tokens_[d]));
      largest.push_back(ratio(*std::max_element(counts.begin(), counts.end()), tokens_[d]));
    }
    domain_most.values.push_back(mean_of(largest));
  }

  // Pairs of experts.
  Figure pairs{"coactivation",
               "co-activation",
               "share",
               "Of the tokens that chose the expert (row), the share that chose the other (column) too.",
               {by_layer, by_expert, counted_dimension("other", E)}};
  Figure pairs_most{"coactivation_largest",
                    "co-activation",
                    "share",
                    fmt::format("The largest co-activation of two different experts; {} where pairs do not matter.",
                                E > 1 ? percent_text(ratio(shape_.top_k - 1, E - 1)) : "-"),
                    {by_layer}};
  // Paths.
  Figure paths{
      "paths",
      "paths to the next MoE layer",
      "share",
      "Of the tokens whose first choice is the expert (row), the share whose first choice in the next MoE layer is "
      "the other (column).",
      {by_layer, by_expert, counted_dimension("next", E)}};
  Figure path_most{
      "path_likeliest",
      "next known",
      "share",
      "Share of the tokens that take the likeliest path from their first choice: how well an expert tells the "
      "next layer's.",
      {by_layer}};
  Listing path_list{"paths",
                    "Paths that most tokens take",
                    "First choices in a MoE layer and in the next one.",
                    {"layer", "expert", "next expert", "tokens", "of the expert's", "of the layer's"}};
  for (Index l = 0; l < L; ++l) {
    double most = E > 1 && all > 0 ? 0 : nan;
    Index likeliest = 0, on_paths = 0;
    struct Path {
      Index tokens, from, to, of;
    };
    std::vector<Path> found;
    for (Index i = 0; i < E; ++i) {
      const auto together = row_of(pairs_, l * E + i, E), next = row_of(paths_, l * E + i, E);
      const Index from_here = std::accumulate(next.begin(), next.end(), Index{0});
      for (Index j = 0; j < E; ++j) {
        const double share = i == j ? nan : ratio(together[j], together[i]);
        pairs.values.push_back(share);
        if (share > most) most = share;
        paths.values.push_back(ratio(next[j], from_here));
        if (next[j] > 0) found.push_back({next[j], i, j, from_here});
      }
      likeliest += *std::max_element(next.begin(), next.end());
      on_paths += from_here;
    }
    pairs_most.values.push_back(most);
    path_most.values.push_back(ratio(likeliest, on_paths));
    const auto some = std::min<std::ptrdiff_t>(listed_paths, std::ssize(found));
    std::partial_sort(found.begin(), found.begin() + some, found.end(), [](const Path& a, const Path& b) {
      return std::tuple(-a.tokens, a.from, a.to) < std::tuple(-b.tokens, b.from, b.to);
    });
    for (Index i = 0; i < some; ++i)
      path_list.rows.push_back({shape_.layer_ids[l], found[i].from, found[i].to, found[i].tokens,
                                percent_text(ratio(found[i].tokens, found[i].of)),
                                percent_text(ratio(found[i].tokens, on_paths))});
  }

  // Positions.
  Dimension by_position{"positions"};
  for (Index range = 0; range < position_ranges_; ++range)
    by_position.labels.push_back(fmt::format("{}-{}", ceil_div(range * shape_.seq_len, position_ranges_),
                                             ceil_div((range + 1) * shape_.seq_len, position_ranges_) - 1));
  Figure position{"position",
                  "routing by position",
                  "share",
                  "Share of the tokens at these positions of their sequence that had the expert among their choices.",
                  {by_layer, by_position, by_expert},
                  {},
                  Look::relative,
                  chance()};
  Figure apart{
      "position_divergence",
      "position (bits)",
      "bits",
      "Jensen-Shannon divergence between the expert shares at some positions and those of the layer, mean over the "
      "positions: 0 where positions do not matter.",
      {by_layer}};
  for (Index l = 0; l < L; ++l) {
    std::vector<Index> whole(static_cast<std::size_t>(E));
    for (Index range = 0; range < position_ranges_; ++range) {
      const auto counts = row_of(position_, l * position_ranges_ + range, E);
      for (Index e = 0; e < E; ++e) {
        whole[e] += counts[e];
        position.values.push_back(ratio(counts[e], range_tokens_[range]));
      }
    }
    std::vector<double> bits;
    for (Index range = 0; range < position_ranges_; ++range)
      bits.push_back(range_tokens_[range] > 0 ? js_divergence(row_of(position_, l * position_ranges_ + range, E), whole)
                                              : nan);
    apart.values.push_back(mean_of(bits));
  }
  for (Figure* f : {&domain_most, &pairs_most, &path_most, &apart}) figures.push_back(std::move(*f));

  // Drops.
  Dimension by_factor{"capacity factor"};
  for (double f : shape_.factors) by_factor.labels.push_back(fmt::format("{}", f));
  const std::string scope = shape_.scope == CapacityScope::sequence ? "a sequence" : "a rank's micro-batch";
  Figure factor_drops{"capacity_drop_rate",
                      "dropped by capacity factor",
                      "share",
                      "Assignments that a capacity of this factor, over " + scope +
                          ", would drop of the choices that were made without any.",
                      {by_layer, by_factor}};
  Figure domain_drops{
      "domain_drop_rate",
      "dropped by domain",
      "share",
      fmt::format("Assignments of the domain's tokens that the configured capacity factor{}",
                  shape_.configured_factor > 0
                      ? fmt::format(", {}, over {}, would drop of the same choices.", shape_.configured_factor, scope)
                      : " would drop: it is 0, which drops none."),
      {by_layer, by_domain}};
  for (Index l = 0; l < L; ++l) {
    for (Index n : row_of(factor_drops_, l, by_factor.size()))
      factor_drops.values.push_back(ratio(n, all * shape_.top_k));
    for (Index d = 0; d < D; ++d)
      domain_drops.values.push_back(ratio(domain_drops_[l * D + d], tokens_[d] * shape_.top_k));
  }
  for (Figure* f : {&factor_drops, &domain_drops, &domain, &pairs}) figures.push_back(std::move(*f));
  if (L > 1) {
    figures.push_back(std::move(paths));
    out.listings.push_back(std::move(path_list));
  }
  figures.push_back(std::move(position));
  add_vocabulary(out, input_, "input", decode);
  if (!predicted_.ids.empty()) add_vocabulary(out, predicted_, "predicted", decode);
  return out;
}

}  // namespace sy
