#include "src/model/engine.h"

#include <algorithm>
#include <numeric>

namespace sy {

namespace {

// Packing a weight costs about as much as one pass saves by it, and takes memory. It is worthwhile
// for weights that several passes use before they change.
std::vector<WeightUse> products_to_prepare(const Config& config, const Layout& layout, bool training) {
  if (!training) return {WeightUse::output};
  const bool several = config.train.global_batch > config.train.micro_batch * layout.dp();
  return several ? std::vector{WeightUse::output, WeightUse::input} : std::vector<WeightUse>{};
}

}  // namespace

Engine::Engine(const Config& config, Index vocab, std::unique_ptr<Backend> backend, Mesh mesh, bool training,
               Index arena_bytes, Index slots, Index positions)
    : config_(config),
      vocab_(vocab),
      backend_(std::move(backend)),
      mesh_(on_backend(std::move(mesh), *backend_)),
      store_(*backend_, param_specs(config, vocab), mesh_.layout, mesh_.coord, training, config.dtype(),
             products_to_prepare(config, mesh_.layout, training)),
      block_(arena_bytes > 0 && !backend_->on_host()
                 ? std::make_unique<FixedBlock>(backend_->allocate(arena_bytes), arena_bytes)
                 : nullptr),
      expected_(block_ ? 0 : arena_bytes),
      slots_(make_slots(slots)),
      scratch_(make_arena(End::high)),
      rope_(*backend_, block_specs(config), positions > 0 ? room_for(positions) : config.model.seq_len) {
  if (training) join_replicas(mesh_, config.model.kv_heads);
  SY_ASSERT(vocab >= mesh_.layout.tp, "a vocabulary of {} over {} ranks", vocab, mesh_.layout.tp);
  const std::vector<BlockSpec> blocks = block_specs(config);
  const Index moe_layers = count_moe(blocks), E = config.moe.experts;
  if (config.moe.bias_rate > 0 && moe_layers > 0) router_bias_ = backend_->tensor({moe_layers, E});
  statistics_ = backend_->tensor({moe_layers * RouterSums{E}.size() + 2}, DType::f64);
  if (!config.moe.order.empty()) {
    expert_places_ = backend_->tensor({moe_layers, E}, DType::i32);
    for (Index l = 0; l < moe_layers; ++l) {
      std::vector<std::int32_t> places(static_cast<std::size_t>(E));
      for (Index place = 0; place < E; ++place) places[config.moe.order[l][place]] = static_cast<std::int32_t>(place);
      backend_->to_device(places.data(), expert_places_.view().rows(l, 1));
    }
  }
  model_ = std::make_unique<Stage>(config, store_, Range{0, config.model.layers},
                                   RouterTables{router_bias_.view(), expert_places_.view()}, rope_);
}

std::vector<float> Engine::router_bias() const {
  const View bias = router_bias_;
  std::vector<float> host(bias ? bias.elements() : 0);
  if (bias) backend_->to_host(bias, host.data());
  return host;
}

void Engine::set_router_bias(const std::vector<float>& bias) {
  const View device = router_bias_;
  if (!device) return;
  if (static_cast<Index>(bias.size()) != device.elements())
    bad_input("the checkpoint has {} selection biases for {} experts of all layers: use another checkpoint",
              bias.size(), device.elements());
  backend_->to_device(bias.data(), device);
}

Arena Engine::make_arena(End end) {
  if (block_) return {*block_, end};
  return Arena([this](Index bytes) { return backend_->allocate(bytes); }, expected_);
}

std::vector<Slot> Engine::make_slots(Index slots) {
  SY_ASSERT(slots == 1 || (slots > 1 && !block_), "{} slots in one block", slots);
  std::vector<Slot> all;
  for (Index i = 0; i < slots; ++i) all.emplace_back(make_arena(End::low));
  return all;
}

Report Engine::report() const {
  const Index layers = model_->moe_layers(), width = RouterSums{config_.moe.experts}.size();
  const View all = statistics_;
  return {layers > 0 ? all.rows(0, layers * width).reshape({layers, width}) : View{}, all.rows(layers * width, 2),
          observer_ ? &observer_ : nullptr};
}

Statistics Engine::take_statistics() {
  const Index E = config_.moe.experts;
  std::vector<double> host(statistics_.shape().elements());
  backend_->to_host(statistics_, host.data());
  backend_->fill(statistics_, 0);
  Statistics s;
  const double* at = host.data();
  const RouterSums sums{E};
  for (Index layer = 0; layer < model_->moe_layers(); ++layer, at += sums.size()) {
    const double *routed = at + sums.routed(), *dropped = at + sums.dropped(), *probability = at + sums.probability();
    const double* loss = at + sums.loss();
    s.layers.push_back(
        {{routed, routed + E}, {dropped, dropped + E}, {probability, probability + E}, loss[0], loss[1]});
  }
  s.loss_sum = at[0];
  s.lse_square_sum = at[1];
  return s;
}

Slot& Engine::open(Index slot, const MicroBatch& batch, bool dropless, std::vector<std::int32_t> positions) {
  const Index B = batch.sequences, S = batch.seq_len, T = B * S;
  SY_ASSERT(static_cast<Index>(batch.ids.size()) == T, "{} ids for {} tokens", batch.ids.size(), T);
  Slot& s = slots_[static_cast<std::size_t>(slot)];
  s.clear();
  const auto on_device = [&](const void* host, Shape shape, DType dtype) {
    const View view = s.saved.take(shape, dtype);
    backend_->to_device(host, view);
    return view;
  };
  for (Index i = std::ssize(positions); i < T; ++i) positions.push_back(static_cast<std::int32_t>(i % S));
  const double targets = static_cast<double>(batch.step_targets);
  const View at = on_device(positions.data(), {T}, DType::i32);
  s.batch = {.sequences = B,
             .seq_len = S,
             .ids = on_device(batch.ids.data(), {T}, DType::i32),
             .targets = T > 0 && batch.targets.empty() ? ConstView{} : on_device(batch.targets.data(), {T}, DType::i32),
             .positions = at,
             .rope_rows = at,
             .step = {on_device(&targets, {1}, DType::f64), batch.step_sequences, batch.step_micro_batches},
             .dropless = dropless};
  s.report = report();
  store_.prepared().refresh();
  return s;
}

void Engine::run(const char* half, const Slot& slot, const std::function<void()>& body) {
  // All passes enqueue the same operations if memory is one fixed block and sizes and addresses do
  // not depend on the routing.
  if (!block_ || model_->moe_layers() > 0) return body();
  backend_->repeated(fmt::format("{} of {} x {} tokens", half, slot.batch.sequences, slot.batch.seq_len), body);
}

void Engine::forward(const MicroBatch& batch, Index slot) {
  rope_.set_length(batch.seq_len);
  Slot& s = open(slot, batch, false);
  if (config_.draws()) {
    std::vector<std::int64_t> numbers(static_cast<std::size_t>(s.batch.tokens()));
    std::iota(numbers.begin(), numbers.end(), batch.first_sequence * batch.seq_len);
    const View on_device = s.saved.take({s.batch.tokens()}, DType::i64);
    backend_->to_device(numbers.data(), on_device);
    s.batch.token_numbers = on_device;
    s.batch.seed = config_.train.seed;
  }
  run(store_.fetching() ? "forward pass with new weights" : "forward pass", s,
      [&] { model_->forward(device(), s, {}); });
}

void Engine::backward(Index slot, const BackwardProgress& progress) {
  Slot& s = slots_[static_cast<std::size_t>(slot)];
  const Arena::Scope scope(scratch_);
  const Device on = device();
  const View d = on.temp(s.normed.shape());
  run(progress ? "last backward pass" : "backward pass", s, [&] { model_->backward(on, s, d, progress); });
  s.clear();
}

void Engine::train(const MicroBatch& batch, const BackwardProgress& progress) {
  forward(batch);
  backward(0, progress);
}

Slot& Engine::forward_alone(const MicroBatch& batch, bool dropless) {
  rope_.set_length(batch.seq_len);
  Slot& s = open(0, batch, dropless);
  s.batch.evaluation = true;
  model_->forward(device(), s, {});
  model_->loss(device(), s);
  return s;
}

void Engine::evaluate(const MicroBatch& batch, bool dropless) {
  forward_alone(batch, dropless).clear();
}

std::vector<std::int32_t> Engine::predict(const MicroBatch& batch, bool dropless) {
  constexpr Index logits_at_once = Index{16} << 20;
  Slot& s = forward_alone(batch, dropless);
  std::vector<std::int32_t> ids;
  const Index tokens = s.batch.tokens(), at_once = std::max<Index>(1, logits_at_once / vocab_);
  for (Index first = 0; first < tokens; first += at_once) {
    const auto logits = model_->logits(device(), s, Range{first, std::min(first + at_once, tokens)}, vocab_);
    for (auto row = logits.begin(); row != logits.end(); row += vocab_)
      ids.push_back(static_cast<std::int32_t>(std::max_element(row, row + vocab_) - row));
  }
  s.clear();
  return ids;
}

Cache Engine::make_cache(Index sequences, Index positions, Index at_once) {
  const Index tp = mesh_.layout.tp, room = room_for(positions);
  SY_ASSERT(room <= rope_.positions(), "a cache of {} positions, and tables of {}", room, rope_.positions());
  return {*backend_, model_->cache_specs(), config_.dtype(), round_up(sequences, tp), room, round_up(at_once, tp)};
}

std::vector<float> Engine::extend(Cache& cache, Index first, Index sequences, std::span<const std::int32_t> ids,
                                  bool wanted, Index length) {
  const Index tokens = sequences > 0 ? std::ssize(ids) / sequences : 1, tp = mesh_.layout.tp;
  // Each tensor-parallel rank needs equally many tokens, so some are padding: sequences in free
  // slots, or positions of a single sequence.
  const bool one = sequences == 1 && (tokens > 1 || first > 0);
  const Index B = one ? 1 : round_up(sequences, tp), S = one ? round_up(tokens, tp) : 1;
  SY_ASSERT(tokens * sequences == std::ssize(ids) && (one || (tokens == 1 && first == 0)),
            "{} ids for {} sequences from {} on", ids.size(), sequences, first);
  std::vector<std::int32_t> padded(ids.begin(), ids.end()), positions;
  std::vector<RopeTables::Token> rotated;  // empty if no rope table depends on the length
  const bool by_length = rope_.depends_on_length();
  padded.resize(static_cast<std::size_t>(B * S));
  for (Index b = 0; b < B; ++b)
    for (Index i = 0; i < S; ++i) {
      const bool there = b < sequences && i < tokens;
      const Index before = there ? cache.length(first + b) : 0;
      positions.push_back(there ? static_cast<std::int32_t>(before + i) : 0);
      if (by_length) rotated.push_back({positions.back(), std::max(length, before + tokens)});
    }

  Slot& s = open(0, {B, S, padded, {}}, true, std::move(positions));
  if (by_length) {
    rope_.set_tokens(rotated);
    std::vector<std::int32_t> rows(rotated.size());
    std::iota(rows.begin(), rows.end(), 0);
    const View on_device = s.saved.take({B * S}, DType::i32);
    backend_->to_device(rows.data(), on_device);
    s.batch.rope_rows = on_device;
  }
  s.batch.generation = true;
  s.batch.padding = B * S - std::ssize(ids);
  s.cache = &cache;
  cache.begin(first, B, S, s.saved, scratch_);
  model_->forward(device(), s, {});
  cache.end(sequences, tokens);
  std::vector<float> logits;
  if (wanted && sequences > 0)
    logits = model_->logits(device(), s, one ? Range{tokens - 1, tokens} : Range{0, sequences}, vocab_);
  s.clear();
  return logits;
}

}  // namespace sy
