#include "src/train/trainer.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>

#include "dist/phase.h"
#include "src/io/checkpoint_internal.h"
#include "src/train/lr_schedule.h"
#include "src/train/pipeline_schedule.h"
#include "src/train/replica_check.h"

namespace sy {

std::vector<double> step_sums(const Statistics& statistics, double output_z_loss) {
  double aux_losses = 0, z_losses = output_z_loss;
  std::vector<double> sums;
  for (const RouterStats& s : statistics.layers) {
    aux_losses += s.aux_loss;
    z_losses += s.z_loss;
    for (std::size_t e = 0; e < s.routed.size(); ++e)
      sums.insert(sums.end(), {static_cast<double>(s.routed[e]), static_cast<double>(s.dropped[e]), s.probability[e]});
  }
  double mtp_losses = 0;
  for (const Statistics::Mtp& module : statistics.mtp) mtp_losses += module.loss_sum;
  if (statistics.indexer_loss_sum) sums.push_back(*statistics.indexer_loss_sum);
  if (!statistics.mtp.empty()) sums.push_back(mtp_losses);
  sums.insert(sums.end(), {statistics.loss_sum, aux_losses, z_losses});
  return sums;
}

std::string not_finite_text(const StepMetrics& m) {
  const bool loss = std::isfinite(m.loss), norm = std::isfinite(m.grad_norm);
  // -nan prints as nan
  const auto text = [](double x) { return std::isnan(x) ? std::string("nan") : fmt::format("{}", x); };
  const std::string what =
      loss   ? fmt::format("the gradient norm is {}, not finite, and the loss {}", text(m.grad_norm), text(m.loss))
      : norm ? fmt::format("the loss is {}, not finite, and the gradient norm {}", text(m.loss), text(m.grad_norm))
             : fmt::format("the loss is {} and the gradient norm {}, neither finite", text(m.loss), text(m.grad_norm));
  return fmt::format("step {}: {}: lower train.lr or raise train.warmup, and resume from a checkpoint, or begin anew",
                     m.step, what);
}

std::string skipped_text(const StepResult& result, const NormHistory& norms, Index max_skipped) {
  const StepMetrics& m = result.metrics;
  const std::string why = std::isfinite(m.grad_norm)
                              ? fmt::format("{:.4g} is above the limit of {:.4g}", m.grad_norm, result.norm_limit)
                              : std::string("is not finite");
  return fmt::format(
      "step {}: the gradient norm {}: the weights stay (train.spike_sigma); skipped steps: {} of {} in a "
      "row, {} in all",
      m.step, why, norms.in_a_row, max_skipped, norms.skipped);
}

Trainer::Trainer(Engine& engine, const SampleStream& samples)
    : engine_(engine), samples_(samples), optimizer_(engine.mesh(), engine.store(), engine.max_logits()) {
  optimizer_.check_memory(checks_memory());
}

StepResult Trainer::step() {
  const auto started = std::chrono::steady_clock::now();
  RankContext& rank = engine_.mesh().rank_context();
  const TraceScope step_trace(rank, "step", {{"step", step_ + 1}});
  TraceScope trace(rank, "data");
  const Config& config = engine_.config();
  const auto& t = config.train;
  const Mesh& mesh = engine_.mesh();
  const Index S = config.decoder_length(), dp = mesh.layout.dp(), B = t.micro_batch;
  const Index global_batch = t.batch_of(step_ + 1), micro_batches = global_batch / (dp * B);

  SampleBatch batch(config, micro_batches * B);
  // The samples of a step are ordered by (micro-batch, data-parallel rank, sequence). All are read
  // before any other exchange, so that an error of one rank becomes the error of all.
  agree_on_errors(*mesh.host, [&] {
    for (Index i = 0; i < micro_batches * B; ++i)
      samples_.read(samples_done_ + (i / B * dp + mesh.coord.dp) * B + i % B, batch[i]);
  });
  const StepCounts counts = count_step(batch);
  trace.next("passes");
  const BackwardHooks hooks = optimizer_.backward_hooks();
  // A skipped step must not change the running averages, either.
  const std::vector<float> averages = t.spike_sigma > 0 ? engine_.batch_norm_averages() : std::vector<float>{};
  for (const auto& [direction, micro] : one_forward_one_backward(micro_batches, engine_.slots())) {
    const Index slot = micro % engine_.slots();
    if (direction == ScheduledPass::Direction::forward) {
      const auto [ids, targets, document_start, encoder_ids, prefix_end] = batch.slice(micro * B, B);
      engine_.forward({B, S, ids, targets, counts.targets, global_batch, micro_batches,
                       samples_done_ + (micro * dp + mesh.coord.dp) * B, document_start, batch.encoder_length,
                       encoder_ids, prefix_end},
                      slot);
    } else {  // the last micro-batch completes the gradients
      engine_.backward(slot, micro + 1 == micro_batches ? hooks : BackwardHooks{});
    }
  }
  const bool checks = config.run.check_every > 0 && (step_ + 1) % config.run.check_every == 0;
  if (checks) {
    trace.next("check");
    check_inputs(batch);
  }
  trace.next("weights");
  const double lr = learning_rate(t, step_ + 1, rewarmup_after_),
               tokens = static_cast<double>(counts.tokens + counts.encoder_tokens),
               losses = static_cast<double>(counts.targets);
  StepResult result;
  result.norm_limit = norms_.limit(t.spike_sigma);
  // The step that may be the last one finds the parameter to name.
  const bool measures = t.spike_sigma > 0 && norms_.in_a_row >= t.max_skipped;
  optimizer_.measure_params(measures || measures_params_);
  // Skipped steps do not count in the bias corrections of AdamW.
  optimizer_.step(t, lr, step_ + 1 - norms_.skipped, result.norm_limit);

  // The host waits for the step here.
  trace.next("statistics");
  const Statistics statistics = engine_.take_statistics();

  // One reduction carries all values that the ranks exchange. Counts are exact in f64 up to 2^53.
  const Index layers = static_cast<Index>(statistics.layers.size()), E = config.moe.experts;
  const auto modules = static_cast<double>(statistics.mtp.size());
  double lse_squares = statistics.lse_square_sum;
  for (const Statistics::Mtp& module : statistics.mtp)
    lse_squares += t.mtp_loss_weight / modules * module.lse_square_sum;
  std::vector<double> sums = step_sums(statistics, t.z_loss * lse_squares / losses);
  mesh.host->all_reduce(view_of(sums.data(), {static_cast<Index>(sums.size())}));

  if (checks_memory()) sy::check_replicas(mesh, step_ + 1, optimizer_.changed_in_last_step());

  StepMetrics& m = result.metrics;
  m.step = step_ + 1;
  m.lr = lr;
  const std::size_t tail = sums.size() - 3;
  m.loss = sums[tail] / losses;
  if (modules > 0) m.mtp_loss = sums[tail - 1] / (losses * modules);
  if (statistics.indexer_loss_sum)
    m.indexer_loss = sums[tail - (modules > 0 ? 2 : 1)] / static_cast<double>(global_batch * S * config.num_indexers());
  m.grad_norm = optimizer_.gradient_norm();
  m.aux_loss = sums[tail + 1];
  m.z_loss = sums[tail + 2];
  result.skipped = t.spike_sigma > 0 && optimizer_.skipped();
  if (!result.skipped && (!std::isfinite(m.grad_norm) || !std::isfinite(m.loss))) throw Diverged(1, not_finite_text(m));
  if (checks) check_update();
  record_norm(result);
  if (t.spike_sigma > 0 || norms_.skipped > 0) m.skipped_steps = norms_.skipped;
  for (Index l = 0; l < layers; ++l) {
    const bool of_encoder = engine_.model().moe_layer_ids()[static_cast<std::size_t>(l)] < config.encoder_layers();
    const auto layer_tokens = static_cast<double>(of_encoder ? counts.encoder_tokens : counts.tokens);
    auto& routed = result.routed.emplace_back(E);
    auto& dropped = result.dropped.emplace_back(E);
    auto& probability = result.probability.emplace_back(E);
    for (Index e = 0; e < E; ++e) {
      const double* s = &sums[(l * E + e) * 3];
      routed[e] = static_cast<Index>(s[0]);
      dropped[e] = static_cast<Index>(s[1]);
      probability[e] = s[2] / layer_tokens;
      m.routed += routed[e];
      m.dropped += dropped[e];
    }
  }
  if (!result.skipped) update_router_bias(result);
  if (result.skipped) engine_.set_batch_norm_averages(averages);

  ++step_;
  samples_done_ += global_batch;
  tokens_done_ += counts.tokens + counts.encoder_tokens;
  m.tokens = tokens_done_;
  m.samples = samples_done_;
  m.step_seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - started).count();
  m.tokens_per_second = tokens / m.step_seconds;
  return result;
}

