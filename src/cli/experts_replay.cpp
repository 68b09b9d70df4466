#include "src/cli/experts_replay.h"

#include <unistd.h>

#include <algorithm>
#include <cmath>

#include "src/analyse/routing.h"
#include "src/cli/trained.h"
#include "src/data/run_tokenizer.h"
#include "src/evaluate/ablate.h"
#include "src/text/numbers.h"
#include "src/text/strings.h"
#include "src/text/table.h"

namespace sy {
namespace fs = std::filesystem;
namespace {

constexpr Index replay_windows_per_pass = 8;
// standard errors on either side: 95 % of a normal distribution
constexpr double confidence = 1.96;

std::vector<double> parse_factors(const std::string& text) {
  std::vector<double> factors;
  for (const std::string& item : split_list(text)) {
    const double factor = parse_number<double>(item).value_or(0);
    if (!(factor > 0) || !std::isfinite(factor))
      bad_input("experts: --factors: '{}' is no capacity factor: expected numbers above 0 with commas between them",
                item);
    factors.push_back(factor);
  }
  return factors;
}

// Returns a token as source code would show it. Bytes that are no printable character, such as one
// of several, become hexadecimal.
std::string token_text(const std::string& text) {
  if (visible(text) == text) return text;
  std::string out;
  for (const char c : text)
    out += c == '\n'              ? "\\n"
           : c == '\t'            ? "\\t"
           : c >= ' ' && c <= '~' ? std::string(1, c)
                                  : fmt::format("<0x{:02X}>", static_cast<unsigned char>(c));
  return out;
}

// A checkpoint with the data that runs through it.
struct Replay {
  Comm& world;
  Trained trained;
  Dataset dataset;
  std::string backend;
  ReplayOptions options;
  std::vector<std::string> domains;
  std::vector<Index> layers;  // the examined ones, as indices of MoE layers
  std::vector<std::int64_t> layer_ids;
  bool quiet;

