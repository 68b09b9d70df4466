#include "src/evaluate/ablate.h"

#include <cmath>
#include <limits>
#include <numeric>

#include "kernels/ops/elementwise.h"

namespace sy {
namespace {

constexpr double nan = std::numeric_limits<double>::quiet_NaN();
constexpr float lower_than_any_score = -1e30f;

struct SavedWeights {
  View weights;
  Tensor values;
};

// Sets the rows of the expert's down projection to 0, and returns the values that they had.
std::vector<SavedWeights> mask_expert(Engine& engine, Index layer, Index expert) {
  std::vector<SavedWeights> saved;
  Device& device = engine.device();
  engine.store().finish_all_gather();
  const std::string prefix = fmt::format("layers.{}.moe.experts.down.", engine.model().moe_layer_ids()[layer]);
  for (const char* name : {"weight", "bias"}) {
    const Param param = engine.store().find(prefix + name);
    if (!param) continue;
    const View weights = param.weight.rows(expert, 1);
    saved.push_back({weights, device.tensor(weights.shape(), weights.dtype())});
    run(device, ops::Copy{.x = weights, .y = saved.back().values});
    run(device, ops::Fill{.x = weights, .value = 0});
  }
  engine.store().packed_weights().invalidate();
  return saved;
}

void restore_expert(Engine& engine, const std::vector<SavedWeights>& saved) {
  for (const SavedWeights& s : saved) run(engine.device(), ops::Copy{.x = s.values, .y = s.weights});
  engine.store().packed_weights().invalidate();
}

// Calls body, then restore, also if body throws.
void restoring(const std::function<void()>& body, const std::function<void()>& restore) {
  try {
    body();
  } catch (...) {
    restore();
    throw;
  }
  restore();
}

}  // namespace

void without_expert(Engine& engine, Index layer, Index expert, AblationMode mode, const std::function<void()>& body) {
  if (mode == AblationMode::mask) {
    const std::vector<SavedWeights> saved = mask_expert(engine, layer, expert);
    restoring(body, [&] { restore_expert(engine, saved); });
    return;
  }
  const std::vector<float> before = engine.router_bias();
  SY_ASSERT(!before.empty(), "layer {}: an engine without selection biases", layer);
  std::vector<float> biases = before;
  biases[layer * engine.config().moe.experts + expert] = lower_than_any_score;
  engine.set_router_bias(biases);
  restoring(body, [&] { engine.set_router_bias(before); });
}

LossChange loss_change(const std::vector<double>& changes, const std::vector<double>& tokens) {
  LossChange out{nan, nan, std::ssize(changes), 0};
  const double all = std::accumulate(tokens.begin(), tokens.end(), 0.0);
  if (all == 0) return out;
  out.change = std::accumulate(changes.begin(), changes.end(), 0.0) / all;
  const double n = static_cast<double>(changes.size());
  if (n < 2) return out;
  double squares = 0;
  for (std::size_t w = 0; w < changes.size(); ++w) {
    const double residual = changes[w] - out.change * tokens[w];
    squares += residual * residual;
  }
  out.error = std::sqrt(n / (n - 1) * squares) / all;
  return out;
}

Ablation ablate(Engine& engine, const Dataset& dataset, const std::vector<Index>& layers, AblationMode mode,
                const ReplayOptions& options, const std::function<void(Index, Index)>& progress) {
  const Index E = engine.config().moe.experts;
  const std::size_t domains = dataset.domains().size();
  // Results of the whole model for each pass: domain, tokens, nats and used experts.
  std::vector<std::size_t> domain;
  std::vector<double> tokens, nats;
  std::vector<char> used;  // [pass, layer, expert]
  for_replay_batches(dataset, engine.config(), options, [&](const ReplayBatch& batch) {
    const ReplayResult result = replay(engine, batch, true, false);
    domain.push_back(static_cast<std::size_t>(batch.domain));
    tokens.push_back(static_cast<double>(batch.counted_targets()));
    nats.push_back(result.nats);
    const std::size_t at = used.size();
    used.resize(at + layers.size() * E, 0);
    for (std::size_t l = 0; l < layers.size(); ++l)
      for (const std::int32_t e : result.layers[layers[l]].experts) used[at + l * E + e] = 1;
  });

  Ablation out;
  for (std::size_t d = 0; d <= domains; ++d) {
    double sum = 0, of = 0;
    for (std::size_t w = 0; w < domain.size(); ++w)
      if (d == domains || domain[w] == d) {
        sum += nats[w];
        of += tokens[w];
      }
    out.loss.push_back(of > 0 ? sum / of : nan);
  }
  Index done = 0;
  for (std::size_t l = 0; l < layers.size(); ++l) {
    out.effects.emplace_back();
    for (Index e = 0; e < E; ++e) {
      std::vector<double> changes(domain.size(), 0);
      without_expert(engine, layers[l], e, mode, [&] {
        for_replay_batches(dataset, engine.config(), options,
                           [&, w = std::size_t{0}](const ReplayBatch& batch) mutable {
                             if (used[(w * layers.size() + l) * E + e])
                               changes[w] = replay(engine, batch, true, false).nats - nats[w];
                             ++w;
                           });
      });
      std::vector<LossChange>& effects = out.effects.back().emplace_back();
      for (std::size_t d = 0; d <= domains; ++d) {
        std::vector<double> c, n;
        Index routed = 0;
        for (std::size_t w = 0; w < domain.size(); ++w) {
          if (d < domains && domain[w] != d) continue;
          c.push_back(changes[w]);
          n.push_back(tokens[w]);
          routed += used[(w * layers.size() + l) * E + e];
        }
        effects.push_back(loss_change(c, n));
        effects.back().routed = routed;
      }
      progress(++done, std::ssize(layers) * E);
    }
  }
  return out;
}

}  // namespace sy
