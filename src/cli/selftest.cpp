// switchyard selftest: checks that this copy of the program computes right on this machine.
#include <chrono>
#include <iostream>

#include "src/cli/options.h"
#include "src/cli/progress.h"
#include "src/experiments/document.h"
#include "src/selftest/selftest.h"
#include "src/text/json.h"
#include "src/text/numbers.h"
#include "src/text/table.h"

namespace sy {

namespace {

const char* state_of(const selftest::Check& check) {
  return !check.failures.empty() ? "failed" : !check.skipped.empty() ? "skipped" : "passed";
}

Json to_json(const std::vector<selftest::Check>& checks, const Json& provenance, int ranks, bool passed,
             double seconds) {
  Json list = Json::array();
  for (const selftest::Check& check : checks) {
    Json failures = Json::array();
    for (const selftest::Failure& f : check.failures) failures.push_back({{"ranks", f.ranks}, {"error", f.error}});
    list.push_back({{"name", check.name},
                    {"state", state_of(check)},
                    {"seconds", check.seconds},
                    {"detail", check.detail},
                    {"skipped_because", check.skipped},
                    {"failures", failures}});
  }
  Json document = json_document("selftest", provenance);
  document["ranks"] = ranks;
  document["passed"] = passed;
  document["seconds"] = seconds;
  document["checks"] = list;
  return document;
}

void print(const std::vector<selftest::Check>& checks, int ranks, double seconds) {
  Table table({"check", "seconds", "state", "result"});
  Index failed = 0;
  for (const selftest::Check& check : checks) {
    const std::string state = state_of(check);
    failed += state == "failed";
    table.row({check.name, fmt::format("{:.2f}", check.seconds), state == "failed" ? "FAILED" : state,
               state == "skipped"  ? check.skipped
               : state == "failed" ? fit_width(check.failures.front().error, 70)
                                   : check.detail});
  }
  std::cout << table.str() << "\n";
  for (const selftest::Check& check : checks)
    for (const selftest::Failure& f : check.failures)
      fmt::print("failed: {}: on {} {}: {}\n", check.name, f.ranks.size() == 1 ? "rank" : "ranks",
                 format_rank_list(f.ranks), visible(f.error));
  if (failed > 0)
    fmt::print("selftest FAILED: {} of {} on {}, {:.1f} s\n", failed, counted(std::ssize(checks), "check"),
               counted(ranks, "rank"), seconds);
  else
    fmt::print("selftest passed: {} on {}, {:.1f} s\n", counted(std::ssize(checks), "check"), counted(ranks, "rank"),
               seconds);
  std::cout << std::flush;
}

}  // namespace

int selftest_command(CommandLine& line) {
  po::options_description options(
      "Compares every operation with a reference on each device and instruction set of this machine, trains a tiny\n"
      "model for 20 steps on each rank alone and on all ranks together, and saves and loads a checkpoint. Start it\n"
      "with your launcher. Exit code 0 if all checks passed, otherwise 1.\n\nOptions");
  std::string folder;
  bool json = false;
  // clang-format off
  options.add_options()
      ("dir", po::value(&folder),
       "a folder for temporary files, which all ranks share (otherwise the machine's temporary folder, or the "
       "working directory if ranks are on several machines)")
      ("json", po::bool_switch(&json), "print JSON");
  // clang-format on
  po::variables_map arguments;
  bool go = false;
  agree_on_errors(line.world, [&] { go = parse_options(line, "selftest", options, {}, arguments); });
  if (!go) return 0;
  const bool speaks = line.world.rank() == 0;
  Progress progress;
  const auto start = std::chrono::steady_clock::now();
  const std::vector<selftest::Check> checks =
      selftest::run(line.world, {.folder = folder, .progress = [&](std::string_view check, Index done, Index total) {
                                   if (speaks) progress.show(check, done, total, "steps");
                                 }});
  progress.clear();
  bool passed = true;
  for (const selftest::Check& check : checks) passed &= check.failures.empty();
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  if (speaks && json)
    std::cout << json_text(to_json(checks, line.provenance, line.world.size(), passed, seconds)) << std::flush;
  if (speaks && !json) print(checks, line.world.size(), seconds);
  return passed ? 0 : 1;
}

}  // namespace sy
