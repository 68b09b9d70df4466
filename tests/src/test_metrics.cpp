#include "src/train/metrics.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmath>
#include <cstdio>
#include <fstream>
#include <limits>

#include "dist/runtime.h"
#include "src/system/files.h"
#include "src/text/json.h"
#include "src/text/numbers.h"
#include "src/text/strings.h"
#include "src/text/table.h"
#include "src/train/run_texts.h"
#include "src/train/trainer.h"
#include "tests/src/temp_folder.h"

namespace sy {
namespace {

namespace fs = std::filesystem;

struct TempDir {
  TempFolder folder;
  fs::path path = folder.path();
  std::string metrics() const { return read_file(path / "metrics.jsonl"); }
  Index files() const { return std::distance(fs::directory_iterator(path), fs::directory_iterator()); }
};

TEST(NotFinite, NamesTheNonFiniteMetric) {
  StepMetrics m;
  m.step = 4;
  m.loss = 190097.42;
  m.grad_norm = INFINITY;
  EXPECT_EQ(not_finite_text(m).find("step 4: the gradient norm is inf, not finite, and the loss 190097.42: "), 0u);
  m.grad_norm = 2;
  m.loss = NAN;
  EXPECT_EQ(not_finite_text(m).find("step 4: the loss is nan, not finite, and the gradient norm 2: "), 0u);
  m.grad_norm = NAN;
  EXPECT_NE(not_finite_text(m).find("neither finite: lower train.lr"), std::string::npos);
  m.loss = -std::nan("");
  m.grad_norm = -std::nan("");
  EXPECT_NE(not_finite_text(m).find("the loss is nan and the gradient norm nan, neither"), std::string::npos);
}

StepMetrics at_step(Index step) {
  StepMetrics m;
  m.step = step;
  m.tokens = step * 100;
  m.loss = 1.0 / 3;
  m.step_seconds = 0.5;
  m.tokens_per_second = 200;
  m.routed = 400;
  m.dropped = 10;
  return m;
}

std::vector<Json> lines_of(const std::string& text) {
  std::vector<Json> lines;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) lines.push_back(Json::parse(line));
  return lines;
}

TEST(MetricsFile, WritesValidationByDomain) {
  TempDir dir;
  DomainScore english, german;
  english.name = "english", english.tokens = 30, english.windows = 3, english.bytes = 60, english.nats = 60;
  german.name = "german", german.tokens = 10, german.windows = 1, german.bytes = -1, german.nats = 40;
  MetricsFile file(dir.path, 1);
  file.write(at_step(1), nullptr, {english, german});
  file.write(at_step(2), nullptr);
  const auto lines = lines_of(dir.metrics());
  ASSERT_EQ(lines.size(), 2u);
  const Json& all = lines[0]["validation"];
  EXPECT_EQ(all["loss"].get<double>(), 2.5);
  EXPECT_EQ(all["windows"], 4);
  EXPECT_TRUE(all["bits_per_byte"].is_null());
  EXPECT_EQ(all["domains"]["german"]["loss"].get<double>(), 4);
  EXPECT_NEAR(all["domains"]["english"]["bits_per_byte"].get<double>(), 1 / std::log(2), 1e-12);
  EXPECT_EQ(lines[1].find("validation"), nullptr);
  EXPECT_EQ(validation_text(1, 20, {english, german}),
            "step  1/20  validation loss 2.5000  english 2.0000  german 4.0000");
  EXPECT_EQ(validation_text(20, 20, {german}), "step 20/20  validation loss 4.0000");
}

TEST(MetricsFile, WritesAllDocumentedKeys) {
  TempDir dir;
  StepMetrics m = at_step(7);
  m.grad_norm = std::nan("");
  m.z_loss = std::numeric_limits<double>::infinity();
  const ExpertCounts experts{{{3, 1}, {2, 2}}, {{1, 0}, {0, 0}}};
  MetricsFile file(dir.path, 1);
  file.write(m, nullptr);
  file.write(at_step(8), &experts);
  const auto lines = lines_of(dir.metrics());  // while open: every line is flushed
  ASSERT_EQ(lines.size(), 2u);
  std::string keys;
  for (const auto& [key, value] : lines[0].members()) keys += key + " ";
  EXPECT_EQ(keys,
            "step tokens samples loss aux_loss z_loss lr grad_norm step_seconds save_seconds tokens_per_second "
            "tflops_per_second_per_rank time routed dropped ");
  EXPECT_EQ(lines[0]["loss"].get<double>(), 1.0 / 3);  // bitwise
  EXPECT_TRUE(lines[0]["grad_norm"].is_null());
  EXPECT_TRUE(lines[0]["z_loss"].is_null());
  EXPECT_EQ(lines[0]["step"], 7);
  EXPECT_EQ(lines[1]["experts"].dump(), R"({"routed":[[3,1],[2,2]],"dropped":[[1,0],[0,0]]})");
  EXPECT_EQ(lines[0].find("mfu"), nullptr);  // unknown
  m.mfu = 0.25;
  m.tflops_per_second_per_rank = 2.5;
  file.write(m, nullptr);
  const Json last = lines_of(dir.metrics()).back();
  EXPECT_EQ(last["mfu"].get<double>(), 0.25);
  EXPECT_EQ(last["tflops_per_second_per_rank"].get<double>(), 2.5);
}

TEST(MetricsFile, ResumingDropsLaterAndBrokenLines) {
  TempDir dir;
  {
    MetricsFile file(dir.path, 1);
    for (Index s = 1; s <= 5; ++s) file.write(at_step(s), nullptr);
  }
  std::ofstream(dir.path / "metrics.jsonl", std::ios::app) << "not json\n"
                                                           << R"({"step":2,"tok)";
  {
    MetricsFile file(dir.path, 4);
    file.write(at_step(4), nullptr);
  }
  const auto lines = lines_of(dir.metrics());
  ASSERT_EQ(lines.size(), 4u);
  for (Index s = 1; s <= 4; ++s) EXPECT_EQ(lines[s - 1]["step"], s);
  EXPECT_EQ(dir.files(), 1);  // no unfinished file remains
}

