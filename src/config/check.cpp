// What a configuration may hold: each value, and all together.
#include "src/config/check.h"

#include "src/config/keys.h"
#include "src/text/words.h"

namespace sy {
namespace {

void resolve(Config::Model& m, bool gated) {
  if (m.kv_heads == 0) m.kv_heads = m.heads;
  if (m.head_dim == 0) m.head_dim = std::max<Index>(1, m.d_model / m.heads);
  if (m.d_ff == 0) m.d_ff = gated ? ((m.d_model * 8 + 2) / 3 + 63) / 64 * 64 : 4 * m.d_model;
}

// What values that are each within their bounds cannot be together. Products are taken in floating point: those of integers
// might not fit.
void check_sizes(const Config& c, Problems& problems) {
  const auto& m = c.model;
  const auto& e = c.moe;
  const auto number = [](Index n) { return static_cast<double>(n); };
  constexpr double most_tokens = 0x1p28, most_elements = 0x1p50, most_rows = 0x1p31 - 1;
  const double step = number(c.train.global_batch) * number(m.seq_len);
  const double tokens = number(c.train.micro_batch) * number(m.seq_len);
  const double heads = number(m.heads) * number(m.head_dim), kv = number(m.kv_heads) * number(m.head_dim);
  const double shared = number(e.shared_experts) * number(e.d_ff), experts = number(e.experts) * number(e.d_ff);
  const double chosen = number(e.top_k) * (number(e.d_ff) + number(m.d_model));
  const double weights =
      number(m.layers) * number(m.d_model) * (2 * (heads + kv) + 3 * (number(m.d_ff) + shared + experts));
  const double activations = number(m.layers) * tokens *
                             (8 * number(m.d_model) + 2 * (heads + kv) + 3 * (number(m.d_ff) + shared) +
                              (e.experts > 0 ? 3 * chosen + number(e.experts) : 0));
  if (step > most_tokens)
    problems.of("train.global_batch",
                "train.global_batch * model.seq_len = {} * {} are more than {} tokens a step: lower train.global_batch",
                c.train.global_batch, m.seq_len, most_tokens);
  if (weights > most_elements)
    problems.of("model.layers", "a model of some {:.1e} parameters is more than {:.0e}: make it smaller", weights,
                most_elements);
  if (activations > most_elements)
    problems.of("train.micro_batch",
                "a micro-batch of some {:.1e} activations is more than {:.0e}: lower train.micro_batch", activations,
                most_elements);
  if (e.experts > 0 && tokens * number(e.top_k) * number(c.parallel.etp) > most_rows)
    problems.of(
        "train.micro_batch",
        "train.micro_batch * model.seq_len * moe.top_k * parallel.etp = {} * {} * {} * {} are more rows than can "
        "be numbered: lower train.micro_batch",
        c.train.micro_batch, m.seq_len, e.top_k, c.parallel.etp);
}

// What a kind of layer's scores and patterns cannot be together.
void check_attention(const Config& c, Problems& problems) {
  for_each_key(c, [&](const Row& row, const auto&) {
    const Config::Model& m = row.kind ? row.kind->model : c.model;
    const std::string key = row.giver();
    const bool sparse = m.attention == AttentionPattern::strided || m.attention == AttentionPattern::fixed;
    if (row.of_model == "model.attention_softcap" && m.attention_softcap > 0 &&
        (m.position == Position::alibi || m.position == Position::t5))
      problems.of(key,
                  "{} = {} with model.position = {}, whose biases are not capped: set it to 0, or another position",
                  key, m.attention_softcap, show(m.position));
    if (row.of_model == "model.window" && m.window == 0 && m.attention == AttentionPattern::longformer)
      problems.of(key, "model.attention = longformer needs {}: set it to the number of latest tokens that are seen",
                  key);
    if (row.of_model == "model.window" && m.window > 0 && sparse)
      problems.of(key, "{} = {} with model.attention = {}, which has a window of its own: set it to 0", key, m.window,
                  show(m.attention));
    if (row.of_model == "model.attention_summary" && m.attention == AttentionPattern::fixed &&
        m.attention_summary > m.attention_stride)
      problems.of(key, "{} = {} is more than model.attention_stride = {}: lower it", key, m.attention_summary,
                  m.attention_stride);
    if (row.name == "model.t5_max_distance" && m.t5_max_distance <= m.t5_buckets / 2)
      problems.of(key,
                  "{} = {} is not above the {} distances that have a bucket of their own: raise it, or lower "
                  "model.t5_buckets",
                  key, m.t5_max_distance, m.t5_buckets / 2);
  });
}

// What values cannot be together, of layers, heads, experts and training.
void check_together(const Config& c, Problems& problems) {
  const auto& m = c.model;
  const auto& e = c.moe;
  const auto& t = c.train;
  if (m.heads % m.kv_heads != 0)
    problems.of("model.kv_heads",
                "model.heads = {} is not a multiple of model.kv_heads = {}: each kv head serves the same number of "
                "query heads",
                m.heads, m.kv_heads);
  if (e.group_limit > e.groups)
    problems.of("moe.group_limit", "moe.group_limit = {}: must be from 1 to moe.groups = {}", e.group_limit, e.groups);
  else if (e.experts > 0) {
    if (e.top_k > e.experts)
      problems.of("moe.top_k", "moe.top_k = {} is more than moe.experts = {}: lower moe.top_k", e.top_k, e.experts);
    else if (e.experts % e.groups != 0)
      problems.of("moe.groups", "moe.experts = {} is not a multiple of moe.groups = {}", e.experts, e.groups);
    else if (e.top_k > e.experts / e.groups * e.group_limit)
      problems.of("moe.top_k",
                  "moe.top_k = {} is more than the {} experts of moe.group_limit = {} groups: raise moe.group_limit",
                  e.top_k, e.experts / e.groups * e.group_limit, e.group_limit);
  }
  if (e.experts > 0 && e.first_dense >= m.layers)
    problems.of("moe.first_dense",
                "moe.first_dense = {} leaves no MoE layer of model.layers = {}: lower it, or set moe.experts = 0",
                e.first_dense, m.layers);
  for_each_key(c, [&](const Row& row, const auto&) {
    if (row.of_model != "model.rope_fraction") return;
    const Config::Model& of = row.kind ? row.kind->model : m;
    if (of.position == Position::rope && static_cast<Index>(double(of.head_dim) * of.rope_fraction / 2) < 1)
      problems.of(row.giver(), "{} = {} of model.head_dim = {} leaves no pair to rotate: raise it", row.giver(),
                  of.rope_fraction, of.head_dim);
  });

  check_attention(c, problems);
  if (t.schedule != Schedule::constant && t.min_lr > t.lr)
    problems.of("train.min_lr", "train.min_lr = {} is above train.lr = {}, where train.schedule = {} ends: lower it",
                t.min_lr, t.lr, show(t.schedule));

  if (c.run.resume_step >= 0 && !c.run.resume)
    problems.of("run.resume_step", "run.resume_step = {} needs run.resume = true: set it", c.run.resume_step);

  if (c.run.dtype != "f32" && c.run.dtype != "bf16")
    problems.of("run.dtype", "run.dtype = '{}': expected f32 or bf16", c.run.dtype);

  bool ffn_known = false;
  std::vector<std::string> ffns;
  for (const FfnName& f : ffn_names) {
    ffn_known |= f.name == m.ffn;
    ffns.emplace_back(f.name);
  }
  if (!ffn_known) problems.of("model.ffn", "model.ffn = '{}': expected one of {}", m.ffn, join(ffns, ", "));
}

}  // namespace

void check_values(const Config& c, Problems& problems) {
  for_each_key(c, [&]<class T>(const Row& row, const T& value) {
    if (!row.own()) return;
    const auto& [bounds, effect, by_kind, built] = row.traits;
    if constexpr (std::is_same_v<T, Index> || std::is_same_v<T, double>)
      if (!(double(value) >= bounds.low && double(value) <= bounds.high))
        problems.of(row.name, "{} = {}: must be from {} to {}", row.name, value, bounds.low, bounds.high);
    // Rows of the survey that a later version builds. A configuration that asks for one is refused, not trained as something
    // else.
    const std::vector<std::string> words = split_list(built);
    if (!words.empty() && std::find(words.begin(), words.end(), show(value)) == words.end())
      problems.of(row.name, "{} = {} is not available in this version, which has {}: change it", row.name, show(value),
                  built);
  });
}

void complete(Config& c, Problems& problems) {
  if (c.model.head_dim == 0 && c.model.d_model % c.model.heads != 0)
    problems.of("model.heads",
                "model.d_model = {} is not a multiple of model.heads = {}: change one, or set model.head_dim",
                c.model.d_model, c.model.heads);
  const bool gated = c.ffn_activation().gated;
  resolve(c.model, gated);
  for (Config::Kind& kind : c.kinds) resolve(kind.model, gated);
  if (c.moe.d_ff == 0) c.moe.d_ff = c.model.d_ff;
  check_together(c, problems);
  check_sizes(c, problems);
}

}  // namespace sy
