#include "src/plan/profile.h"

#include <algorithm>

#include "dist/mesh.h"
#include "dist/runtime.h"
#include "kernels/cuda/devices.h"
#include "src/model/engine.h"
#include "src/train/distributed_optimizer.h"
#include "src/train/trainer.h"

namespace sy {
namespace {

using Transfers = std::map<std::pair<std::string_view, DryTransfer>, double>;

Transfers transfers_of(const Mesh& mesh) {
  Transfers all;
  for (const auto& [name, comm] : mesh.groups())
    for (const auto& [transfer, times] : comm ? dry_transfers(*comm) : std::map<DryTransfer, Index>())
      all[{name, transfer}] += static_cast<double>(times);
  return all;
}

template <class Key>
void add_to(std::map<Key, double>& sum, const std::map<Key, double>& other, double times) {
  for (const auto& [key, n] : other)
    if (const double total = sum[key] += n * times; total == 0) sum.erase(key);
}

std::map<DryCall, double> take_calls(Device& device) {
  DryCounts& counts = dry_counts(device);
  std::map<DryCall, double> calls;
  for (const auto& [call, times] : counts.calls) calls[call] = static_cast<double>(times);
  counts = {};
  return calls;
}

// Returns the length of the engine's position tables in the dry run; 0 means model.seq_len.
// Tables of positions may be short, but attention checks the size of distance tables.
Index required_positions(const Config& config) {
  if (!config.stacks.empty()) return 0;
  for (Index layer = 0; layer < config.num_blocks(); ++layer)
    if (const Position p = config.model_of(layer).position; p == Position::t5 || p == Position::alibi) return 0;
  return 1;
}

}  // namespace

double Workload::flops() const {
  double sum = 0;
  for (const auto& [call, times] : calls) sum += call.flops * times;
  return sum;
}

void Workload::add(const Workload& other, double times) {
  add_to(calls, other.calls, times);
  add_to(transfers, other.transfers, times);
}

void Profiler::Passes::add(const Passes& other, double times) {
  first.add(other.first, times);
  again.add(other.again, times);
  for (Index Passes::*bytes : {&Passes::saved, &Passes::scratch, &Passes::packed_weights, &Passes::cleared})
    this->*bytes += static_cast<Index>(times) * (other.*bytes);
}

Profiler::Profiler(Config config, Index vocab, const Device* planned_device)
    : config_(std::move(config)), vocab_(vocab), planned_device_(planned_device), specs_(param_specs(config_, vocab)) {}

MemoryPlan Profiler::parameters(const Layout& layout, int rank) const {
  return plan_parameters(specs_, config_.dtype(), layout, rank);
}

std::unique_ptr<Device> Profiler::dry() const {
  std::unique_ptr<Device> device = make_dry(planned_device_);
  if (!planned_device_) set_dry_logits(*device, cuda::logits_chunk);
  return device;
}

Profiler::Passes Profiler::run(const Config& config, const Layout& layout, int rank, const Shares* rows) const {
  const std::unique_ptr<Comm> world = make_comm_dry(layout.ranks, rank);
  Engine engine(config, vocab_, dry(), make_dry_mesh(*world, layout, on_card()), true, {}, 1,
                required_positions(config));
  if (rows) {
    std::vector<Index> moe_layer(static_cast<std::size_t>(config.num_blocks()));
    for (Index i = 0; i < engine.model().moe_layers(); ++i) moe_layer[engine.model().moe_layer_ids()[i]] = i;
    set_dry_load(engine.device(),
                 [=, &phase = world->rank_context().phase](Index assignments, std::span<Index> expert_rows) {
                   rows_of((*rows)[moe_layer[phase.current().layer]], assignments, expert_rows);
                 });
  }
  const Config::Train& t = config.train;
  const Index S = config.decoder_length(), passes = t.global_batch / (layout.dp() * t.micro_batch);
  const std::vector<std::int32_t> ids(static_cast<std::size_t>(t.micro_batch * S), 0),
      encoder_ids(static_cast<std::size_t>(t.micro_batch * config.encoder_length()), 0),
      prefix_end(config.has_visible_prefix() ? ids.size() : 0, 1);
  take_calls(engine.device());       // discards the calls of the set-up
  engine.store().clear_gradients();  // as at the end of the step before
  Passes out;
  for (const auto& [call, times] : take_calls(engine.device())) out.cleared += static_cast<Index>(times * call.bytes);
  Transfers before = transfers_of(engine.mesh());
  const auto pass = [&] {
    engine.forward_backward({t.micro_batch,
                             S,
                             ids,
                             ids,
                             t.global_batch * S,
                             t.global_batch,
                             passes,
                             0,
                             {},
                             config.encoder_length(),
                             encoder_ids,
                             prefix_end});
    Workload work;
    work.calls = take_calls(engine.device());
    work.transfers = transfers_of(engine.mesh());
    Transfers now = work.transfers;
    add_to(work.transfers, before, -1);
    before = std::move(now);
    return work;
  };
  out.first = pass();
  if (passes > 1) out.again = pass();
  out.saved = engine.saved().peak();
  out.scratch = engine.scratch().peak();
  out.packed_weights = engine.store().packed_weights().bytes();
  return out;
}

Profile Profiler::whole(const Passes& passes, const Layout& layout, int rank) const {
  const Config::Train& t = config_.train;
  Profile profile;
  profile.passes = t.global_batch / (layout.dp() * t.micro_batch);
  profile.pass = passes.first;
  profile.pass.add(passes.again, static_cast<double>(profile.passes - 1));

  const std::unique_ptr<Comm> world = make_comm_dry(layout.ranks, rank);
  Mesh mesh = make_dry_mesh(*world, layout, on_card());
  join_replicas(mesh, specs_, config_.model_of(config_.model.layers - 1).kv_heads);
  const std::unique_ptr<Device> device = dry();
  ParamStore store(*device, specs_, layout, mesh.coord, true, config_.dtype());
  DistributedOptimizer optimizer(mesh, store);
  take_calls(*device);
  agree_on_errors(*world, [] {});  // agreement that all ranks have read their samples
  // Gradients of the buckets from last to first, as in the last backward. After them all new
  // weights.
  if (device)
    for (Index bucket = std::ssize(store.layout().groups.front().buckets); bucket-- > 0;)
      optimizer.backward_hooks().on_gradients_ready(bucket);
  optimizer.step(t, t.lr, 1);
  store.finish_all_gather();
  Statistics found;
  const auto E = static_cast<std::size_t>(config_.moe.experts);
  for (Index l = 0; l < count_moe(block_specs(config_)); ++l)
    found.layers.push_back({std::vector<Index>(E), std::vector<Index>(E), std::vector<double>(E)});
  found.mtp.resize(static_cast<std::size_t>(config_.model.mtp_depth));
  if (config_.num_indexers() > 0) found.indexer_loss_sum = 0;
  std::vector<double> sums = step_sums(found, 0);
  world->all_reduce(view_of(sums.data(), {std::ssize(sums)}));
  agree_on_errors(*world, [] {});  // agreement that the metrics are written
  world->max(0);                   // stop request of any rank
  profile.update.calls = take_calls(*device);
  // The store has no layers that write gradients, and has cleared all of them.
  store.clear_gradients();
  add_to(profile.update.calls, take_calls(*device), -1);
  if (passes.cleared > 0) ++profile.update.calls[{.op = "fill", .bytes = static_cast<double>(passes.cleared)}];
  profile.update.transfers = transfers_of(mesh);

  profile.memory = parameters(layout, rank);
  profile.memory.weights += passes.packed_weights;
  profile.memory.saved = passes.saved;
  profile.memory.scratch = passes.scratch;
  return profile;
}

// Compute and saved activations are sums over layers. Scratch memory is a maximum within a layer,
// and a second layer of a kind does not change it. So each further layer adds the same difference
// as the second one.
Profile Profiler::balanced(const Layout& layout) const {
  // The layers of two stacks are not those of one model with fewer layers.
  if (!config_.stacks.empty()) return whole(run(config_, layout, 0, nullptr), layout, 0);
  const auto [layers, counts] = distinct_layers(config_);
  const Passes once = run(with_layers(config_, layers), layout, 0, nullptr);
  Passes all = once;
  for (std::size_t i = 0; i < layers.size(); ++i) {
    if (counts[i] == 1) continue;
    std::vector<Index> more = layers;
    more.insert(more.begin() + static_cast<std::ptrdiff_t>(i), layers[i]);
    const auto times = static_cast<double>(counts[i] - 1);
    all.add(run(with_layers(config_, more), layout, 0, nullptr), times);
    all.add(once, -times);
  }
  return whole(all, layout, 0);
}

Profile Profiler::loaded(const Layout& layout, int rank, const Shares& rows) const {
  return whole(run(config_, layout, rank, &rows), layout, rank);
}

DistinctLayers distinct_layers(const Config& config) {
  std::vector<std::pair<std::string, bool>> kinds;
  DistinctLayers out;
  for (const bool moe : {false, true})
    for (Index layer = 0; layer < config.model.layers; ++layer) {
      if (config.is_moe(layer) != moe) continue;
      const std::pair kind(config.model.pattern.kind_of(layer), moe);
      const auto at = std::find(kinds.begin(), kinds.end(), kind);
      if (at != kinds.end()) {
        ++out.counts[at - kinds.begin()];
        continue;
      }
      kinds.push_back(kind);
      out.layers.push_back(layer);
      out.counts.push_back(1);
    }
  return out;
}

Config with_layers(const Config& config, const std::vector<Index>& layers) {
  Config out = config;
  out.model.layers = std::ssize(layers);
  out.moe.every = 1;
  out.moe.dense_layers.clear();
  out.moe.first_dense = std::count_if(layers.begin(), layers.end(), [&](Index layer) { return !config.is_moe(layer); });
  if (!config.model.pattern.segments.empty()) {
    out.model.pattern.segments.clear();
    for (Index layer : layers) out.model.pattern.segments.push_back({config.model.pattern.kind_of(layer), 1});
  }
  // The blocks of multi-token prediction stay what they are.
  for (Index i = 0; i < config.model.mtp_depth; ++i) {
    const Index block = config.model.layers + i;
    if (!out.model.pattern.segments.empty())
      out.model.pattern.segments.push_back({config.model.pattern.kind_of(block), 1});
    if (!config.is_moe(block)) out.moe.dense_layers.push_back(static_cast<double>(out.model.layers + i));
  }
  return out;
}

}  // namespace sy
