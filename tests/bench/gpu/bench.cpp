#include "tests/bench/gpu/bench.h"

#include <cmath>
#include <cstdlib>

#include "kernels/ops/elementwise.h"
#include "kernels/philox.h"

namespace sy::bench {

Environment::Environment(const char* name, const std::string& value) : name_(name) {
  if (const char* const before = std::getenv(name)) before_ = before;
  setenv(name, value.c_str(), 1);
}

Environment::~Environment() {
  before_ ? setenv(name_, before_->c_str(), 1) : unsetenv(name_);
}

double sample(Device& device, Index n, const Run& run) {
  device.synchronize();
  const double started = seconds_now();
  for (Index i = 0; i < n; ++i) run();
  device.synchronize();
  return (seconds_now() - started) / static_cast<double>(n);
}

Index repetitions(Device& device, const Setup& setup, const Run& run) {
  run();
  const double once = sample(device, 2, run);
  // Two short runs say little: most of their time is the wait for their end.
  const Index n = std::max<Index>(1, std::llround(std::min(setup.sample_seconds / once, 1e6)));
  return std::max<Index>(1, std::llround(setup.sample_seconds / sample(device, std::max<Index>(1, n / 8), run)));
}

Spread measure(Device& device, const Setup& setup, const Run& run) {
  const Index n = repetitions(device, setup, run);
  std::vector<double> seconds;
  for (int i = 0; i < setup.samples; ++i) seconds.push_back(sample(device, n, run));
  return spread_of(seconds);
}

void fill_normal(Device& device, View x, double deviation, std::string_view name) {
  constexpr Index period = 1000003;
  const Index n = x.elements(), first = std::min(n, period);
  const RandomStream random(1, name);
  std::vector<float> values(first);
  for (Index i = 0; i < first; ++i) values[i] = static_cast<float>(deviation * random.normal(i));
  const View flat = x.reshape({n});
  if (x.dtype() == DType::bf16) {
    std::vector<std::uint16_t> rounded(first);
    std::transform(values.begin(), values.end(), rounded.begin(), bf16_of_float);
    device.to_device(rounded.data(), flat.rows(0, first));
  } else {
    device.to_device(values.data(), flat.rows(0, first));
  }
  for (Index done = first; done < n;) {
    const Index more = std::min(done, n - done);
    run(device, ops::Copy{.x = flat.rows(0, more), .y = flat.rows(done, more)});
    done += more;
  }
}

void fill_parameters(Engine& engine) {
  Device& b = engine.device();
  ParamStore& store = engine.store();
  for (const ParamSpec& spec : store.specs()) {
    const View weight = store.get(spec.name).weight;
    if (spec.init.kind == InitKind::normal) {
      fill_normal(b, weight, spec.init.stddev, spec.name);
      continue;
    }
    const Tensor values = b.tensor(weight.shape());
    run(b, ops::Fill{.x = values, .value = spec.init.kind == InitKind::ones ? 1.0f : 0.0f});
    run(b, ops::Convert{.x = values, .y = weight});
    b.synchronize();  // before they are freed
  }
  for (std::size_t g = 0; g < store.layout().groups.size(); ++g) {
    ParamStore::Buffers& buffers = store.buffers(g);
    const Range owned = store.layout().groups[g].owned();
    if (buffers.master.view())
      run(b, ops::Convert{.x = buffers.weights.view().rows(owned.begin, owned.size()), .y = buffers.master});
  }
}

double checked_norm(Device& device, ConstView x) {
  const Tensor values = device.tensor(x.shape()), sum = device.tensor({1}, DType::f64);
  run(device, ops::Convert{.x = x, .y = values});
  run(device, ops::SumSquares{.x = values, .out = sum});
  double squares = 0;
  device.to_host(sum, &squares);
  if (!(squares > 0) || !std::isfinite(squares)) fail("a result of {} elements has norm {}", x.elements(), squares);
  return std::sqrt(squares);
}

Config config_of(const ModelShape& s, DType dtype) {
  return parse_config(
      fmt::format("[model]\nlayers={}\nd_model={}\nheads={}\nkv_heads={}\nseq_len={}\n[moe]\nexperts={}\ntop_k={}\n"
                  "d_ff={}\ncapacity_factor=0\n[train]\nmicro_batch={}\nglobal_batch={}\n[run]\ndtype={}\n",
                  s.layers, s.d_model, s.heads, s.kv_heads, s.seq_len, s.experts, s.top_k, s.d_ff, s.sequences,
                  s.sequences, info(dtype).name),
      s.name);
}

}  // namespace sy::bench
