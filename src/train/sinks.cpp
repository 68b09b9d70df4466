#include "src/train/sinks.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <bit>
#include <chrono>
#include <cmath>
#include <map>
#include <numeric>

#include "dist/runtime.h"
#include "src/io/expert_history.h"
#include "src/system/files.h"
#include "src/text/strings.h"
#include "src/train/append_file.h"
#include "src/train/metrics.h"

namespace sy {
namespace {

namespace fs = std::filesystem;

// A table with a header and a line for each step: step, then the paths of `columns`. Absent values
// are empty.
class Csv final : public MetricsSink {
 public:
  Csv(const fs::path& file, const std::vector<Scalar>& columns) : file_(file) {
    std::string names = "step";
    for (const Scalar& column : columns) {
      columns_.push_back(column.path());
      names += "," + csv_field(columns_.back());
    }
    file_.add(names + "\n");
  }
  void write(Index step, double, const std::vector<Scalar>& scalars) override {
    std::map<std::string, double> values;
    for (const Scalar& s : scalars) values[s.path()] = s.value;
    std::string line = std::to_string(step);
    for (const std::string& column : columns_) {
      const auto found = values.find(column);
      line += found == values.end() ? "," : fmt::format(",{}", found->second);
    }
    file_.add(line + "\n");
  }

 private:
  AppendFile file_;
  std::vector<std::string> columns_;
};

// ---- protocol buffers: a message is a list of fields, each with number, wire type and value ----

void add_varint(std::string& out, std::uint64_t value) {
  for (; value >= 0x80; value >>= 7) out += static_cast<char>(value | 0x80);
  out += static_cast<char>(value);
}
enum Wire { varint = 0, eight_bytes = 1, with_length = 2, four_bytes = 5 };
void add_key(std::string& out, int field, Wire wire) {
  add_varint(out, static_cast<std::uint64_t>(field) << 3 | wire);
}
template <class T>
void add_little_endian(std::string& out, T value) {
  for (std::size_t i = 0; i < sizeof value; ++i) out += static_cast<char>(value >> 8 * i);
}
void add_text(std::string& out, int field, std::string_view text) {
  add_key(out, field, with_length);
  add_varint(out, text.size());
  out += text;
}

// An event file of TensorBoard: TFRecords with Event messages of simple values. Removes the files
// of earlier processes.
// Field numbers of tensorboard/compat/proto:
// - Event {1: wall_time, 2: step, 3: file_version, 5: summary, 7: session_log {1: status}}
// - Summary {1: value}, Value {1: tag, 2: simple_value}
class TensorBoard final : public MetricsSink {
 public:
  explicit TensorBoard(const fs::path& folder) : file_(fresh(folder)) {
    const double now = std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
    std::string version = event(now, 0);
    add_text(version, 3, "brain.Event:2");
    add(version);
    // Status START: a viewer that has read an earlier file discards its values, which all follow
    // again.
    std::string start = event(now, 0), status;
    add_key(status, 1, varint);
    add_varint(status, 1);
    add_text(start, 7, status);
    add(start);
  }
  void write(Index step, double time, const std::vector<Scalar>& scalars) override {
    std::string summary;
    for (const Scalar& s : scalars) {
      std::string value;
      add_text(value, 1, s.path());
      add_key(value, 2, four_bytes);
      add_little_endian(value, std::bit_cast<std::uint32_t>(static_cast<float>(s.value)));
      add_text(summary, 1, value);
    }
    std::string message = event(time, step);
    add_text(message, 5, summary);
    add(message);
  }