TEST(MetricsFile, WarnsWhenItDropsDamage) {
  TempDir dir;
  const auto cut = [&](const std::string& text, Index first_step) {
    std::ofstream(dir.path / "metrics.jsonl") << text;
    testing::internal::CaptureStderr();
    MetricsFile(dir.path, first_step);
    return testing::internal::GetCapturedStderr();
  };
  const std::string one = "{\"step\":1}\n", two = "{\"step\":2}\n", three = "{\"step\":3}\n", zeros(40, '\0');
  EXPECT_EQ(cut(one + two + three, 3), "");    // steps that are trained again
  EXPECT_EQ(cut(one + two + "{\"st", 3), "");  // a line cut by a kill
  const std::string damaged = cut(one + zeros + "\nxx\n", 3);
  EXPECT_NE(
      damaged.find("metrics.jsonl is cut after step 1, from where on 2 of its lines are damaged, and lacks step 2: "),
      std::string::npos)
      << damaged;
  EXPECT_EQ(dir.metrics(), one);
  EXPECT_NE(cut(one + two + "xx\n" + three, 3).find("is cut after step 2, from where on 1 of its lines are damaged\n"),
            std::string::npos);
}

TEST(MetricsFile, ReportsGapsInOneWarning) {
  TempDir dir;
  const auto warning = [&](const std::string& text, Index first_step) {
    std::ofstream(dir.path / "metrics.jsonl") << text;
    testing::internal::CaptureStderr();
    MetricsFile(dir.path, first_step);
    return testing::internal::GetCapturedStderr();
  };
  const auto lines = [](std::initializer_list<int> steps) {
    std::string text;
    for (const int step : steps) text += fmt::format("{{\"step\":{},\"loss\":1}}\n", step);
    return text;
  };
  EXPECT_EQ(warning(lines({1, 2, 3}), 4), "");
  EXPECT_EQ(warning("", 1), "");
  const std::string hole = warning(lines({1, 2, 5, 7, 8}), 9);
  EXPECT_NE(hole.find("metrics.jsonl lacks steps 3 to 4, 6: "), hole.npos) << hole;
  EXPECT_EQ(std::count(hole.begin(), hole.end(), '\n'), 1);
  EXPECT_NE(warning(lines({1, 2}), 9).find("lacks steps 3 to 8: "), hole.npos);
  EXPECT_NE(warning("{\"step\":1}\n{\"step\":2}", 3).find("lacks step 2: "), hole.npos);  // torn
  EXPECT_NE(warning(lines({1}) + "{\"step\":\"2\"}\n" + lines({3}), 4).find("lacks step 2: "), hole.npos);
  fs::remove(dir.path / "metrics.jsonl");
  EXPECT_NE(missing_steps_warning(dir.path, 12).find("metrics.jsonl lacks steps 1 to 12: "), hole.npos);
  EXPECT_EQ(missing_steps_warning(dir.path, 0), "");
}

