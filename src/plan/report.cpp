// Output of a plan, for people and for programs.
#include <algorithm>
#include <cmath>

#include "src/params/costs.h"
#include "src/plan/plan.h"
#include "src/text/numbers.h"
#include "src/text/table.h"

namespace sy {
namespace {

// The unit of all numbers of a table.
struct Unit {
  const char* name;
  double size;
  std::string operator()(double x) const { return fmt::format("{:.{}f}", x / size, x / size < 99.95 ? 2 : 1); }
};
Unit unit_of(double largest, const char* unit) {
  const bool bytes = std::string_view(unit) == "B";
  if (largest >= 1e13) return {bytes ? "TB" : "TFLOP", 1e12};
  if (largest >= 1e10) return {bytes ? "GB" : "GFLOP", 1e9};
  return {bytes ? "MB" : "MFLOP", 1e6};
}

std::string milliseconds(double seconds) {
  return fmt::format("{:.{}f}", seconds * 1e3, seconds < 0.01 ? 3 : seconds < 1 ? 1 : 0);
}

// Content of the collectives of a group.
struct Meaning {
  std::string_view group;
  bool update;
  Collective kind;
  std::string_view subphase, text;
};
constexpr Meaning meanings[] = {
    {"stage", true, Collective::reduce_scatter, "", "gradients of norms, routers"},
    {"stage", true, Collective::all_gather, "", "weights of norms, routers"},
    {"stage", true, Collective::all_reduce, "", "the gradients' norm"},
    {"stage", false, Collective::all_gather, "", "counts that balance experts"},
    {"dp", true, Collective::reduce_scatter, "", "gradients of dense matrices"},
    {"dp", true, Collective::all_gather, "", "weights of dense matrices"},
    {"edp", true, Collective::reduce_scatter, "", "gradients of experts"},
    {"edp", true, Collective::all_gather, "", "weights of experts"},
    {"experts", false, Collective::all_to_all, "count exchange", "row counts"},
    {"across", false, Collective::all_to_all, "count exchange", "row counts"},
    {"experts", false, Collective::all_to_all, "dispatch", "rows to their experts"},
    {"experts", false, Collective::all_to_all, "combine", "rows back from them"},
    {"across", false, Collective::all_to_all, "dispatch", "rows to their experts' nodes"},
    {"across", false, Collective::all_to_all, "combine", "rows back from these"},
    {"within", false, Collective::all_to_all, "dispatch", "rows to their experts on a node"},
    {"within", false, Collective::all_to_all, "combine", "rows back from them on a node"},
    {"tp", false, Collective::all_gather, "", "tokens, gathered"},
    {"tp", false, Collective::reduce_scatter, "", "tokens, summed and scattered"},
    {"tp", false, Collective::all_reduce, "", "sums of norms over heads"},
    {"replicas", true, Collective::all_reduce, "", "gradients of shared kv heads"},
    {"expert replicas", true, Collective::reduce_scatter, "", "gradients of adapters of experts"},
    {"expert replicas", true, Collective::all_gather, "", "adapters of experts"},
    {"world", true, Collective::all_reduce, "", "losses, counts of experts, errors"},
};
std::string_view meaning_of(const TrafficLine& line) {
  // In an update, roots reduce and broadcast what others reduce-scatter and all-gather.
  const Collective kind = line.update && line.kind == Collective::reduce      ? Collective::reduce_scatter
                          : line.update && line.kind == Collective::broadcast ? Collective::all_gather
                                                                              : line.kind;
  for (const Meaning& m : meanings)
    if (m.group == line.group && m.update == line.update && m.kind == kind && m.subphase == line.subphase)
      return m.text;
  return "";
}

// Returns the time category whose cost is highest compared with the best layout.
std::string loss_of(const Candidate& c, const Candidate& best) {
  if (!c.time || &c == &best) return "";
  int most = 0;
  for (int i = 1; i < num_time_categories; ++i)
    if (c.time->seconds[i] - best.time->seconds[i] > c.time->seconds[most] - best.time->seconds[most]) most = i;
  return fmt::format("{} +{} ms", name_of(static_cast<TimeCategory>(most)),
                     milliseconds(c.time->seconds[most] - best.time->seconds[most]));
}

// Returns the share of the peak, by the FLOPs that a token needs (model_costs). Recomputation does
// not count.
double of_peak(const Plan& plan, const Candidate& c) {
  const double needed = model_costs(plan.config, plan.vocab).flops_per_token * plan.tokens();
  const Machine& m = *plan.machine;
  const double nodes = !m.shared ? plan.ranks : m.ranks_per_node > 0 ? std::max(1.0, plan.ranks / m.ranks_per_node) : 1;
  return needed / (c.time->total() * m.peak(plan.config.dtype()) * nodes);
}

std::string times_text(const Plan& plan, std::size_t shown) {
  std::vector<std::string> header{"layout", "tokens/s", "of peak", "step ms"};
  for (int i = 0; i < num_time_categories; ++i)
    if (plan.loaded || static_cast<TimeCategory>(i) != TimeCategory::waiting)
      header.emplace_back(name_of(static_cast<TimeCategory>(i)));
  header.emplace_back("behind the first by");
  Table table(header);
  for (std::size_t i = 0; i < shown; ++i) {
    const Candidate& c = plan.fitting[i];
    std::vector<std::string> cells{c.layout.short_name(), short_count_text(plan.tokens() / c.time->total()),
                                   percent_text(of_peak(plan, c)), milliseconds(c.time->total())};
    for (int p = 0; p < num_time_categories; ++p)
      if (plan.loaded || static_cast<TimeCategory>(p) != TimeCategory::waiting)
        cells.push_back(milliseconds(c.time->seconds[p]));
    cells.push_back(loss_of(c, plan.fitting.front()));
    table.row(cells);
  }
  return table.str();
}

std::string memory_text(const Plan& plan, std::size_t shown) {
  double bytes = 0, flops = 0, sent_bytes = 0;
  for (std::size_t i = 0; i < shown; ++i) {
    bytes = std::max(bytes, static_cast<double>(plan.needed(plan.fitting[i].memory)));
    sent_bytes = std::max(sent_bytes, plan.fitting[i].sent());
    flops = std::max(flops, plan.fitting[i].flops);
  }
  // One unit for all bytes, in which the smaller ones are readable too.
  const Unit b = unit_of(sent_bytes > 0 ? std::min(bytes, sent_bytes) : bytes, "B"), f = unit_of(flops, "FLOP");
  const bool copies = std::any_of(plan.fitting.begin(), plan.fitting.end(),
                                  [&](auto& c) { return plan.checkpoint_copy(c.memory) > 0; });
  std::vector<std::string> header{"layout",    "micro-batches", std::string("memory ") + b.name, "weights", "gradients",
                                  "optimizer", "activations"};
  if (copies) header.emplace_back("checkpoint copy");
  header.insert(header.end(), {f.name, std::string("sent ") + b.name});
  Table table(header);
  for (std::size_t i = 0; i < shown; ++i) {
    const Candidate& c = plan.fitting[i];
    const auto of = [&](Index n) { return b(static_cast<double>(n)); };
    std::vector<std::string> cells{c.layout.short_name(),     std::to_string(c.passes), of(plan.needed(c.memory)),
                                   of(c.memory.weights),      of(c.memory.gradients),   of(c.memory.optimizer),
                                   of(c.memory.activations())};
    if (copies) cells.push_back(of(plan.checkpoint_copy(c.memory)));
    cells.insert(cells.end(), {f(c.flops), b(c.sent())});
    table.row(cells);
  }
  return table.str();
}

std::string traffic_text(const Plan& plan, const Candidate& c) {
  double largest = 0;
  for (const TrafficLine& line : c.traffic) largest = std::max(largest, std::max(line.sent, line.received));
  const Unit b = unit_of(largest, "B");
  std::vector<std::string> header{"collective", "of what", "group x ranks", "calls", std::string("sent ") + b.name,
                                  "received"};
  if (plan.machine) header.emplace_back("ms");
  Table table(header);
  for (const TrafficLine& line : c.traffic) {
    std::vector<std::string> cells{std::string(name_of(line.kind)),
                                   std::string(meaning_of(line)),
                                   fmt::format("{} x {}", line.group, line.ranks),
                                   fmt::format("{:.0f}", line.calls),
                                   b(line.sent),
                                   b(line.received)};
    if (plan.machine) cells.push_back(milliseconds(line.seconds));
    table.row(cells);
  }
  return table.str();
}

std::string operations_text(const Plan& plan, const Candidate& c) {
  double flops = 0, bytes = 0, seconds = 0;
  for (const OperationLine& line : c.operations) {
    flops = std::max(flops, line.flops);
    bytes = std::max(bytes, line.bytes);
    seconds += line.seconds;
  }
  const Unit f = unit_of(flops, "FLOP"), b = unit_of(bytes, "B");
  std::vector<std::string> header{"operation", "of the", "calls", f.name, b.name};
  if (plan.machine) header.insert(header.end(), {"ms", "share"});
  Table table(header);
  for (const OperationLine& line : c.operations) {
    std::vector<std::string> cells{std::string(line.op), line.update ? "update" : "passes",
                                   fmt::format("{:.0f}", line.calls), f(line.flops), b(line.bytes)};
    if (plan.machine) {
      cells.push_back(milliseconds(line.seconds));
      cells.push_back(percent_text(line.seconds / seconds));
    }
    table.row(cells);
  }
  return table.str();
}

// Returns the largest share of the memory, with its name.
std::pair<const char*, Index> largest_share(const Plan& plan, const MemoryPlan& m) {
  const std::pair<const char*, Index> shares[] = {{"weights", m.weights},
                                                  {"gradients", m.gradients},
                                                  {"optimizer", m.optimizer},
                                                  {"activations", m.activations()},
                                                  {"checkpoint copy", plan.checkpoint_copy(m)}};
  return *std::ranges::max_element(shares, {}, &std::pair<const char*, Index>::second);
}

// Returns how many layouts fit without the copy of a checkpoint; "" if there are none.
std::string copies_text(const Plan& plan) {
  const auto fit = std::ranges::count_if(
      plan.too_large, [&](const Candidate& c) { return c.passes > 0 && plan.holds(c.memory.total()); });
  if (fit == 0) return "";
  return fmt::format("With --run.async_checkpoint=false, which needs no copy of a checkpoint, {} of them {}\n", fit,
                     fit == 1 ? "fits" : "fit");
}

// If nothing fits: suggests settings with which some layouts fit.
std::string suggestions_text(const Plan& plan, const Unit& unit) {
  if (!plan.fitting.empty() || !plan.suggested) return "";
  const Config::Train& train = plan.config.train;
  if (plan.suggestions.empty())
    return fmt::format("\nNothing fits, even with train.micro_batch = 1 and train.recompute = {}: use more ranks{}\n",
                       train.reversible ? "none" : "block",
                       plan.config.run.dtype == "f32" && !train.reversible ? ", or --run.dtype=bf16" : "");
  Table table({"with", "layouts that fit", "the fastest", std::string("memory ") + unit.name});
  for (const Suggestion& s : plan.suggestions)
    table.row({s.options(plan.config), std::to_string(s.layouts), s.best.layout.short_name(),
               unit(static_cast<double>(plan.needed(s.best.memory)))});
  return fmt::format("\nNothing fits with train.micro_batch = {} and train.recompute = {}. These options do:\n{}",
                     train.micro_batch, value_of(plan.config, "train.recompute"), table.str());
}

Json integer(double x) {
  return static_cast<Index>(std::llround(x));
}
Json seconds_json(const std::optional<StepTime>& time) {
  if (!time) return {};
  Json json = Json::object();
  for (int i = 0; i < num_time_categories; ++i) json[name_of(static_cast<TimeCategory>(i))] = time->seconds[i];
  json["step"] = time->total();
  return json;
}

// Every row has the same fields. A field is null if the layout was not profiled or there is no
// machine.
Json candidate_json(const Plan& plan, const Candidate& c) {
  const Layout& l = c.layout;
  const bool profiled = c.passes > 0;
  const auto rows_of = [&](const auto& lines, const auto& row_of) {
    Json rows;
    if (profiled) rows = Json::array();
    for (const auto& line : lines) rows.push_back(row_of(line));
    return rows;
  };
  const auto seconds = [&](double predicted) { return plan.machine ? Json(predicted) : Json(); };
  Json traffic = rows_of(c.traffic, [&](const TrafficLine& line) -> Json {
    return {{"group", line.group},
            {"ranks", line.ranks},
            {"collective", name_of(line.kind)},
            {"what", meaning_of(line)},
            {"calls", integer(line.calls)},
            {"roots", integer(line.roots)},
            {"sent_bytes", integer(line.sent)},
            {"received_bytes", integer(line.received)},
            {"seconds", seconds(line.seconds)}};
  });
  Json calls = rows_of(c.operations, [&](const OperationLine& line) -> Json {
    return {{"operation", line.op}, {"update", line.update},        {"calls", integer(line.calls)},
            {"flops", line.flops},  {"bytes", integer(line.bytes)}, {"seconds", seconds(line.seconds)}};
  });
  const MemoryPlan& m = c.memory;
  return {{"tp", l.tp},
          {"ep", l.ep},
          {"etp", l.etp},
          {"node", l.ranks_per_node},
          {"dp", l.dp()},
          {"edp", l.edp()},
          {"fits", c.fits},
          {"memory",
           {{"weights", m.weights},
            {"gradients", m.gradients},
            {"optimizer", m.optimizer},
            {"activations", profiled ? Json(m.activations()) : Json()},
            {"total", m.total()},
            {"checkpoint_copy", plan.config.run.async_checkpoint ? m.checkpoint_copy : 0}}},
          {"micro_batches", profiled ? Json(c.passes) : Json()},
          {"flops", profiled ? Json(c.flops) : Json()},
          {"sent_bytes", profiled ? integer(c.sent()) : Json()},
          {"traffic", std::move(traffic)},
          {"operations", std::move(calls)},
          {"seconds", seconds_json(c.time)},
          {"tokens_per_second", c.time ? Json(plan.tokens() / c.time->total()) : Json()},
          {"of_peak", c.time ? Json(of_peak(plan, c)) : Json()}};
}

}  // namespace

std::string plan_text(const Plan& plan, std::size_t shown, bool operations) {
  const ModelCosts costs = model_costs(plan.config, plan.vocab);
  const auto short_count = [](Index n) { return short_count_text(static_cast<double>(n)); };
  std::string text = fmt::format("{}{}: {} parameters, {} active per token; a step of {} sequences of {} tokens, {}\n",
                                 counted(plan.ranks, "rank"), plan.machine ? " of " + plan.machine->name : "",
                                 short_count(costs.parameters.total), short_count(costs.parameters.active),
                                 plan.config.train.global_batch, plan.config.model.seq_len, plan.config.run.dtype);
  const std::size_t fitting = plan.fitting.size();
  if (shown == 0 || shown > fitting) shown = fitting;
  if (fitting > 0) {
    if (plan.machine)
      text += fmt::format(
          "\nTime of a step, {}\n{}",
          plan.loaded ? "with the recorded load: every layer waits for its busiest rank" : "with experts equally busy",
          times_text(plan, shown));
    text += fmt::format("\nMemory, FLOPs and bytes of a step, of the rank that has most\n{}", memory_text(plan, shown));
    if (shown < fitting)
      text += fmt::format("{} (--top 0 shows all)\n", fitting - shown == 1
                                                          ? "1 more layout fits"
                                                          : fmt::format("{} more layouts fit", fitting - shown));
    if (plan.without_load > 0)
      text += fmt::format(
          "Only the {} layouts that are the fastest with balanced experts were planned with the load; {} {} not "
          "(--layouts plans others)\n",
          plan.with_load, plan.without_load, plan.without_load == 1 ? "was" : "were");
    const Candidate& best = plan.fitting.front();
    if (!best.traffic.empty())
      text +=
          fmt::format("\nWhat each rank sends in a step of {}\n{}", best.layout.short_name(), traffic_text(plan, best));
    if (operations)
      text += fmt::format("\nOperations of a rank in a step of {}\n{}", best.layout.short_name(),
                          operations_text(plan, best));
  }
  if (plan.too_large.empty()) return text;
  const Unit b = unit_of(plan.memory, "B");
  const Index too_large = std::ssize(plan.too_large);
  text += fmt::format("\n{} {} not fit into the {} {} of a rank. The least need\n", counted(too_large, "layout"),
                      too_large == 1 ? "does" : "do", b(plan.memory), b.name);
  Table table({"layout", std::string("memory ") + b.name, "most of it"});
  for (std::size_t i = 0; i < std::min<std::size_t>(plan.too_large.size(), 3); ++i) {
    const Candidate& c = plan.too_large[i];
    const auto [name, bytes] = largest_share(plan, c.memory);
    table.row({c.layout.short_name(),
               b(static_cast<double>(plan.needed(c.memory))) + (c.memory.activations() == 0 ? " and activations" : ""),
               fmt::format("{} {}", name, b(static_cast<double>(bytes)))});
  }
  return text + table.str() + copies_text(plan) + suggestions_text(plan, b);
}

Json plan_json(const Plan& plan) {
  const ModelCosts costs = model_costs(plan.config, plan.vocab);
  Json json{{"ranks", plan.ranks},
            {"vocab", plan.vocab},
            {"parameters", costs.parameters.total},
            {"active_parameters", costs.parameters.active},
            {"flops_per_token", costs.flops_per_token},
            {"tokens_per_step", integer(plan.tokens())},
            {"load", plan.loaded ? "recorded" : "balanced"},
            {"layouts_with_load", plan.with_load},
            {"layouts_without_load", plan.without_load},
            {"memory_of_a_rank", plan.machine ? integer(plan.memory) : Json()},
            {"layouts", Json::array()},
            {"too_large", Json::array()},
            {"suggestions", Json::array()}};
  for (const Candidate& c : plan.fitting) json["layouts"].push_back(candidate_json(plan, c));
  for (const Candidate& c : plan.too_large) json["too_large"].push_back(candidate_json(plan, c));
  for (const Suggestion& s : plan.suggestions)
    json["suggestions"].push_back({{"options", s.options(plan.config)},
                                   {"micro_batch", s.micro_batch},
                                   {"recompute", value_of(s.apply(plan.config), "train.recompute")},
                                   {"layouts", s.layouts},
                                   {"best", candidate_json(plan, s.best)}});
  return json;
}

}  // namespace sy
