#include "src/analyse/report.h"

#include <algorithm>
#include <cmath>

#include "src/io/manifest.h"
#include "src/params/specs.h"
#include "src/system/files.h"
#include "src/text/numbers.h"
#include "src/text/strings.h"
#include "src/text/table.h"

namespace sy {
namespace fs = std::filesystem;
namespace {

constexpr Index strip_columns = 64;  // more experts share their marks

// Reads the losses of training and validation. Skips lines that are torn or hold no loss.
void read_losses(const fs::path& file, ExpertReport& report) {
  if (!file_exists(file)) return;
  read_lines(file, [&](const TextLine& line) {
    const std::optional<Json> m = Json::try_parse(line.text);
    const std::optional<Index> step = m ? integer_at(*m, "step") : std::nullopt;
    if (!step || *step > report.state.step) return;
    const auto add = [&](const Json& from, std::vector<LossPoint>& points) {
      if (const auto loss = number_at(from, "loss")) points.push_back({static_cast<double>(*step), *loss});
    };
    add(*m, report.losses);
    if (const Json* validation = m->find("validation")) add(*validation, report.validations);
  });
}

// Returns the position of a layer among the MoE layers. Throws InputError if it is not one.
// layer: its name, or the number of its block.
Index find_layer(const ExpertReport& r, const std::string& layer) {
  const std::vector<std::string> names = layer_dimension(r).labels;
  const auto& blocks = r.state.experts.layer_ids;
  if (const auto at = std::ranges::find(names, layer); at != names.end()) return at - names.begin();
  const auto number = parse_number<Index>(layer);
  const auto at = number ? std::ranges::find(blocks, *number) : blocks.end();
  if (at == blocks.end())
    bad_input("--layer {}: {} has no such layer: the layers with experts are {}", layer, r.checkpoint.string(),
              join(names, ", "));
  return at - blocks.begin();
}

// One mark per expert, or per group of neighbours. Its height is the share relative to an even one.
std::string share_strip(const LayerLoad& layer, bool colour) {
  static constexpr const char* marks[] = {"·", "▁", "▂", "▃", "▄", "▅", "▆", "▇", "█"};
  const Index experts = static_cast<Index>(layer.experts.size());
  const Index group = ceil_div(experts, strip_columns);
  std::string out;
  for (Index first = 0; first < experts; first += group) {
    const Index n = std::min(group, experts - first);
    double share = 0;
    for (Index e = first; e < first + n; ++e) share += layer.experts[e].share;
    const double relative = share / static_cast<double>(n) * static_cast<double>(experts);
    const int level = share == 0 ? 0 : std::clamp(static_cast<int>(std::lround(relative * 4)), 1, 8);
    const char* paint = !colour ? "" : relative < 0.5 ? "\x1b[34m" : relative > 1.5 ? "\x1b[31m" : "";
    out += *paint ? fmt::format("{}{}\x1b[0m", paint, marks[level]) : marks[level];
  }
  return out;
}

std::string load_table(const ExpertReport& r, bool colour) {
  Table table({"layer", "dropped", "max/mean", "MaxVio", "CV", "entropy", "dead", "over", "busiest", "idlest",
               "share of each expert"},
              true);
  for (const LayerLoad& l : r.load)
    table.row({layer_text(r, l.layer), percent_text(l.drop_rate), fmt::format("{:.2f}", l.max_over_mean),
               fmt::format("{:.2f}", l.max_vio()), fmt::format("{:.3f}", l.cv), fmt::format("{:.3f}", l.entropy),
               std::to_string(l.dead), std::to_string(l.overloaded), expert_and_share(l, l.busiest()),
               expert_and_share(l, l.idlest()), share_strip(l, colour)});
  const Index group = ceil_div(r.state.experts.experts, strip_columns);
  return table.str() + fmt::format("▄ an even share ({}), █ twice that or more, · none{}\n",
                                   percent_text(r.even_share()),
                                   group > 1 ? fmt::format("; {} experts to a mark", group) : "");
}

// biases: one per expert, or empty.
std::string expert_table(const LayerLoad& layer, const std::vector<float>& biases) {
  std::vector<std::string> header = {"expert",  "share",     "of even",     "routed",
                                     "dropped", "drop rate", "probability", "probability - share"};
  if (!biases.empty()) header.push_back("bias");
  Table table(header);
  for (std::size_t e = 0; e < layer.experts.size(); ++e) {
    const ExpertLoad& x = layer.experts[e];
    std::vector<std::string> row = {std::to_string(e),
                                    percent_text(x.share),
                                    fmt::format("{:.2f}", x.share * static_cast<double>(layer.experts.size())),
                                    count_text(x.routed),
                                    count_text(x.dropped),
                                    percent_text(x.drop_rate),
                                    number_text(x.probability, 4),
                                    gap_text(x)};
    if (!biases.empty()) row.push_back(fmt::format("{:+.4f}", biases[e]));
    table.row(row);
  }
  return table.str();
}

std::string time_table(const ExpertReport& r) {
  const ExpertHistory h = coarsen(r.state.experts, 8);
  Table table({"steps", "dropped", "max/mean", "MaxVio", "CV", "entropy", "dead", "over", "worst layer (max/mean)"});
  for (Index w = 0; w < h.windows(); ++w) {
    const auto layers = layer_loads(h, w, w + 1);
    double dropped = 0, ratio = 0, cv = 0, entropy = 0;
    Index dead = 0, overloaded = 0;
    for (const LayerLoad& l : layers) {
      dropped += l.drop_rate / static_cast<double>(layers.size());
      ratio += l.max_over_mean / static_cast<double>(layers.size());
      cv += l.cv / static_cast<double>(layers.size());
      entropy += l.entropy / static_cast<double>(layers.size());
      dead += l.dead;
      overloaded += l.overloaded;
    }
    const auto worst = std::ranges::max_element(layers, {}, &LayerLoad::max_over_mean);
    table.row({step_range(h, w, w + 1), percent_text(dropped), fmt::format("{:.2f}", ratio),
               fmt::format("{:.2f}", ratio - 1), fmt::format("{:.3f}", cv), fmt::format("{:.3f}", entropy),
               std::to_string(dead), std::to_string(overloaded),
               fmt::format("{} ({:.2f})", layer_text(r, worst->layer), worst->max_over_mean)});
  }
  return table.str();
}

std::string domain_tables(const ExpertReport& r) {
  const bool masked = r.evaluation->masked;
  std::vector<std::string> columns{"domain", "tokens", masked ? "masked loss" : "loss"};
  if (!masked) columns.insert(columns.end(), {"perplexity", "bits/byte"});
  Table domains(columns);
  for (const DomainUse& d : r.evaluation->domains) {
    std::vector<std::string> row{d.name, count_text(d.tokens), number_text(d.loss, 4)};
    if (!masked) row.insert(row.end(), {number_text(d.perplexity, 2), number_text(d.bits_per_byte, 3)});
    domains.row(row);
  }
  std::string out = domains.str();
  if (r.evaluation->domains.size() < 2) return out;
  Table layers({"layer", "divergence", "largest", "between"});
  for (const Specialisation& s : r.specialisation)
    layers.row({layer_text(r, s.layer), number_text(s.mean, 3), number_text(s.max, 3), domain_pair(s)});
  return out +
         "\nHow differently the domains use the experts (Jensen-Shannon divergence of pairs, bits: 0 alike, "
         "1 disjoint)\n" +
         layers.str();
}

// Adds the name of a layer to its JSON, unless the name is the number.
void add_name(Json& json, const ExpertReport& r, Index layer) {
  if (const std::string name = layer_text(r, layer); name != std::to_string(layer)) json["name"] = name;
}

Json load_json(const LayerLoad& l) {
  return {{"layer", l.layer},
          {"routed", l.routed},
          {"dropped", l.dropped},
          {"drop_rate", l.drop_rate},
          {"max_over_mean", l.max_over_mean},
          {"max_vio", l.max_vio()},
          {"cv", l.cv},
          {"entropy", l.entropy},
          {"dead", l.dead},
          {"overloaded", l.overloaded}};
}

}  // namespace

std::string layer_text(const ExpertReport& r, Index layer) {
  if (!r.config) return std::to_string(layer);
  std::string name = r.config->layer_name(layer);
  replace_all(name, "layer ", "");
  return name;
}

Dimension layer_dimension(const ExpertReport& r) {
  Dimension d{"layer"};
  for (const std::int64_t block : r.state.experts.layer_ids) d.labels.push_back(layer_text(r, block));
  return d;
}

std::string gap_text(const ExpertLoad& e) {
  return std::isnan(e.probability_gap) ? "-" : fmt::format("{:+.4f}", e.probability_gap);
}

std::string domain_pair(const Specialisation& s) {
  return std::isnan(s.mean) ? "-" : s.domain_a + " and " + s.domain_b;
}

std::string expert_and_share(const LayerLoad& layer, Index expert) {
  return fmt::format("{} ({})", expert, percent_text(layer.experts[expert].share));
}

CollapseAdvice collapse_advice(const ExpertReport& r) {
  // Mean assignments per expert. With fewer, an expert may have no assignment by chance.
  constexpr Index enough = 64;
  CollapseAdvice out;
  Index dead = 0, all_experts = 0, judged = 0;
  std::vector<std::string> layers;
  for (const LayerLoad& l : r.load) {
    const Index experts = std::ssize(l.experts);
    if (l.routed < enough * experts) continue;
    ++judged;
    all_experts += experts;
    dead += l.dead;
    const bool collapsed = (l.dead > 0 && 4 * l.dead >= experts) || l.entropy < 0.5;
    if (collapsed) layers.push_back(layer_text(r, l.layer));
  }
  if (layers.empty()) return out;
  constexpr std::size_t shown = 12;
  const std::size_t more = layers.size() > shown ? layers.size() - shown : 0, collapsed = layers.size();
  layers.resize(collapsed - more);
  out.finding = fmt::format(
      "{} of {} experts are dead in steps {}: they get less than 1 % of an even share, and learn next to nothing. In {} of {} "
      "layers a quarter of the experts is dead, or the entropy is below 0.5: {}{}.{}",
      count_text(dead), count_text(all_experts), step_range(r.state.experts, r.first, r.last), collapsed, judged,
      join(layers, ", "), more > 0 ? fmt::format(" and {} more", more) : "",
      judged < std::ssize(r.load) ? fmt::format(" Not counted: {} with fewer than {} assignments per expert.",
                                                counted(std::ssize(r.load) - judged, "layer"), enough)
                                  : "");
  const auto add = [&](std::string change) { out.changes.push_back(std::move(change)); };
  const Config::Moe moe = r.config ? r.config->moe : Config::Moe{};
  if (r.config && moe.top_k == 1 && moe.experts > 1 && moe.renormalizes())
    add("Set moe.renormalize = auto: with moe.top_k = 1 and true, the loss teaches the router nothing.");
  if (!r.config)
    add("Raise moe.aux_loss, or set moe.bias_update_rate = 0.001: both even out the load.");
  else if (moe.aux_loss == 0 && moe.bias_update_rate == 0)
    add("Set moe.aux_loss = 0.01 or moe.bias_update_rate = 0.001: both are 0, so nothing evens out the load.");
  else if (moe.bias_update_rate == 0)
    add(fmt::format("Raise moe.aux_loss = {0} to about {1}, or set moe.bias_update_rate = 0.001 beside it.",
                    moe.aux_loss, std::max(3 * moe.aux_loss, 0.01)));
  else
    add(fmt::format("Raise moe.bias_update_rate = {} to about {}{}.", moe.bias_update_rate, 3 * moe.bias_update_rate,
                    moe.aux_loss == 0 ? ", or set moe.aux_loss = 0.001 beside it" : ""));
  if (r.config && moe.z_loss == 0)
    add("Set moe.z_loss = 0.001: it keeps the router's logits small, so that no choice becomes final early.");
  if (r.config)
    add(fmt::format("Lower train.lr = {}, or raise train.warmup = {}: routers collapse mostly in the first steps.",
                    r.config->train.lr, r.config->train.warmup));
  add("Start again with these settings, or go back to a checkpoint before the collapse (run.resume_step).");
  return out;
}

std::string step_range(const ExpertHistory& h, Index first, Index last) {
  return fmt::format("{}-{}", first_step(h, first), h.steps[last - 1]);
}

std::string evaluated_at(const Evaluation& e) {
  std::string text = "evaluated at step " + count_text(e.step);
  if (e.windows < e.of) text += fmt::format(" on {} of {} windows", count_text(e.windows), count_text(e.of));
  return text;
}

std::string model_text(const ExpertReport& r) {
  const ExpertHistory& h = r.state.experts;
  if (!r.config) return counted(h.layers, "layer") + " with " + counted(h.experts, "expert");
  const Config& c = *r.config;
  Index with_experts = 0;
  for (Index layer = 0; layer < c.model.layers; ++layer) with_experts += c.is_moe(layer);
  const std::string modules =
      c.model.mtp_depth > 0 ? "; " + counted(c.model.mtp_depth, "module") + " of multi-token prediction" : "";
  const ParamCount params = count_params(c, r.state.vocab);
  return fmt::format(
      "{}, {} with {}, {} chosen per token{}; d_model {}; {} parameters, {} active", counted(c.model.layers, "layer"),
      with_experts == c.model.layers ? "each" : std::to_string(with_experts), counted(c.moe.experts, "expert"),
      c.moe.top_k, modules, c.model.d_model, count_text(params.total), count_text(params.active));
}

ExpertReport make_report(const fs::path& checkpoint, const ReportOptions& options) {
  ExpertReport r;
  r.checkpoint = checkpoint;
  r.state = read_state(checkpoint);
  try {
    r.config = parse_config(r.state.config, checkpoint.string());
  } catch (const InputError&) {
    // The counts can still be read.
  }
  ExpertHistory& h = r.state.experts;
  if (h.layers == 0 || h.experts == 0)
    bad_input("{}: its model has no experts (moe.experts = 0), so there is no load to report", checkpoint.string());

  if (const auto run = run_of(checkpoint)) {
    read_losses(*run / "metrics.jsonl", r);
    // A link to nothing is an error, too.
    if (const fs::path file = *run / "evaluation.json"; file_exists(file, Links::keep))
      r.evaluation = read_evaluation(file);
  }
  if (options.layer) {
    const Index at = find_layer(r, *options.layer), block = h.layer_ids[at];
    if (auto& bias = r.state.router_bias; !bias.empty())
      bias = {bias.begin() + at * h.experts, bias.begin() + (at + 1) * h.experts};
    h = select_block(h, block);
    if (r.evaluation) {
      const auto& evaluated = r.evaluation->layers;  // without modules of multi-token prediction
      if (std::ranges::find(evaluated, block) == evaluated.end())
        r.evaluation.reset();
      else
        r.evaluation = select_block(*r.evaluation, block);
    }
  }
  if (r.evaluation) r.specialisation = specialisation(*r.evaluation);

  r.last = h.windows();
  r.first = last_tenth(h);
  if (options.steps && h.windows() > 0) {
    const auto [from, to] = *options.steps;
    r.first = std::lower_bound(h.steps.begin(), h.steps.end(), from) - h.steps.begin();
    r.last = r.first;
    while (r.last < h.windows() && first_step(h, r.last) <= to) ++r.last;
    if (r.first >= r.last)
      bad_input("--steps {}-{}: {} has counts of steps {}", from, to, checkpoint.string(),
                step_range(h, 0, h.windows()));
  }
  if (h.windows() > 0) r.load = layer_loads(h, r.first, r.last);
  return r;
}

std::string report_text(const ExpertReport& r, bool colour) {
  const ExpertHistory& h = r.state.experts;
  std::string out =
      fmt::format("{}\n{}\nstep {}, {} tokens, trained as {}\n\n", visible(r.checkpoint.string()), model_text(r),
                  count_text(r.state.step), count_text(r.state.tokens), visible(r.state.layout));
  if (h.windows() == 0)
    out +=
        fmt::format("No expert counts yet at step {}: they come with the first step that is trained.\n", r.state.step);
  else {
    out += fmt::format("Load in steps {}\n{}", step_range(h, r.first, r.last), load_table(r, colour));
    out += "MaxVio: max/mean - 1; dead: below 1 % of an even share; over: above twice an even share\n";
    if (const CollapseAdvice advice = collapse_advice(r); !advice.finding.empty()) {
      out += "\nThe router has collapsed: " + advice.finding + "\n";
      for (const std::string& change : advice.changes) out += "- " + change + "\n";
    }
    if (h.layers == 1) out += '\n' + expert_table(r.load[0], r.state.router_bias);
    if (h.windows() > 1) out += "\nOver time (means of the layers)\n" + time_table(r);
  }
  if (r.evaluation) out += fmt::format("\nDomains, {}\n", evaluated_at(*r.evaluation)) + domain_tables(r);
  return out + sections_text(r.sections);
}

std::string report_csv(const ExpertReport& r) {
  const ExpertHistory& h = r.state.experts;
  std::string out =
      "first_step,last_step,layer,expert,routed,dropped,share,drop_rate,probability,probability_gap,bias,"
      "layer_drop_rate,layer_max_vio,layer_dead,layer_overloaded\n";
  const auto& biases = r.state.router_bias;
  for (Index w = 0; w < h.windows(); ++w)
    for (Index at = 0; const LayerLoad& l : layer_loads(h, w, w + 1)) {
      const auto of_layer = fmt::format("{},{},{},{}\n", l.drop_rate, l.max_vio(), l.dead, l.overloaded);
      for (std::size_t e = 0; e < l.experts.size(); ++e, ++at) {
        const ExpertLoad& x = l.experts[e];
        const bool known = !biases.empty() && w + 1 == h.windows();
        const auto number = [](double value) { return std::isnan(value) ? "" : fmt::format("{}", value); };
        fmt::format_to(std::back_inserter(out), "{},{},{},{},{},{},{},{},{},{},{},{}", first_step(h, w), h.steps[w],
                       l.layer, e, x.routed, x.dropped, x.share, x.drop_rate, number(x.probability),
                       number(x.probability_gap), known ? fmt::format("{}", biases[at]) : "", of_layer);
      }
    }
  return out;
}

Json report_json(const ExpertReport& r) {
  const ExpertHistory& h = r.state.experts;
  Json out = {{"checkpoint", r.checkpoint.string()},
              {"step", r.state.step},
              {"tokens", r.state.tokens},
              {"layout", r.state.layout},
              {"dataset", r.state.dataset},
              {"experts", h.experts},
              {"provenance", r.provenance},
              {"checkpoint_provenance", parse_record(r.state.provenance)},
              {"layers", Json::array()},
              {"windows", Json::array()}};
  if (h.windows() > 0) {
    out["first_step"] = first_step(h, r.first);
    out["last_step"] = h.steps[r.last - 1];
  }
  for (Index at = 0; const LayerLoad& l : r.load) {
    Json layer = load_json(l);
    add_name(layer, r, l.layer);
    for (const ExpertLoad& e : l.experts) {
      Json expert = {
          {"routed", e.routed},       {"dropped", e.dropped},         {"share", e.share},
          {"drop_rate", e.drop_rate}, {"probability", e.probability}, {"probability_gap", e.probability_gap}};
      if (!r.state.router_bias.empty()) expert["bias"] = static_cast<double>(r.state.router_bias[at++]);
      layer["experts"].push_back(std::move(expert));
    }
    out["layers"].push_back(std::move(layer));
  }
  for (Index w = 0; w < h.windows(); ++w) {
    Json window = {{"first_step", first_step(h, w)}, {"last_step", h.steps[w]}};
    for (const LayerLoad& l : layer_loads(h, w, w + 1)) {
      Json layer = load_json(l), routed, dropped, probability;
      for (const ExpertLoad& e : l.experts) {
        routed.push_back(e.routed);
        dropped.push_back(e.dropped);
        probability.push_back(e.probability);
      }
      layer["expert_routed"] = std::move(routed);
      layer["expert_dropped"] = std::move(dropped);
      layer["expert_probability"] = std::move(probability);
      window["layers"].push_back(std::move(layer));
    }
    out["windows"].push_back(std::move(window));
  }
  if (!r.sections.empty()) out["sections"] = sections_json(r.sections);
  if (!r.evaluation) return out;
  Json domains = {{"step", r.evaluation->step},
                  {"windows", r.evaluation->windows},
                  {"of", r.evaluation->of},
                  {"domains", Json::array()},
                  {"layers", Json::array()}};
  for (const DomainUse& d : r.evaluation->domains)
    domains["domains"].push_back({{"name", d.name},
                                  {"tokens", d.tokens},
                                  {"bytes", d.bytes < 0 ? Json() : Json(d.bytes)},
                                  {"loss", d.loss},
                                  {"perplexity", d.perplexity},
                                  {"bits_per_byte", d.bits_per_byte},
                                  {"experts", d.experts}});
  if (r.evaluation->masked) domains["scoring"] = "masked_tokens";
  for (const Specialisation& s : r.specialisation) {
    Json layer = {{"layer", s.layer},
                  {"js_divergence_mean", s.mean},
                  {"js_divergence_max", s.max},
                  {"between", std::isnan(s.mean) ? Json() : Json::array({s.domain_a, s.domain_b})}};
    add_name(layer, r, s.layer);
    domains["layers"].push_back(std::move(layer));
  }
  out["evaluation"] = std::move(domains);
  return out;
}

}  // namespace sy
