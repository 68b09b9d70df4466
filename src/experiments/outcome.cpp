#include "src/experiments/outcome.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <string>

#include "src/io/expert_history.h"
#include "src/system/files.h"
#include "src/text/json.h"

namespace sy {
namespace {

double mean_violation(const Json& experts) {
  double sum = 0;
  Index layers = 0;
  for (const std::vector<Index>& loads : experts.at("routed").get<std::vector<std::vector<Index>>>()) {
    if (std::all_of(loads.begin(), loads.end(), [](Index n) { return n == 0; })) continue;
    sum += max_over_mean(loads) - 1;
    ++layers;
  }
  return layers > 0 ? sum / static_cast<double>(layers) : not_known;
}

}  // namespace

double mean(const std::vector<double>& values) {
  if (values.empty()) return not_known;
  return std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
}

double deviation(const std::vector<double>& values) {
  if (values.size() < 2) return not_known;
  const double middle = mean(values);
  double sum = 0;
  for (const double v : values) sum += (v - middle) * (v - middle);
  return std::sqrt(sum / static_cast<double>(values.size() - 1));
}

double median(std::vector<double> values) {
  if (values.empty()) return not_known;
  std::sort(values.begin(), values.end());
  const std::size_t n = values.size();
  return n % 2 ? values[n / 2] : (values[n / 2 - 1] + values[n / 2]) / 2;
}

std::optional<MedianInterval> median_interval(std::vector<double> values, double confidence) {
  const std::size_t n = values.size();
  if (n < 2) return std::nullopt;
  std::sort(values.begin(), values.end());
  // `outside` is the probability that fewer than j values of n lie below the median.
  double probability = std::pow(0.5, static_cast<double>(n)), outside = probability;
  std::size_t j = 1;
  for (;;) {
    const double next = probability * static_cast<double>(n - j + 1) / static_cast<double>(j);
    if (2 * (j + 1) > n || 1 - 2 * (outside + next) < confidence) break;
    probability = next;
    outside += next;
    ++j;
  }
  return MedianInterval{values[j - 1], values[n - j], 1 - 2 * outside};
}

std::span<const StepRecord> Outcome::last_tenth() const {
  const std::size_t count = std::min(steps.size(), std::max<std::size_t>(1, steps.size() / 10));
  return std::span(steps).last(count);
}

double Outcome::loss() const {
  if (!validation.empty()) return validation.back().loss;
  std::vector<double> last;
  for (const StepRecord& step : last_tenth()) last.push_back(step.loss);
  return mean(last);
}

double Outcome::dropped() const {
  double routed = 0, lost = 0;
  for (const StepRecord& step : last_tenth()) {
    routed += static_cast<double>(step.routed);
    lost += static_cast<double>(step.dropped);
  }
  return routed > 0 ? lost / routed : not_known;
}

double Outcome::tokens_per_second() const {
  std::vector<double> speeds;
  for (std::size_t i = steps.size() / 10; i < steps.size(); ++i) speeds.push_back(steps[i].tokens_per_second);
  return median(speeds);
}

Outcome read_outcome(const std::filesystem::path& run, Index steps) {
  Outcome out;
  out.max_violation = not_known;
  if (const auto file = run / "metrics.jsonl"; file_exists(file))
    read_lines(file, [&](const TextLine& text) {
      if (!text.whole) return;
      try {
        const Json line = Json::parse(text.text);
        const auto number = [&](const char* key) { return number_at(line, key).value_or(not_known); };
        const auto count = [&](const char* key) { return integer_at(line, key).value_or(0); };
        if (count("step") == 0) return;
        const Json* experts = line.find("experts");
        const double violation = experts ? mean_violation(*experts) : out.max_violation;
        out.steps.push_back({count("step"), count("tokens"), count("routed"), count("dropped"), number("loss"),
                             number("step_seconds"), number("tokens_per_second"), number("cpu_joules"),
                             number("gpu_joules")});
        out.max_violation = violation;
        out.missing.add(out.steps.back().step);
        if (const Json* validation = line.find("validation"))
          out.validation.push_back({out.steps.back().step, number_at(*validation, "loss").value_or(not_known)});
      } catch (const JsonError&) {  // a damaged line
      }
    });
  out.missing.end(steps);
  return out;
}

}  // namespace sy
