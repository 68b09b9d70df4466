#include "src/train/trainer.h"

#include <algorithm>
#include <chrono>
#include <cmath>

#include "dist/phase.h"
#include "dist/runtime.h"
#include "src/train/lr_schedule.h"
#include "src/train/pipeline_schedule.h"

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
  return fmt::format("step {}: {}: lower train.lr or raise train.warmup, and resume from the last checkpoint", m.step,
                     what);
}

Trainer::Trainer(Engine& engine, const SampleStream& samples)
    : engine_(engine), samples_(samples), optimizer_(engine.mesh(), engine.store()) {}

StepResult Trainer::step() {
  const auto started = std::chrono::steady_clock::now();
  RankContext& rank = engine_.mesh().rank_context();
  const TraceScope step_trace(rank, "step", {{"step", step_ + 1}});
  TraceScope trace(rank, "data");
  const Config& config = engine_.config();
  const auto& t = config.train;
  const Mesh& mesh = engine_.mesh();
  const Index S = config.model.seq_len, dp = mesh.layout.dp(), B = t.micro_batch;
  const Index micro_batches = t.global_batch / (dp * B);

  std::vector<std::int32_t> ids(micro_batches * B * S), targets(micro_batches * B * S);
  // The samples of a step are ordered by (micro-batch, data-parallel rank, sequence). All are read
  // before any other exchange, so that an error of one rank becomes the error of all.
  agree_on_errors(*mesh.host, [&] {
    for (Index i = 0; i < micro_batches * B; ++i)
      samples_.read(samples_done_ + (i / B * dp + mesh.coord.dp) * B + i % B,
                    {std::span(ids).subspan(i * S, S), std::span(targets).subspan(i * S, S)});
  });
  const Index counted = counted_targets(targets);
  trace.next("passes");
  const auto tokens_of = [&](const std::vector<std::int32_t>& all, Index micro) {
    return std::span(all).subspan(micro * B * S, B * S);
  };
  const BackwardHooks hooks = optimizer_.backward_hooks();
  for (const auto& [direction, micro] : one_forward_one_backward(micro_batches, engine_.slots())) {
    const Index slot = micro % engine_.slots();
    if (direction == ScheduledPass::Direction::forward)
      engine_.forward({B, S, tokens_of(ids, micro), tokens_of(targets, micro), counted, t.global_batch, micro_batches,
                       samples_done_ + (micro * dp + mesh.coord.dp) * B},
                      slot);
    else  // the last micro-batch completes the gradients
      engine_.backward(slot, micro + 1 == micro_batches ? hooks : BackwardHooks{});
  }
  trace.next("weights");
  const double lr = learning_rate(t, step_ + 1), tokens = static_cast<double>(t.global_batch * S),
               losses = static_cast<double>(counted);
  optimizer_.step(t, lr, step_ + 1);

  // The host waits for the step here.
  trace.next("statistics");
  const Statistics statistics = engine_.take_statistics();

  // One reduction carries all values that the ranks exchange. Counts are exact in f64 up to 2^53.
  const Index layers = static_cast<Index>(statistics.layers.size()), E = config.moe.experts;
  std::vector<double> sums = step_sums(statistics, t.z_loss * statistics.lse_square_sum / losses);
  mesh.host->all_reduce(view_of(sums.data(), {static_cast<Index>(sums.size())}));

  StepResult result;
  StepMetrics& m = result.metrics;
  m.step = step_ + 1;
  m.lr = lr;
  const std::size_t tail = sums.size() - 3;
  m.loss = sums[tail] / losses;
  m.grad_norm = optimizer_.gradient_norm();
  m.aux_loss = sums[tail + 1];
  m.z_loss = sums[tail + 2];
  if (!std::isfinite(m.grad_norm) || !std::isfinite(m.loss)) throw Diverged(1, not_finite_text(m));
  for (Index l = 0; l < layers; ++l) {
    auto& routed = result.routed.emplace_back(E);
    auto& dropped = result.dropped.emplace_back(E);
    auto& probability = result.probability.emplace_back(E);
    for (Index e = 0; e < E; ++e) {
      const double* s = &sums[(l * E + e) * 3];
      routed[e] = static_cast<Index>(s[0]);
      dropped[e] = static_cast<Index>(s[1]);
      probability[e] = s[2] / tokens;
      m.routed += routed[e];
      m.dropped += dropped[e];
    }
  }
  update_router_bias(result);

  ++step_;
  samples_done_ += t.global_batch;
  tokens_done_ += t.global_batch * S;
  m.tokens = tokens_done_;
  m.step_seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - started).count();
  m.tokens_per_second = tokens / m.step_seconds;
  return result;
}

Index Trainer::counted_targets(std::span<const std::int32_t> targets) const {
  const Config& config = engine_.config();
  const Mesh& mesh = engine_.mesh();
  const Index all = config.train.global_batch * config.model.seq_len;
  if (!samples_.ignores_targets()) return all;
  // The ranks of a tensor-parallel group have the same samples.
  double counted = 0;
  if (mesh.coord.tp == 0)
    counted = static_cast<double>(std::ranges::count_if(targets, [](std::int32_t target) { return target >= 0; }));
  mesh.host->all_reduce(view_of(&counted, {1}));
  if (counted == 0)
    throw CollectiveError(2, fmt::format("step {}: no loss counts any of its {} targets: raise train.global_batch, or "
                                         "give the data longer documents",
                                         step_ + 1, all));
  return static_cast<Index>(counted);
}

// Auxiliary-loss-free balancing (Wang et al., 2024; DeepSeek-V3): b_i += rate * sign(mean_j n_j -
// n_i).
void Trainer::update_router_bias(const StepResult& result) {
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