 private:
  static fs::path fresh(const fs::path& folder) {
    std::error_code error;
    if (file_type(folder, Links::keep) == fs::file_type::symlink)
      bad_input("{} is a link: nothing is written there: put a folder in its place, or remove it", folder.string());
    fs::create_directories(folder, error);
    if (error)
      throw_write_error(error.value(),
                        fmt::format("cannot write {}: {}: check its permissions", folder.string(), error.message()));
    for (const fs::path& path : entries_of(folder))
      if (path.filename().string().starts_with("events.out.tfevents.")) fs::remove(path, error);
    const auto seconds = std::chrono::system_clock::now().time_since_epoch() / std::chrono::seconds(1);
    return folder / fmt::format("events.out.tfevents.{:010}.{}.{}", seconds, host_name(), getpid());
  }
  static std::string event(double time, Index step) {
    std::string message;
    add_key(message, 1, eight_bytes);
    add_little_endian(message, std::bit_cast<std::uint64_t>(time));
    add_key(message, 2, varint);
    add_varint(message, static_cast<std::uint64_t>(step));
    return message;
  }
  // Appends a TFRecord: length, checksum of the length, message, checksum of the message.
  void add(const std::string& message) {
    const auto masked = [](std::string_view bytes) { return std::rotr(crc32c(bytes), 15) + 0xa282ead8u; };
    std::string record;
    add_little_endian(record, static_cast<std::uint64_t>(message.size()));
    add_little_endian(record, masked(record));
    record += message;
    add_little_endian(record, masked(message));
    file_.add(record);
  }
  AppendFile file_;
};

// The latest value of every number in Prometheus' text format. The file is replaced atomically.
class Prometheus final : public MetricsSink {
 public:
  explicit Prometheus(fs::path file) : path_(std::move(file)) {}
  void write(Index step, double, const std::vector<Scalar>& scalars) override {
    latest_["step"][""] = static_cast<double>(step);
    for (const Scalar& s : scalars)
      latest_[s.name][s.label.empty() ? "" : fmt::format("{{{}=\"{}\"}}", s.label, escaped(s.label_value))] = s.value;
    std::string text;
    for (const auto& [name, values] : latest_) {
      text += fmt::format("# TYPE switchyard_{} gauge\n", name);
      for (const auto& [label, value] : values) text += fmt::format("switchyard_{}{} {}\n", name, label, number(value));
    }
    const fs::path fresh = path_.string() + ".new";
    AppendFile(fresh).add(text);
    std::error_code error;
    fs::rename(fresh, path_, error);
    if (error) fail("cannot write {}: {}", path_.string(), error.message());
  }

