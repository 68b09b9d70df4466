// Where the numbers of metrics.jsonl go besides: a table, TensorBoard, Prometheus. All that they hold follows from the lines of
// metrics.jsonl, so that a run that resumes makes them anew from those, and none can tell another story.
#pragma once

#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "src/config.h"
#include "src/text/json.h"

namespace sy {

// A number of a step: its name, and what it is of: "layer" "3", "domain" "wiki", or nothing.
struct Scalar {
  std::string name, label, of;
  double value = 0;
  std::string path() const { return label.empty() ? name : fmt::format("{}/{}_{}", name, label, of); }
};
// The numbers of a line of metrics.jsonl but its step; null is NaN. Of a line with counts of experts, for each MoE layer (`layers`:
// the blocks that they are in): expert_imbalance = the largest load / the mean load, 1 where nothing was routed, and drop_rate =
// dropped / routed. Of one with a validation: validation_loss and validation_bits_per_byte, of all and by domain.
std::vector<Scalar> scalars_of(const Json& line, const std::vector<std::int64_t>& layers);

// What a run wants of them, and what its lines may speak of.
struct MetricsSinks {
  Config::Log wanted;
  std::vector<std::int64_t> layers;  // the blocks of its MoE layers
  std::vector<std::string> domains;  // of its validations
};

class MetricsSink {
 public:
  virtual ~MetricsSink() = default;
  // time: when the step was done, in seconds since 1970.
  virtual void write(Index step, double time, const std::vector<Scalar>& scalars) = 0;
};

// A line a step under a line of names: step, then the paths of `columns`; what a step does not tell is empty. Throws Failure where
// a line cannot be written, as the other two do.
std::unique_ptr<MetricsSink> make_csv_sink(const std::filesystem::path& file, const std::vector<Scalar>& columns);
// An event file of TensorBoard: TFRecords with Event messages of simple values. A file of an earlier process is removed.
std::unique_ptr<MetricsSink> make_tensorboard_sink(const std::filesystem::path& folder);
// The latest value of everything, in Prometheus' text format; the file is replaced as a whole.
std::unique_ptr<MetricsSink> make_prometheus_sink(const std::filesystem::path& file);

// All that are wanted, with what RUN/metrics.jsonl holds already. The times of those steps are reckoned back from now.
class SinkSet {
 public:
  SinkSet(const MetricsSinks& what, const std::filesystem::path& run_dir);
  void write(const Json& line, double time);

 private:
  std::vector<std::int64_t> layers_;
  std::vector<std::unique_ptr<MetricsSink>> sinks_;
};

// CRC-32C (Castagnoli) of RFC 3720, which TFRecords use.
std::uint32_t crc32c(std::string_view bytes);

}  // namespace sy
