#include "tests/fuzz/journal.h"

#include <fmt/format.h>

#include <algorithm>

#include "tests/fuzz/targets.h"
#include "tests/json_journal.h"

namespace sy::fuzz {

namespace {

// A fast target should have so many runs, and a slower one so many seconds.
constexpr Index wanted_runs = 10'000'000;
constexpr double fast_rate = 5000, wanted_seconds = 7200;

std::string share_text(double share) {
  return share >= 1 ? "done" : fmt::format("{:.1f} %", 100 * share);
}

}  // namespace

std::vector<Batch> read_journal(const std::filesystem::path& path) {
  std::vector<Batch> journal;
  read_json_journal(path, [&](const Json& json) {
    journal.push_back({json.at("target").get<std::string>(), json.at("runs").get<Index>(),
                       json.at("findings").get<Index>(), json.at("seconds").get<double>(),
                       json.at("commit").get<std::string>(), json.at("date").get<std::string>()});
  });
  return journal;
}

std::string summary(const std::vector<Batch>& journal) {
  std::string text =
      "| target | reads | runs | seconds | runs/s | wanted | reached | findings |\n"
      "| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: |\n";
  Batch total;
  for (const Target& target : targets()) {
    Batch sum;
    for (const Batch& batch : journal) {
      if (batch.target != target.name) continue;
      sum.runs += batch.runs;
      sum.seconds += batch.seconds;
      sum.findings += batch.findings;
    }
    const double rate = sum.seconds > 0 ? static_cast<double>(sum.runs) / sum.seconds : 0;
    const bool fast = rate > fast_rate;
    text += fmt::format(
        "| `{}` | {} | {} | {:.0f} | {:.0f} | {} | {} | {} |\n", target.name, target.reads, sum.runs, sum.seconds, rate,
        sum.runs == 0 ? ""
        : fast        ? "10,000,000 runs"
                      : "2 hours",
        share_text(std::max(static_cast<double>(sum.runs) / wanted_runs, fast ? 0 : sum.seconds / wanted_seconds)),
        sum.findings);
    total.runs += sum.runs;
    total.seconds += sum.seconds;
    total.findings += sum.findings;
  }
  return text + fmt::format("| all | | {} | {:.0f} | | | | {} |\n", total.runs, total.seconds, total.findings);
}

}  // namespace sy::fuzz
