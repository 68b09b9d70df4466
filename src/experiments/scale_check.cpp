#include "src/experiments/scale_check.h"

#include <algorithm>
#include <cmath>
#include <iterator>

#include "src/experiments/document.h"
#include "src/experiments/trainings.h"
#include "src/system/files.h"
#include "src/text/numbers.h"
#include "src/text/strings.h"

namespace sy {
namespace {

std::string text_of(const Json& value) {
  return value.is_string() ? value.get<std::string>() : value.dump();
}

// Returns the configuration of a document (config_json). Throws InputError if this version does not
// have its keys.
Config config_of(const Json& document, const std::string& file) {
  std::string ini;
  for (const Json::Member& section : document.at("configuration").members()) {
    ini += "[" + section.name + "]\n";
    for (const Json::Member& key : section.value.members()) ini += key.name + " = " + text_of(key.value) + "\n";
  }
  return parse_config(ini, "the configuration in " + file);
}

bool same_point(const Json& earlier, const ScalePoint& p) {
  const auto number = [&](const char* name) { return earlier.at(name).get<Index>(); };
  const Layout& l = p.layout;
  return number("ranks") == l.ranks && number("tp") == l.tp && number("ep") == l.ep && number("etp") == l.etp &&
         number("node") == l.ranks_per_node && number("global_batch") == p.global_batch &&
         number("micro_batch") == p.micro_batch && earlier.at("balanced").get<bool>() == p.balanced;
}

}  // namespace

Json read_scale_json(const std::filesystem::path& file) {
  std::string problem = "it is no document of `switchyard scale`";
  try {
    Json document = Json::parse(read_file(file));
    const Json *const format = document.find("format"), *const version = document.find("version");
    if (version && version->get<Index>() > json_version) {
      problem = fmt::format("it has version {} of the format, and this program reads versions up to {}",
                            version->get<Index>(), json_version);
    } else if (format && *format == Json("switchyard-scale")) {
      document.at("environment").members();
      for (const Json::Member& section : document.at("configuration").members()) section.value.members();
      for (const Json& p : document.at("points"))
        for (const char* name :
             {"ranks", "tp", "ep", "etp", "node", "global_batch", "micro_batch", "balanced", "tokens_per_second"})
          p.at(name);
      return document;
    }
  } catch (const JsonError& e) {
    problem = e.what();
  }
  bad_input("{} cannot be compared with: {}: give the OUTPUT/NAME.json of an earlier call", file.string(), problem);
}

void check_comparable(const Json& earlier, const ScaleResult& result, const std::string& file) {
  std::vector<std::string> other;
  const auto compare = [&](const std::string& name, const std::string& here, const std::string& there) {
    if (here != there) other.push_back(fmt::format("{}: {} here, {} there", name, here, there));
  };
  const Json environment = result.environment.json();
  for (const Json::Member& m : environment.members()) {
    if (m.name == "build") continue;
    const Json* const there = earlier.at("environment").find(m.name);
    compare(m.name, text_of(m.value), there ? text_of(*there) : "unknown");
  }
  const Config there = config_of(earlier, file);
  std::ranges::move(different_settings(result.config, there), std::back_inserter(other));
  compare("run.backend", result.config.run.backend, there.run.backend);
  if (!other.empty())
    bad_input("{} is of another environment or configuration ({}): give a result of this one, or --check-any", file,
              join(other));
}

bool ScaleComparison::fell() const {
  return std::ranges::any_of(points, [](const Point& p) { return p.fell; });
}

ScaleComparison compare_scale(const Json& earlier, const ScaleResult& result, const std::string& file, double limit) {
  ScaleComparison comparison{.file = file, .limit = limit, .points = {}};
  try {
    for (const Json& before : earlier.at("points")) {
      if (before.at("tokens_per_second").is_null()) continue;
      const auto now = std::ranges::find_if(result.points, [&](const ScalePoint& p) { return same_point(before, p); });
      if (now == result.points.end()) {
        ++comparison.missing;
        continue;
      }
      ScaleComparison::Point point{
          fmt::format("{} on {}, batch {}, {} routing", now->layout.short_name(), counted(now->layout.ranks, "rank"),
                      now->global_batch, now->balanced ? "balanced" : "own"),
          before.at("tokens_per_second").get<double>(), now->tokens_per_second()};
      // Rounding must not hide a fall by exactly the limit.
      constexpr double rounding = 1e-9;
      point.fell = !(point.change() > -limit + rounding);  // also if it is NaN
      comparison.points.push_back(std::move(point));
      if (now->reused) ++comparison.reused;
    }
  } catch (const JsonError& e) {
    bad_input("{} cannot be compared with: {}", file, e.what());
  }
  if (comparison.points.empty())
    bad_input(
        "{} has no measured point with the layout, the batch, the micro-batch and the routing of a point of this "
        "result: give a result of the same --ranks and --layouts",
        file);
  return comparison;
}

std::string comparison_text(const ScaleComparison& comparison) {
  const auto fell = std::ranges::count_if(comparison.points, [](const auto& p) { return p.fell; });
  std::string text = fmt::format("check against {}: {} compared, {} fell by {} or more\n", comparison.file,
                                 counted(std::ssize(comparison.points), "point"), fell, percent_text(comparison.limit));
  for (const ScaleComparison::Point& p : comparison.points)
    if (p.fell)
      text += fmt::format("fell: {}: {} tokens/s before, {}\n", p.name, short_count_text(p.before),
                          std::isfinite(p.now)
                              ? fmt::format("{} now, {} less", short_count_text(p.now), percent_text(-p.change()))
                              : "failed now");
  if (comparison.missing > 0)
    text += fmt::format("{} of {} not in this result\n",
                        comparison.missing == 1 ? "1 point" : fmt::format("{} points", comparison.missing),
                        comparison.file + (comparison.missing == 1 ? " is" : " are"));
  if (comparison.reused > 0)
    text += fmt::format(
        "{} measured by an earlier call of this build: remove their runs to measure them again\n",
        comparison.reused == 1 ? "1 of the points was" : fmt::format("{} of the points were", comparison.reused));
  return text;
}

Json comparison_json(const ScaleComparison& comparison) {
  Json points = Json::array();
  for (const ScaleComparison::Point& p : comparison.points)
    points.push_back({{"point", p.name},
                      {"tokens_per_second_before", p.before},
                      {"tokens_per_second", p.now},
                      {"change", p.change()},
                      {"fell", p.fell}});
  return {{"file", comparison.file},
          {"limit", comparison.limit},
          {"fell", comparison.fell()},
          {"missing", comparison.missing},
          {"points", std::move(points)}};
}

}  // namespace sy