// The rise of the loss in the file, up to the step from which the run resumes.
TEST(MetricsFile, DetectsALossRise) {
  TempDir dir;
  std::string text;
  for (int step = 1; step <= 60; ++step)
    text += fmt::format("{{\"step\":{},\"loss\":{}}}\n", step, step < 50 ? 5 - 0.01 * step : 2000.0);
  std::ofstream(dir.path / "metrics.jsonl") << text;
  EXPECT_EQ(MetricsFile(dir.path, 61).history().rise.begin(), 50);
  EXPECT_EQ(MetricsFile(dir.path, 50).history().rise.begin(), 0);
}

// The skipped steps before the one from which the run resumes.
TEST(MetricsFile, FindsTheSkippedSteps) {
  TempDir dir;
  std::string text;
  for (int step = 1; step <= 9; ++step)
    text += fmt::format("{{\"step\":{},\"loss\":5,\"skipped_steps\":{}}}\n", step, (step >= 4) + (step >= 7));
  std::ofstream(dir.path / "metrics.jsonl") << text;
  using Steps = std::vector<Index>;
  EXPECT_EQ(MetricsFile(dir.path, 10).history().skips.at(9), (Steps{4, 7}));
  EXPECT_EQ(MetricsFile(dir.path, 7).history().skips.at(6), Steps{4});
  EXPECT_EQ(MetricsFile(dir.path, 4).history().skips.at(3), Steps{});
}

// A later skip does not displace an earlier one; 128 steps do.
TEST(RecentSkips, CountFor128Steps) {
  using Steps = std::vector<Index>;
  RecentSkips skips;
  EXPECT_EQ(skips.at(1000), Steps{});
  skips.add(10);
  skips.add(70);
  EXPECT_EQ(skips.at(138), (Steps{10, 70}));
  EXPECT_EQ(skips.at(139), Steps{70});
  skips.add(138);
  EXPECT_EQ(skips.at(138), (Steps{10, 70, 138}));
  skips.add(199);
  EXPECT_EQ(skips.at(199), (Steps{138, 199}));
  EXPECT_EQ(skips.at(328), Steps{});
}

TEST(LossRise, UsesTheMeanOf20Steps) {
  LossRise rise;
  Index step = 0;
  const auto add = [&](int n, double loss) {
    for (int i = 0; i < n; ++i) rise.add(++step, loss);
    return rise.begin();
  };
  EXPECT_EQ(add(30, 2), 0);
  EXPECT_EQ(add(1, 9.9), 0);   // (19 * 2 + 9.9) / 20 = 2.395
  EXPECT_EQ(add(1, 2.2), 32);  // 2.405
  EXPECT_EQ(add(10, 2), 32);   // the rise lasts until the mean is small again
  EXPECT_EQ(add(10, 2), 0);
  EXPECT_DOUBLE_EQ(rise.smallest(), 2);
  EXPECT_EQ(add(1, std::nan("")), 53);
  EXPECT_EQ(add(19, 2), 53);
  EXPECT_EQ(add(1, 2), 0);
  EXPECT_EQ(add(20, 1), 0);
  EXPECT_EQ(add(20, 1.3), 107);  // (14 * 1.3 + 6) / 20 = 1.21
}

