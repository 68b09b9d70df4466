#include "src/model/engine.h"

#include <algorithm>
#include <numeric>

#include "kernels/ops/elementwise.h"
#include "kernels/ops/load_balancing.h"
#include "src/params/lora.h"
#include "src/text/strings.h"

namespace sy {

namespace {

// Packing a weight costs about as much as one pass saves by it, and takes memory. It is worthwhile
// for weights that several passes use before they change.
WeightPacking weight_packing(const Config& config, const Layout& layout, bool training) {
  if (!training) return {.passes = {GemmPass::fprop}};
  const bool several = config.train.largest_batch() > config.train.micro_batch * layout.dp();
  return several ? WeightPacking{.passes = {GemmPass::fprop, GemmPass::dgrad}} : WeightPacking{};
}

// Evaluation and generation have no multi-token prediction. Their weights include the adapters of
// LoRA (load_checkpoint).
Config engine_config(Config config, bool training) {
  if (training) return config;
  config.model.mtp_depth = 0;
  return without_lora(std::move(config));
}

// Returns the values of a tensor, which may be empty, on the host.
std::vector<float> host_values(Device& device, View values) {
  std::vector<float> host(values ? values.elements() : 0);
  if (values) device.to_host(values, host.data());
  return host;
}

}  // namespace

Engine::Engine(const Config& config, Index vocab, std::unique_ptr<Device> device, Mesh mesh, bool training,
               ArenaSizes arenas, Index slots, Index positions)
    : config_(engine_config(config, training)),
      vocab_(vocab),
      device_(std::move(device)),
      mesh_(on_device(std::move(mesh), *device_)),
      store_(*device_, param_specs(config_, vocab), mesh_.layout, mesh_.coord, training, config.dtype(),
             weight_packing(config, mesh_.layout, training)),
      fixed_blocks_(make_fixed_blocks(arenas, slots)),
      expected_bytes_(arenas.total()),
      states_(make_states(slots)),
      scratch_(make_arena(slots - 1, End::high)),
      rope_(*device_, block_specs(config_), table_positions(training, positions)) {
  if (training) join_replicas(mesh_, store_.specs(), config_.model_of(config_.model.layers - 1).kv_heads);
  SY_ASSERT(vocab >= mesh_.layout.tp, "a vocabulary of {} over {} ranks", vocab, mesh_.layout.tp);
  const std::vector<BlockSpec> blocks = block_specs(config_);
  const Index moe_layers = count_moe(blocks), E = config.moe.experts;
  has_window_ = std::ranges::any_of(blocks, [](const BlockSpec& block) { return block.attention().window > 0; });
  if (config.moe.bias_update_rate > 0 && moe_layers > 0) router_bias_ = device_->tensor({moe_layers, E});
  const Index indexer_sums = config_.num_indexers() > 0 ? 1 : 0;
  statistics_ =
      device_->tensor({moe_layers * RouterSums{E}.size() + 2 + 2 * config_.model.mtp_depth + indexer_sums}, DType::f64);
  if (training && config_.train.qk_clip > 0) max_logits_ = device_->tensor({count_query_heads(store_.specs())});
  if (const Index norms = count_batch_norms(store_.specs()); norms > 0) {
    batch_norm_averages_ = device_->tensor({norms, 2, config_.model.d_model});
    for (Index i = 0; i < norms; ++i)  // means are 0, and variances 1
      run(*device_,
          ops::Fill{.x = batch_norm_averages_.view().reshape({2 * norms, config_.model.d_model}).rows(2 * i + 1, 1),
                    .value = 1});
  }
  if (!config.moe.physical_to_logical.empty()) {
    logical_to_physical_ = device_->tensor({moe_layers, E}, DType::i32);
    for (Index l = 0; l < moe_layers; ++l) {
      std::vector<std::int32_t> logical_to_physical(static_cast<std::size_t>(E));
      for (Index physical = 0; physical < E; ++physical)
        logical_to_physical[config.moe.physical_to_logical[l][physical]] = static_cast<std::int32_t>(physical);
      device_->to_device(logical_to_physical.data(), logical_to_physical_.view().rows(l, 1));
    }
  }
  model_ = std::make_unique<Stage>(config_, store_, Range{0, config.model.layers},
                                   RouterTables{router_bias_.view(), logical_to_physical_.view()}, rope_);
}

std::vector<float> Engine::router_bias() const {
  return host_values(*device_, router_bias_);
}

void Engine::set_router_bias(const std::vector<float>& bias) {
  const View values = router_bias_;
  if (!values) return;
  // A checkpoint of a model with multi-token prediction has those of more layers.
  if (const Index more = std::ssize(bias) - values.elements(); more < 0 || more % config_.moe.experts != 0)
    bad_input("the checkpoint has {} selection biases for {} experts of all layers: use another checkpoint",
              bias.size(), values.elements());
  device_->to_device(bias.data(), values);
}

std::vector<float> Engine::batch_norm_averages() const {
  return host_values(*device_, batch_norm_averages_);
}

void Engine::set_batch_norm_averages(const std::vector<float>& averages) {
  const View values = batch_norm_averages_;
  if (!values) return;
  const Index of_norm = 2 * config_.model.d_model;
  if (std::ssize(averages) < values.elements() || std::ssize(averages) % of_norm != 0)
    bad_input("the checkpoint has {} running averages of batch norms, and the model {}: use another checkpoint",
              averages.size(), values.elements());
  device_->to_device(averages.data(), values);
}

std::vector<FixedBlock> Engine::make_fixed_blocks(ArenaSizes arenas, Index slots) {
  SY_ASSERT(slots > 0, "{} slots", slots);
  std::vector<FixedBlock> blocks;
  if (device_->on_host() || arenas.total(slots) == 0) return blocks;
  for (Index slot = 0; slot < slots; ++slot) {
    const Index bytes = slot + 1 < slots ? arenas.saved : arenas.total();
    blocks.emplace_back(device_->allocate(bytes), bytes);
  }
  return blocks;
}

Arena Engine::make_arena(Index slot, End end) {
  if (!fixed_blocks_.empty()) return {fixed_blocks_[static_cast<std::size_t>(slot)], end};
  return Arena([this](Index bytes) { return device_->allocate(bytes); }, expected_bytes_);
}

std::vector<MicroBatchState> Engine::make_states(Index slots) {
  std::vector<MicroBatchState> all;
  for (Index slot = 0; slot < slots; ++slot) all.emplace_back(make_arena(slot, End::low));
  return all;
}

StatisticsSink Engine::statistics_sink() const {
  const Index layers = model_->moe_layers(), width = RouterSums{config_.moe.experts}.size();
  const Index depth = config_.model.mtp_depth;
  const View all = statistics_;
  return {layers > 0 ? all.rows(0, layers * width).reshape({layers, width}) : View{},
          all.rows(layers * width, 2),
          depth > 0 ? all.rows(layers * width + 2, 2 * depth).reshape({depth, 2}) : View{},
          routing_hook_ ? &routing_hook_ : nullptr,
          {},
          config_.num_indexers() > 0 ? all.rows(all.elements() - 1, 1) : View{}};
}

Statistics Engine::take_statistics() {
  const Index E = config_.moe.experts;
  std::vector<double> host(statistics_.shape().elements());
  device_->to_host(statistics_, host.data());
  run(*device_, ops::Fill{.x = statistics_, .value = 0});
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
  for (Index k = 1; k <= config_.model.mtp_depth; ++k) s.mtp.push_back({at[2 * k], at[2 * k + 1]});
  if (config_.num_indexers() > 0) s.indexer_loss_sum = host.back();
  return s;
}

template <class T>
View Engine::upload(MicroBatchState& s, const T* host, Shape shape) {
  const View view = s.saved.take(shape, DTypeOf<T>::value);
  device_->to_device(host, view);
  return view;
}

// The number of rows is a multiple of 64, so that few numbers occur. A GPU has a graph for each.
TargetRows Engine::target_rows(MicroBatchState& s, const MicroBatch& batch) {
  const Index T = std::ssize(batch.targets);
  const bool reads_few = config_.train.objective == Objective::masked || config_.has_visible_prefix();
  if (!reads_few || T == 0) return {};
  std::vector<std::int32_t> tokens, targets, rows;
  for (Index t = 0; t < T; ++t) {
    const std::int32_t target = batch.targets[static_cast<std::size_t>(t)];
    rows.push_back(target >= 0 ? static_cast<std::int32_t>(tokens.size()) : -1);
    if (target < 0) continue;
    tokens.push_back(static_cast<std::int32_t>(t));
    targets.push_back(target);
  }
  const Index n = std::min(round_up(std::max<Index>(std::ssize(tokens), 1), 64), T);
  tokens.resize(static_cast<std::size_t>(n), 0);
  targets.resize(static_cast<std::size_t>(n), -1);
  return {upload(s, tokens.data(), {n}), upload(s, targets.data(), {n}), upload(s, rows.data(), {T})};
}

// Targets are the ids of hidden tokens.
std::vector<std::int32_t> Engine::segments_of(const MicroBatch& batch) const {
  std::vector<std::int32_t> segments(batch.ids.size());
  if (config_.model.segment_token < 0) return segments;
  const auto last = static_cast<std::int32_t>(config_.model.segments - 1);
  const auto S = static_cast<std::size_t>(batch.seq_len);
  std::int32_t segment = 0;
  for (std::size_t i = 0; i < segments.size(); ++i) {
    const std::size_t begin = batch.document_start.empty() ? 0 : static_cast<std::size_t>(batch.document_start[i]);
    if (i % S == begin) segment = 0;
    segments[i] = segment;
    const bool hidden = !batch.targets.empty() && batch.targets[i] >= 0;
    if ((hidden ? batch.targets : batch.ids)[i] == config_.model.segment_token) segment = std::min(segment + 1, last);
  }
  return segments;
}

// Token i of module k has the id of token i + k, and its target is that of token i + k, if both are
// of one document. The last id of a sequence is the target of its last token. Tokens without a
// target have some id.
void Engine::add_mtp_batches(MicroBatchState& s, const MicroBatch& batch) {
  if (config_.model.mtp_depth == 0) return;
  const Index S = batch.seq_len, T = batch.sequences * S;
  const double factor = config_.train.mtp_loss_weight / static_cast<double>(config_.model.mtp_depth);
  const double weighted_targets = static_cast<double>(batch.step_targets) / factor;
  std::vector<std::int32_t> ids(static_cast<std::size_t>(T)), targets(ids);
  for (Index k = 1; k <= config_.model.mtp_depth; ++k) {
    for (Index t = 0; t < T; ++t) {
      const Index last = t / S * S + S - 1;
      const bool inside = t + k <= last;
      const bool same_document =
          inside && (batch.document_start.empty() || batch.document_start[t + k] == batch.document_start[t]);
      ids[t] = std::max(inside                     ? batch.ids[t + k]
                        : batch.targets[last] >= 0 ? batch.targets[last]
                                                   : batch.ids[last],
                        0);
      targets[t] = same_document ? batch.targets[t + k] : -1;
    }
    Batch& module = s.mtp_batches.emplace_back(s.batch);
    module.decoder().ids = upload(s, ids.data(), {T});
    module.targets = upload(s, targets.data(), {T});
    module.step.targets = upload(s, &weighted_targets, {1});
  }
}

TokenStream Engine::make_stream(MicroBatchState& s, const MicroBatch& batch, std::vector<std::int32_t> positions,
                                bool is_encoder) {
  const Index B = batch.sequences, S = batch.seq_len, T = B * S;
  const std::span<const std::int32_t> ids = batch.ids, document_start = batch.document_start;
  SY_ASSERT(static_cast<Index>(ids.size()) == T, "{} ids for {} tokens", ids.size(), T);
  const bool has_documents = !document_start.empty(), has_batch_norm = batch_norm_averages_.view().present();
  SY_ASSERT(!has_documents || std::ssize(document_start) == T, "{} document starts for {} tokens",
            document_start.size(), T);
  const auto on_device = [&](const std::int32_t* host, Shape shape) { return upload(s, host, shape); };
  for (Index i = std::ssize(positions); i < T; ++i)
    positions.push_back(static_cast<std::int32_t>(i % S - (has_documents ? document_start[i] : 0)));
  // Padding is computed as id 0, without experts.
  const bool has_padding = std::ranges::any_of(ids, [](std::int32_t id) { return id < 0; });
  std::vector<std::int32_t> real_ids, token_mask, lengths;
  for (Index i = 0; has_padding && i < T; ++i) {
    real_ids.push_back(std::max(ids[i], 0));
    token_mask.push_back(ids[i] >= 0);
  }
  const bool needs_lengths = is_encoder || config_.num_lsh_layers() > 0;
  for (Index b = 0; needs_lengths && has_padding && b < B; ++b) {
    Index length = S;
    while (length > 1 && ids[b * S + length - 1] < 0) --length;
    lengths.push_back(static_cast<std::int32_t>(length));
  }
  // Within the lengths, padding of an encoder with a window might see no key. So each of its tokens
  // is a document, as in packed samples.
  std::vector<std::int32_t> padding_start;
  if (is_encoder && !lengths.empty() && has_window_)
    for (Index b = 0; b < B; ++b)
      for (Index i = 0; i < S; ++i)
        padding_start.push_back(i < lengths[static_cast<std::size_t>(b)] ? 0 : static_cast<std::int32_t>(i));
  const std::span<const std::int32_t> starts = has_documents ? document_start : padding_start;
  std::vector<std::int32_t> axial_rows;
  if (config_.model.position == Position::axial) {
    const auto columns = static_cast<std::int32_t>(config_.model.axial_shape[1]);
    for (const std::int32_t position : positions) axial_rows.push_back(position / columns);
    for (const std::int32_t position : positions) axial_rows.push_back(position % columns);
  }
  const View at = on_device(positions.data(), {T});
  return {.sequences = B,
          .seq_len = S,
          .ids = on_device(has_padding ? real_ids.data() : ids.data(), {T}),
          .positions = at,
          .segments = config_.model.segments > 0 ? on_device(segments_of(batch).data(), {T}) : View{},
          .rope_rows = at,
          .token_mask =
              has_padding && (model_->moe_layers() > 0 || has_batch_norm) ? on_device(token_mask.data(), {T}) : View{},
          .document_start = starts.empty() ? View{} : on_device(starts.data(), {B, S}),
          .axial_rows = config_.model.position == Position::axial ? on_device(axial_rows.data(), {2, T}) : View{},
          .lengths = lengths.empty() ? View{} : on_device(lengths.data(), {B})};
}

MicroBatchState& Engine::begin_micro_batch(Index slot, const MicroBatch& batch, bool dropless,
                                           std::vector<std::int32_t> positions) {
  const Index B = batch.sequences, S = batch.seq_len, T = B * S;
  MicroBatchState& s = states_[static_cast<std::size_t>(slot)];
  s.clear();
  const double targets = static_cast<double>(batch.step_targets);
  std::vector<TokenStream> streams;
  if (batch.encoder_length > 0)
    streams.push_back(make_stream(s, {B, batch.encoder_length, batch.encoder_ids, {}}, {}, true));
  streams.push_back(make_stream(s, batch, std::move(positions), false));
  if (!batch.prefix_end.empty()) {
    SY_ASSERT(config_.has_visible_prefix() && std::ssize(batch.prefix_end) == T, "{} ends of prefixes for {} tokens",
              batch.prefix_end.size(), T);
    streams.back().prefix_end = upload(s, batch.prefix_end.data(), {B, S});
  }
  s.batch = {.streams = std::move(streams),
             .targets = T > 0 && batch.targets.empty() ? ConstView{} : upload(s, batch.targets.data(), {T}),
             .target_rows = target_rows(s, batch),
             .step = {upload(s, &targets, {1}), batch.step_sequences, batch.step_micro_batches},
             .dropless = dropless};
  s.statistics = statistics_sink();
  if (const View averages = batch_norm_averages_)
    s.batch_norm = {.moments = s.saved.f32({averages.dim(0), 2 * averages.dim(2) + 1}), .averages = averages};
  store_.packed_weights().refresh();
  return s;
}

void Engine::run_pass(const std::string& name, Index slot, const std::function<void()>& body) {
  // All passes of a slot enqueue the same operations if memory is fixed blocks and sizes and
  // addresses do not depend on the routing.
  if (fixed_blocks_.empty() || model_->moe_layers() > 0) return body();
  const Batch& batch = states_[static_cast<std::size_t>(slot)].batch;
  std::vector<std::string> sizes;
  for (const TokenStream& stream : batch.streams)
    sizes.push_back(fmt::format(
        "{} x {}{}{}{}", stream.sequences, stream.seq_len, stream.token_mask || stream.lengths ? " with padding" : "",
        stream.document_start ? " with documents" : "", stream.prefix_end ? " with prefixes" : ""));
  if (const TargetRows& only = batch.target_rows) sizes.push_back(fmt::format("{} targets", only.targets.dim(0)));
  // The host divides the losses of indexers by the tokens of the step.
  if (config_.num_indexers() > 0) sizes.push_back(fmt::format("a step of {} sequences", batch.step.sequences));
  device_->graph_region(fmt::format("{} of {} tokens in slot {}", name, join(sizes, " and "), slot), body);
}

void Engine::forward(const MicroBatch& batch, Index slot) {
  rope_.set_length(std::max(batch.seq_len, batch.encoder_length));
  MicroBatchState& s = begin_micro_batch(slot, batch, false);
  s.statistics.max_logits = max_logits_;
  if (config_.draws()) {
    for (TokenStream& stream : s.batch.streams) {
      std::vector<std::int64_t> numbers(static_cast<std::size_t>(stream.tokens()));
      std::iota(numbers.begin(), numbers.end(), batch.first_sequence * stream.seq_len);
      stream.token_numbers = upload(s, numbers.data(), {stream.tokens()});
    }
    s.batch.seed = config_.train.seed;
  }
  add_mtp_batches(s, batch);
  run_pass(store_.all_gather_in_flight() ? "forward pass with new weights" : "forward pass", slot,
           [&] { model_->forward(execution_context(), s, {}); });
}

void Engine::backward(Index slot, const BackwardHooks& hooks) {
  MicroBatchState& s = states_[static_cast<std::size_t>(slot)];
  const Arena::Scope scope(scratch_);
  const ExecutionContext context = execution_context();
  const View d = context.temp(s.normed.shape());
  // The first GEMMs of a step overwrite gradients, and later ones add to them.
  const std::string name = fmt::format("{}, {} gradients unwritten", hooks ? "last backward pass" : "backward pass",
                                       store_.unwritten_gradients());
  run_pass(name, slot, [&] { model_->backward(context, s, d, hooks); });
  s.clear();
}

MicroBatchState& Engine::forward_no_grad(const MicroBatch& batch, bool dropless, bool with_loss) {
  rope_.set_length(std::max(batch.seq_len, batch.encoder_length));
  // This pass does not wait for the weights of multi-token prediction. The next pass of training
  // would find some weights of a step gathered, and others not.
  store_.finish_all_gather();
  MicroBatchState& s = begin_micro_batch(0, batch, dropless);
  s.batch.evaluation = true;
  model_->forward(execution_context(), s, {});
  if (with_loss) model_->loss(execution_context(), s);
  return s;
}

std::vector<std::int32_t> Engine::predict(const MicroBatch& batch, bool dropless) {
  constexpr Index max_logits = Index{16} << 20;
  MicroBatchState& s = forward_no_grad(batch, dropless);
  std::vector<std::int32_t> ids;
  const Index tokens = s.batch.decoder().tokens(), chunk = std::max<Index>(1, max_logits / vocab_);
  for (Index first = 0; first < tokens; first += chunk) {
    const auto logits = model_->logits(execution_context(), s, Range{first, std::min(first + chunk, tokens)}, vocab_);
    for (auto row = logits.begin(); row != logits.end(); row += vocab_)
      ids.push_back(static_cast<std::int32_t>(std::max_element(row, row + vocab_) - row));
  }
  s.clear();
  return ids;
}

std::vector<float> Engine::logits(const MicroBatch& batch) {
  MicroBatchState& s = forward_no_grad(batch, true, false);
  std::vector<float> logits = model_->logits(execution_context(), s, {0, s.batch.decoder().tokens()}, vocab_);
  s.clear();
  return logits;
}

Index Engine::table_positions(bool training, Index positions) const {
  if (positions == 0) positions = config_.longest_sequence();
  return training ? positions : cache_capacity(positions);
}

Cache Engine::make_cache(Index sequences, Index positions, Index tokens_per_pass, Index encoder_positions) {
  SY_ASSERT(config_.train.lora_rank == 0, "generation by a model whose weights do not include its adapters");
  const Index tp = mesh_.layout.tp, capacity = cache_capacity(positions);
  SY_ASSERT(capacity <= rope_.positions(), "a cache of {} positions, and tables of {}", capacity, rope_.positions());
  return {*device_,
          model_->cache_specs(),
          config_.dtype(),
          round_up(sequences, tp),
          capacity,
          round_up(tokens_per_pass, tp),
          encoder_positions > 0 ? cache_capacity(encoder_positions) : 0};
}

std::vector<float> Engine::decode(Cache& cache, Index first, Index sequences, std::span<const std::int32_t> ids,
                                  bool return_logits, Index length,
                                  std::optional<std::span<const std::int32_t>> source) {
  const Index tokens = sequences > 0 ? std::ssize(ids) / sequences : 1, tp = mesh_.layout.tp;
  // Each tensor-parallel rank needs equally many tokens, so some are padding: sequences in free
  // slots, or positions of a single sequence.
  const bool one = sequences == 1 && (tokens > 1 || first > 0 || source);
  const Index B = one ? 1 : round_up(sequences, tp), S = one ? round_up(tokens, tp) : 1;
  SY_ASSERT(tokens * sequences == std::ssize(ids) && (one || (tokens == 1 && first == 0)),
            "{} ids for {} sequences from {} on", ids.size(), sequences, first);
  std::vector<std::int32_t> padded(ids.begin(), ids.end()), positions;
  std::vector<RopeTables::Token> rope_tokens;  // empty if no rope table depends on the length
  const bool depends_on_length = rope_.depends_on_length(), has_hashing = config_.num_lsh_layers() > 0;
  padded.resize(static_cast<std::size_t>(B * S), -1);
  for (Index b = 0; b < B; ++b)
    for (Index i = 0; i < S; ++i) {
      const bool is_real = b < sequences && i < tokens;
      const Index before = is_real ? cache.length(first + b) : 0;
      SY_ASSERT(before == 0 || !has_hashing, "{} tokens before those of attention by hashing", before);
      positions.push_back(is_real ? static_cast<std::int32_t>(before + i) : 0);
      if (depends_on_length) rope_tokens.push_back({positions.back(), std::max(length, before + tokens)});
    }

  MicroBatch batch{B, S, padded, {}};
  const bool begins_text = one && sequences > 0 && cache.length(first) == 0;
  const std::vector<std::int32_t> prefix_end(
      static_cast<std::size_t>(begins_text && config_.has_visible_prefix() ? S : 0), static_cast<std::int32_t>(tokens));
  batch.prefix_end = prefix_end;
  std::vector<std::int32_t> padded_source;
  if (source) {
    SY_ASSERT(sequences == 0 || one, "a source for {} sequences", sequences);
    batch.encoder_length = std::max(tp, round_up(std::ssize(*source), tp));
    padded_source.assign(source->begin(), source->end());
    padded_source.resize(static_cast<std::size_t>(B * batch.encoder_length), -1);
    batch.encoder_ids = padded_source;
    if (sequences > 0) cache.set_encoder_length(first, std::ssize(*source));
  }
  MicroBatchState& s = begin_micro_batch(0, batch, true, std::move(positions));
  if (depends_on_length) {
    rope_.set_tokens(rope_tokens);
    std::vector<std::int32_t> rows(rope_tokens.size());
    std::iota(rows.begin(), rows.end(), 0);
    s.batch.decoder().rope_rows = upload(s, rows.data(), {B * S});
  }
  s.batch.generation = true;
  s.cache = &cache;
  cache.begin(first, B, S, s.saved, scratch_);
  model_->forward(execution_context(), s, {});
  cache.end(sequences, tokens);
  std::vector<float> logits;
  if (return_logits && sequences > 0)
    logits = model_->logits(execution_context(), s, one ? Range{tokens - 1, tokens} : Range{0, sequences}, vocab_);
  s.clear();
  return logits;
}

}  // namespace sy
