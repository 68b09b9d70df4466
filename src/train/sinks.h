// Further outputs of the numbers in metrics.jsonl: a table, TensorBoard, Prometheus, MLPerf's log.
// Their values follow from metrics.jsonl, and the head of MLPerf's log from the configuration. A
// resumed run writes them anew. The times of earlier steps are then estimates (SinkSet).
#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "src/config.h"
#include "src/text/json.h"

namespace sy {

// A number of a step: its name, and the label and value of its subject, such as "layer" "3" or
// "domain" "wiki". Both are empty for the whole model.
struct Scalar {
  std::string name, label, label_value;
  double value = 0;
  std::string path() const { return label.empty() ? name : fmt::format("{}/{}_{}", name, label, label_value); }
};
// Returns the numbers of a line of metrics.jsonl except its step; null becomes NaN.
// layers: index in the model of each MoE layer. If the line has expert counts, each MoE layer has
// expert_imbalance = largest load / mean load (1 if nothing was routed) and drop_rate = dropped /
// routed.
// If it has epochs, the result has them by domain.
// If it has a validation, the result has validation_loss and validation_bits_per_byte, in total and
// by domain.
std::vector<Scalar> scalars_of(const Json& line, const std::vector<std::int64_t>& layers);

// Head of MLPerf's log.
using MlLogSettings = std::vector<std::pair<std::string, Json>>;
// train_samples: sequences of an epoch. eval_samples: windows of a validation.
MlLogSettings mllog_settings(const Config& config, const Layout& layout, Index train_samples, Index eval_samples);

// The sinks that a run enables, and the layers and domains that its lines may have.
struct MetricsSinks {
  Config::Log enabled;
  std::vector<std::int64_t> layers;  // indices of the MoE layers in the model
  std::vector<std::string> domains;  // of the validations
  // whether lines have the fields mfu, mtp_loss and indexer_loss
  bool mfu = false, mtp = false, indexer = false;
  MlLogSettings mllog = {};
  std::vector<std::string> train_domains = {};
  bool skips = false;  // whether lines have the field skipped_steps
};

class MetricsSink {
 public:
  virtual ~MetricsSink() = default;
  // time: end of the step in seconds since 1970. Throws Failure if the file cannot be written.
  virtual void write(Index step, double time, const std::vector<Scalar>& scalars) = 0;
  // Called after the last step of a training. success: it reached its end or its target loss.
  virtual void finish(bool /*success*/) {}
};

// A log for the compliance checker of MLPerf Training (mlperf-logging). Each validation ends a
// block of steps. The intervals of validations are empty, and steps contain their validation.
std::unique_ptr<MetricsSink> make_mllog_sink(const std::filesystem::path& file, MlLogSettings settings);

// All enabled sinks, filled with the lines of RUN/metrics.jsonl. The times of those steps are
// computed backward from now by step_seconds.
class SinkSet {
 public:
  SinkSet(const MetricsSinks& options, const std::filesystem::path& run_dir);
  void write(const Json& line, double time);
  void finish(bool success) {
    for (const auto& sink : sinks_) sink->finish(success);
  }

 private:
  std::vector<std::int64_t> layers_;
  std::vector<std::unique_ptr<MetricsSink>> sinks_;
};

// CRC-32C (Castagnoli) of RFC 3720, which TFRecords use.
std::uint32_t crc32c(std::string_view bytes);

}  // namespace sy