TEST(MetricsFile, RejectsLinksToOtherFiles) {
  TempDir dir, other;
  const fs::path victim = other.path / "victim";
  std::ofstream(victim) << "precious\n";
  for (const char* name : {"metrics.jsonl", "metrics.csv", "metrics.prom.new"})
    for (const bool hard : {false, true}) {
      if (hard)
        fs::create_hard_link(victim, dir.path / name);
      else
        fs::create_symlink(victim, dir.path / name);
      MetricsSinks sinks;
      sinks.enabled.csv = sinks.enabled.prometheus = true;
      EXPECT_BAD_INPUT(MetricsFile(dir.path, 3, sinks).write(at_step(3), nullptr),
                       fmt::format("{} is a {}", (dir.path / name).string(), hard ? "second name" : "link"));
      fs::remove(dir.path / name);
      EXPECT_EQ(read_file(victim), "precious\n");
    }
}

TEST(MetricsFile, DropsALineWithoutANewline) {
  TempDir dir;
  std::ofstream(dir.path / "metrics.jsonl") << "{\"step\":1}\n{\"step\":2}";
  MetricsFile file(dir.path, 9);
  EXPECT_EQ(dir.metrics(), "{\"step\":1}\n");
}

TEST(MetricsFile, LeavesACorrectFileUnchanged) {
  TempDir dir;
  std::ofstream(dir.path / "metrics.jsonl") << "{\"step\":1}\n";
  struct stat before, after;
  stat((dir.path / "metrics.jsonl").c_str(), &before);
  { MetricsFile file(dir.path, 2); }
  stat((dir.path / "metrics.jsonl").c_str(), &after);
  EXPECT_EQ(before.st_ino, after.st_ino);
  EXPECT_EQ(dir.files(), 1);
}

TEST(MetricsFile, IsEmptiedByANewRun) {
  TempDir dir;
  std::ofstream(dir.path / "metrics.jsonl") << "{\"step\":1}\n{\"step\":2}\n";
  MetricsFile file(dir.path, 1);
  EXPECT_EQ(dir.metrics(), "");
}

TEST(MetricsFile, RejectsAMissingFolder) {
  EXPECT_THROW(MetricsFile("/tmp/there/is/no/such/folder", 1), InputError);
}

TEST(MetricsFile, FailsOnAFullDisk) {
  TempDir dir;
  MetricsFile file(dir.path, 1);
  rlimit old;
  getrlimit(RLIMIT_FSIZE, &old);
  const auto old_handler = signal(SIGXFSZ, SIG_IGN);
  const rlimit small{300, old.rlim_max};
  setrlimit(RLIMIT_FSIZE, &small);
  bool failed = false;
  try {
    for (Index s = 1; s < 100; ++s) file.write(at_step(s), nullptr);
  } catch (const Failure& e) {
    failed = std::string(e.what()).find("metrics.jsonl") != std::string::npos;
  }
  setrlimit(RLIMIT_FSIZE, &old);
  signal(SIGXFSZ, old_handler);
  EXPECT_TRUE(failed);
}

TEST(Duration, IsFormattedLikeAClock) {
  EXPECT_EQ(duration_text(0), "0 ms");
  EXPECT_EQ(duration_text(0.85), "850 ms");
  EXPECT_EQ(duration_text(0.9999), "1 s");
  EXPECT_EQ(duration_text(12.4), "12 s");
  EXPECT_EQ(duration_text(59.7), "1m 00s");
  EXPECT_EQ(duration_text(200), "3m 20s");
  EXPECT_EQ(duration_text(3600 + 2 * 60 + 29), "1h 02m");
  EXPECT_EQ(duration_text(2 * 86400 + 3 * 3600), "2d 03h");
  EXPECT_EQ(duration_text(-1), "?");
  EXPECT_EQ(duration_text(std::nan("")), "?");
}

TEST(Progress, ShowsTheMainMetrics) {
  StepMetrics m = at_step(20);
  m.tokens_per_second = 12345;
  m.lr = 3e-4;
  m.grad_norm = 1.23456;
  EXPECT_EQ(
      progress_text(m, 1000, 10, 0.5),
      "step   20/1000  loss 0.3333  12.3k tokens/s  dropped 2.5 %  8m 10s left  10 s elapsed  lr 0.0003  gradient "
      "norm 1.23");
  m.step = 1000;
  m.routed = 0;  // a dense model drops nothing
  EXPECT_EQ(progress_text(m, 1000, 500, 0.5),
            "step 1000/1000  loss 0.3333  12.3k tokens/s  8m 20s elapsed  lr 0.0003  gradient norm 1.23");
}

