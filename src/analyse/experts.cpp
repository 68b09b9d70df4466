#include "src/analyse/experts.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "src/system/files.h"
#include "src/text/json.h"

namespace sy {
namespace {

// Computes the statistics that follow from the experts' counts.
void summarise(LayerLoad& layer) {
  const double experts = static_cast<double>(layer.experts.size());
  for (const ExpertLoad& e : layer.experts) {
    layer.routed += e.routed;
    layer.dropped += e.dropped;
  }
  if (layer.routed == 0) return;
  const double total = static_cast<double>(layer.routed), mean = total / experts;
  double variance = 0, entropy = 0, probability = 0;
  for (const ExpertLoad& e : layer.experts) probability += e.probability;
  for (ExpertLoad& e : layer.experts) {
    const double load = static_cast<double>(e.routed);
    e.share = load / total;
    // NaN if the probabilities are unknown
    e.probability_gap = probability == 0 ? 0 : e.probability / probability - e.share;
    layer.dead += load < dead_share * mean;
    layer.overloaded += load > overloaded_share * mean;
    if (e.routed > 0) {
      e.drop_rate = static_cast<double>(e.dropped) / load;
      entropy -= e.share * std::log(e.share);
    }
    variance += (load - mean) * (load - mean) / experts;
  }
  layer.drop_rate = static_cast<double>(layer.dropped) / total;
  layer.max_over_mean = static_cast<double>(layer.experts[layer.busiest()].routed) / mean;
  layer.cv = std::sqrt(variance) / mean;
  if (experts > 1) layer.entropy = entropy / std::log(experts);
}

Index block_position(const std::vector<std::int64_t>& blocks, Index block) {
  const auto at = std::find(blocks.begin(), blocks.end(), block);
  SY_ASSERT(at != blocks.end(), "block {} of {}", block, fmt::join(blocks, ", "));
  return at - blocks.begin();
}

}  // namespace

Index LayerLoad::busiest() const {
  return std::ranges::max_element(experts, {}, &ExpertLoad::routed) - experts.begin();
}
Index LayerLoad::idlest() const {
  return std::ranges::min_element(experts, {}, &ExpertLoad::routed) - experts.begin();
}

std::vector<LayerLoad> layer_loads(const ExpertHistory& h, Index first, Index last) {
  SY_ASSERT(0 <= first && first <= last && last <= h.windows(), "windows {} to {} of {}", first, last, h.windows());
  std::vector<LayerLoad> layers(h.layers);
  for (Index l = 0; l < h.layers; ++l) {
    LayerLoad& layer = layers[l];
    layer.layer = h.layer_ids[l];
    layer.experts.resize(h.experts);
    double weights = 0;
    for (Index w = first; w < last; ++w) {
      const Index at = (w * h.layers + l) * h.experts;
      const double weight = static_cast<double>(std::accumulate(&h.routed[at], &h.routed[at] + h.experts, Index{0}));
      const bool is_known = std::isfinite(h.probability[at]);  // of all experts or of none
      if (is_known) weights += weight;
      for (Index e = 0; e < h.experts; ++e) {
        layer.experts[e].routed += h.routed[at + e];
        layer.experts[e].dropped += h.dropped[at + e];
        if (is_known) layer.experts[e].probability += weight * h.probability[at + e];
      }
    }
    const bool any_routed = std::ranges::any_of(layer.experts, [](const ExpertLoad& e) { return e.routed > 0; });
    for (ExpertLoad& e : layer.experts)
      if (weights > 0)
        e.probability /= weights;
      else if (any_routed)
        e.probability = std::numeric_limits<double>::quiet_NaN();
    summarise(layer);
  }
  return layers;
}

ExpertHistory coarsen(const ExpertHistory& h, Index max_windows) {
  SY_ASSERT(max_windows > 0, "{} windows", max_windows);
  ExpertHistory out{h.layers, h.experts, {}, {}, {}, {}, h.layer_ids};
  if (h.windows() == 0) return out;
  // Windows [ends[i - 1], ends[i]) become one. The new window ends at the old end that is nearest
  // to its share of the steps. It has at least half the length of an even one.
  const double even = static_cast<double>(h.steps.back()) / static_cast<double>(std::min(max_windows, h.windows()));
  const auto length = [&](Index first, Index last) {
    return static_cast<double>(h.steps[last - 1]) - (first > 0 ? static_cast<double>(h.steps[first - 1]) : 0);
  };
  std::vector<Index> ends;
  for (Index last = 1, first = 0; last < h.windows(); ++last) {
    const double target = even * static_cast<double>(ends.size() + 1);
    const double here = static_cast<double>(h.steps[last - 1]), next = static_cast<double>(h.steps[last]);
    if (length(first, last) < even / 2 || std::abs(next - target) < std::abs(here - target)) continue;
    ends.push_back(first = last);
  }
  if (!ends.empty() && length(ends.back(), h.windows()) < even / 2) ends.pop_back();
  ends.push_back(h.windows());
  for (Index first = 0; const Index last : ends) {
    out.steps.push_back(h.steps[last - 1]);
    for (const LayerLoad& layer : layer_loads(h, first, last))
      for (const ExpertLoad& e : layer.experts) {
        out.routed.push_back(e.routed);
        out.dropped.push_back(e.dropped);
        out.probability.push_back(static_cast<float>(e.probability));
      }
    first = last;
  }
  return out;
}

Index last_tenth(const ExpertHistory& h) {
  Index longest = 0, first = h.windows();
  for (Index w = 0; w < h.windows(); ++w) longest = std::max(longest, h.steps[w] - first_step(h, w) + 1);
  for (Index steps = 0; first > 0 && steps < std::max(longest, h.steps.back() / 10);) {
    --first;
    steps = h.steps.back() - first_step(h, first) + 1;
  }
  return first;
}

ExpertHistory select_block(const ExpertHistory& h, Index block) {
  const Index l = block_position(h.layer_ids, block);
  ExpertHistory out{1, h.experts, h.steps, {}, {}, {}, {block}};
  for (Index w = 0; w < h.windows(); ++w) {
    const Index at = (w * h.layers + l) * h.experts, end = at + h.experts;
    out.routed.insert(out.routed.end(), h.routed.begin() + at, h.routed.begin() + end);
    out.dropped.insert(out.dropped.end(), h.dropped.begin() + at, h.dropped.begin() + end);
    out.probability.insert(out.probability.end(), h.probability.begin() + at, h.probability.begin() + end);
  }
  return out;
}

std::int64_t first_step(const ExpertHistory& h, Index window) {
  return window == 0 ? 1 : h.steps[window - 1] + 1;
}

double js_divergence(std::span<const std::int64_t> p, std::span<const std::int64_t> q) {
  SY_ASSERT(p.size() == q.size(), "{} experts against {}", p.size(), q.size());
  const double np = static_cast<double>(std::accumulate(p.begin(), p.end(), std::int64_t{0}));
  const double nq = static_cast<double>(std::accumulate(q.begin(), q.end(), std::int64_t{0}));
  if (np == 0 || nq == 0) return std::numeric_limits<double>::quiet_NaN();
  // Mean of both distributions' Kullback-Leibler divergence from their average.
  double bits = 0;
  for (std::size_t i = 0; i < p.size(); ++i) {
    const double a = static_cast<double>(p[i]) / np, b = static_cast<double>(q[i]) / nq, middle = (a + b) / 2;
    if (a > 0) bits += a / 2 * std::log2(a / middle);
    if (b > 0) bits += b / 2 * std::log2(b / middle);
  }
  return std::max(bits, 0.0);
}

Evaluation read_evaluation(const std::filesystem::path& file) {
  return parse_evaluation(read_file(file), file);
}

Evaluation parse_evaluation(std::string_view text, const std::filesystem::path& file) try {
  const Json j = Json::parse(text);
  // The writer turns values that are not finite into null.
  const auto number = [](const Json& x) {
    return x.is_null() ? std::numeric_limits<double>::quiet_NaN() : x.get<double>();
  };
  const auto or_0 = [&](const char* key) { return j.contains(key) ? j.at(key).get<Index>() : 0; };
  Evaluation out{j.at("step").get<Index>(),
                 j.at("tokens").get<Index>(),
                 number(j.at("loss")),
                 number(j.at("perplexity")),
                 number(j.at("bits_per_byte")),
                 {},
                 j.at("layers").get<std::vector<std::int64_t>>(),
                 or_0("windows"),
                 or_0("of"),
                 j.contains("scoring") && j.at("scoring").get<std::string>() == "masked_tokens"};
  for (const Json& d : j.at("domains")) {
    DomainUse use{d.at("name").get<std::string>(),
                  d.at("tokens").get<Index>(),
                  d.at("bytes").is_null() ? -1 : d.at("bytes").get<Index>(),
                  number(d.at("loss")),
                  number(d.at("perplexity")),
                  number(d.at("bits_per_byte")),
                  d.at("experts").get<std::vector<std::vector<std::int64_t>>>()};
    bool fits = use.experts.size() == out.layers.size();
    for (const auto& layer : use.experts)
      fits = fits && !layer.empty() && layer.size() == use.experts[0].size() &&
             std::all_of(layer.begin(), layer.end(), [](std::int64_t n) { return n >= 0; });
    if (fits && !out.domains.empty() && !use.experts.empty())
      fits = use.experts[0].size() == out.domains[0].experts[0].size();
    if (!fits)
      bad_input("{}: the expert counts of domain {} do not fit its {} layers: run `switchyard evaluate` again",
                file.string(), use.name, out.layers.size());
    out.domains.push_back(std::move(use));
  }
  return out;
} catch (const JsonError& e) {
  bad_input("{} is not what `switchyard evaluate` writes ({}): run it again", file.string(), e.what());
}

Evaluation select_block(const Evaluation& evaluation, Index block) {
  const Index l = block_position(evaluation.layers, block);
  Evaluation out = evaluation;
  out.layers = {block};
  for (DomainUse& d : out.domains) d.experts = {d.experts[l]};
  return out;
}

std::vector<Specialisation> specialisation(const Evaluation& evaluation) {
  std::vector<Specialisation> out;
  const auto& domains = evaluation.domains;
  for (std::size_t l = 0; l < evaluation.layers.size(); ++l) {
    Specialisation s{evaluation.layers[l], 0, std::numeric_limits<double>::quiet_NaN(), "", ""};
    Index pairs = 0;
    for (std::size_t a = 0; a < domains.size(); ++a)
      for (std::size_t b = a + 1; b < domains.size(); ++b) {
        const double bits = js_divergence(domains[a].experts[l], domains[b].experts[l]);
        if (std::isnan(bits)) continue;
        s.mean += bits;
        if (pairs++ > 0 && bits <= s.max) continue;
        s.max = bits;
        s.domain_a = domains[a].name;
        s.domain_b = domains[b].name;
      }
    s.mean /= static_cast<double>(pairs);  // NaN without pairs
    out.push_back(std::move(s));
  }
  return out;
}

}  // namespace sy
