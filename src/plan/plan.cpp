#include "src/plan/plan.h"

#include <algorithm>
#include <functional>
#include <utility>

#include "src/config.h"
#include "src/config/layout.h"
#include "src/text/error_list.h"
#include "src/text/numbers.h"
#include "src/text/strings.h"

namespace sy {
namespace {

std::vector<TrafficLine> traffic_of(const Profile& profile, const Layout& layout, Index kv_heads,
                                    const std::optional<Machine>& machine) {
  std::vector<TrafficLine> lines;
  for (const bool update : {false, true})
    for (const auto& [key, times] : (update ? profile.update : profile.pass).transfers) {
      const std::string_view group = key.first;
      const DryTransfer& transfer = key.second;
      const auto same = [&](const TrafficLine& line) {
        return line.group == group && line.kind == transfer.kind && line.subphase == transfer.subphase &&
               line.update == update;
      };
      const GroupShape shape = group_shape(group, layout, kv_heads);
      auto line = std::find_if(lines.begin(), lines.end(), same);
      if (line == lines.end())
        line = lines.insert(lines.end(), {group, shape.size, transfer.kind, transfer.subphase, update});
      line->calls += times;
      line->roots += times * static_cast<double>(transfer.roots);
      line->sent += times * static_cast<double>(transfer.sent);
      line->received += times * static_cast<double>(transfer.received);
      if (!machine) continue;
      const Peers peers = peers_of(shape, static_cast<int>(machine->ranks_per_node));
      line->seconds += times * seconds_of(*machine, layout.ranks, group, peers, transfer);
    }
  return lines;
}

std::vector<OperationLine> operations_of(const Profile& profile, int ranks, DType dtype,
                                         const std::optional<Machine>& machine) {
  std::vector<OperationLine> lines;
  for (const bool update : {false, true})
    for (const auto& entry : (update ? profile.update : profile.pass).calls) {
      const DryCall& call = entry.first;
      const double times = entry.second;
      const auto same = [&](const OperationLine& line) { return line.op == call.op && line.update == update; };
      auto line = std::ranges::find_if(lines, same);
      if (line == lines.end()) line = lines.insert(lines.end(), {call.op, update});
      line->calls += times;
      line->flops += times * call.flops;
      line->bytes += times * call.bytes;
      if (machine) line->seconds += times * seconds_of(*machine, dtype, ranks, call);
    }
  std::ranges::stable_sort(lines, std::greater<>(), machine ? &OperationLine::seconds : &OperationLine::bytes);
  return lines;
}

// Plans one layout at a time.
class Planner {
 public:
  // plan: without layouts yet. It must outlive this object.
  Planner(const Plan& plan, const PlanOptions& options)
      : plan_(plan),
        config_(plan.config),
        options_(options),
        kv_heads_(config_.model_of(config_.model.layers - 1).kv_heads),
        device_(options.machine && options.machine->backend == "cuda" ? nullptr : make_cpu()),
        profiler_(config_, plan.vocab, device_.get()) {}

  Candidate profile_layout(const Layout& layout) const {
    Candidate c{layout};
    c.memory = profiler_.parameters(layout);
    c.fits = plan_.holds(c.memory.total());
    if (!c.fits) return c;
    const Profile profile = profiler_.balanced(layout);
    c.memory = profile.memory;
    c.fits = plan_.fits(c.memory);
    describe(profile, c);
    return c;
  }

  // Replaces the candidate's values by those with the load's rows.
  void load(Candidate& c) const {
    // A rank's number grows by etp with its index along ep.
    const int ep = c.layout.ep, first = c.layout.etp;
    const Shares rows = *options_.load, ranks = by_rank(rows, ep);
    // Find the busiest rank: over all layers, or in its largest layer if layers are recomputed.
    std::vector<double> sum(static_cast<std::size_t>(ep)), most(sum);
    for (const std::vector<double>& layer : ranks)
      for (int r = 0; r < ep; ++r) {
        sum[r] += layer[r];
        most[r] = std::max(most[r], layer[r]);
      }
    const bool one_layer = config_.train.recompute == Recompute::block || config_.train.reversible;
    const auto& by = one_layer ? most : sum;
    const int busiest = static_cast<int>(std::max_element(by.begin(), by.end()) - by.begin());
    c.memory = profiler_.loaded(c.layout, busiest * first, rows).memory;
    c.fits = plan_.fits(c.memory);
    describe(profiler_.loaded(c.layout, 0, busiest_first(rows, ep)), c);
    if (!options_.machine) return;
    Candidate mean{c.layout};
    describe(profiler_.loaded(c.layout, 0, evened(rows)), mean);
    const double waiting = c.time->total() - mean.time->total();
    c.time = mean.time;
    (*c.time)[TimeCategory::waiting] = std::max(0.0, waiting);
  }

