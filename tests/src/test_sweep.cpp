// Tests of the runs of a sweep, and of their results.
#include <gtest/gtest.h>

#include <cmath>

#include "src/experiments/grid.h"
#include "src/experiments/outcome.h"
#include "src/experiments/step_breakdown.h"
#include "src/experiments/sweep.h"
#include "src/experiments/trainings.h"
#include "src/text/json.h"
#include "src/train/metrics.h"
#include "tests/src/checkpoint_fixture.h"

namespace sy {
namespace {

using namespace test;
using Strings = std::vector<std::string>;

TEST(Sweep, ParsesVariationsOfOneAndSeveralKeys) {
  const Variation one = parse_variation("moe.top_k= 1, 2");
  EXPECT_EQ(one.keys, Strings{"moe.top_k"});
  EXPECT_EQ(one.values, (std::vector<Strings>{{"1"}, {"2"}}));
  const Variation two = parse_variation("moe.top_k:moe.d_ff=1:256,2:128");
  EXPECT_EQ(two.keys, (Strings{"moe.top_k", "moe.d_ff"}));
  EXPECT_EQ(two.values, (std::vector<Strings>{{"1", "256"}, {"2", "128"}}));
  const Variation quoted = parse_variation("model.pattern=\"local*5, global\",global");
  EXPECT_EQ(quoted.values, (std::vector<Strings>{{"local*5, global"}, {"global"}}));
  EXPECT_EQ(parse_variation("run.dtype=").values, (std::vector<Strings>{{""}}));
  for (const char* wrong : {"moe.top_k", "top_k=1", "--moe.top_k=1", "a.b:c.d=1:2,3", "a.b=1,2,1", ":a.b=1:2"})
    EXPECT_THROW(parse_variation(wrong), InputError) << wrong;
}

TEST(Sweep, CombinationsVaryTheLastFastest) {
  const Variation a = parse_variation("a.x=1,2"), b = parse_variation("b.y:b.z=3:4,5:6,7:8");
  const auto all = combinations({a, b});
  ASSERT_EQ(all.size(), 6u);
  EXPECT_EQ(all[0], (Strings{"a.x=1", "b.y=3", "b.z=4"}));
  EXPECT_EQ(all[1], (Strings{"a.x=1", "b.y=5", "b.z=6"}));
  EXPECT_EQ(all[5], (Strings{"a.x=2", "b.y=7", "b.z=8"}));
  EXPECT_EQ(combinations({}), (std::vector<Strings>{{}}));
  EXPECT_THROW(combinations({a, parse_variation("c.d:a.x=1:2")}), InputError);
  std::vector<Variation> many;  // 10^12 combinations, which no memory holds
  for (int i = 0; i < 12; ++i) many.push_back(parse_variation(fmt::format("a.x{}=0,1,2,3,4,5,6,7,8,9", i)));
  EXPECT_BAD_INPUT(combinations(many), "more than 10000 combinations: vary fewer keys");
  many.resize(4);
  EXPECT_EQ(combinations(many).size(), 10'000u);
}

TEST(Sweep, FilesNameBaseAndVariations) {
  const Folder folder;
  const auto written = [&](const std::string& content) {
    write_file(folder.path() / "some.ini", content);
    return read_sweep(folder.path() / "some.ini");
  };
  const Sweep sweep = written("[sweep]\nbase = base.ini\nvary = a.b=1,2\nvary = c.d=3\n[train]\nsteps = 5\n");
  EXPECT_EQ(sweep.name, "some");
  EXPECT_EQ(sweep.base, folder.path() / "base.ini");
  EXPECT_EQ(sweep.variations.size(), 2u);
  EXPECT_EQ(sweep.settings, Strings{"--train.steps=5"});
  const Sweep plain = written("[train]\nsteps = 5\n");
  EXPECT_EQ(plain.base, folder.path() / "some.ini");
  EXPECT_TRUE(plain.variations.empty() && plain.settings.empty());
  EXPECT_NE(error_of([&] { written("[sweep]\nvary = a.b=1\n"); }).find("has no base"), std::string::npos);
  EXPECT_NE(error_of([&] { written("[sweep]\nbase = x\nranks = 3\n"); }).find("some.ini:3: unknown key 'sweep.ranks'"),
            std::string::npos);
  EXPECT_THROW(read_sweep(folder.path() / "none.ini"), InputError);
}

TEST(Sweep, NamesFoldersBySettings) {
  EXPECT_EQ(folder_name({}), "base");
  EXPECT_EQ(folder_name({"a.b=1", "c.d=x/y z"}), "a.b=1,c.d=x_y_z");
  const std::string one = folder_name({"a.b=" + std::string(300, '1')});
  EXPECT_LE(one.size(), 200u);
  EXPECT_NE(one, folder_name({"a.b=" + std::string(301, '1')}));
}

// Means are over the last tenth of 20 steps.
TEST(Sweep, OutcomesMatchTheMetrics) {
  const Folder folder;
  std::string lines;
  for (int step = 1; step <= 20; ++step) {
    lines += fmt::format(
        R"({{"step":{},"tokens":{},"loss":{},"step_seconds":0.5,"tokens_per_second":{},"routed":100,"dropped":{})",
        step, step * 8, 5.0 - step * 0.1, step <= 2 ? 1 : 1000 + step, step > 18 ? 10 * (step - 18) : 90);
    if (step % 10 == 0)
      lines += R"(,"experts":{"routed":[[4,2,2],[0,0,0],[9,0,0]],"dropped":[[0,0,0],[0,0,0],[0,0,0]]})";
    lines += "}\n";
  }
  write_file(folder.path() / "metrics.jsonl", lines + "{\"step\":21,\"lo");
  const Outcome out = read_outcome(folder.path());
  EXPECT_EQ(out.last_step(), 20);
  // A last line without its end does not make a run complete.
  EXPECT_EQ(last_step(folder.path()), 20);
  EXPECT_EQ(read_outcome(folder.path(), 21).missing.text(), "step 21");
  EXPECT_TRUE(read_outcome(folder.path(), 20).missing.empty());
  EXPECT_NEAR(out.loss(), (5 - 1.9 + 5 - 2.0) / 2, 1e-12);
  EXPECT_NEAR(out.dropped(), (10 + 20) / 200.0, 1e-12);
  EXPECT_NEAR(out.tokens_per_second(), (1011 + 1012) / 2.0, 1e-12);
  // A layer without tokens does not count.
  EXPECT_NEAR(out.max_violation, (4 / (8 / 3.0) - 1 + 2) / 2, 1e-12);
  write_file(folder.path() / "metrics.jsonl", R"({"step":1,"loss":null,"validation":{"loss":2.5}})"
                                              "\n");
  EXPECT_EQ(read_outcome(folder.path()).loss(), 2.5);
  EXPECT_TRUE(std::isnan(read_outcome(folder.path()).steps[0].loss));
  const Outcome none = read_outcome(folder.path() / "none");
  EXPECT_EQ(none.last_step(), 0);
  EXPECT_TRUE(std::isnan(none.loss()) && std::isnan(none.tokens_per_second()) && std::isnan(none.dropped()));
}

// Lines with wrong types, or with counts whose sum overflows, end nothing.
TEST(Sweep, AKilledTrainingHasNotEnded) {
  const Folder dir;
  const fs::path run = dir.path() / "run";
  fs::create_directories(run / "checkpoints" / "step-00000002");
  write_file(run / "metrics.jsonl", "{\"step\":2}\n");
  Training training;
  training.run = run;
  training.steps = 2;
  EXPECT_TRUE(has_ended(training));
  write_file(run / "switchyard.lock", "");
  EXPECT_FALSE(has_ended(training));  // a killed process left it
  fs::remove(run / "switchyard.lock");
  training.steps = 3;
  EXPECT_FALSE(has_ended(training));
  write_file(run / "metrics.jsonl", "{\"step\":2}\n{\"step\":3}\n");
  EXPECT_FALSE(has_ended(training));  // its last checkpoint is missing
  training.measured = true;           // and has no checkpoints in the end
  EXPECT_TRUE(has_ended(training));
  training.measured = false;
  fs::remove_all(run / "checkpoints");
  EXPECT_TRUE(has_ended(training));  // a user deleted all of them
  fs::create_directories(run / "checkpoints");
  write_file(run.string() + ".log", "switchyard: warning: a warning\nswitchyard 0.1\n");
  EXPECT_TRUE(has_ended(training));
  fs::remove(run.string() + ".log");
  write_file(run.string() + ".log", "switchyard: warning: a warning\nswitchyard: the disk is full\n");
  EXPECT_FALSE(has_ended(training));  // its only save has failed
  write_file(run.string() + ".log",
             "switchyard: warning: a\nswitchyard: the disk is full\n\n---- next start ----\nswitchyard: warning: b\n"
             "switchyard: warning: a\n");
  EXPECT_TRUE(has_ended(training));  // the next start has saved
  Strings warnings;
  add_warnings(run, warnings);
  EXPECT_EQ(warnings, (Strings{"a", "b"}));
}

// A run on other ranks, or in another layout, is not taken for the training.
TEST(Sweep, RefusesRunsOfOtherRanksAndLayouts) {
  const Folder dir;
  Training training;
  training.run = dir.path() / "run";
  training.ranks = 4;
  DataDigests digests;
  const auto config = [](const Strings& settings) { return parse_config("[model]\nlayers = 2\n", "test", settings); };
  EXPECT_TRUE(other_settings(training, config({}), digests).empty());  // there is no run
  fs::create_directories(training.run);
  write_file(training.run / "config.ini", to_ini(config({"--parallel.ep=2", "--moe.experts=4"})));
  write_file(training.run / provenance_name, "{\"ranks\":2}\n{\"ranks\":4}\n");
  EXPECT_TRUE(other_settings(training, config({"--parallel.ep=2", "--moe.experts=4"}), digests).empty());
  EXPECT_TRUE(other_settings(training, config({"--parallel.ep=auto", "--moe.experts=4"}), digests).empty());
  EXPECT_EQ(other_settings(training, config({"--moe.experts=4"}), digests), Strings{"parallel.ep: 1 here, 2 there"});
  training.ranks = 2;
  EXPECT_BAD_INPUT(check_folder(training, config({"--parallel.ep=2", "--moe.experts=4"}), digests),
                   "holds a run of other settings (ranks: 2 here, 4 there)");
}

TEST(Sweep, RefusesLaunchersWithAFixedNumberOfRanks) {
  check_launcher("", {1, 2});
  check_launcher("mpirun -np {ranks}", {1, 2});
  check_launcher("./own-launcher", {1});
  EXPECT_BAD_INPUT(check_launcher("mpirun -np 1", {1, 2}), "cannot start 2 ranks: write {ranks} in place of");
  EXPECT_THROW(check_launcher("mpirun -np 2", {2}), InputError);
}

TEST(Sweep, CountsFailedAndStoppedRuns) {
  SweepResult result{.name = "s", .trials = {Trial{}, Trial{}}};
  Trial &some = result.trials[0], &none = result.trials[1];
  some.label = "base";
  some.outcomes = {Outcome{}};
  some.outcomes[0].validation = {{4, 2.5}};
  some.failure = "no memory";
  some.failed = 2;
  some.stopped = 1;
  none.label = "other";
  none.failure = "after 2 of 4 steps";
  none.stopped = 3;
  const std::string text = sweep_text(result);
  EXPECT_NE(text.find("2.5000 (2 failed, 1 stopped)"), std::string::npos) << text;
  EXPECT_NE(text.find("base failed: no memory\nother stopped: after 2 of 4 steps\n"), std::string::npos) << text;
}

TEST(Sweep, SkipsDamagedLinesOfMetrics) {
  const TempFolder folder;
  write_file(folder.path() / "metrics.jsonl",
             "{\"step\":1,\"loss\":1,\"routed\":9000000000000000000,\"dropped\":9000000000000000000}\n"
             "{\"step\":2,\"loss\":2,\"experts\":{\"routed\":\"x\"}}\n[3]\n"
             "{\"step\":4,\"loss\":4,\"experts\":{\"routed\":[[9000000000000000000,9000000000000000000]]}}\n"
             "{\"step\":9223372036854775807,\"loss\":1}\n");
  const Outcome out = read_outcome(folder.path(), 5);
  EXPECT_EQ(out.steps.size(), 3u);
  EXPECT_EQ(out.missing.text(), "steps 2 to 3, 5");
  EXPECT_NEAR(out.max_violation, 0, 1e-12);
}

TEST(Sweep, ComputesMediansAndDeviations) {
  EXPECT_EQ(median({3, 1, 2}), 2);
  EXPECT_EQ(median({4, 1, 2, 3}), 2.5);
  EXPECT_TRUE(std::isnan(median({})));
  EXPECT_NEAR(deviation({1, 2, 3, 4}), std::sqrt(5.0 / 3), 1e-12);
  EXPECT_TRUE(std::isnan(deviation({1})));
}

// Two steps of 100 microseconds, and messages outside of steps. A step has messages of a dispatch,
// a gradient after a layer, and tensor parallelism. The latter are in a moe span that ends where
// the next one begins.
TEST(StepBreakdown, CollectivesCountForTheirCategory) {
  std::string events = R"({"ph":"M","name":"process_name"})";
  const auto span = [&](const char* name, double begin, double took) {
    events += fmt::format(R"(,{{"ph":"X","name":"{}","ts":{},"dur":{},"args":{{}}}})", name, begin, took);
  };
  span("all-reduce", 0, 5);
  for (const double at : {10.0, 110.0}) {
    span("step", at, 100);
    span("passes", at, 80);
    span("backward pass", at, 60);
    span("moe", at, 50);
    span("all-gather", at + 1, 3);
    span("dispatch", at + 10, 10);
    span("all-to-all", at + 12, 6);
    span("combine", at + 20, 10);
    span("all-to-all", at + 21, 2);
    span("reduce-scatter", at + 60, 8);
    span("statistics", at + 80, 20);
    span("all-reduce", at + 85, 7);
  }
  const auto breakdown = rank_breakdown("{\"traceEvents\":[" + events + "]}");
  ASSERT_TRUE(breakdown);
  EXPECT_NEAR((*breakdown)[TimeCategory::tensor], 3e-6, 1e-15);
  EXPECT_NEAR((*breakdown)[TimeCategory::dispatch], 6e-6, 1e-15);
  EXPECT_NEAR((*breakdown)[TimeCategory::combine], 2e-6, 1e-15);
  EXPECT_NEAR((*breakdown)[TimeCategory::gradients], 8e-6, 1e-15);
  EXPECT_NEAR((*breakdown)[TimeCategory::statistics], 7e-6, 1e-15);
  EXPECT_NEAR((*breakdown)[TimeCategory::compute], 74e-6, 1e-15);
  EXPECT_FALSE(rank_breakdown("{\"traceEvents\":[]}"));
  EXPECT_THROW(rank_breakdown("{}"), JsonError);
}

TEST(StepBreakdown, TimeBeyondTheFastestRankIsWaiting) {
  StepTime a, b;
  a[TimeCategory::compute] = 10, a[TimeCategory::dispatch] = 2, a[TimeCategory::gradients] = 3;
  b[TimeCategory::compute] = 6, b[TimeCategory::dispatch] = 6, b[TimeCategory::gradients] = 3;
  const auto mean = mean_breakdown({a, b});
  ASSERT_TRUE(mean);
  EXPECT_EQ((*mean)[TimeCategory::compute], 8);
  EXPECT_EQ((*mean)[TimeCategory::dispatch], 2);
  EXPECT_EQ((*mean)[TimeCategory::gradients], 3);
  EXPECT_EQ((*mean)[TimeCategory::waiting], 2);
  EXPECT_EQ(mean->total(), 15);
  EXPECT_FALSE(mean_breakdown({}));
}

}  // namespace
}  // namespace sy