void Trainer::record_norm(const StepResult& result) {
  const Config::Train& t = engine_.config().train;
  if (t.spike_sigma == 0) {  // a later start with outliers begins anew
    norms_.norms.clear();
    norms_.in_a_row = 0;
    return;
  }
  if (!result.skipped) return norms_.add(result.metrics.grad_norm);
  norms_.skip();
  if (norms_.in_a_row <= t.max_skipped) return;
  const double norm = result.metrics.grad_norm;
  throw Diverged(1,
                 fmt::format("step {}: {} steps in a row were skipped, which is more than train.max_skipped = {}: the "
                             "gradient norm is {}; {}: lower train.lr, or raise train.spike_sigma, and resume from an "
                             "older checkpoint",
                             result.metrics.step, norms_.in_a_row, t.max_skipped,
                             std::isnan(norm) ? std::string("nan") : fmt::format("{:.4g}", norm), suspect()));
}

std::vector<ParamNorm> Trainer::param_norms() const {
  const std::vector<ParamSpec>& specs = engine_.store().specs();
  const std::vector<double> norms = optimizer_.param_norms();
  std::vector<ParamNorm> out;
  for (std::size_t i = 0; i < specs.size(); ++i)
    if (!specs[i].frozen) out.push_back({specs[i].name, norms[i]});
  return out;
}