 private:
  static std::string number(double value) {
    if (std::isnan(value)) return "NaN";
    return std::isinf(value) ? (value > 0 ? "+Inf" : "-Inf") : fmt::format("{}", value);
  }
  static std::string escaped(std::string label) {
    replace_all(label, "\\", "\\\\");
    replace_all(label, "\"", "\\\"");
    replace_all(label, "\n", "\\n");
    return label;
  }
  fs::path path_;
  std::map<std::string, std::map<std::string, double>> latest_;  // by name, then by label
};

// null stands for a number that is not finite.
double number_of(const Json& value) {
  return value.is_null() ? std::nan("") : value.get<double>();
}

// Returns the columns of a line that has every value that a run may write.
std::vector<Scalar> all_columns(const MetricsSinks& options) {
  StepMetrics m;
  if (options.mtp) m.mtp_loss = 0;
  if (options.indexer) m.indexer_loss = 0;
  if (options.mfu) m.mfu = 0;
  if (options.skips) m.skipped_steps = 0;
  if (options.enabled.energy) m.energy.emplace();
  for (const std::string& domain : options.train_domains) m.epochs.emplace_back(domain, 0);
  const std::vector<std::vector<Index>> layers(options.layers.size(), {1});
  const ExpertCounts counts{layers, layers};
  std::vector<DomainScore> validation;
  for (const std::string& domain : options.domains) validation.emplace_back().name = domain;
  return scalars_of(metrics_line(m, layers.empty() ? nullptr : &counts, validation, 0), options.layers);
}

}  // namespace

std::uint32_t crc32c(std::string_view bytes) {
  static const auto table = [] {
    std::array<std::uint32_t, 256> t{};
    for (std::uint32_t i = 0; i < 256; ++i) {
      t[i] = i;
      for (int bit = 0; bit < 8; ++bit) t[i] = t[i] >> 1 ^ (t[i] & 1 ? 0x82f63b78u : 0);
    }
    return t;
  }();
  std::uint32_t crc = ~0u;
  for (const char c : bytes) crc = table[(crc ^ static_cast<std::uint8_t>(c)) & 0xff] ^ crc >> 8;
  return ~crc;
}

std::vector<Scalar> scalars_of(const Json& line, const std::vector<std::int64_t>& layers) {
  std::vector<Scalar> scalars;
  for (const auto& [name, value] : line.members()) {
    constexpr std::string_view no_scalars[] = {"step", "time", "experts", "validation", "epochs"};
    if (std::ranges::find(no_scalars, name) != std::end(no_scalars)) continue;
    if (!value.is_number() && !value.is_null())
      throw JsonError(fmt::format("{} where the number {} is expected", value.type_name(), name));
    scalars.push_back({name, "", "", number_of(value)});
  }
  if (const Json* epochs = line.find("epochs"))
    for (const auto& [domain, value] : epochs->members())
      scalars.push_back({"epochs", "domain", domain, number_of(value)});
  if (const Json* experts = line.find("experts"))
    for (std::size_t l = 0; l < std::min(layers.size(), experts->at("routed").size()); ++l) {
      const auto routed = experts->at("routed")[l].get<std::vector<Index>>();
      const auto dropped = experts->at("dropped")[l].get<std::vector<Index>>();
      const double sum = std::accumulate(routed.begin(), routed.end(), 0.0);
      const double num_dropped = std::accumulate(dropped.begin(), dropped.end(), 0.0);
      scalars.push_back({"expert_imbalance", "layer", std::to_string(layers[l]), max_over_mean(routed)});
      scalars.push_back({"drop_rate", "layer", std::to_string(layers[l]), sum > 0 ? num_dropped / sum : 0});
    }
  if (const Json* validation = line.find("validation")) {
    const auto add = [&](const Json& score, const std::string& label, const std::string& label_value) {
      for (const char* metric : {"loss", "bits_per_byte"})
        scalars.push_back({fmt::format("validation_{}", metric), label, label_value, number_of(score.at(metric))});
    };
    add(*validation, "", "");
    if (const Json* domains = validation->find("domains"))
      for (const auto& [name, score] : domains->members()) add(score, "domain", name);
  }
  return scalars;
}

SinkSet::SinkSet(const MetricsSinks& options, const fs::path& run_dir) : layers_(options.layers) {
  if (options.enabled.csv) sinks_.push_back(std::make_unique<Csv>(run_dir / "metrics.csv", all_columns(options)));
  if (options.enabled.tensorboard) sinks_.push_back(std::make_unique<TensorBoard>(run_dir / "tensorboard"));
  if (options.enabled.prometheus) sinks_.push_back(std::make_unique<Prometheus>(run_dir / "metrics.prom"));
  if (options.enabled.mllog) sinks_.push_back(make_mllog_sink(run_dir / "mllog.txt", options.mllog));
  const fs::path lines = run_dir / "metrics.jsonl";
  if (sinks_.empty() || !file_exists(lines)) return;
  Index damaged = 0;
  std::string first;  // first damaged line
  const auto each_line = [&](const auto& visit) {
    damaged = 0;
    read_lines(lines, [&](const TextLine& line) {
      try {
        visit(Json::parse(line.text));
      } catch (const JsonError& e) {
        if (damaged++ == 0) first = fmt::format("line {} ({})", line.number, e.what());
      }
    });
  };
  const auto seconds = [](const Json& line) { return number_at(line, "step_seconds").value_or(0); };
  double time = std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
  each_line([&](const Json& line) { time -= seconds(line); });
  each_line([&](const Json& line) { write(line, time += seconds(line)); });
  if (damaged > 0)
    warn(fmt::format("{}: {}{} cannot be read: the outputs made from the file lack {}", lines.string(), first,
                     damaged > 1 ? fmt::format(" and {} more", damaged - 1) : "", damaged > 1 ? "them" : "it"));
}

void SinkSet::write(const Json& line, double time) {
  if (sinks_.empty()) return;
  const auto step = line.at("step").get<Index>();
  const std::vector<Scalar> scalars = scalars_of(line, layers_);
  for (const auto& sink : sinks_) sink->write(step, time, scalars);
}

}  // namespace sy
