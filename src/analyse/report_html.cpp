// The report as a page, section by section.

#include <algorithm>
#include <cmath>

#include "src/analyse/page.h"
#include "src/analyse/plot.h"
#include "src/analyse/report.h"
#include "src/io/manifest.h"
#include "src/text/numbers.h"
#include "src/text/table.h"

namespace sy {
namespace {

constexpr Index max_time_columns = 120;  // columns of a heatmap over time
constexpr Index max_histories = 72;      // layers with a heatmap of their own
constexpr Index max_line_points = 400;
constexpr Index max_table_rows = 512;
constexpr Index max_cell_texts = 256;
// Columns of a small picture up to which its cells have text.
constexpr Index max_small_texts = 8;

// Limit of a scale of powers of two around an even share. The scale holds the largest deviation: at
// least 1/2 to 2, at most 1/8 to 8.
double ratio_limit(const std::vector<double>& relative) {
  double most = 1;
  for (double r : relative)
    if (std::isfinite(r)) most = std::max(most, std::abs(std::log2(std::max(r, 1.0 / 8))));
  return std::exp2(std::min(std::ceil(most - 1e-9), 3.0));
}

std::string load_scale_bar(double limit) {
  return scale_bar("Load relative to an even share", Palette::balance, ratio_marks(1 / limit, limit));
}

// A map of loads relative to an even share, without its values.
Heatmap load_map(Index rows, Index columns, double limit) {
  Heatmap map;
  map.rows = rows;
  map.columns = columns;
  map.palette = Palette::balance;
  map.ratio = true;
  map.high = limit;
  map.low = 1 / limit;
  return map;
}

const char* grid_class(std::size_t pictures) {
  return pictures > 12 ? "grid three" : pictures > 1 ? "grid two" : "grid";
}
int grid_width(std::size_t pictures) {
  return pictures > 12 ? third_width : pictures > 1 ? half_width : full_width;
}

// Loads relative to an even share: 1 is balanced.
std::vector<double> relative_shares(const std::vector<LayerLoad>& layers) {
  std::vector<double> out;
  for (const LayerLoad& l : layers)
    for (const ExpertLoad& e : l.experts) out.push_back(e.share * static_cast<double>(l.experts.size()));
  return out;
}

// Name of the run's folder, or of the checkpoint if it lies outside of a run.
std::string run_name(const ExpertReport& r) {
  return run_of(r.checkpoint).value_or(r.checkpoint).filename().string();
}

void header(Page& page, const ExpertReport& r) {
  const TrainState& s = r.state;
  page << "<h1>Expert load of " + escaped(run_name(r)) + "</h1>\n<p class=\"muted\">Switchyard report of " +
              escaped(r.checkpoint.filename().string()) + "</p>\n";
  page << "<dl>";
  const auto fact = [&](const char* name, const std::string& value) {
    if (!value.empty()) page << fmt::format("<dt>{}</dt><dd>{}</dd>\n", name, escaped(value));
  };
  fact("Model", model_text(r));
  if (r.config) {
    const auto& m = r.config->moe;
    fact("Routing",
         fmt::format("capacity factor {}, load-balance loss {}, router z-loss {}{}",
                     m.capacity_factor > 0 ? fmt::format("{}", m.capacity_factor) : "0 (dropless)", m.aux_loss,
                     m.z_loss, m.bias_update_rate > 0 ? fmt::format(", bias rate {}", m.bias_update_rate) : ""));
  }
  fact("Trained", fmt::format("{} steps, {} tokens, seed {}", count_text(s.step), count_text(s.tokens), s.seed));
  fact("Layout", s.layout);
  fact("Data set", s.dataset);
  page << "</dl>\n";
}

void tiles(Page& page, const ExpertReport& r) {
  page << "<div class=\"tiles\">";
  const auto tile = [&](const std::string& value, const std::string& label) {
    page << fmt::format("<div class=\"tile\"><b>{}</b><span>{}</span></div>\n", value, label);
  };
  if (const auto& e = r.evaluation) {
    const std::string step = e->step == r.state.step ? "" : ", step " + count_text(e->step);
    tile(number_text(e->masked ? e->loss : e->bits_per_byte, 3),
         (e->masked ? "masked loss, validation" : "bits per byte, validation") + step);
  }
  if (!r.losses.empty()) {
    const std::size_t n = std::min<std::size_t>(r.losses.size(), 20);
    double sum = 0;
    for (std::size_t i = r.losses.size() - n; i < r.losses.size(); ++i) sum += r.losses[i].loss;
    tile(fmt::format("{:.3f}", sum / static_cast<double>(n)), fmt::format("training loss, last {} steps", n));
  }
  double dropped = 0, routed = 0, worst = 0, entropy = 0;
  Index dead = 0, overloaded = 0;
  for (const LayerLoad& l : r.load) {
    dropped += static_cast<double>(l.dropped);
    routed += static_cast<double>(l.routed);
    worst = std::max(worst, l.max_over_mean);
    entropy += l.entropy / static_cast<double>(r.load.size());
    dead += l.dead;
    overloaded += l.overloaded;
  }
  tile(percent_text(routed > 0 ? dropped / routed : 0), "of assignments dropped");
  tile(fmt::format("{:.2f}×", worst), "busiest expert, of an even share");
  tile(fmt::format("{:.3f}", entropy), "mean entropy (1: balanced)");
  tile(fmt::format("{} of {}", count_text(dead), count_text(r.experts())), "dead experts (below 1 % of an even share)");
  tile(std::to_string(overloaded), "overloaded experts (above twice an even share)");
  page << "</div>\n<p class=\"muted\">Load figures: steps " + step_range(r.state.experts, r.first, r.last) + ".</p>\n";
  if (const CollapseAdvice advice = collapse_advice(r); !advice.finding.empty()) {
    page << "<section class=\"advice\"><h2>The router has collapsed</h2>\n<p>" + escaped(advice.finding) +
                "</p>\n<ul>\n";
    for (const std::string& change : advice.changes) page << "<li>" + escaped(change) + "</li>\n";
    page << "</ul></section>\n";
  }
}

// Reduces the points to at most `most` by means of neighbours.
Line thinned(const std::vector<LossPoint>& points, std::size_t most) {
  Line line;
  const std::size_t n = points.size(), out = std::min(n, most);
  for (std::size_t i = 0; i < out; ++i) {
    const std::size_t first = i * n / out, last = (i + 1) * n / out;
    double x = 0, y = 0;
    for (std::size_t k = first; k < last; ++k) {
      x += points[k].step / static_cast<double>(last - first);
      y += points[k].loss / static_cast<double>(last - first);
    }
    line.x.push_back(x);
    line.y.push_back(y);
  }
  return line;
}

void loss_section(Page& page, const ExpertReport& r) {
  if (r.losses.empty()) return;
  page.section("loss", "Loss");
  LineChart chart;
  const auto add = [&](const char* name, Series series, const std::vector<LossPoint>& points) {
    if (points.empty()) return;
    chart.lines.push_back(thinned(points, max_line_points * 3));
    chart.lines.back().name = name;
    chart.lines.back().series = series;
    chart.depths.push_back(static_cast<double>(chart.depths.size()));
  };
  add("training", Series::training, r.losses);
  add("validation", Series::validation, r.validations);
  chart.x_label = "step";
  chart.y_label = "loss (nats per token)";
  page.picture(chart, fmt::format("Training loss over steps, from {:.3f} to {:.3f}", chart.lines[0].y.front(),
                                  chart.lines[0].y.back()));
  page
      << "<p class=\"muted\">Mean cross-entropy of each step's batch, in nats per token. The line should fall, steeply at "
         "first, then ever more slowly; a rise or a jump means that training became unstable.";
  if (!r.validations.empty())
    page
        << " Validation: the loss on text that is not trained on. If it rises while the training loss falls, the model "
           "learns its training text by heart.";
  page << "</p>\n</section>\n";
}

void load_section(Page& page, const ExpertReport& r) {
  const ExpertHistory& h = r.state.experts;
  page.section("load", "Load of each expert");
  const std::vector<double> relative = relative_shares(r.load);
  Heatmap map = load_map(h.layers, h.experts, ratio_limit(relative));
  map.values = relative;
  map.row_names = layer_dimension(r).labels;
  map.column_names = counted_dimension("expert", h.experts).labels;
  map.x_label = "expert";
  map.y_label = "layer";
  map.colour_label = "load / even share";
  const bool texts = h.layers * h.experts <= max_cell_texts && h.experts <= 16;
  if (texts)
    for (const LayerLoad& l : r.load)
      for (const ExpertLoad& e : l.experts) map.cell_texts.push_back(fmt::format("{:.1f}", e.share * 100));
  page.picture(map, "Heatmap of the load of each expert, layer by layer");
  page << fmt::format(
      "<p class=\"muted\">Steps {}. Each cell is one expert of one layer: its share of the layer's assignments, relative to "
      "an even share of {}. White is balanced, red is overloaded, blue is idle{}.</p>\n",
      step_range(h, r.first, r.last), percent_text(r.even_share()),
      texts ? "; the figures are the shares in percent" : "");

  bool any_dropped = false;
  for (const LayerLoad& l : r.load) any_dropped = any_dropped || l.dropped > 0;
  if (any_dropped) {
    page << "<h3>Dropped</h3>\n";
    map.palette = Palette::amount;
    map.ratio = false;
    map.percent = true;
    map.low = 0;
    map.high = 0;
    map.values.clear();
    map.cell_texts.clear();
    for (const LayerLoad& l : r.load)
      for (const ExpertLoad& e : l.experts) {
        map.values.push_back(e.drop_rate);
        map.high = std::max(map.high, round_up(std::max(e.drop_rate, 1e-4)));
        if (texts) map.cell_texts.push_back(fmt::format("{:.1f}", e.drop_rate * 100));
      }
    map.colour_label = "dropped";
    page.picture(map, "Heatmap of the drop rate of each expert, layer by layer");
    page
        << "<p class=\"muted\">The part of each expert's assignments that found no room, because the expert was full. Dropped "
           "assignments add nothing to the result: overloaded experts are where to look.</p>\n";
  }
  page << "</section>\n";
}

void time_section(Page& page, const ExpertReport& r) {
  const ExpertHistory h = coarsen(r.state.experts, max_line_points);
  struct Measure {
    const char* name;
    double LayerLoad::*value;
    bool percent;
    double low, high;  // NaN means from the data
    const char* explanation;
  };
  static constexpr Measure measures[] = {
      {"Dropped", &LayerLoad::drop_rate, true, 0, NAN, "Assignments that found their expert full. 0 % is best."},
      {"Busiest expert (max/mean)", &LayerLoad::max_over_mean, false, 1, NAN,
       "Load of the busiest expert over the mean load. 1 is balanced; MaxVio is this less 1. All ranks wait for the one "
       "that has this expert."},
      {"Coefficient of variation", &LayerLoad::cv, false, 0, NAN,
       "Spread of the loads over their mean. 0 is balanced."},
      {"Entropy", &LayerLoad::entropy, false, NAN, 1,
       "Of the shares, over its largest value. 1 is balanced; a fall towards 0 means that the router "
       "collapses."}};
  page.section("balance", "Balance over time");
  page << "<p>One line per layer. Early steps are usually uneven; the "
          "load-balance loss should bring the lines towards balance within some hundred steps.</p>\n<div class=\"grid "
          "two\">\n";
  std::vector<std::vector<LayerLoad>> loads;
  for (Index w = 0; w < h.windows(); ++w) loads.push_back(layer_loads(h, w, w + 1));
  for (const Measure& m : measures) {
    LineChart chart;
    chart.x_label = "step";
    chart.percent = m.percent;
    chart.depth_label = "layer";
    chart.width = half_width;
    chart.height = 250;
    if (std::isfinite(m.low)) chart.y_low = m.low;
    if (std::isfinite(m.high)) chart.y_high = m.high;
    for (Index l = 0; l < h.layers; ++l) {
      Line line;
      line.name = fmt::format("layer {}", layer_text(r, h.layer_ids[l]));
      for (Index w = 0; w < h.windows(); ++w) {
        line.x.push_back(static_cast<double>(h.steps[w]));
        line.y.push_back(loads[w][l].*m.value);
      }
      chart.lines.push_back(std::move(line));
      chart.depths.push_back(static_cast<double>(h.layer_ids[l]));
    }
    page << "<div>";
    page.picture(chart, fmt::format("{} of each layer over steps", m.name), m.name);
    page << fmt::format("<p class=\"muted\">{}</p></div>\n", m.explanation);
  }
  page << "</div></section>\n";
}

void history_section(Page& page, const ExpertReport& r) {
  if (r.state.experts.windows() < 2) return;
  const ExpertHistory h = coarsen(r.state.experts, max_time_columns);
  // Columns of equally many steps, whatever the lengths of the windows. Each column shows the
  // window that contains its middle.
  const double column = static_cast<double>(h.steps.back()) / static_cast<double>(h.windows());
  std::vector<std::vector<LayerLoad>> loads;
  std::vector<double> all;
  for (Index c = 0; c < h.windows(); ++c) {
    const Index w =
        std::lower_bound(h.steps.begin(), h.steps.end(), (static_cast<double>(c) + 0.5) * column) - h.steps.begin();
    loads.push_back(layer_loads(h, w, w + 1));
    const auto relative = relative_shares(loads.back());
    all.insert(all.end(), relative.begin(), relative.end());
  }
  const double limit = ratio_limit(all);
  page.section("history", "Every expert over time");
  page << load_scale_bar(limit);
  const Index pictures = std::min(h.layers, max_histories);
  page << fmt::format("<div class=\"{}\">\n", grid_class(pictures));
  for (Index i = 0; i < pictures; ++i) {
    const Index l = pictures == 1 ? 0 : i * (h.layers - 1) / (pictures - 1);
    Heatmap map = load_map(h.experts, h.windows(), limit);
    for (Index e = 0; e < h.experts; ++e)
      for (Index w = 0; w < h.windows(); ++w)
        map.values.push_back(loads[w][l].experts[e].share * static_cast<double>(h.experts));
    map.row_names = counted_dimension("expert", h.experts).labels;
    map.x_range = {0, static_cast<double>(h.steps.back())};
    map.x_label = "step";
    map.y_label = "expert";
    map.colour_bar = false;
    map.width = grid_width(pictures);
    map.plot_height = static_cast<int>(std::clamp<Index>(h.experts * 14, 40, 220));
    const std::string name = fmt::format("layer {}", layer_text(r, h.layer_ids[l]));
    page.picture(map, fmt::format("Load of the experts of {} over steps", name), name);
  }
  page
      << "</div>\n<p class=\"muted\">One picture per layer: a row is an expert, a column some steps, the colour the expert's "
         "share of the layer's assignments in them, relative to an even one. Steady colours mean that the experts have found "
         "their roles; a row that stays blue is an expert that is hardly used, one that stays red is a bottleneck.</p>\n";
  if (pictures < h.layers)
    page << fmt::format(
        "<p class=\"muted\">{} of {} layers; <code>switchyard experts --layer N --html</code> shows any.</p>\n",
        pictures, h.layers);
  page << "</section>\n";
}

// The router's probabilities and biases, compared with the load.
void router_section(Page& page, const ExpertReport& r) {
  Section section{"router", "The router's probabilities and biases",
                  "How the router sees each expert, beside the load that the choices of the top k make of it."};
  for (const Section& s : load_sections(r))
    if (s.name == "summary")
      for (const Figure& f : s.figures)
        if (f.name == "probability_gap" || f.name == "router_bias") section.figures.push_back(f);
  add_sections(page, {&section, 1});
}

void domain_section(Page& page, const ExpertReport& r) {
  if (!r.evaluation || r.evaluation->domains.empty()) return;
  const Evaluation& ev = *r.evaluation;
  page.section("domains", "Domains");
  page << fmt::format("<p>Validation text of each domain, {}.</p>\n", evaluated_at(ev));
  // Pictures cut long names, which may begin alike. If a name is long, all names are numbered,
  // there and here.
  bool number = false;
  for (const DomainUse& d : ev.domains) number |= display_width(d.name) > row_name_columns;
  std::vector<std::string> names;
  for (const DomainUse& d : ev.domains)
    names.push_back(number ? fmt::format("{}: {}", names.size() + 1, d.name) : d.name);
  std::vector<std::vector<std::string>> rows;
  if (ev.masked) {
    for (const DomainUse& d : ev.domains)
      rows.push_back({names[rows.size()], count_text(d.tokens), number_text(d.loss, 4)});
    rows.push_back({"all", count_text(ev.tokens), number_text(ev.loss, 4)});
    page << html_table({{"domain", "tokens", "masked loss"}, rows}, 0);
    page << "<p class=\"muted\">Masked loss: mean cross-entropy of the tokens that masking chooses, nats per token. "
            "Lower is better.</p>\n";
  } else {
    for (const DomainUse& d : ev.domains)
      rows.push_back({names[rows.size()], count_text(d.tokens), d.bytes < 0 ? "-" : count_text(d.bytes),
                      number_text(d.loss, 4), number_text(d.perplexity, 2), number_text(d.bits_per_byte, 3)});
    rows.push_back({"all", count_text(ev.tokens), "", number_text(ev.loss, 4), number_text(ev.perplexity, 2),
                    number_text(ev.bits_per_byte, 3)});
    page << html_table({{"domain", "tokens", "bytes", "loss", "perplexity", "bits per byte"}, rows}, 0);
    page
        << "<p class=\"muted\">Loss: mean cross-entropy, nats per token; perplexity: e to the loss; bits per byte: the loss of "
           "all tokens over the bytes of their text, which can be compared between tokenizers. Lower is better.</p>\n";
  }
  if (ev.layers.empty()) {
    page << "</section>\n";
    return;
  }

  const Index experts = static_cast<Index>(ev.domains[0].experts[0].size());
  const Index domains = static_cast<Index>(ev.domains.size());
  std::vector<double> relative;  // [layer, domain, expert]
  for (std::size_t l = 0; l < ev.layers.size(); ++l)
    for (const DomainUse& d : ev.domains) {
      double total = 0;
      for (std::int64_t n : d.experts[l]) total += static_cast<double>(n);
      for (std::int64_t n : d.experts[l])
        relative.push_back(total > 0 ? static_cast<double>(n * experts) / total : NAN);
    }
  const double limit = ratio_limit(relative);
  const bool texts = experts <= max_small_texts;
  page << "<h3>Which experts each domain uses</h3>\n" + load_scale_bar(limit);
  page << fmt::format("<div class=\"{}\">\n", grid_class(ev.layers.size()));
  for (std::size_t l = 0; l < ev.layers.size(); ++l) {
    Heatmap map = load_map(domains, experts, limit);
    map.values.assign(relative.begin() + l * domains * experts, relative.begin() + (l + 1) * domains * experts);
    for (std::size_t i = 0; texts && i < map.values.size(); ++i)
      map.cell_texts.push_back(fmt::format("{:.1f}", map.values[i] / static_cast<double>(experts) * 100));
    map.row_names = names;
    map.column_names = counted_dimension("expert", experts).labels;
    map.x_label = "expert";
    map.colour_bar = false;
    map.width = grid_width(ev.layers.size());
    map.plot_height = static_cast<int>(std::clamp<Index>(domains * 24, 48, 240));
    std::string caption = fmt::format("layer {}", layer_text(r, ev.layers[l]));
    if (const double bits = r.specialisation[l].mean; !std::isnan(bits))
      caption += fmt::format(", divergence {:.3f} bits", bits);
    page.picture(map, "Share of each expert by domain, " + caption, caption);
  }
  page << fmt::format(
      "</div>\n<p class=\"muted\">Each row is how a domain's assignments are spread over the experts of a layer; an even share "
      "is {}{}. Rows that look alike mean that the experts do not tell the domains apart; red cells in different places mean "
      "that they have specialised.</p>\n",
      percent_text(1.0 / static_cast<double>(experts)), texts ? "; the figures are the shares in percent" : "");
  if (domains > 1) {
    page << "<h3>How far apart the domains are</h3>\n";
    std::vector<std::vector<std::string>> table;
    for (const Specialisation& s : r.specialisation)
      table.push_back({layer_text(r, s.layer), number_text(s.mean, 4), number_text(s.max, 4), domain_pair(s)});
    page << html_table({{"layer", "mean of the pairs", "largest", "between"}, table}, 3);
    page
        << "<p class=\"muted\">Jensen-Shannon divergence, in bits, between the expert shares of two domains: 0 where they use the "
           "experts alike, 1 where they have no expert in common.</p>\n";
  }
  page << "</section>\n";
}

void number_section(Page& page, const ExpertReport& r) {
  const ExpertHistory& h = r.state.experts;
  page.section("numbers", "Numbers");
  page << fmt::format("<p>Steps {}. An even share is {}.</p>\n", step_range(h, r.first, r.last),
                      percent_text(r.even_share()));
  std::vector<std::vector<std::string>> layers, experts;
  for (const LayerLoad& l : r.load) {
    layers.push_back({layer_text(r, l.layer), count_text(l.routed), percent_text(l.drop_rate),
                      fmt::format("{:.3f}", l.max_over_mean), fmt::format("{:.3f}", l.max_vio()),
                      fmt::format("{:.3f}", l.cv), fmt::format("{:.4f}", l.entropy), std::to_string(l.dead),
                      std::to_string(l.overloaded), expert_and_share(l, l.busiest()), expert_and_share(l, l.idlest())});
    for (Index e = 0; e < h.experts && static_cast<Index>(experts.size()) < max_table_rows; ++e) {
      const ExpertLoad& x = l.experts[e];
      experts.push_back({layer_text(r, l.layer), std::to_string(e), count_text(x.routed), percent_text(x.share),
                         percent_text(x.drop_rate), number_text(x.probability, 4), gap_text(x)});
    }
  }
  page << html_table({{"layer", "assignments", "dropped", "max/mean", "MaxVio", "CV", "entropy", "dead", "overloaded",
                       "busiest", "idlest"},
                      layers});
  const std::vector<Section> sections = load_sections(r);
  const auto defined = [&](std::size_t dimensions) {
    std::vector<const Figure*> figures;
    for (const Section& s : sections)
      for (const Figure& f : s.figures)
        if (s.name == "summary" && f.dimensions.size() == dimensions) figures.push_back(&f);
    return definitions(figures);
  };
  page << defined(1);
  page << "<details><summary>Every expert</summary>\n" +
              html_table(
                  {{"layer", "expert", "assignments", "share", "dropped", "router probability", "probability - share"},
                   experts}) +
              defined(2);
  if (h.layers * h.experts > max_table_rows)
    page << fmt::format(
        "<p class=\"muted\">The first {} of {}; <code>switchyard experts --csv</code> writes all.</p>\n",
        max_table_rows, count_text(h.layers * h.experts));
  page << "</details></section>\n";
}

}  // namespace

std::string report_html(const ExpertReport& r, ProvenanceDetail detail) {
  Page page(fmt::format("Expert load of {}, {}", run_name(r), r.checkpoint.filename().string()));
  header(page, r);
  if (r.load.empty()) {
    page << fmt::format(
        "<section><p>No expert counts yet at step {}: they come with the first step that is trained."
        "</p></section>\n",
        r.state.step);
  } else {
    tiles(page, r);
    page.contents();
    loss_section(page, r);
    load_section(page, r);
    router_section(page, r);
    time_section(page, r);
    history_section(page, r);
  }
  domain_section(page, r);
  add_sections(page, r.sections);
  if (!r.load.empty()) number_section(page, r);
  page << provenance_html(r.provenance, detail);
  return page.finish();
}

}  // namespace sy