// A gradient that is not finite spreads backward, to the layers before it. Therefore the last such
// parameter is nearest to the cause, if all weights are finite.
std::string Trainer::suspect() const {
  const Mesh& mesh = engine_.mesh();
  std::vector<std::string> weights;
  engine_.store().finish_all_gather();
  for (std::string& name : all_gather_texts(*mesh.host, first_not_finite(engine_.store(), mesh.rank)))
    if (!name.empty()) weights.push_back(std::move(name));
  const auto described = [&](const std::string& name) {
    const std::optional<Index> layer = engine_.store().spec(name).layer;
    return layer ? fmt::format("{}, parameter {}", engine_.config().layer_name(*layer), name) : "parameter " + name;
  };
  if (!weights.empty()) {
    const std::string_view name = weights.front();
    const std::size_t params = name.find(params_prefix);
    return params == 0 ? fmt::format("values of {} are not finite",
                                     described(std::string(name.substr(std::strlen(params_prefix)))))
                       : fmt::format("values of {} are not finite", name);
  }
  const std::vector<ParamNorm> norms = param_norms();
  const auto bad =
      std::find_if(norms.rbegin(), norms.rend(), [](const ParamNorm& p) { return !std::isfinite(p.norm); });
  if (bad != norms.rend())
    return fmt::format("the last gradient that is not finite is that of {}", described(bad->name));
  const auto& largest = *std::ranges::max_element(norms, {}, &ParamNorm::norm);
  return fmt::format("the largest gradient, of norm {:.4g}, is that of {}", largest.norm, described(largest.name));
}

void Trainer::check_inputs(const SampleBatch& batch) {
  const Mesh& mesh = engine_.mesh();
  std::string difference = replica_difference(
      *mesh.tp, mesh.rank,
      {replica_digest("the token ids", batch.ids.data(), batch.ids.size() * sizeof batch.ids[0]),
       replica_digest("the targets", batch.targets.data(), batch.targets.size() * sizeof batch.targets[0]),
       replica_digest("the token ids of the encoder", batch.encoder_ids.data(),
                      batch.encoder_ids.size() * sizeof batch.targets[0])});
  const std::string others = state_difference();
  sy::check_replicas(mesh, step_ + 1, difference.empty() ? others : difference);
}

