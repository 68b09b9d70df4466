#include "src/experiments/step_breakdown.h"

#include <algorithm>

#include "dist/comm.h"
#include "src/system/files.h"
#include "src/text/json.h"

namespace sy {

namespace fs = std::filesystem;

namespace {

struct Open {
  double end;
  std::string name;
};

bool is_collective(std::string_view name) {
  for (int kind = 0; kind < num_collectives; ++kind)
    if (name_of(static_cast<Collective>(kind)) == name) return true;
  return false;
}

// Returns the category of a collective inside these spans, the innermost last.
TimeCategory category_within(const std::vector<Open>& spans) {
  constexpr std::pair<std::string_view, TimeCategory> table[] = {
      {"dispatch", TimeCategory::dispatch},
      {"combine", TimeCategory::combine},
      {"route", TimeCategory::statistics},
      {"gradients", TimeCategory::gradients},
      {"optimizer", TimeCategory::gradients},
      {"weights", TimeCategory::gradients},
      {"statistics", TimeCategory::statistics},
      {"data", TimeCategory::statistics},
      {"attention", TimeCategory::tensor},
      {"mlp", TimeCategory::tensor},
      {"moe", TimeCategory::tensor},
      {"shared experts", TimeCategory::tensor},
      {"output and loss", TimeCategory::tensor},
      {"embedding", TimeCategory::tensor},
      {"gradient of the embedding", TimeCategory::tensor},
      {"passes", TimeCategory::gradients}};  // gradients that a layer's backward leaves in flight
  for (size_t i = spans.size(); i-- > 0;)
    for (const auto& [name, category] : table)
      if (spans[i].name == name) return category;
  return TimeCategory::statistics;
}

}  // namespace

std::optional<StepTime> rank_breakdown(const std::string& trace) {
  StepTime sum;
  int steps = 0;
  double whole = 0;
  std::vector<Open> open;  // the spans around the current one
  const Json json = Json::parse(trace);
  for (const Json& event : json.at("traceEvents")) {
    if (event.at("ph").get<std::string>() != "X") continue;
    const auto name = event.at("name").get<std::string>();
    const double begin = event.at("ts").get<double>(), took = event.at("dur").get<double>();
    while (!open.empty() && open.back().end <= begin) open.pop_back();
    if (name == "step") {
      ++steps;
      whole += took;
    } else if (is_collective(name) && !open.empty()) {
      sum[category_within(open)] += took;
    }
    open.push_back({begin + took, name});
  }
  if (steps == 0) return std::nullopt;
  sum[TimeCategory::compute] = whole - sum.total();
  for (double& s : sum.seconds) s /= 1e6 * steps;
  return sum;
}

std::optional<StepTime> mean_breakdown(const std::vector<StepTime>& ranks) {
  if (ranks.empty()) return std::nullopt;
  StepTime mean;
  for (int p = 0; p < num_time_categories; ++p) {
    const auto category = static_cast<TimeCategory>(p);
    double sum = 0, least = ranks.front()[category];
    for (const StepTime& rank : ranks) {
      sum += rank[category];
      least = std::min(least, rank[category]);
    }
    const double of_ranks = sum / static_cast<double>(ranks.size());
    const bool waits = category != TimeCategory::compute;
    mean[category] += waits ? least : of_ranks;
    if (waits) mean[TimeCategory::waiting] += of_ranks - least;
  }
  return mean;
}

std::optional<StepTime> traced_breakdown(const fs::path& run) {
  std::vector<StepTime> ranks;
  constexpr Index most_bytes = Index{16} << 30;  // a trace of many steps
  const fs::path folder = run / "trace";
  if (!file_exists(folder)) return mean_breakdown(ranks);
  for (const fs::path& file : entries_of(folder)) {
    try {
      if (const auto breakdown = rank_breakdown(read_file(file, most_bytes))) ranks.push_back(*breakdown);
    } catch (const JsonError& e) {
      bad_input("{} is no trace ({}): remove it", file.string(), e.what());
    }
  }
  return mean_breakdown(ranks);
}

}  // namespace sy