 private:
  void describe(const Profile& profile, Candidate& c) const {
    c.passes = profile.passes;
    c.flops = profile.pass.flops() + profile.update.flops();
    c.traffic = traffic_of(profile, c.layout, kv_heads_, options_.machine);
    c.operations = operations_of(profile, c.layout.ranks, config_.dtype(), options_.machine);
    if (options_.machine) c.time = step_time(*options_.machine, config_.dtype(), c.layout, kv_heads_, profile);
  }

  const Plan& plan_;
  const Config& config_;
  const PlanOptions& options_;
  Index kv_heads_;  // of the group "replicas", as for join_replicas()
  std::unique_ptr<Device> device_;
  Profiler profiler_;
};

// Returns the divisors of n up to `largest`, the largest first.
std::vector<Index> divisors_to(Index n, Index largest) {
  std::vector<Index> divisors;
  for (Index d = std::min(n, largest); d >= 1; --d)
    if (n % d == 0) divisors.push_back(d);
  return divisors;
}

// Returns the plan of a changed configuration; empty if no layout fits.
std::optional<Plan> plan_that_fits(Config config, Index micro_batch, Recompute recompute, Index vocab, int ranks,
                                   PlanOptions options) {
  options.suggest = false;
  config.train.micro_batch = micro_batch;
  config.train.recompute = recompute;
  if (options.progress)
    options.progress = [phase = fmt::format("trying train.micro_batch={} and train.recompute={}", micro_batch,
                                            value_of(config, "train.recompute")),
                        progress = options.progress](std::string_view, Index done, Index total) {
      progress(phase, done, total);
    };
  try {
    Plan plan = make_plan(config, vocab, ranks, options);
    if (!plan.fitting.empty()) return plan;
  } catch (const InputError&) {  // no layout divides the batch this way
  }
  return std::nullopt;
}

std::vector<Suggestion> find_suggestions(const Config& config, Index vocab, int ranks, const PlanOptions& options) {
  using enum Recompute;
  const Recompute configured = config.train.recompute;
  std::vector<Suggestion> found;
  std::vector<Recompute> modes;
  for (const Recompute mode : {none, norms, experts, attention, block})
    if (mode == configured || (mode > configured && !config.train.reversible)) modes.push_back(mode);
  // The dearest mode almost always needs the least memory.
  const bool possible = std::any_of(modes.rbegin(), modes.rend(), [&](Recompute mode) {
    return (config.train.micro_batch > 1 || mode != configured) &&
           plan_that_fits(config, 1, mode, vocab, ranks, options);
  });
  if (!possible) return found;
  for (const Recompute recompute : modes)
    for (const Index micro_batch : divisors_to(config.train.global_batch, config.train.micro_batch)) {
      if (!found.empty() && micro_batch <= found.back().micro_batch) break;
      // The configuration itself is known not to fit.
      if (micro_batch == config.train.micro_batch && recompute == configured) continue;
      auto plan = plan_that_fits(config, micro_batch, recompute, vocab, ranks, options);
      if (!plan) continue;
      found.push_back({micro_batch, recompute, plan->fitting.size(), std::move(plan->fitting.front())});
      break;
    }
  return found;
}

bool better(const Candidate& a, const Candidate& b) {
  if (a.time && b.time) return a.time->total() < b.time->total();
  return a.memory.total() < b.memory.total();
}

}  // namespace

double Candidate::sent() const {
  double sum = 0;
  for (const TrafficLine& line : traffic) sum += line.sent;
  return sum;
}

Config Suggestion::apply(Config config) const {
  config.train.micro_batch = micro_batch;
  config.train.recompute = recompute;
  return config;
}

std::string Suggestion::options(const Config& config) const {
  std::vector<std::string> changed;
  const Config applied = apply(config);
  for (const char* key : {"train.micro_batch", "train.recompute"})
    if (const std::string value = value_of(applied, key); value != value_of(config, key))
      changed.push_back(fmt::format("--{}={}", key, value));
  return join(changed, " ");
}

void check_machine_computes(const Machine& machine, const Config& config) {
  if (machine.peak(config.dtype()) == 0)
    bad_input("run.dtype = {}, and the machine {} has no compute.peak_{}: {}", config.run.dtype, machine.name,
              config.run.dtype, machine.backend == "cpu" ? "set run.dtype = f32" : "set another run.dtype");
}

std::vector<Layout> layouts_to_plan(const Config& config, Index vocab, int ranks, const PlanOptions& options) {
  const auto splits = [&](const Layout& l) { return vocab == 0 || vocab >= l.tp; };
  std::vector<Layout> layouts = options.layouts;
  if (layouts.empty()) {
    layouts = layouts_of(config, ranks, options.machine ? options.machine->node() : 1);
    std::erase_if(layouts, [&](const Layout& l) { return !splits(l); });
    if (layouts.empty()) check_config_for_layout(config, {ranks});
    if (layouts.empty()) bad_input("no layout of {} splits a vocabulary of {}", counted(ranks, "rank"), vocab);
    return layouts;
  }
  ErrorList errors("plan");
  for (Layout& l : layouts) {
    l.ranks = ranks;
    const bool fits = errors.run([&] { check_config_for_layout(config, l); });
    if (fits && !splits(l)) errors.add("a vocabulary of {} cannot be split over tp {} ranks: lower tp", vocab, l.tp);
  }
  errors.raise();
  return layouts;
}

Plan make_plan(const Config& config, Index vocab, int ranks, const PlanOptions& options) {
  const std::optional<Machine>& machine = options.machine;
  if (machine) check_machine_computes(*machine, config);
  const std::vector<Layout> layouts = layouts_to_plan(config, vocab, ranks, options);
  Plan plan{config, vocab, ranks, machine, options.load.has_value(), 0, {}, {}};
  if (machine) plan.memory = machine->memory_of_rank(ranks);
  const Planner planner(plan, options);
  const std::string phase = fmt::format("planning for {} ranks", ranks);
  const auto report = [&](Index done, Index total) {
    if (options.progress) options.progress(phase, done, total);
  };
  for (const Layout& layout : layouts) {
    Candidate c = planner.profile_layout(layout);
    (c.fits ? plan.fitting : plan.too_large).push_back(std::move(c));
    report(std::ssize(plan.fitting) + std::ssize(plan.too_large), std::ssize(layouts));
  }
  std::ranges::stable_sort(plan.fitting, better);
  if (options.load) {
    std::vector<Candidate> balanced = std::exchange(plan.fitting, {});
    std::size_t& done = plan.with_load;
    while (done < balanced.size() && (done % max_loaded_layouts > 0 || plan.fitting.empty())) {
      const std::size_t first = done - done % max_loaded_layouts;
      if (options.progress)
        options.progress("applying the load", static_cast<Index>(done),
                         static_cast<Index>(std::min(balanced.size(), first + max_loaded_layouts)));
      Candidate& c = balanced[done++];
      planner.load(c);
      (c.fits ? plan.fitting : plan.too_large).push_back(std::move(c));
    }
    plan.without_load = balanced.size() - done;
    std::ranges::stable_sort(plan.fitting, better);
  }
  std::ranges::stable_sort(plan.too_large, {}, [&](const Candidate& c) { return plan.needed(c.memory); });
  plan.suggested = options.suggest && machine;
  if (plan.suggested && plan.fitting.empty()) plan.suggestions = find_suggestions(plan.config, vocab, ranks, options);
  return plan;
}

std::vector<Layout> parse_layouts(const std::string& text, int ranks) {
  std::vector<Layout> layouts;
  for (const std::string& item : split_list(text)) {
    Layout layout{ranks};
    std::vector<std::string_view> named;
    for (std::size_t at = 0; at <= item.size();) {
      const std::size_t end = std::min(item.find('-', at), item.size());
      const std::string_view axis_text = std::string_view(item).substr(at, end - at);
      const std::size_t digits = std::min(axis_text.find_first_of("0123456789"), axis_text.size());
      const std::string_view name = axis_text.substr(0, digits);
      const auto axis = std::ranges::find(layout_axes, name, &LayoutAxis::name);
      const int value = parse_number<int>(axis_text.substr(digits)).value_or(0);
      if (axis == std::end(layout_axes) || value < 1)
        bad_input("--layouts '{}': write layouts as tp2-ep4-etp1, with commas between them", item);
      if (std::ranges::find(named, name) != named.end())
        bad_input("--layouts '{}': {} is there twice: keep one", item, name);
      named.push_back(name);
      layout.*axis->size = value;
      at = end + 1;
    }
    if (std::ranges::find(layouts, layout) == layouts.end()) layouts.push_back(layout);
  }
  if (layouts.empty()) bad_input("--layouts: it is empty: write layouts as tp2-ep4-etp1, with commas between them");
  return layouts;
}

}  // namespace sy
