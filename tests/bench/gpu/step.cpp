// Measures a training step of a model that fills the device.
#include <cmath>
#include <cstdlib>

#include "kernels/dry/dry.h"
#include "kernels/philox.h"
#include "src/train/distributed_optimizer.h"
#include "src/train/memory.h"
#include "tests/bench/gpu/bench.h"

namespace sy::bench {
namespace {

// Mixtral 8x7B, and narrower ones for devices with too little memory for two of its layers.
const ModelShape widths[] = {
    {"Mixtral 8x7B", 2, 4096, 32, 8, 8, 2, 14336, 32768, 2, 4096},
    {"half of Mixtral 8x7B's width", 2, 2048, 16, 4, 8, 2, 7168, 32768, 2, 4096},
    {"a quarter of Mixtral 8x7B's width", 2, 1024, 8, 2, 8, 2, 3584, 32768, 2, 4096},
};
// Dense, and so narrow that launches take long compared with computation.
const ModelShape narrow = {"a narrow dense model", 12, 768, 12, 12, 0, 1, 2048, 32768, 1, 1024};
const ModelShape small_model = {"small", 2, 64, 2, 1, 4, 2, 96, 64, 2, 24};

struct Plan {
  ModelShape shape;
  ArenaSizes arenas = {};
};

// Bytes that the device has for a model's activations. Empty if the model does not fit.
std::optional<ArenaSizes> room_for(const ModelShape& shape, const Setup& setup, const Device& device) {
  try {
    return arena_sizes(config_of(shape, setup.dtype), shape.vocab, {}, 0, device, 1, false);
  } catch (const InputError&) {
    return std::nullopt;
  }
}

// The widest model of at least two layers, with as many layers as fit.
Plan largest(const Setup& setup) {
  const std::unique_ptr<Device> device = setup.make();
  if (setup.small) return {small_model, room_for(small_model, setup, *device).value()};
  for (ModelShape shape : widths) {
    std::optional<Plan> plan;
    for (; const auto reservation = room_for(shape, setup, *device); ++shape.layers) plan = {shape, *reservation};
    if (plan) return *plan;
  }
  fail("{}: too little memory for a model to measure", device->describe());
}

// One rank that trains on one batch of random tokens again and again.
class Training {
 public:
  Training(const ModelShape& shape, const Setup& setup, std::unique_ptr<Device> device, ArenaSizes arenas)
      : shape_(shape),
        self_(make_comm_self()),
        engine_(config_of(shape, setup.dtype), shape.vocab, std::move(device), make_mesh(*self_, {}), true, arenas),
        optimizer_(engine_.mesh(), engine_.store()),
        ids_(tokens()),
        targets_(tokens()) {
    const RandomStream random(1, "bench");
    for (Index i = 0; i < tokens(); ++i) {
      ids_[i] = static_cast<std::int32_t>(random.bits(2 * i) % shape.vocab);
      targets_[i] = static_cast<std::int32_t>(random.bits(2 * i + 1) % shape.vocab);
    }
    fill_parameters(engine_);
  }

  Device& device() { return engine_.device(); }
  // Tokens of one micro-batch.
  Index tokens() const { return shape_.sequences * shape_.seq_len; }
  void step(Index micro_batches) {
    for (Index i = 0; i < micro_batches; ++i) engine_.forward_backward(batch(micro_batches));
    optimizer_.step(engine_.config().train, 1e-4, ++steps_);
  }
  // Mean cross-entropy of the batch.
  double loss() {
    engine_.take_statistics();
    engine_.evaluate(batch(1), true);
    return engine_.take_statistics().loss_sum / static_cast<double>(tokens());
  }

 private:
  Engine::MicroBatch batch(Index micro_batches) const {
    return {shape_.sequences, shape_.seq_len,           ids_,
            targets_,         tokens() * micro_batches, shape_.sequences * micro_batches,
            micro_batches};
  }

  ModelShape shape_;
  std::unique_ptr<Comm> self_;
  Engine engine_;
  DistributedOptimizer optimizer_;
  std::vector<std::int32_t> ids_, targets_;
  Index steps_ = 0;
};

// FLOP of one micro-batch, forward and backward without recomputation: three times the dry
// device's count of forward.
double model_flops(const ModelShape& shape, const Setup& setup, const Device& device) {
  Training training(shape, setup, make_dry(&device), {});
  dry_counts(training.device()) = {};
  training.loss();
  return 3 * dry_counts(training.device()).flops;
}

}  // namespace

void measure_step(const Setup& setup, std::vector<Section>& sections) {
  const auto [shape, arenas] = largest(setup);
  Training training(shape, setup, setup.make(), arenas);
  const double flops = model_flops(shape, setup, training.device()), before = training.loss();
  const ParamCount count = count_params(config_of(shape, setup.dtype), shape.vocab);
  sections.push_back(
      {"Training step: " + shape.name,
       fmt::format(
           "{}, {} layers of {} experts, {:.2f} G parameters, {:.2f} G active, vocabulary {}, {} x {} tokens in "
           "a micro-batch, one rank.\nForward, backward and optimizer; FLOPs are the model's, nothing counted "
           "twice.",
           info(setup.dtype).name, shape.layers, shape.experts, static_cast<double>(count.total) / 1e9,
           static_cast<double>(count.active) / 1e9, shape.vocab, shape.sequences, shape.seq_len),
       {}});
  Section& section = sections.back();
  for (Index micro_batches : {1, setup.small ? 2 : 8}) {
    const Spread seconds = measure(training.device(), setup, [&] { training.step(micro_batches); });
    section.lines.push_back(
        {.what = fmt::format("{} micro-batch{}", micro_batches, micro_batches == 1 ? "" : "es"),
         .flops = flops * static_cast<double>(micro_batches),
         .seconds = seconds,
         .note =
             fmt::format("{:.0f} tokens/s", static_cast<double>(training.tokens() * micro_batches) / seconds.median)});
  }
  const double after = training.loss();
  if (!(after < before)) fail("training on one batch took the loss from {} to {}: it does not learn", before, after);
  section.about += fmt::format("\nOn this one batch the loss went from {:.3f} to {:.3f}.", before, after);
}

void measure_graphs(const Setup& setup, std::vector<Section>& sections) {
  ModelShape shape = setup.small ? small_model : narrow;
  shape.experts = 0;
  sections.push_back({"CUDA graphs",
                      fmt::format("A step of {}, {} layers of {}, {} tokens, {}.", shape.name, shape.layers,
                                  shape.d_model, shape.sequences * shape.seq_len, info(setup.dtype).name),
                      {}});
  const double flops = model_flops(shape, setup, *setup.make());
  for (const char* graphs : {"1", "0"}) {
    const Environment variable("SWITCHYARD_GRAPHS", graphs);
    auto device = setup.make();
    const ArenaSizes arenas = room_for(shape, setup, *device).value();
    Training training(shape, setup, std::move(device), arenas);
    for (int i = 0; i < 3; ++i) training.step(1);
    const Spread seconds = measure(training.device(), setup, [&] { training.step(1); });
    sections.back().lines.push_back(
        {.what = *graphs == '1' ? "replayed" : "operation by operation",
         .flops = flops,
         .seconds = seconds,
         .note = fmt::format("{:.0f} tokens/s", static_cast<double>(training.tokens()) / seconds.median)});
  }
}

}  // namespace sy::bench
