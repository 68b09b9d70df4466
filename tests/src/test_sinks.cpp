#include "src/train/sinks.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <fstream>
#include <map>
#include <sstream>

#include "src/system/files.h"
#include "src/train/metrics.h"
#include "tests/src/temp_folder.h"

namespace sy {
namespace {

namespace fs = std::filesystem;

// CRC-32C one bit at a time, from the polynomial. The code computes it in another way.
std::uint32_t castagnoli(std::string_view bytes) {
  std::uint32_t crc = ~0u;
  for (const char c : bytes)
    for (int bit = 0; bit < 8; ++bit) {
      const bool one = (crc ^ static_cast<std::uint8_t>(c) >> bit) & 1;
      crc = crc >> 1 ^ (one ? 0x82f63b78u : 0);
    }
  return ~crc;
}

TEST(Crc32c, MatchesKnownAnswers) {
  EXPECT_EQ(crc32c("123456789"), 0xe3069283u);
  EXPECT_EQ(crc32c(std::string(32, '\0')), 0x8a9136aau);  // RFC 3720, B.4
  EXPECT_EQ(crc32c(std::string(32, '\xff')), 0x62a8ab43u);
  EXPECT_EQ(crc32c(""), 0u);
}

// A record of an event file, read by the published format.
struct ReadEvent {
  double time = 0;
  std::uint64_t step = 0;
  std::string version;
  int status = 0;
  std::map<std::string, float> values;
};
struct Bytes {
  std::string_view rest;
  template <class T>
  T take() {
    T value;
    EXPECT_GE(rest.size(), sizeof value);
    std::memcpy(&value, rest.data(), sizeof value);
    rest.remove_prefix(sizeof value);
    return value;
  }
  std::string_view take(std::size_t n) {
    EXPECT_GE(rest.size(), n);
    const auto text = rest.substr(0, n);
    rest.remove_prefix(n);
    return text;
  }
  std::uint64_t varint() {
    std::uint64_t value = 0;
    for (int shift = 0;; shift += 7) {
      const auto byte = take<std::uint8_t>();
      value |= std::uint64_t{byte & 0x7fu} << shift;
      if (byte < 0x80) return value;
    }
  }
};
template <class F>
void each_field(std::string_view message, F f) {
  for (Bytes bytes{message}; !bytes.rest.empty();) {
    const std::uint64_t key = bytes.varint();
    ASSERT_TRUE((key & 7) == 0 || (key & 7) == 1 || (key & 7) == 2 || (key & 7) == 5) << key;
    std::string_view value;
    std::uint64_t number = 0;
    if ((key & 7) == 0) number = bytes.varint();
    if ((key & 7) == 1) value = bytes.take(8);
    if ((key & 7) == 2) value = bytes.take(bytes.varint());
    if ((key & 7) == 5) value = bytes.take(4);
    f(static_cast<int>(key >> 3), value, number);
  }
}
std::vector<ReadEvent> read_events(const std::string& file) {
  std::vector<ReadEvent> events;
  const auto masked = [](std::string_view bytes) {
    const std::uint32_t crc = castagnoli(bytes);
    return (crc >> 15 | crc << 17) + 0xa282ead8u;
  };
  for (Bytes bytes{file}; !bytes.rest.empty();) {
    const auto length_bytes = bytes.rest.substr(0, 8);
    const auto length = bytes.take<std::uint64_t>();
    EXPECT_EQ(bytes.take<std::uint32_t>(), masked(length_bytes));
    const auto message = bytes.take(length);
    EXPECT_EQ(bytes.take<std::uint32_t>(), masked(message));
    ReadEvent& event = events.emplace_back();
    each_field(message, [&](int field, std::string_view value, std::uint64_t number) {
      if (field == 1) std::memcpy(&event.time, value.data(), 8);
      if (field == 2) event.step = number;
      if (field == 3) event.version = value;
      if (field == 7)
        each_field(value, [&](int, std::string_view, std::uint64_t n) { event.status = static_cast<int>(n); });
      if (field == 5)
        each_field(value, [&](int, std::string_view of_value, std::uint64_t) {
          std::string tag;
          float x = 0;
          each_field(of_value, [&](int value_field, std::string_view v, std::uint64_t) {
            if (value_field == 1) tag = v;
            if (value_field == 2) std::memcpy(&x, v.data(), 4);
          });
          event.values[tag] = x;
        });
    });
  }
  return events;
}

struct SinkFolder {
  TempFolder folder;
  fs::path path = folder.path();
  MetricsSinks sinks{{.csv = true, .tensorboard = true, .prometheus = true},
                     {1, 3},
                     {"code", "a \"b\", c"},
                     /*mfu=*/true,
                     /*mtp=*/false,
                     /*indexer=*/false,
                     {},
                     {"code", "wiki"}};
  std::string text(const char* name) const { return read_file(path / name); }
  std::vector<ReadEvent> events() const {
    std::vector<fs::path> files;
    for (const auto& entry : fs::directory_iterator(path / "tensorboard")) files.push_back(entry.path());
    EXPECT_EQ(files.size(), 1u);
    return read_events(read_file(files.at(0)));
  }
  std::vector<std::vector<std::string>> table() const {
    std::vector<std::vector<std::string>> rows;
    std::istringstream in(text("metrics.csv"));
    for (std::string line; std::getline(in, line);) {
      auto& row = rows.emplace_back(1);
      bool quoted = false;
      for (const char c : line) {
        if (c == '"') quoted = !quoted;
        if (c == ',' && !quoted)
          row.emplace_back();
        else
          row.back() += c;
      }
    }
    return rows;
  }
};

StepMetrics some_step(Index step) {
  StepMetrics m;
  m.step = step;
  m.tokens = step * 100 - 5;  // 5 of padding
  m.samples = step * 10;
  m.loss = 1.0 / static_cast<double>(step + 2);
  m.lr = 1e-4;
  m.step_seconds = 0.5;
  m.tflops_per_second_per_rank = 1.5;
  if (step > 1) m.mfu = 0.375;
  m.routed = 400;
  m.dropped = 10;
  m.epochs = {{"code", 0.25 * static_cast<double>(step)}, {"wiki", 0}};
  return m;
}
const ExpertCounts counts{{{30, 10}, {0, 0}}, {{5, 0}, {0, 0}}};

TEST(MetricsSinks, HaveTheValuesOfMetricsJsonl) {
  SinkFolder run;
  DomainScore code, other;
  code.name = "code", code.tokens = 10, code.nats = 30, code.windows = 1, code.bytes = -1;
  other.name = "a \"b\", c", other.tokens = 10, other.nats = 10, other.windows = 1, other.bytes = 20;
  {
    MetricsFile file(run.path, 1, run.sinks);
    StepMetrics first = some_step(1);
    first.grad_norm = std::nan("");
    file.write(first, nullptr);
    file.write(some_step(2), &counts, {code, other});
  }
  std::vector<Json> lines;
  std::istringstream in(run.text("metrics.jsonl"));
  for (std::string line; std::getline(in, line);) lines.push_back(Json::parse(line));
  const auto rows = run.table();
  ASSERT_EQ(rows.size(), 3u);
  std::map<std::string, std::size_t> column;
  for (std::size_t c = 0; c < rows[0].size(); ++c) column[rows[0][c]] = c;
  ASSERT_EQ(rows[0].size(), 1u + 14 + 2 + 2 * 2 + 2 * 3);
  EXPECT_EQ(rows[1][column.at("mfu")], "");
  EXPECT_EQ(rows[2][column.at("mfu")], "0.375");
  const auto events = run.events();
  ASSERT_EQ(events.size(), 4u);
  EXPECT_EQ(events[0].version, "brain.Event:2");
  EXPECT_EQ(events[1].status, 1);
  const std::string prom = run.text("metrics.prom");
  for (std::size_t i = 0; i < 2; ++i) {
    ASSERT_EQ(rows[i + 1].size(), rows[0].size());
    EXPECT_EQ(rows[i + 1][0], std::to_string(i + 1));
    EXPECT_EQ(events[i + 2].step, i + 1);
    EXPECT_NEAR(events[i + 2].time, static_cast<double>(time(nullptr)), 600);
    for (const auto& [name, value] : lines[i].members()) {
      if (!value.is_number() || name == "step") continue;
      // Equal bitwise.
      EXPECT_EQ(std::stod(rows[i + 1][column.at(name)]), value.get<double>()) << name;
      EXPECT_EQ(events[i + 2].values.at(name), static_cast<float>(value.get<double>())) << name;
      if (i == 1) {
        EXPECT_NE(prom.find(fmt::format("\nswitchyard_{} {}\n", name, value.get<double>())), prom.npos) << name << prom;
      }
    }
  }
  EXPECT_EQ(rows[1][column.at("grad_norm")], "nan");
  EXPECT_TRUE(std::isnan(events[2].values.at("grad_norm")));
  EXPECT_NE(prom.find("# TYPE switchyard_step gauge\nswitchyard_step 2\n"), prom.npos) << prom;

  EXPECT_EQ(lines[1].at("epochs").at("code").get<double>(), 0.5);
  EXPECT_EQ(rows[1][column.at("epochs/domain_code")], "0.25");
  EXPECT_EQ(rows[2][column.at("epochs/domain_wiki")], "0");
  EXPECT_EQ(events[3].values.at("epochs/domain_code"), 0.5f);
  EXPECT_NE(prom.find("switchyard_epochs{domain=\"code\"} 0.5\n"), prom.npos) << prom;
  EXPECT_EQ(rows[1][column.at("expert_imbalance/layer_1")], "");
  EXPECT_EQ(rows[2][column.at("expert_imbalance/layer_1")], "1.5");
  EXPECT_EQ(rows[2][column.at("expert_imbalance/layer_3")], "1");
  EXPECT_EQ(rows[2][column.at("drop_rate/layer_1")], "0.125");
  EXPECT_EQ(events[2].values.count("drop_rate/layer_1"), 0u);
  EXPECT_EQ(events[3].values.at("drop_rate/layer_1"), 0.125f);
  EXPECT_EQ(events[3].values.at("expert_imbalance/layer_1"), 1.5f);
  EXPECT_NE(prom.find("switchyard_drop_rate{layer=\"1\"} 0.125\nswitchyard_drop_rate{layer=\"3\"} 0\n"), prom.npos);

  EXPECT_EQ(rows[2][column.at("validation_loss")], "2");
  EXPECT_EQ(rows[2][column.at("validation_loss/domain_code")], "3");
  EXPECT_EQ(rows[2][column.at("validation_bits_per_byte/domain_code")], "nan");
  EXPECT_EQ(events[3].values.at("validation_loss/domain_a \"b\", c"), 1.0f);
  EXPECT_NE(prom.find("switchyard_validation_loss{domain=\"a \\\"b\\\", c\"} 1\n"), prom.npos) << prom;
  EXPECT_NE(prom.find("switchyard_validation_bits_per_byte{domain=\"code\"} NaN\n"), prom.npos) << prom;
}

// Like metrics.jsonl, sinks have a step once if it is trained again. A sink that is requested later
// has the earlier steps, too.
TEST(MetricsSinks, HaveEachStepOnceAfterAResume) {
  SinkFolder run;
  {
    MetricsSinks first = run.sinks;
    first.enabled.csv = false;
    MetricsFile file(run.path, 1, first);
    for (Index s = 1; s <= 5; ++s) file.write(some_step(s), s == 3 ? &counts : nullptr);
  }
  {
    MetricsFile file(run.path, 4, run.sinks);
    StepMetrics again = some_step(4);
    again.loss = 9;
    file.write(again, nullptr);
  }
  const auto rows = run.table();
  ASSERT_EQ(rows.size(), 5u);
  EXPECT_EQ(rows[4][3], "9");
  EXPECT_EQ(rows[0][3], "loss");
  const auto events = run.events();
  ASSERT_EQ(events.size(), 6u);
  for (std::size_t s = 1; s <= 4; ++s) {
    EXPECT_EQ(rows[s][0], std::to_string(s));
    EXPECT_EQ(events[s + 1].step, s);
    EXPECT_GT(events[s + 1].time, 1e9);
    if (s == 2 || s == 3) {
      EXPECT_NEAR(events[s + 1].time - events[s].time, 0.5, 1e-3);
    }
  }
  EXPECT_EQ(events[5].values.at("loss"), 9);
  EXPECT_NE(run.text("metrics.prom").find("switchyard_step 4\n"), std::string::npos);
  EXPECT_NE(run.text("metrics.prom").find("switchyard_expert_imbalance{layer=\"1\"} 1.5\n"), std::string::npos);
  for (const auto& entry : fs::directory_iterator(run.path)) EXPECT_NE(entry.path().extension(), ".new");
}

TEST(MetricsSinks, SkipDamagedLinesWithAWarning) {
  SinkFolder run;
  {
    MetricsFile file(run.path, 1);
    file.write(some_step(1), nullptr);
  }
  std::ofstream(run.path / "metrics.jsonl", std::ios::app)
      << "{\"step\":2,\"experts\":{\"routed\":[[\"1\"]],\"dropped\":[[1]]}}\n"
      << "{\"step\":3,\"loss\":3,\"experts\":{\"routed\":[[9000000000000000000,9000000000000000000]],\"dropped\":[[1]]}}\n"
      << "nonsense\n{\"step\":5,\"loss\":5}\n{\"step\":6,\"loss\":\"6\"}\n{\"step\":7,\"loss\":[7]}\n"
      << "{\"step\":8,\"loss\":8,\"validation\":{\"loss\":\"8\",\"bits_per_byte\":1}}\n";
  testing::internal::CaptureStderr();
  MetricsFile(run.path, 9, run.sinks).write(some_step(9), nullptr);
  const std::string warned = testing::internal::GetCapturedStderr();
  EXPECT_NE(warned.find("metrics.jsonl: line 2 ("), warned.npos) << warned;
  EXPECT_NE(warned.find(") and 4 more cannot be read"), warned.npos) << warned;
  std::string steps;
  for (const auto& row : run.table()) steps += row[0] + " ";
  EXPECT_EQ(steps, "step 1 3 5 9 ");
}

TEST(MetricsSinks, AreNotWrittenUnlessRequested) {
  SinkFolder run;
  MetricsFile file(run.path, 1);
  file.write(some_step(1), nullptr);
  EXPECT_EQ(std::distance(fs::directory_iterator(run.path), fs::directory_iterator()), 1);
}

// The checks of mlperf-logging: events in their order, each with its keys.
TEST(MetricsSinks, HaveTheEventsOfMlPerf) {
  SinkFolder run;
  run.sinks.enabled = {.mllog = true};
  Config config =
      parse_config("[model]\nseq_len=10\n[train]\nsteps=4\nwarmup=1\nglobal_batch=10\nmicro_batch=5\n", "test");
  run.sinks.mllog = mllog_settings(config, Layout{}, 77, 5);
  const auto events = [&] {
    std::vector<Json> found;
    std::istringstream in(run.text("mllog.txt"));
    for (std::string line; std::getline(in, line);) {
      EXPECT_TRUE(line.starts_with(":::MLLOG ")) << line;
      found.push_back(Json::parse(line.substr(9)));
    }
    return found;
  };
  const auto keys = [&] {
    std::string text;
    for (const Json& event : events())
      if (const auto key = event.at("key").get<std::string>(); !event.at("metadata").members().empty())
        text += fmt::format("{}{} ", key, event.at("metadata").at("samples_count").get<Index>());
    return text;
  };
  const DomainScore score{
      .name = "code", .tokens = 10, .windows = 5, .total_windows = 5, .bytes = -1, .nats = 20, .experts = {}};
  {
    MetricsFile file(run.path, 1, run.sinks);
    file.write(some_step(1), nullptr);
    file.write(some_step(2), nullptr, {score});
    file.write(some_step(3), nullptr);
  }
  // Started again after step 2, the log has its first two steps once.
  MetricsFile file(run.path, 3, run.sinks);
  file.write(some_step(3), nullptr);
  file.write(some_step(4), nullptr, {score});
  file.finish(true);
  EXPECT_EQ(
      keys(),
      "block_start0 train_loss10 train_loss20 block_stop20 eval_start20 eval_accuracy20 eval_stop20 "
      "block_start20 train_loss30 train_loss40 block_stop40 eval_start40 eval_accuracy40 eval_stop40 run_stop40 ");
  std::map<std::string, Json> values;
  Index last = 0;
  for (const Json& event : events()) {
    values[event.at("key").get<std::string>()] = event.at("value");
    EXPECT_GE(event.at("time_ms").get<Index>(), last);
    last = event.at("time_ms").get<Index>();
  }
  EXPECT_EQ(values["gradient_accumulation_steps"].get<Index>(), 2);
  EXPECT_EQ(values["opt_learning_rate_decay_steps"].get<Index>(), 3);
  EXPECT_EQ(values["opt_learning_rate_decay_schedule"].get<std::string>(), "cosine with linear warmup");
  EXPECT_EQ(values["train_samples"].get<Index>(), 77);
  EXPECT_EQ(values["eval_accuracy"].get<double>(), 2);
  EXPECT_EQ(events().back().at("metadata").at("status").get<std::string>(), "success");
}

}  // namespace
}  // namespace sy