  // change: modifies the checkpoint's configuration and state before the model is made.
  std::unique_ptr<Engine> load(const Trained& source, const std::function<void(Trained&)>& change = {}) const {
    Trained copy = source;
    fit_positions(copy.config, dataset);
    if (change) change(copy);
    return load_model(world, copy, Layout{1}, backend);
  }
  std::function<void(Index, Index)> progress(const std::string& label) const {
    const bool show = !quiet && isatty(STDERR_FILENO);
    return [show, label](Index done, Index total) {
      if (show) fmt::print(stderr, "\r{} {}/{}{}", label, done, total, done == total ? "\n" : "");
    };
  }
};

void add_capacity_losses(Section& section, const Replay& r, const std::vector<double>& factors) {
  const Dimension by_layer = numbered_dimension("layer", r.layer_ids);
  Dimension by_factor{"capacity factor"}, by_domain{"domain", r.domains};
  by_domain.labels.push_back("all");
  Figure loss{
      "capacity_loss",
      "loss by capacity factor",
      "nats per token",
      "Mean cross-entropy where assignments are dropped by a capacity of this factor in every MoE layer; 0: none are.",
      {},
      {},
      Look::none};
  Figure drops{
      "capacity_drop_rate_run", "dropped in these runs", "share",
      "Assignments that were dropped. Behind the first MoE layer they differ from those of the choices without "
      "drops, since a token that lost an expert is another one to the next router."};
  const std::size_t D = r.domains.size(), L = r.layers.size();
  const std::size_t F = factors.size() + 1;
  loss.values.resize((D + 1) * F);
  drops.values.resize(L * F);
  for (std::size_t f = 0; f < F; ++f) {
    const double factor = f == 0 ? 0 : factors[f - 1];
    by_factor.labels.push_back(fmt::format("{}", factor));
    const auto engine = r.load(r.trained, [&](Trained& t) { t.config.moe.capacity_factor = factor; });
    std::vector<double> nats(D + 1), targets(D + 1), dropped(L);
    double tokens = 0;
    for_replay_batches(
        r.dataset, engine->config(), r.options,
        [&](const ReplayBatch& batch) {
          const ReplayResult found = replay(*engine, batch, factor == 0, false);
          for (const std::size_t d : {static_cast<std::size_t>(batch.domain), D}) {
            nats[d] += found.nats;
            targets[d] += static_cast<double>(batch.counted_targets());
          }
          tokens += static_cast<double>(batch.tokens());
          for (std::size_t l = 0; l < L; ++l) dropped[l] += static_cast<double>(found.layers[r.layers[l]].dropped);
        },
        r.progress(fmt::format("capacity factor {}: window", factor)));
    for (std::size_t d = 0; d <= D; ++d) loss.values[d * F + f] = targets[d] > 0 ? nats[d] / targets[d] : NAN;
    for (std::size_t l = 0; l < L; ++l)
      drops.values[l * F + f] = dropped[l] / (tokens * static_cast<double>(r.trained.config.moe.top_k));
  }
  loss.dimensions = {by_domain, by_factor};
  drops.dimensions = {by_layer, by_factor};
  section.figures.push_back(std::move(loss));
  section.figures.push_back(std::move(drops));
}

Section routing_section(const Replay& r, const po::variables_map& arguments) {
  const Config& config = r.trained.config;
  RoutingShape shape{r.layers, r.layer_ids, config.moe.experts, config.moe.top_k, 0, r.domains, 8, {}};
  shape.least_count = arguments["least-count"].as<Index>();
  shape.factors = parse_factors(arguments["factors"].as<std::string>());
  shape.configured_factor = config.moe.capacity_factor;
  shape.scope = config.moe.capacity_scope;

  std::unique_ptr<Engine> engine = r.load(r.trained), other;
  shape.seq_len = engine->config().model.seq_len;
  Trained against;
  if (arguments.count("against")) {
    against = open_checkpoint(r.world, arguments["against"].as<std::string>());
    const Config& theirs = against.config;
    if (against.state.vocab != r.trained.state.vocab || theirs.moe.experts != config.moe.experts ||
        theirs.moe.top_k != config.moe.top_k || against.state.experts.layer_ids != r.trained.state.experts.layer_ids)
      bad_input(
          "--against {}: it has another vocabulary, or other layers with experts, experts or top_k, so that choices "
          "cannot be compared",
          against.step_dir().string());
    const std::string warning =
        check_tokenizer(r.dataset, against.step_dir(), against.state, forces_data(arguments), force_data_advice);
    if (!warning.empty()) warn(warning);
    other = r.load(against);
    if (other->config().model.seq_len != shape.seq_len)
      bad_input("--against {}: it has another model.seq_len", against.step_dir().string());
  }
  RoutingMeasures measures(shape);
  for_replay_batches(
      r.dataset, engine->config(), r.options,
      [&](const ReplayBatch& batch) {
        const ReplayResult found = replay(*engine, batch, true, true);
        measures.add(batch, found);
        if (other) measures.add_other(found, replay(*other, batch, true, false));
      },
      r.progress("replaying window"));
  const auto tokenizer = r.dataset.tokenizer() == "none" ? nullptr : open_tokenizer(r.dataset.dir());
  Section section = measures.section([&](std::int32_t id) {
    const std::string text = tokenizer && id < tokenizer->vocab() ? token_text(tokenizer->decode({id})) : "";
    return text.empty() ? fmt::format("<{}>", id) : text;
  });
  if (other) section.text += fmt::format(" Saturation: against {}.", against.step_dir().string());
  other.reset();
  engine.reset();
  add_capacity_losses(section, r, shape.factors);
  return section;
}

Section ablation_section(const Replay& r, bool reroute) {
  const auto& moe = r.trained.config.moe;
  const Index E = moe.experts;
  if (reroute && (moe.top_k >= E / moe.groups * moe.topk_groups || (moe.groups > 1 && E / moe.groups <= 2)))
    bad_input("--reroute: of {} experts that a token may choose from {} are chosen: there is no next best",
              E / moe.groups * moe.topk_groups, moe.top_k);
  // A model with selection biases, which then exclude the expert from the choice.
  const auto engine = r.load(r.trained, [&](Trained& t) {
    if (!reroute || t.config.moe.bias_update_rate > 0) return;
    t.config.moe.bias_update_rate = 1;
    t.state.router_bias.assign(t.state.experts.layer_ids.size() * E, 0.0f);
  });
  ReplayOptions options = r.options;
  options.windows_per_pass = 1;  // differences are paired by window
  const Ablation found = ablate(*engine, r.dataset, r.layers, reroute ? AblationMode::reroute : AblationMode::mask,
                                options, r.progress("without expert"));

  const std::string name = reroute ? "reroute" : "ablation";
  Section out{name, reroute ? "Without each expert, its tokens rerouted" : "Without each expert, its tokens masked"};
  out.text = fmt::format(
      "The loss of the whole model is {} nats per token. One expert at a time is taken away, and {}. What it was worth is the "
      "change of the loss: above 0 the model is worse without it. Intervals are 95 %: the mean of the paired differences of {} "
      "windows and 1.96 standard errors to either side.",
      number_text(found.loss.back(), 4),
      reroute ? "its tokens go to their next best expert"
              : "its tokens lose what it would add, all other weights as they were",
      count_text(found.effects[0][0].back().windows));
  Dimension by_domain{"domain", r.domains};
  by_domain.labels.push_back("all");
  const std::vector<Dimension> all{numbered_dimension("layer", r.layer_ids), by_domain, counted_dimension("expert", E)};
  Figure change{"change", "change of the loss", "nats per token", "Loss without the expert less the loss with it.", all,
                {},       Look::change};
  Figure low{"low", "lower end", "nats per token", "The lower end of the 95 % interval of the change.",
             all,   {},          Look::none};
  Figure high{"high", "upper end", "nats per token", "The upper end of it.", all, {}, Look::none};
  Figure loss{"loss", "loss", "nats per token", "Of the whole model.", {by_domain}, found.loss};
  Listing list{
      "experts",
      "What each expert is worth",
      "Change of the loss without the expert, nats per token, with the half width of its 95 % interval; the last "
      "columns are the domains. Windows: those in which it had a token.",
      {"layer", "expert", "windows", "change", "±"}};
  for (const std::string& d : r.domains) {
    list.header.push_back(d);
    list.header.push_back("±");
  }
  for (std::size_t l = 0; l < r.layers.size(); ++l) {
    for (std::size_t d = 0; d < by_domain.labels.size(); ++d)
      for (Index e = 0; e < E; ++e) {
        const LossChange& c = found.effects[l][e][d];
        change.values.push_back(c.change);
        low.values.push_back(c.change - confidence * c.error);
        high.values.push_back(c.change + confidence * c.error);
      }
    for (Index e = 0; e < E; ++e) {
      const auto& changes = found.effects[l][e];
      const auto cells = [&](std::vector<Json>& row, const LossChange& c) {
        row.push_back(c.change);
        row.push_back(confidence * c.error);
      };
      std::vector<Json>& row = list.rows.emplace_back(std::vector<Json>{r.layer_ids[l], e, changes.back().routed});
      cells(row, changes.back());
      for (std::size_t d = 0; d < r.domains.size(); ++d) cells(row, changes[d]);
    }
  }
  out.figures = {std::move(loss), std::move(change), std::move(low), std::move(high)};
  out.listings.push_back(std::move(list));
  return out;
}

}  // namespace

void add_replay_options(po::options_description& options) {
  options.add_options()(
      "replay", po::value<std::string>(),
      "DATA: run its validation text through the checkpoint, on this one rank, and measure what is chosen")(
      "against", po::value<std::string>(), "with --replay: a checkpoint to compare choices with (router saturation)")(
      "factors", po::value<std::string>()->default_value("1,1.25,1.5,2"),
      "with --replay: capacity factors whose drops and loss are reported")(
      "least-count", po::value<Index>()->default_value(8),
      "with --replay: report the vocabulary specialisation of an id that occurs so often")(
      "ablate", po::value<std::string>(),
      "DATA: the change of the loss without each expert (of --layer alone, where given)")(
      "reroute", po::bool_switch(), "with --ablate: also where its tokens go to their next best expert")(
      "max-windows", po::value<Index>()->default_value(0),
      "with --replay and --ablate: so many windows of each domain, evenly spread; 0: all")(
      "backend", po::value<std::string>()->default_value("auto"), "with --replay and --ablate: auto, cpu or cuda")(
      "quiet", po::bool_switch(), "no progress");
  add_force_data(options);
}

bool wants_replay(const po::variables_map& arguments) {
  const bool replay = arguments.count("replay") > 0, ablate = arguments.count("ablate") > 0;
  if (arguments.count("against") && !replay) bad_input("experts: --against needs --replay DATA");
  if (arguments["reroute"].as<bool>() && !ablate) bad_input("experts: --reroute needs --ablate DATA");
  if (arguments["least-count"].as<Index>() < 1) bad_input("experts: --least-count must be at least 1");
  if (arguments["max-windows"].as<Index>() < 0) bad_input("experts: --max-windows must not be negative");
  parse_factors(arguments["factors"].as<std::string>());
  return replay || ablate;
}

std::vector<Section> replay_sections(Comm& world, const po::variables_map& arguments, std::optional<Index> layer) {
  std::vector<Section> out;
  const Trained trained = open_checkpoint(world, arguments["checkpoint"].as<std::string>());
  if (trained.config.model.kind == ModelKind::encoder_decoder)
    bad_input("experts: --replay and --ablate read texts, and the model is an encoder-decoder: leave them out");
  const auto& ids = trained.state.experts.layer_ids;
  std::vector<Index> layers;
  std::vector<std::int64_t> layer_ids;
  for (std::size_t l = 0; l < ids.size(); ++l)
    if (ids[l] < trained.config.model.layers &&  // multi-token prediction does not run here
        (!layer || *layer == ids[l])) {
      layers.push_back(static_cast<Index>(l));
      layer_ids.push_back(ids[l]);
    }
  if (layers.empty())
    bad_input("experts: --replay and --ablate run no layer of multi-token prediction: {}",
              layer ? fmt::format("set --layer below {}", trained.config.model.layers) : "leave them out");
  for (const char* which : {"replay", "ablate"}) {
    if (!arguments.count(which)) continue;
    const fs::path dir = arguments[which].as<std::string>();
    Replay r{world,
             trained,
             open_validation(trained, dir, arguments, true, false),
             arguments["backend"].as<std::string>(),
             {},
             {},
             layers,
             layer_ids,
             arguments["quiet"].as<bool>()};
    for (const Domain& d : r.dataset.domains()) r.domains.push_back(d.name);
    r.options.max_windows = arguments["max-windows"].as<Index>();
    r.options.windows_per_pass = trained.config.moe.capacity_scope == CapacityScope::rank
                                     ? trained.config.train.micro_batch
                                     : replay_windows_per_pass;
    if (which == std::string_view("replay")) {
      out.push_back(routing_section(r, arguments));
    } else {
      out.push_back(ablation_section(r, false));
      if (arguments["reroute"].as<bool>()) out.push_back(ablation_section(r, true));
    }
  }
  return out;
}

}  // namespace sy