TEST(Progress, WarnsOnceWhenADomainRepeats) {
  const DomainEpochs before = {{"web", 0.5}, {"code", 1}, {"wiki", 1.5}},
                     after = {{"web", 1}, {"code", 1.25}, {"wiki", 2.5}};
  const std::vector<std::string> warnings = repetition_warnings(7, before, after);
  ASSERT_EQ(warnings.size(), 1u);
  EXPECT_EQ(warnings[0], "step 7: all samples of domain code have been read once: from now on they repeat");
}

TEST(Progress, ShowsTheResultAndTheNextCommands) {
  RunEnd end;
  end.run = "runs/a b";
  end.last_step = 20;
  end.seconds = 65;
  end.totals.add(10, 1, 2.5);
  end.totals.add(20, 1, 2.5);  // of equals, the earlier one counts
  end.totals.add(30, 1, 3.0);
  const std::string program = program_invocation_name;
  EXPECT_EQ(end_text(end),
            "done      steps 1 to 20 in 1m 05s\n"
            "best      validation loss 2.5000 at step 10\n"
            "result    runs/a b/checkpoints/step-00000020");
  end.first_step = 11;
  end.totals = {};
  end.totals.add(20, 90, std::nullopt);
  end.can_evaluate = end.has_experts = end.can_generate = true;
  EXPECT_EQ(end_text(end), fmt::format("done      steps 11 to 20 in 1m 05s, and 1m 30s in the steps of all starts\n"
                                       "result    runs/a b/checkpoints/step-00000020\n"
                                       "next      {0} evaluate 'runs/a b'\n"
                                       "          {0} experts 'runs/a b'\n"
                                       "          {0} generate 'runs/a b' --prompt 'Once upon a time'",
                                       program));
}

TEST(Progress, SumsTotalsOverAllStarts) {
  TempDir dir;
  DomainScore score;
  score.name = "english", score.tokens = 10, score.windows = 1;
  {
    MetricsFile file(dir.path, 1);
    for (Index s = 1; s <= 4; ++s) {
      score.nats = s == 2 ? 5 : 20;
      file.write(at_step(s), nullptr, {score});
    }
  }
  MetricsFile file(dir.path, 4);  // step 4 is trained again
  score.nats = 10;
  file.write(at_step(4), nullptr, {score});
  EXPECT_EQ(file.totals().best_step, 2);
  EXPECT_EQ(file.totals().best_loss, 0.5);
  EXPECT_EQ(file.totals().step_seconds, 4 * 0.5);
}

TEST(Numbers, FormatTimesInUtc) {
  EXPECT_EQ(utc_text(0), "1970-01-01T00:00:00.000Z");
  EXPECT_EQ(utc_text(1795525509.0424), "2026-11-24T13:05:09.042Z");
}

TEST(ShellArguments, AreQuotedIfNeeded) {
  EXPECT_EQ(shell_quote("runs/a-1.0"), "runs/a-1.0");
  EXPECT_EQ(shell_quote("a b"), "'a b'");
  EXPECT_EQ(shell_quote("it's"), "'it'\\''s'");
  EXPECT_EQ(shell_quote("~/x"), "'~/x'");
  EXPECT_EQ(shell_quote(""), "''");
}

std::vector<std::string> split_lines(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) lines.push_back(line);
  return lines;
}

TEST(Progress, PrintsTheFirstEveryNthAndLastStep) {
  testing::internal::CaptureStdout();
  testing::internal::CaptureStderr();
  ProgressLine progress(7, 3);
  for (Index s = 1; s <= 7; ++s) {
    if (s == 4) progress.note("checkpoint written");
    progress.step(at_step(s));
  }
  const auto lines = split_lines(testing::internal::GetCapturedStdout());
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "");
  ASSERT_EQ(lines.size(), 5u);
  const char* starts[] = {"step 1/7", "step 3/7", "checkpoint written", "step 6/7", "step 7/7"};
  for (int i = 0; i < 5; ++i) EXPECT_EQ(lines[i].rfind(starts[i], 0), 0u) << lines[i];
}

