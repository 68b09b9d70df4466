// Requirements of layouts and devices on a configuration.
#include <algorithm>
#include <cmath>
#include <tuple>

#include "dist/token_dispatcher.h"
#include "kernels/device.h"
#include "kernels/ops/indexer.h"
#include "kernels/ops/lsh.h"
#include "src/config/layout.h"
#include "src/text/numbers.h"
#include "src/text/strings.h"

namespace sy {
std::string layout_problem(const Config& c, const Layout& l) {
  if (!l.tp_divides())
    return fmt::format("{} {} not divisible by parallel.tp = {}", counted(l.ranks, "rank"), l.ranks == 1 ? "is" : "are",
                       l.tp);
  if (!l.experts_divide())
    return fmt::format("{} {} not divisible by parallel.ep * parallel.etp = {} * {}", counted(l.ranks, "rank"),
                       l.ranks == 1 ? "is" : "are", l.ep, l.etp);
  if (!l.nodes_divide())
    return fmt::format(
        "parallel.ranks_per_node = {} must divide the number of ranks, {}, divide parallel.ep * parallel.etp = {} * {} "
        "or be a multiple of it, and be a multiple of parallel.etp",
        l.ranks_per_node, l.ranks, l.ep, l.etp);
  for (std::size_t i = 0; i < c.stacks.size(); ++i) {
    Config stack = c.of_stack(i);
    stack.moe.experts = c.moe.experts;
    if (std::string problem = layout_problem(stack, l); !problem.empty()) return problem;
  }
  if (!c.stacks.empty()) {
    const Index encoder = c.stacks[0].model.kv_heads, decoder = c.stacks[1].model.kv_heads;
    if (encoder != decoder && l.tp > std::min(encoder, decoder))
      return fmt::format("parallel.tp = {} is more than encoder.kv_heads = {} or decoder.kv_heads = {}, which differ",
                         l.tp, encoder, decoder);
    return {};
  }
  const auto& m = c.model;
  const Index micro = c.train.micro_batch, dp = l.dp();
  const auto over = [](Index value, const char* key, Index by, const char* axis) {
    return fmt::format("{} = {} is not divisible by {} = {}", key, value, axis, by);
  };
  if (m.heads % l.tp != 0) return over(m.heads, "model.heads", l.tp, "parallel.tp");
  if (m.kv_heads >= l.tp && m.kv_heads % l.tp != 0) return over(m.kv_heads, "model.kv_heads", l.tp, "parallel.tp");
  if (m.kv_heads < l.tp && l.tp % m.kv_heads != 0)
    return fmt::format("parallel.tp = {} is not a multiple of model.kv_heads = {}", l.tp, m.kv_heads);
  if (m.d_ff % l.tp != 0) return over(m.d_ff, "model.d_ff", l.tp, "parallel.tp");
  if (c.moe.experts == 0 && l.expert_ranks() > 1)
    return fmt::format("parallel.ep = {} and parallel.etp = {} need experts, but moe.experts = 0", l.ep, l.etp);
  if (c.moe.experts % l.ep != 0) return over(c.moe.experts, "moe.experts", l.ep, "parallel.ep");
  if (c.moe.experts > 0 && c.moe.d_ff % l.etp != 0) return over(c.moe.d_ff, "moe.d_ff", l.etp, "parallel.etp");
  if (c.moe.shared_d_ff % l.tp != 0)
    return over(c.moe.shared_d_ff, "moe.shared_d_ff (0: moe.shared_experts * moe.d_ff)", l.tp, "parallel.tp");
  if (const Index counts =
          c.moe.experts > 0 ? DispatchCounts::elements(ExpertPlacement(l, {}), c.moe.experts) * size_of(DType::i32) : 0;
      counts > Device::read_limit)
    return fmt::format(
        "with parallel.ep * parallel.etp = {} * {} and moe.experts = {}, a rank would read {} bytes of row counts, and "
        "{} are read at once: lower parallel.etp",
        l.ep, l.etp, c.moe.experts, counts, Device::read_limit);
  // Each rank that splits an expert holds a slice of the expert's output bias.
  if (c.moe.experts > 0 && c.moe.bias && m.d_model % l.etp != 0)
    return over(m.d_model, "with moe.bias, model.d_model", l.etp, "parallel.etp");
  std::vector<std::pair<const char*, Index>> batches = {{"train.global_batch", c.train.global_batch}};
  for (const BatchRamp::Change& change : c.train.batch_ramp.changes)
    batches.emplace_back("a batch of train.batch_ramp", change.batch);
  for (const auto& [key, batch] : batches)
    if (batch % (dp * micro) != 0)
      return fmt::format("{} = {} is not divisible by {} data-parallel ranks * train.micro_batch = {}", key, batch, dp,
                         micro);
  if (c.train.validate_every > 0 && m.seq_len % l.tp != 0)
    return over(m.seq_len, "train.validate_every needs single windows to be shared: model.seq_len", l.tp,
                "parallel.tp");
  if (micro * m.seq_len % l.tp != 0)
    return over(micro * m.seq_len, "train.micro_batch * model.seq_len", l.tp, "parallel.tp");
  return {};
}

Layout Config::layout(int ranks) const {
  // A size that is auto counts as 1 until it is chosen.
  const auto size = [](Index n) { return static_cast<int>(std::max<Index>(1, n)); };
  return {ranks, size(parallel.tp), size(parallel.ep), size(parallel.etp), size(parallel.ranks_per_node)};
}

std::vector<Layout> layouts_of(const Config& config, int ranks, int ranks_per_node) {
  std::vector<int> divisors;
  for (int d = 1; d <= ranks; ++d)
    if (ranks % d == 0) divisors.push_back(d);
  std::vector<Layout> valid;
  for (int tp : divisors)
    for (int ep : divisors)
      for (int etp : divisors) {
        const Layout layout{ranks, tp, ep, etp}, by_node{ranks, tp, ep, etp, ranks_per_node};
        if (layout_problem(config, layout).empty()) valid.push_back(layout);
        if (ranks_per_node > 1 && layout_problem(config, by_node).empty() && by_node.expert_topology().nodes > 1)
          valid.push_back(by_node);
      }
  return valid;
}

namespace {

// The settings that change one layout into another: "--parallel.tp=2 --parallel.ep=1".
std::string settings_between(const Layout& from, const Layout& to) {
  std::vector<std::string> settings;
  for (const LayoutAxis& axis : layout_axes)
    if (from.*axis.size != to.*axis.size) settings.push_back(fmt::format("--{}={}", axis.key, to.*axis.size));
  return join(settings, " ");
}

// The distance of two layouts: the sum over their axes of |log2 of the ratio of sizes|.
double distance(const Layout& a, const Layout& b) {
  const auto of_axis = [](int x, int y) { return std::abs(std::log2(x) - std::log2(y)); };
  return of_axis(a.tp, b.tp) + of_axis(a.ep, b.ep) + of_axis(a.etp, b.etp);
}

}  // namespace

void check_config_for_layout(const Config& config, const Layout& layout) {
  const std::string problem = layout_problem(config, layout);
  if (problem.empty()) return;
  std::vector<Layout> valid = layouts_of(config, layout.ranks);
  std::ranges::stable_sort(valid, {}, [&](const Layout& l) { return distance(l, layout); });
  constexpr std::size_t shown = 5;
  std::string list;
  for (std::size_t i = 0; i < std::min(shown, valid.size()); ++i)
    list += fmt::format("{}{} (add {})", i ? ", " : "", valid[i].short_name(), settings_between(layout, valid[i]));
  if (valid.size() > shown) list += fmt::format(" and {} more", valid.size() - shown);
  bad_input("{}: {}", problem,
            valid.empty() ? fmt::format("no layout of {} works with this model and batch; change the number of ranks, "
                                        "train.global_batch or train.micro_batch",
                                        counted(layout.ranks, "rank"))
                          : fmt::format("on {} these layouts work: {}", counted(layout.ranks, "rank"), list));
}

std::unique_ptr<Device> open_device(std::string_view setting, const std::string& name, int local_rank) {
  try {
    return make_device(name, local_rank);
  } catch (const NoDevice& e) {
    bad_input("{} = {}, but {}: set it to {}", setting, e.name, e.missing,
              e.name == "cuda" ? "cpu or auto" : "auto, cpu or cuda");
  }
}

void check_config_for_device(std::string_view setting, const Config& config, const Device& device) {
  Index widest = std::max(config.model.key_width(), config.model.value_width());
  for (const Config::Kind& stack : config.stacks) widest = std::max(widest, stack.model.key_width());
  if (widest > device.max_head_dim())
    bad_input(
        "heads of {} (model.head_dim): the {} backend takes heads of up to {}: set {} = cpu, or train narrower heads",
        widest, device.name(), device.max_head_dim(), setting);
  if (config.num_indexers() > 0 && !device.has_kernel(ops::TopkKeys::name))
    bad_input("model.attention = indexed: the {} backend has no operation {}: set {} = cpu", device.name(),
              ops::TopkKeys::name, setting);
  if (config.num_lsh_layers() > 0 && !device.has_kernel(ops::LshSort::name))
    bad_input("model.attention = lsh: lsh attention has no GPU kernels yet: set {} = cpu", setting);
}

namespace {

// Returns a warning for each of these keys that is set, although nothing reads it.
std::vector<std::string> unread_keys(const Config& config) {
  bool scales_rope = false;
  for (Index layer = 0; layer < config.num_blocks(); ++layer)
    scales_rope |= config.model_of(layer).rope_scaling != RopeScaling::none;
  const std::string optimizer = value_of(config, "train.optimizer");
  const std::tuple<const char*, bool, const char*> keys[] = {
      {"model.rope_factor", scales_rope, "model.rope_scaling is none"},
      {"train.momentum", optimizer == "sgd", "train.optimizer is not sgd"},
      {"train.muon_momentum", optimizer == "muon", "train.optimizer is not muon"},
      {"train.mtp_loss_weight", config.model.mtp_depth > 0, "model.mtp_depth is 0"}};
  std::vector<std::string> out;
  for (const auto& [key, is_read, reason] : keys)
    if (const std::string value = value_of(config, key); !is_read && value != find_config_key(key)->default_value)
      out.push_back(fmt::format("{} = {} has no effect, because {}", key, value, reason));
  return out;
}

}  // namespace

std::vector<std::string> config_warnings(const Config& config, const Layout& layout) {
  std::vector<std::string> out = unread_keys(config);
  const auto& e = config.moe;
  const Index together = layout.dp() * config.train.micro_batch, batch = config.train.largest_batch();
  if (e.experts > 1 && e.top_k == 1 && e.renormalizes())
    out.push_back(
        "moe.top_k = 1 with moe.renormalize = true divides each token's only weight by itself, so the loss teaches the "
        "router nothing: set moe.renormalize = auto or false");
  if (config.train.warmup > config.train.steps)
    out.push_back(
        fmt::format("train.warmup = {} is beyond train.steps = {}: the learning rate never reaches train.lr: "
                    "lower train.warmup",
                    config.train.warmup, config.train.steps));
  const Index keep_every = config.run.keep_every, every = config.run.checkpoint_every;
  if (keep_every > 0 && (every == 0 || keep_every % every != 0))
    out.push_back(
        fmt::format("run.keep_every = {} is not a multiple of run.checkpoint_every = {}, which says what steps have a "
                    "checkpoint: change one",
                    keep_every, every));
  if (config.model.norm == NormKind::batchnorm) {
    if (config.model.kind != ModelKind::encoder)
      out.push_back(
          "model.norm = batchnorm in a model that predicts later tokens: its means and variances are of all tokens of "
          "a batch, so a training pass sees more than the earlier tokens, and its loss is too low: compare the "
          "validation loss, which running averages give, or set model.norm to rmsnorm or layernorm");
    if (together != batch)
      out.push_back(
          fmt::format("model.norm = batchnorm normalises over what is computed at once, here dp * train.micro_batch = "
                      "{} * {} of the step's {} sequences: keep the product if you change the number of ranks",
                      layout.dp(), config.train.micro_batch, batch));
  }
  if (e.experts > 0 && e.aux_loss > 0 && e.aux_scope == AuxScope::global_batch && together != batch)
    out.push_back(fmt::format(
        "moe.aux_scope = global_batch balances what is computed at once, here dp * "
        "train.micro_batch = {} * {} of the step's {} sequences, so that the layout matters{}",
        layout.dp(), config.train.micro_batch, batch,
        config.train.batch_ramp.changes.empty() ? fmt::format(": set train.micro_batch = {}", batch / layout.dp())
                                                : ""));
  return out;
}

}  // namespace sy
