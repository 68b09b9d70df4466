// Common code of bench_gpu: measurement, roofs of the device, and models on random numbers.
//
// Times are those of the host, around as many repetitions as fill a sample. A device runs its
// operations in order and has no clock of its own. An operation that takes less time than its
// launch is measured as long as the launch.
#pragma once

#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "src/model/engine.h"
#include "tests/bench/timing.h"

namespace sy::bench {

using Run = std::function<void()>;

struct Setup {
  std::string backend;
  DType dtype = DType::f32;  // of weights and activations
  bool small = false;        // sizes that only show that everything runs
  double sample_seconds = 0;
  int samples = 0;
  std::string python, script;  // of the PyTorch peer; empty if there is none
  // A run whose last MoE layer and routing are also measured; empty if there is none.
  std::filesystem::path load;

  int local_rank = 0;
  std::unique_ptr<Device> make() const { return make_device(backend, local_rank); }
};

// Sets a variable of the environment while it lives.
class Environment {
 public:
  Environment(const char* name, const std::string& value);
  ~Environment();
  Environment(const Environment&) = delete;
  Environment& operator=(const Environment&) = delete;

 private:
  const char* name_;
  std::optional<std::string> before_;
};

// Number of repetitions of `run` that fill a sample, once it is warm.
Index repetitions(Device& backend, const Setup& setup, const Run& run);
// Mean seconds of one of `n` consecutive runs.
double sample(Device& backend, Index n, const Run& run);
// Seconds of one run.
Spread measure(Device& backend, const Setup& setup, const Run& run);

// One line of a table.
struct Line {
  std::string what;
  double flops = 0, bytes = 0;  // that one run needs at least; 0: not quoted
  Spread seconds = {};
  std::string note = {};
};
struct Section {
  std::string title, about;
  std::vector<Line> lines;
};

// Roofs of the device. They are measured several times in a run, because its clocks change.
class Roofs {
 public:
  explicit Roofs(const Setup& setup) : setup_(setup) {}
  // Takes one more sample of each roof.
  void measure();
  // Least seconds of one run under the roof of products of setup.dtype, and under that of memory.
  double product_seconds(double flops) const { return flops / spread_of(products(setup_.dtype)).median; }
  double memory_seconds(double bytes) const { return bytes / spread_of(memory_).median; }
  std::string markdown() const;

 private:
  const std::vector<double>& products(DType dtype) const { return dtype == DType::bf16 ? bf16_ : f32_; }
  const Setup& setup_;
  std::vector<double> bf16_, f32_, memory_;  // FLOP/s, FLOP/s, bytes/s
};

// Report in Markdown: the roofs, then the sections. Shares are of the medians of the roofs.
std::string report(const Roofs& roofs, const std::vector<Section>& sections);

// Fills x, f32 or bf16, with normal numbers that follow from the name. Their period is prime, so
// that no two rows are equal.
void fill_normal(Device& backend, View x, double deviation, std::string_view name);
// Initialises every parameter like ParamStore::initialize, but by fill_normal, which fills a device
// within a second.
void fill_parameters(Engine& engine);
// Returns the root of the sum of squares of x, any shape, f32 or bf16. Throws Failure if it is not
// finite, or if x is all zero: the measured operation was then wrong.
double checked_norm(Device& backend, ConstView x);

struct ModelShape {
  std::string name;
  Index layers, d_model, heads, kv_heads, experts, top_k, d_ff, vocab, sequences, seq_len;
};
Config config_of(const ModelShape& shape, DType dtype);

// ---- the parts ----
// Each appends sections. If it throws, the sections that it has measured remain.
void measure_operations(const Setup& setup, std::vector<Section>& sections);
void measure_attention(const Setup& setup, std::vector<Section>& sections);
void measure_layers(const Setup& setup, std::vector<Section>& sections);
void measure_grouped(const Setup& setup, std::vector<Section>& sections);
void measure_step(const Setup& setup, std::vector<Section>& sections);
void measure_graphs(const Setup& setup, std::vector<Section>& sections);
// Measures communication between the ranks of `world` (at least two), instead of the parts above.
// Collective.
void measure_ranks(const Setup& setup, Comm& world, std::vector<Section>& sections);

}  // namespace sy::bench