TEST(Progress, IgnoresAFullStandardOutput) {
  const int saved = dup(STDOUT_FILENO), full = open("/dev/full", O_WRONLY);
  ASSERT_GE(full, 0);
  std::fflush(stdout);
  dup2(full, STDOUT_FILENO);
  {
    ProgressLine progress(1000, 1);
    for (Index s = 1; s <= 1000; ++s) EXPECT_NO_THROW(progress.step(at_step(s)));
  }
  EXPECT_NE(output_error(), "");
  EXPECT_EQ(output_error(), "");  // reported only once
  dup2(saved, STDOUT_FILENO);
  close(saved);
  close(full);
}

TEST(Progress, IgnoresTheWarmUpInTheTimeLeft) {
  testing::internal::CaptureStdout();
  testing::internal::CaptureStderr();
  ProgressLine progress(12, 1);
  for (Index s = 1; s <= 3; ++s) {
    StepMetrics m = at_step(s);
    m.step_seconds = s == 1 ? 100.0 : static_cast<double>(s - 1);
    progress.step(m);
  }
  const auto lines = split_lines(testing::internal::GetCapturedStdout());
  testing::internal::GetCapturedStderr();
  ASSERT_EQ(lines.size(), 3u);
  // At first the time is unknown. Then 9 steps of 1.5 s remain.
  for (int i = 0; i < 2; ++i) EXPECT_EQ(lines[i].find("left"), std::string::npos) << lines[i];
  EXPECT_NE(lines[2].find("14 s left"), std::string::npos) << lines[2];
}

TEST(Progress, RewritesOneTerminalLineWithinItsWidth) {
  const int master = posix_openpt(O_RDWR | O_NOCTTY);
  if (master < 0 || (grantpt(master) | unlockpt(master)) != 0) GTEST_SKIP() << "there is no pseudo-terminal here";
  const int slave = open(ptsname(master), O_RDWR | O_NOCTTY);
  if (slave < 0) GTEST_SKIP() << "there is no pseudo-terminal here";
  const winsize size{24, 30, 0, 0};
  ASSERT_EQ(ioctl(slave, TIOCSWINSZ, &size), 0);
  std::fflush(stdout);
  const int saved[] = {dup(STDOUT_FILENO), dup(STDERR_FILENO)};
  for (const int stream : {STDOUT_FILENO, STDERR_FILENO}) dup2(slave, stream);
  {
    ProgressLine progress(6, 3);
    for (Index s = 1; s <= 5; ++s) {
      progress.step(at_step(s));
      if (s == 2) progress.note("saved");
    }
    progress.clear();
    progress.note("end");
  }
  for (const int stream : {STDOUT_FILENO, STDERR_FILENO}) {
    dup2(saved[stream - 1], stream);
    close(saved[stream - 1]);
  }
  // The written text arrives in several reads.
  std::string text;
  char buffer[4096];
  pollfd ready{master, POLLIN, 0};
  while (text.find("end\r\n") == std::string::npos) {
    ASSERT_EQ(poll(&ready, 1, 60000), 1) << text;
    const ssize_t n = read(master, buffer, sizeof buffer);
    ASSERT_GT(n, 0);
    text.append(buffer, n);
  }
  close(slave);
  close(master);
  // The final screen: the first step, every third step and the notes stay, and no other line does.
  std::vector<std::string> screen{""};
  for (std::size_t at = 0; at < text.size(); ++at) {
    if (text[at] == '\n')
      screen.emplace_back();
    else if (text.compare(at, 3, "\x1b[K") == 0)
      at += 2;
    else if (text[at] != '\r')
      screen.back() += text[at];
    else if (text[at + 1] != '\n') {
      EXPECT_LT(display_width(screen.back()), 30);
      screen.back().clear();
    }
  }
  ASSERT_EQ(screen.size(), 5u) << text;
  const char* starts[] = {"step 1/6", "saved", "step 3/6", "end", ""};
  for (int i = 0; i < 5; ++i) EXPECT_EQ(screen[i].rfind(starts[i], 0), 0u) << screen[i];
  EXPECT_NE(text.find("\rstep 2/6"), std::string::npos);  // shown, then rewritten
  EXPECT_NE(text.find("\rstep 5/6"), std::string::npos);
}

}  // namespace
}  // namespace sy
