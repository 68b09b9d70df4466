// The load as figures, and the comparison of two runs.
#include <algorithm>
#include <cmath>
#include <functional>

#include "src/analyse/report.h"
#include "src/text/strings.h"

namespace sy {
namespace {

template <class Load>
struct LoadMeasure {
  const char *name, *title, *unit, *meaning;
  double (*value)(const Load&);
  Look look = Look::amount;
};
constexpr LoadMeasure<LayerLoad> layer_measures[] = {
    {"drop_rate", "dropped", "share", "Assignments that found their expert full, of all of the layer.",
     [](const LayerLoad& l) { return l.drop_rate; }},
    {"max_over_mean", "max/mean", "ratio", "Load of the busiest expert over the mean load.",
     [](const LayerLoad& l) { return l.max_over_mean; }},
    {"max_vio", "MaxVio", "ratio",
     "MaxVio (arXiv 2408.15664): load of the busiest expert over the mean load, less 1. 0 is balanced.",
     [](const LayerLoad& l) { return l.max_vio(); }},
    {"cv", "CV", "ratio", "Standard deviation of the loads over their mean.", [](const LayerLoad& l) { return l.cv; }},
    {"entropy", "entropy", "ratio", "Entropy of the load shares over log E. 1 is balanced.",
     [](const LayerLoad& l) { return l.entropy; }},
    {"dead", "dead", "experts", "Experts with less than 1 % of an even share.",
     [](const LayerLoad& l) { return static_cast<double>(l.dead); }},
    {"overloaded", "overloaded", "experts", "Experts with more than twice an even share.",
     [](const LayerLoad& l) { return static_cast<double>(l.overloaded); }}};

constexpr LoadMeasure<ExpertLoad> expert_measures[] = {
    {"routed", "routed", "assignments", "Assignments to the expert, before dropping.",
     [](const ExpertLoad& e) { return static_cast<double>(e.routed); }},
    {"dropped", "dropped", "assignments", "Those of them that were dropped, since the expert was full.",
     [](const ExpertLoad& e) { return static_cast<double>(e.dropped); }},
    {"share", "share", "share", "Share of the layer's assignments, before dropping.",
     [](const ExpertLoad& e) { return e.share; }, Look::relative},
    {"expert_drop_rate", "drop rate", "share", "Dropped assignments of those to the expert.",
     [](const ExpertLoad& e) { return e.drop_rate; }},
    {"probability", "probability", "probability", "Mean over tokens of the router's probability of the expert.",
     [](const ExpertLoad& e) { return e.probability; }},
    {"probability_gap", "probability - share", "share",
     "The expert's share of the router's probability less its share of the assignments. Above 0 the router likes the "
     "expert more than its choices show.",
     [](const ExpertLoad& e) { return e.probability_gap; }, Look::change}};

template <class Loads>
void add_measures(Section& section, const ExpertReport& r, std::optional<Dimension> windows, const Loads& loads) {
  const ExpertHistory& h = r.state.experts;
  std::vector<Dimension> by_layer;
  if (windows) by_layer.push_back(*windows);
  by_layer.push_back(layer_dimension(r));
  std::vector<Dimension> by_expert = by_layer;
  by_expert.push_back(counted_dimension("expert", h.experts));
  const std::size_t first = section.figures.size();
  for (const LoadMeasure<LayerLoad>& m : layer_measures)
    section.figures.push_back({m.name, m.title, m.unit, m.meaning, by_layer});
  for (const LoadMeasure<ExpertLoad>& m : expert_measures)
    section.figures.push_back({m.name, m.title, m.unit, m.meaning, by_expert, {}, m.look, r.even_share()});
  loads([&](const std::vector<LayerLoad>& layers) {
    for (const LayerLoad& l : layers) {
      auto figure = section.figures.begin() + static_cast<std::ptrdiff_t>(first);
      for (const LoadMeasure<LayerLoad>& m : layer_measures) (figure++)->values.push_back(m.value(l));
      for (const LoadMeasure<ExpertLoad>& m : expert_measures) {
        for (const ExpertLoad& e : l.experts) figure->values.push_back(m.value(e));
        ++figure;
      }
    }
  });
}

// Names of the layers that both runs have, in the order of the first.
Dimension common_layers(const ExpertReport& a, const ExpertReport& b) {
  Dimension layers = layer_dimension(a);
  const std::vector<std::string> others = layer_dimension(b).labels;
  std::erase_if(layers.labels,
                [&](const std::string& name) { return std::ranges::find(others, name) == others.end(); });
  return layers;
}

// name: that of a layer with experts.
const LayerLoad& load_of(const ExpertReport& r, const std::string& name) {
  const auto names = layer_dimension(r).labels;
  return r.load[std::ranges::find(names, name) - names.begin()];
}

// Half the sum of the absolute differences: the share of the assignments that would have to move.
double distance(const std::vector<double>& a, const std::vector<double>& b) {
  double sum = 0;
  for (std::size_t i = 0; i < a.size(); ++i) sum += std::abs(a[i] - b[i]) / 2;
  return sum;
}

std::vector<double> shares_of(const LayerLoad& l) {
  std::vector<double> out;
  for (const ExpertLoad& e : l.experts) out.push_back(e.share);
  return out;
}

}  // namespace

std::vector<Section> load_sections(const ExpertReport& r) {
  const ExpertHistory& h = r.state.experts;
  std::vector<Section> out;
  if (h.windows() == 0) return out;
  Section& all = out.emplace_back(Section{"load", "Load of every window of steps"});
  Dimension windows{"window"};
  std::vector<double> first, last;
  for (Index w = 0; w < h.windows(); ++w) {
    windows.labels.push_back(step_range(h, w, w + 1));
    first.push_back(static_cast<double>(first_step(h, w)));
    last.push_back(static_cast<double>(h.steps[w]));
  }
  all.figures.push_back({"first_step", "first step", "step", "The first step of each window.", {windows}, first});
  all.figures.push_back({"last_step", "last step", "step", "The last step of each window.", {windows}, last});
  add_measures(all, r, windows, [&](const auto& take) {
    for (Index w = 0; w < h.windows(); ++w) take(layer_loads(h, w, w + 1));
  });
  Section& summary = out.emplace_back(Section{"summary", "Load in steps " + step_range(h, r.first, r.last)});
  add_measures(summary, r, {}, [&](const auto& take) { take(r.load); });
  if (!r.state.router_bias.empty())
    summary.figures.push_back({"router_bias",
                               "selection bias",
                               "score",
                               "Added to the expert's score for the selection alone.",
                               {layer_dimension(r), counted_dimension("expert", h.experts)},
                               {r.state.router_bias.begin(), r.state.router_bias.end()},
                               Look::change});
  return out;
}

std::vector<std::string> comparison_warnings(const ExpertReport& a, const ExpertReport& b) {
  const ExpertHistory &ha = a.state.experts, &hb = b.state.experts;
  std::vector<std::string> out;
  if (layer_dimension(a) != layer_dimension(b))
    out.push_back(
        fmt::format("the first has {} layers with experts and the second {}: the {} that both have are compared",
                    ha.layers, hb.layers, common_layers(a, b).size()));
  if (ha.experts != hb.experts)
    out.push_back(fmt::format("the first has {} experts in a layer and the second {}: they are not compared one by one",
                              ha.experts, hb.experts));
  if (!a.state.dataset_digest.empty() && !b.state.dataset_digest.empty() &&
      a.state.dataset_digest != b.state.dataset_digest)
    out.push_back(fmt::format("they were trained on different data ({} and {})", a.state.dataset, b.state.dataset));
  return out;
}

Section comparison(const ExpertReport& a, const ExpertReport& b) {
  const ExpertHistory &ha = a.state.experts, &hb = b.state.experts;
  for (const ExpertReport* r : {&a, &b})
    if (r->load.empty()) bad_input("{} has no expert counts yet: nothing to compare", r->checkpoint.string());
  const Dimension layers = common_layers(a, b);
  if (layers.labels.empty())
    bad_input("{} and {} have no layer with experts in common: those of the first are {}, and those of the second {}",
              a.checkpoint.string(), b.checkpoint.string(), join(layer_dimension(a).labels, ", "),
              join(layer_dimension(b).labels, ", "));

  Section out{"comparison", "Two runs"};
  out.text = fmt::format("First: {}, steps {}. Second: {}, steps {}.", a.checkpoint.string(),
                         step_range(ha, a.first, a.last), b.checkpoint.string(), step_range(hb, b.first, b.last));
  for (const std::string& warning : comparison_warnings(a, b)) out.text += fmt::format(" Note: {}.", warning);
  for (const LoadMeasure<LayerLoad>& m : layer_measures)
    for (const auto& [r, suffix, which] : {std::tuple{&a, "_first", "first"}, {&b, "_second", "second"}}) {
      Figure f{m.name + std::string(suffix), fmt::format("{}, {}", m.title, which), m.unit, m.meaning, {layers}};
      for (const std::string& name : layers.labels) f.values.push_back(m.value(load_of(*r, name)));
      out.figures.push_back(std::move(f));
    }
  if (ha.experts == hb.experts) {
    Figure same{"difference",
                "difference",
                "share",
                "Half the sum over experts of |share in the first - share in the second|: the part of the assignments "
                "that would have to go elsewhere. It means something where the second run descends from the first, "
                "since experts of runs with other seeds have no names in common.",
                {layers}};
    Figure sorted{
        "difference_sorted",
        "difference, sorted",
        "share",
        "The same of the shares in falling order: whether the loads are as uneven, whichever expert has them.",
        {layers}};
    Figure by_expert{"share_difference",
                     "share in the second - share in the first",
                     "share",
                     "The change of each expert's share of its layer's assignments.",
                     {layers, counted_dimension("expert", ha.experts)},
                     {},
                     Look::change};
    for (const std::string& name : layers.labels) {
      auto p = shares_of(load_of(a, name)), q = shares_of(load_of(b, name));
      same.values.push_back(distance(p, q));
      for (std::size_t e = 0; e < p.size(); ++e) by_expert.values.push_back(q[e] - p[e]);
      std::sort(p.begin(), p.end(), std::greater<>());
      std::sort(q.begin(), q.end(), std::greater<>());
      sorted.values.push_back(distance(p, q));
    }
    for (Figure* f : {&same, &sorted, &by_expert}) out.figures.push_back(std::move(*f));
  }
  // Over time: means over the layers.
  for (const auto& [r, suffix, which] : {std::tuple{&a, "_first", "first"}, {&b, "_second", "second"}}) {
    const ExpertHistory h = coarsen(r->state.experts, 8);
    Dimension steps{"steps"};
    for (Index w = 0; w < h.windows(); ++w) steps.labels.push_back(step_range(h, w, w + 1));
    for (const LoadMeasure<LayerLoad>& m : layer_measures) {
      if (m.name != std::string_view("max_vio") && m.name != std::string_view("drop_rate")) continue;
      Figure f{fmt::format("{}_over_time{}", m.name, suffix),
               fmt::format("{}, {}", m.title, which),
               m.unit,
               std::string(m.meaning) + " Mean of the layers.",
               {steps}};
      for (Index w = 0; w < h.windows(); ++w) {
        double sum = 0;
        for (const LayerLoad& l : layer_loads(h, w, w + 1)) sum += m.value(l) / static_cast<double>(h.layers);
        f.values.push_back(sum);
      }
      out.figures.push_back(std::move(f));
    }
  }
  return out;
}

}  // namespace sy