void Trainer::check_update() {
  const Mesh& mesh = engine_.mesh();
  const double norm = optimizer_.gradient_norm(), known = std::isnan(norm) ? std::nan("") : norm;
  std::vector<ReplicaDigest> own = {replica_digest("the gradient norm", &known, sizeof known)};
  for (const auto& [name, value] : optimizer_.shared_operands())
    own.push_back(replica_digest(name, engine_.store().device(), value));
  sy::check_replicas(mesh, step_ + 1, replica_difference(*mesh.host, mesh.rank, own));
}

std::string Trainer::state_difference() {
  const Mesh& mesh = engine_.mesh();
  std::string difference = weight_difference(mesh, engine_.store());
  const std::vector<float> bias = engine_.router_bias(), averages = engine_.batch_norm_averages();
  const Index progress[] = {step_, samples_done_, tokens_done_, norms_.skipped, norms_.in_a_row};
  const std::string others = replica_difference(
      *mesh.host, mesh.rank,
      {replica_digest("the number of steps, samples and tokens", progress, sizeof progress),
       replica_digest("/router/bias", bias.data(), bias.size() * sizeof(float)),
       replica_digest("/norm/averages", averages.data(), averages.size() * sizeof(float)),
       replica_digest("the history of gradient norms", norms_.norms.data(), norms_.norms.size() * sizeof(double))});
  return difference.empty() ? others : difference;
}

void Trainer::check_replicas() {
  sy::check_replicas(engine_.mesh(), step_, state_difference());
}

void Trainer::check_memory() {
  if (checks_memory()) sy::check_replicas(engine_.mesh(), step_, optimizer_.changed_since_last_step());
}

Trainer::StepCounts Trainer::count_step(const SampleBatch& batch) const {
  const Config& config = engine_.config();
  const Mesh& mesh = engine_.mesh();
  const Index all = config.train.batch_of(step_ + 1) * config.tokens_per_sample();
  if (!samples_.ignores_targets()) return {all, 0, all};
  // The ranks of a tensor-parallel group have the same samples.
  double sums[3] = {};
  if (mesh.coord.tp == 0)
    for (const auto& [sum, of] : {std::pair(&sums[0], &batch.ids), std::pair(&sums[1], &batch.targets),
                                  std::pair(&sums[2], &batch.encoder_ids)})
      *sum = static_cast<double>(std::ranges::count_if(*of, [](std::int32_t id) { return id >= 0; }));
  mesh.host->all_reduce(view_of(sums, {3}));
  if (sums[1] == 0)
    throw CollectiveError(2, fmt::format("step {}: no loss counts any of its {} targets: raise train.global_batch, or "
                                         "give the data longer documents",
                                         step_ + 1, all));
  return {static_cast<Index>(sums[0]), static_cast<Index>(sums[2]), static_cast<Index>(sums[1])};
}

// Auxiliary-loss-free balancing (Wang et al., 2024; DeepSeek-V3): b_i += rate * sign(mean_j n_j -
// n_i).
// LoRA trains adapters alone, and the warm-up of indexers these alone.
void Trainer::update_router_bias(const StepResult& result) {
  if (engine_.config().train.lora_rank > 0 || engine_.config().trains_indexers_alone()) return;
  std::vector<float> bias = engine_.router_bias();
  if (bias.empty()) return;
  const Index E = engine_.config().moe.experts;
  const float rate = static_cast<float>(engine_.config().moe.bias_update_rate);
  for (std::size_t l = 0; l < result.routed.size(); ++l) {
    Index total = 0;
    for (Index n : result.routed[l]) total += n;
    for (Index e = 0; e < E; ++e) {
      const Index gap = total - result.routed[l][e] * E;  // E * (mean - n): exact
      bias[l * E + e] += rate * static_cast<float>((gap > 0) - (gap < 0));
    }
  }
  engine_.set_router_bias(bias);
}

}  // namespace sy
