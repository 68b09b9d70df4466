// What the parts of bench_gpu share: how it measures, the roofs that figures are quoted under, and models on random numbers.
//
// Time is the host's, around as many repetitions as fill a sample: a backend works through what it is given in order and
// has no clock of its own. So what is shorter than the host takes to ask for it is measured as that long.
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
  bool small = false;        // sizes that show that everything runs, and no more
  double sample_seconds = 0;
  int samples = 0;
  std::string python, script;  // of the PyTorch peer; none: no peer
  std::filesystem::path load;  // a run of which a layer and its routing are measured, too; none: none

  int local_rank = 0;
  std::unique_ptr<Backend> make() const { return make_backend(backend, local_rank); }
};

// A variable of the environment has this value while it lives.
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

// How often `run` fits into a sample, once it is warm.
Index repetitions(Backend& backend, const Setup& setup, const Run& run);
// Seconds of one of `n` runs, one after the other.
double sample(Backend& backend, Index n, const Run& run);
// Seconds of one run.
Spread measure(Backend& backend, const Setup& setup, const Run& run);

// One line of a table.
struct Line {
  std::string what;
  double flops = 0, bytes = 0;  // that one run cannot do without; 0: not quoted
  Spread seconds = {};
  std::string note = {};
};
struct Section {
  std::string title, about;
  std::vector<Line> lines;
};

// What the device can do, measured several times in a run, as its clocks move.
class Roofs {
 public:
  explicit Roofs(const Setup& setup) : setup_(setup) {}
  // One more sample of each.
  void measure();
  // The best that one run of these takes: under the roof of products of setup.dtype, and of memory.
  double product_seconds(double flops) const { return flops / spread_of(products(setup_.dtype)).median; }
  double memory_seconds(double bytes) const { return bytes / spread_of(memory_).median; }
  std::string markdown() const;

 private:
  const std::vector<double>& products(DType dtype) const { return dtype == DType::bf16 ? bf16_ : f32_; }
  const Setup& setup_;
  std::vector<double> bf16_, f32_, memory_;  // FLOP/s, FLOP/s, bytes/s
};

// Roofs first, then the sections; shares are of the roofs' medians.
std::string report(const Roofs& roofs, const std::vector<Section>& sections);

// Elements of f32 or bf16 become normal numbers that follow from the name. Their period is prime: no two rows are equal.
void fill_normal(Backend& backend, View x, double deviation, std::string_view name);
// Every parameter as ParamStore::initialize would, but from fill_normal: a device is filled within a second.
void fill_parameters(Engine& engine);
// The root of the sum of squares of x, any shape, f32 or bf16. Throws Failure where that is not finite or x is all zero:
// what was measured was not what it should be.
double checked_norm(Backend& backend, ConstView x);

struct ModelShape {
  std::string name;
  Index layers, d_model, heads, kv_heads, experts, top_k, d_ff, vocab, sequences, seq_len;
};
Config config_of(const ModelShape& shape, DType dtype);

// ---- the parts ----  Each appends sections; where it throws, what it had measured is there.
void measure_operations(const Setup& setup, std::vector<Section>& sections);
void measure_layers(const Setup& setup, std::vector<Section>& sections);
void measure_grouped(const Setup& setup, std::vector<Section>& sections);
void measure_step(const Setup& setup, std::vector<Section>& sections);
void measure_graphs(const Setup& setup, std::vector<Section>& sections);
// Between the ranks of `world`, which are several: in the place of the parts above. Collective.
void measure_ranks(const Setup& setup, Comm& world, std::vector<Section>& sections);

}  // namespace sy::bench
