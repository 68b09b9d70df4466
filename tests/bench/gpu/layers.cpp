// Measures one MoE layer of the product, forward and backward on one rank, beside PyTorch.
#include "kernels/dry/dry.h"
#include "src/model/load_balancing.h"
#include "tests/bench/gpu/layer.h"
#include "tests/bench/peer.h"
#include "tests/forwarding_comm.h"

namespace sy::bench {
namespace {

const ModelShape layers[] = {
    {"Mixtral 8x7B", 1, 4096, 32, 8, 8, 2, 14336, 256, 2, 4096},
    {"64 experts, top 8 (as OLMoE and DeepSeek-V2-Lite)", 1, 2048, 16, 16, 64, 8, 1408, 256, 2, 4096},
};
const ModelShape small_layers[] = {{"small", 1, 64, 2, 1, 4, 2, 96, 64, 2, 24}};

// FLOP of the layer's forward pass. Backward has twice as many.
double forward_flops(const ModelShape& shape, DType dtype) {
  const auto self = make_comm_self();
  Layer layer(shape, dtype, make_dry(), *self);
  dry_counts(layer.device()) = {};
  layer.forward();
  return dry_counts(layer.device()).flops;
}

void measure_layer(const Setup& setup, const ModelShape& shape, std::vector<Section>& sections) {
  const auto self = make_comm_self();
  Layer layer(shape, setup.dtype, setup.make(), *self);
  Peer peer({setup.python, setup.script}, {{"--d-model", shape.d_model},
                                           {"--d-ff", shape.d_ff},
                                           {"--experts", shape.experts},
                                           {"--top-k", shape.top_k},
                                           {"--tokens", shape.sequences * shape.seq_len},
                                           {"--cuda", !layer.device().on_host()}});
  const Run both = [&] { layer.forward_backward(); };
  const Index n = repetitions(layer.device(), setup, both);
  std::vector<double> ours, theirs, ratio;
  for (int round = 0; round < setup.samples; ++round) {
    ours.push_back(sample(layer.device(), n, both));
    if (!peer.ready()) continue;
    theirs.push_back(peer.seconds(n) / static_cast<double>(n));
    ratio.push_back(theirs.back() / ours.back());
  }
  layer.check();

  const double flops = forward_flops(shape, setup.dtype);
  sections.push_back({"MoE layer: " + shape.name,
                      fmt::format("{}, {} tokens, d_model {}, {} experts of {}, top {}, none dropped, one rank. "
                                  "Gradients of weights are added to in f32.\n",
                                  info(setup.dtype).name, shape.sequences * shape.seq_len, shape.d_model, shape.experts,
                                  shape.d_ff, shape.top_k),
                      {}});
  Section& section = sections.back();
  section.lines.push_back(
      {.what = "forward", .flops = flops, .seconds = measure(layer.device(), setup, [&] { layer.forward(); })});
  section.lines.push_back({.what = "forward and backward", .flops = 3 * flops, .seconds = spread_of(ours)});
  if (ratio.empty()) {
    section.about += fmt::format("Not compared with PyTorch: `{}` has none for this device.", setup.python);
    return;
  }
  const Spread times = spread_of(ratio);
  section.about += "PyTorch took turns with it: " + peer.hello().dump();
  section.lines.push_back(
      {.what = "the same in PyTorch",
       .flops = 3 * flops,
       .seconds = spread_of(theirs),
       .note = fmt::format("{:.2f} ({:.2f} to {:.2f}) times ours", times.median, times.least, times.most)});
}

// Makes the device wait until the tokens have arrived.
class Waited final : public ForwardingComm {
 public:
  using ForwardingComm::ForwardingComm;
  const char* peer_names() const override { return inner_->peer_names(); }

 private:
  Work do_all_to_all_v(std::span<const SendReceive> buffers, std::span<const Index> send,
                       std::span<const Index> receive) override {
    inner_->start_all_to_all_v(buffers, send, receive).wait();
    return {};
  }
};

Mesh mesh_of(Comm& world, Device& device, bool waits) {
  Mesh mesh = on_device(make_mesh(world, {.ranks = world.size(), .ep = world.size()}), device);
  if (waits) mesh.expert_group = std::make_unique<Waited>(std::move(mesh.expert_group));
  return mesh;
}

Moe make_moe(Engine& engine, const MoeSpec& spec) {
  const RopeTables rope(engine.device(), {}, 1);
  SublayerCounts counts;
  return {spec, {engine.store(), rope, {}, counts}, "layers.0.moe."};
}

}  // namespace

Layer::Layer(const ModelShape& shape, DType dtype, std::unique_ptr<Device> device, Comm& world, bool waits)
    : Layer(shape, dtype, mesh_of(world, *device, waits), std::move(device)) {}

Layer::Layer(const ModelShape& shape, DType dtype, Mesh mesh, std::unique_ptr<Device>&& device)
    : engine_(config_of(shape, dtype), shape.vocab, std::move(device), std::move(mesh), true),
      spec_(*block_specs(engine_.config()).front().find<MoeSpec>()),
      moe_(make_moe(engine_, spec_)),
      saved_([this](Index bytes) { return this->device().allocate(bytes); }),
      context_{this->device(), engine_.mesh(), engine_.scratch(), dtype},
      batch_{.streams = {{.sequences = shape.sequences, .seq_len = shape.seq_len, .ids = {}, .positions = {}}},
             .targets = {},
             .step = {{}, shape.sequences * engine_.mesh().layout.ranks, 1}},
      x_(activations(shape, "x")),
      dy_(activations(shape, "dy")),
      y_(this->device().tensor(x_.shape(), dtype)),
      dx_(this->device().tensor(x_.shape(), dtype)) {
  fill_parameters(engine_);
}

void Layer::pass(bool backward) {
  const Arena::Scope scope(saved_);
  LayerContext layer{context_, batch_, batch_.decoder(), saved_};
  layer.load_balance = make_load_balance_state(layer, 1, spec_.experts);
  Moe::Saved saved;
  moe_.forward(layer, x_, {.y = y_, .residual = y_}, saved);
  load_balancing_loss(layer, spec_.router, layer.load_balance, {});
  if (backward) moe_.backward(layer, dy_, saved, dx_);
}

void Layer::check() {
  for (ConstView v : {y_.view(), dx_.view()}) checked_norm(device(), v);
  for (const char* name : {"experts.up.weight", "experts.down.weight", "router.weight"})
    checked_norm(device(), engine_.store().get(std::string("layers.0.moe.") + name).grad);
}

Tensor Layer::activations(const ModelShape& shape, const char* name) {
  Tensor x = device().tensor({shape.sequences * shape.seq_len, shape.d_model}, context_.dtype);
  fill_normal(device(), x, 1, name);
  return x;
}

void measure_layers(const Setup& setup, std::vector<Section>& sections) {
  for (const ModelShape& shape : setup.small ? std::span<const ModelShape>(small_layers) : layers)
    measure_layer(setup, shape, sections);
}

}  // namespace sy::bench
