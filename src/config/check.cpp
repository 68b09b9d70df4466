// Checks of a configuration: each value alone, and values together.
#include "src/config/check.h"

#include <cmath>
#include <utility>

#include "src/config/keys.h"
#include "src/config/lora_targets.h"
#include "src/config/values.h"
#include "src/text/json.h"
#include "src/text/strings.h"

namespace sy {
namespace {

using Model = Config::Model;

// Fills in defaults that follow from other keys. gated: dense FFNs are gated. clamped: some FFN is
// silu_clamped.
void resolve(Model& m, bool gated, bool clamped) {
  if (m.kind == ModelKind::encoder && m.attention == AttentionPattern::causal) m.attention = AttentionPattern::full;
  if (m.kv_heads == 0) m.kv_heads = m.heads;
  if (m.head_dim == 0) m.head_dim = std::max<Index>(1, m.d_model / m.heads);
  if (m.d_ff == 0) m.d_ff = gated ? ((m.d_model * 8 + 2) / 3 + 63) / 64 * 64 : 4 * m.d_model;
  if (m.swish_beta == 0) m.swish_beta = clamped ? 1.702 : 1;
  if (m.mup && m.attention_scale == 0) m.attention_scale = 1 / static_cast<double>(m.key_width());
}

// Checks the products of values that are each within their bounds. The products are computed in
// floating point, since integers might overflow.
void check_sizes(const Config& c, Problems& problems) {
  const auto& m = c.model;
  const auto& e = c.moe;
  const auto number = [](Index n) { return static_cast<double>(n); };
  constexpr double max_tokens = 0x1p28, max_elements = 0x1p50, max_rows = 0x1p31 - 1;
  const Index batch = c.train.largest_batch();
  const double step = number(batch) * number(m.seq_len);
  const double tokens = number(c.train.micro_batch) * number(m.seq_len);
  const double heads = number(m.heads) * number(m.key_width()),
               kv = number(m.kv_heads) * number(std::max(m.key_width(), m.value_width()));
  const double shared = number(e.shared_d_ff), experts = number(e.experts) * number(e.d_ff);
  const double chosen = number(e.top_k) * (number(e.d_ff) + number(m.d_model));
  const double weights =
      number(m.layers) * number(m.d_model) * (2 * (heads + kv) + 3 * (number(m.d_ff) + shared + experts));
  const double activations = number(m.layers) * tokens *
                             (8 * number(m.d_model) + 2 * (heads + kv) + 3 * (number(m.d_ff) + shared) +
                              (e.experts > 0 ? 3 * chosen + number(e.experts) : 0));
  if (step > max_tokens)
    problems.add(
        batch > c.train.global_batch ? "train.batch_ramp" : "train.global_batch",
        "train.global_batch * model.seq_len = {} * {} are more than {} tokens a step: lower train.global_batch", batch,
        m.seq_len, max_tokens);
  if (weights > max_elements)
    problems.add("model.layers", "a model of some {:.1e} parameters is more than {:.0e}: make it smaller", weights,
                 max_elements);
  if (activations > max_elements)
    problems.add("train.micro_batch",
                 "a micro-batch of some {:.1e} activations is more than {:.0e}: lower train.micro_batch", activations,
                 max_elements);
  if (e.experts > 0 && tokens * number(e.top_k) * number(c.parallel.etp) > max_rows)
    problems.add(
        "train.micro_batch",
        "train.micro_batch * model.seq_len * moe.top_k * parallel.etp = {} * {} * {} * {} are more rows than can "
        "be numbered: lower train.micro_batch",
        c.train.micro_batch, m.seq_len, e.top_k, c.parallel.etp);
}

// Checks the positions of some layers.
void check_positions(const LayerKind& layers, Problems& problems) {
  const Model& m = layers.model();
  const Position of_model = layers.config.model.position;
  const bool of_embedding =
      m.position == Position::learned || m.position == Position::sinusoidal || m.position == Position::axial;
  if (const std::string key = layers.key(&Model::position); of_embedding && m.position != of_model)
    problems.add(key, "{} = {}: it is the embedding that has such positions, for all layers: set model.position", key,
                 show(m.position));
  if (m.position != Position::rope) return;
  const bool latent = m.kv_lora_rank > 0;
  const Index width = latent ? m.qk_rope_head_dim : m.head_dim;
  const char* const of = latent ? "model.qk_rope_head_dim" : "model.head_dim";
  const Index pairs = static_cast<Index>(double(width) * m.rope_fraction / 2);
  const RopeScaling scaling = m.rope_scaling;
  const auto any_of = [&](std::initializer_list<RopeScaling> list) {
    return std::find(list.begin(), list.end(), scaling) != list.end();
  };
  if (const std::string key = layers.key(&Model::rope_theta); m.rope_theta <= 1 && scaling == RopeScaling::yarn)
    problems.add(key, "{} = {}: model.rope_scaling = yarn needs more than 1", key, m.rope_theta);
  if (const std::string key = layers.key(&Model::rope_fraction); pairs < 1)
    problems.add(key, "{} = {} of {} = {} leaves no pair to rotate: raise it", key, m.rope_fraction, of, width);
  else if (pairs == 1 && any_of({RopeScaling::ntk, RopeScaling::dynamic}))
    problems.add(key, "{} = {} of {} = {} leaves one pair, and model.rope_scaling = {} needs two: raise it", key,
                 m.rope_fraction, of, width, show(scaling));
  if (const std::string key = layers.key(&Model::rope_original_length);
      m.rope_original_length < 2 &&
      any_of({RopeScaling::dynamic, RopeScaling::llama3, RopeScaling::yarn, RopeScaling::longrope}))
    problems.add(key, "model.rope_scaling = {} needs {}: set it to the number of positions of the earlier training",
                 show(scaling), key);
  if (const std::string key = layers.key(&Model::rope_low_frequency);
      scaling == RopeScaling::llama3 && m.rope_low_frequency >= m.rope_high_frequency)
    problems.add(key, "{} = {} is not below model.rope_high_frequency = {}: lower it", key, m.rope_low_frequency,
                 m.rope_high_frequency);
  if (scaling != RopeScaling::longrope) return;
  // Training needs the list for its own sequence length. The other list may be absent.
  const bool trains_with_long = m.seq_len > m.rope_original_length;
  for (const auto factors : {&Model::rope_short_factors, &Model::rope_long_factors}) {
    const std::vector<double>& list = m.*factors;
    const bool trains_with = (factors == &Model::rope_long_factors) == trains_with_long;
    const bool has_pairs = std::ssize(list) == pairs && std::ranges::all_of(list, [](double f) { return f > 0; });
    if (const std::string key = layers.key(factors); !has_pairs && (trains_with || !list.empty()))
      problems.add(key, "{} are {} numbers: model.rope_scaling = longrope needs one above 0 for each of {} pairs", key,
                   list.size(), pairs);
  }
}

// Checks the sizes of axial positions.
void check_axial_positions(const Config& c, Problems& problems) {
  const Model& m = c.model;
  const auto is_pair = [](const std::vector<double>& numbers) {
    return numbers.size() == 2 &&
           std::ranges::all_of(numbers, [](double n) { return n == std::floor(n) && n >= 1 && n <= 0x1p28; });
  };
  if (m.position != Position::axial) {
    for (const auto& [key, numbers] :
         {std::pair{"model.axial_shape", m.axial_shape}, {"model.axial_widths", m.axial_widths}})
      if (!numbers.empty())
        problems.add(key, "{} = {} with model.position = {}: it is of axial: leave it out", key, show(numbers),
                     show(m.position));
    return;
  }
  if (!is_pair(m.axial_shape) || m.axial_shape[0] * m.axial_shape[1] < static_cast<double>(m.seq_len))
    problems.add("model.axial_shape",
                 "model.axial_shape = {}: model.position = axial needs two whole numbers, whose product is at least "
                 "model.seq_len = {}",
                 show(m.axial_shape), m.seq_len);
  if (!is_pair(m.axial_widths) || m.axial_widths[0] + m.axial_widths[1] != static_cast<double>(m.d_model))
    problems.add(
        "model.axial_widths",
        "model.axial_widths = {}: model.position = axial needs two whole numbers, whose sum is model.d_model = "
        "{}",
        show(m.axial_widths), m.d_model);
}

// Checks that the visibility of attention of some layers fits the kind of the model.
void check_visibility(const LayerKind& layers, Problems& problems) {
  const Model& m = layers.model();
  const bool encoder = m.kind == ModelKind::encoder;
  const bool sparse = m.attention == AttentionPattern::strided || m.attention == AttentionPattern::fixed ||
                      m.attention == AttentionPattern::local || m.attention == AttentionPattern::indexed;
  const std::string attention = layers.key(&Model::attention);
  problems.refuse(encoder && sparse, layers.config, attention, "model.kind = encoder: it is of decoders",
                  "full or longformer");
  problems.refuse(!encoder && m.attention == AttentionPattern::full, layers.config, attention,
                  "model.kind = decoder, which would see the tokens that it predicts",
                  "causal, or model.kind to encoder");
  if (const std::string key = layers.key(&Model::position); encoder && m.position == Position::t5 && m.t5_buckets < 4)
    problems.add("model.t5_buckets",
                 "model.t5_buckets = {} with {} = t5 in an encoder, half of whose buckets are of "
                 "later tokens: raise it to 4 or more",
                 m.t5_buckets, key);
}

// Checks what only encoders or only decoders have.
void check_kind(const Config& c, Problems& problems) {
  const bool encoder = c.model.kind == ModelKind::encoder;
  problems.refuse(encoder && c.train.objective == Objective::causal, c, "train.objective",
                  "model.kind = encoder, which sees the next token", "masked, or model.kind to decoder");
  problems.refuse(!encoder && c.train.objective == Objective::masked, c, "train.objective",
                  "model.kind = decoder, which sees no later tokens", "causal, or model.kind to encoder");
  problems.refuse(encoder && c.model.mtp_depth > 0, c, "model.mtp_depth",
                  "model.kind = encoder: it predicts later tokens", "0");
  if (c.model.output_transform && c.model.mtp_depth > 0)
    problems.add(
        "model.output_transform",
        "model.output_transform = true with model.mtp_depth = {}, whose modules have no such transform: change "
        "one",
        c.model.mtp_depth);
  if (!c.model.first_norm && (c.model.norm_position != NormPosition::pre || c.model.parallel_block))
    problems.add(
        "model.first_norm",
        "model.first_norm = false needs model.norm_position = pre and model.parallel_block = false: set these, "
        "or this to true");
  if (c.train.mask_token_share + c.train.mask_random_share > 1)
    problems.add("train.mask_random_share",
                 "train.mask_token_share = {} and train.mask_random_share = {} are more than 1: lower one",
                 c.train.mask_token_share, c.train.mask_random_share);
  problems.refuse(c.model.segment_token >= 0 && (!encoder || c.model.segments < 2), c, "model.segment_token",
                  fmt::format("model.kind = {} and model.segments = {}: it needs an encoder with 2 segments or more",
                              show(c.model.kind), c.model.segments),
                  "-1");
  for (const LayerKind& layers : layer_kinds(c)) check_visibility(layers, problems);
  check_visible_prefix(c, problems);
}

// Checks the scores and the pattern of attention of some layers.
void check_attention(const LayerKind& layers, Problems& problems) {
  const Config& c = layers.config;
  const Model& m = layers.model();
  const bool sparse = m.attention == AttentionPattern::strided || m.attention == AttentionPattern::fixed ||
                      m.attention == AttentionPattern::local;
  if (const std::string key = layers.key(&Model::window); m.window == 0 && m.attention == AttentionPattern::longformer)
    problems.add(key, "model.attention = longformer needs {}: set it to the number of latest tokens that are seen",
                 key);
  else
    problems.refuse(m.window > 0 && sparse, c, key,
                    fmt::format("model.attention = {}, which has a window of its own", show(m.attention)), "0");
  if (const std::string key = layers.key(&Model::attention_summary);
      m.attention == AttentionPattern::fixed && m.attention_summary > m.attention_stride)
    problems.add(key, "{} = {} is more than model.attention_stride = {}: lower it", key, m.attention_summary,
                 m.attention_stride);
  const bool norms_heads = m.qk_norm == QkNormKind::head || m.qk_norm == QkNormKind::head_layernorm;
  problems.refuse(m.clip_qkv > 0 && norms_heads, c, layers.key(&Model::clip_qkv),
                  fmt::format("model.qk_norm = {}", show(m.qk_norm)), "0, or model.qk_norm to none or whole");
  if (m.qk_norm_after_rope && !norms_heads)
    problems.add("model.qk_norm_after_rope",
                 "model.qk_norm_after_rope = true with {} = {}: set that to head or head_layernorm, or this to false",
                 layers.key(&Model::qk_norm), show(m.qk_norm));
  problems.refuse(m.attention_softcap > 0 && (m.position == Position::alibi || m.position == Position::t5), c,
                  layers.key(&Model::attention_softcap),
                  fmt::format("model.position = {}, whose biases are not capped", show(m.position)),
                  "0, or another position");
}

// Checks that the weights of queries and keys scale the logits of some layers.
void check_qk_clip(const LayerKind& layers, Problems& problems) {
  const Model& m = layers.model();
  const Config& c = layers.config;
  if (c.train.qk_clip <= 0) return;
  const auto refuse = [&](bool limits, const std::string& key) {
    problems.refuse(limits, c, "train.qk_clip",
                    fmt::format("{} = {}, which limits the logits already", key, value_of(c, key)), "0");
  };
  refuse(m.qk_norm != QkNormKind::none, layers.key(&Model::qk_norm));
  refuse(m.attention_softcap > 0, layers.key(&Model::attention_softcap));
  refuse(m.clip_qkv > 0, layers.key(&Model::clip_qkv));
}

// Checks latent attention, and that keys which only it reads are unset without it.
void check_latent(const Config& c, Problems& problems) {
  const Model& m = c.model;
  if (m.kv_lora_rank == 0) {
    const auto alone = [&](const char* key, double value) {
      if (value > 0)
        problems.add(key, "{} = {} is of latent attention alone: set model.kv_lora_rank, or this to 0", key, value);
    };
    alone("model.q_lora_rank", double(m.q_lora_rank));
    alone("model.qk_rope_head_dim", double(m.qk_rope_head_dim));
    alone("model.v_head_dim", double(m.v_head_dim));
    alone("model.latent_norm_eps", m.latent_norm_eps);
    return;
  }
  problems.refuse(m.kv_heads != m.heads, c, "model.kv_heads",
                  fmt::format("model.kv_lora_rank = {}, of which each of {} heads makes keys and values of its own",
                              m.kv_lora_rank, m.heads),
                  "0");
  if (m.qk_rope_head_dim < 2 || m.qk_rope_head_dim % 2 != 0)
    problems.add("model.qk_rope_head_dim",
                 "model.qk_rope_head_dim = {}: model.kv_lora_rank needs an even number from 2 on", m.qk_rope_head_dim);
  problems.refuse(m.bias != Biases::none && m.bias != Biases::mlp, c, "model.bias",
                  "model.kv_lora_rank: latent attention has no biases", "none or mlp");
  for (const LayerKind& layers : layer_kinds(c)) {
    problems.refuse(layers.model().qk_norm != QkNormKind::none, c, layers.key(&Model::qk_norm),
                    "model.kv_lora_rank, whose latents are normalised instead", "none");
    problems.refuse(layers.model().clip_qkv != 0, c, layers.key(&Model::clip_qkv),
                    "model.kv_lora_rank: latent attention has no limit", "0");
  }
}

void check_mup(const Config& c, Problems& problems) {
  const Model& m = c.model;
  if (m.mup != (m.mup_base_width > 0))
    problems.add(
        "model.mup_base_width", "model.mup_base_width = {} with model.mup = {}: {}", m.mup_base_width, m.mup,
        m.mup ? "set it to the model.d_model for which train.lr was chosen" : "set it to 0, or model.mup to true");
  if (m.mup && c.train.optimizer != Optimizer::adamw)
    problems.add("model.mup", "model.mup = true with train.optimizer = {}: its learning rates are of adamw: set that",
                 show(c.train.optimizer));
}

// Returns true if dense FFNs, or experts that the model has, are of this activation.
bool has_activation(const Config& c, Activation act) {
  return c.ffn_activation().act == act || (c.moe.experts > 0 && c.expert_activation().act == act);
}

// Checks that FFNs have the activations whose numbers are set. A value of [model] may be of one
// stack alone.
void check_activation_numbers(const Config& c, Problems& problems) {
  const auto check = [&](double Model::*number, const std::vector<Activation>& of, const char* names) {
    const auto is_read = [&](const Config& by) {
      return std::ranges::any_of(of, [&](Activation act) { return has_activation(by, act); });
    };
    bool by_stack = false;
    for (std::size_t i = 0; i < c.stacks.size(); ++i) by_stack = by_stack || is_read(c.of_stack(i));
    std::size_t stack = 0;
    for (const LayerKind& layers : layer_kinds(c)) {
      const std::string key = layers.key(number);
      const bool reads = is_read(c.stacks.empty() ? c : c.of_stack(stack++));
      const bool is_set = layers.model().*number != (number == &Model::ffn_clamp ? 7 : 1);
      if (is_set && !reads && !(by_stack && key.starts_with("model.")))
        problems.add(key, "{} = {} with {} = {}: it is of {}", key, layers.model().*number, layers.key(&Model::ffn),
                     layers.model().ffn, names);
    }
  };
  check(&Model::swish_beta, {Activation::silu, Activation::silu_clamped}, "silu, swiglu and swiglu_clamped");
  check(&Model::ffn_clamp, {Activation::silu_clamped}, "swiglu_clamped");
}

// Checks values of layers, heads, experts and training against each other.
void check_combinations(const Config& c, Problems& problems) {
  const auto& m = c.model;
  const auto& e = c.moe;
  if (m.heads % m.kv_heads != 0)
    problems.add("model.kv_heads",
                 "model.heads = {} is not a multiple of model.kv_heads = {}: each kv head serves the same number of "
                 "query heads",
                 m.heads, m.kv_heads);
  if (m.mtp_depth >= m.seq_len)
    problems.add(
        "model.mtp_depth",
        "model.mtp_depth = {} with model.seq_len = {}: a module predicts tokens of the same sequence: lower it",
        m.mtp_depth, m.seq_len);
  if (e.topk_groups > e.groups)
    problems.add("moe.topk_groups", "moe.topk_groups = {}: must be from 1 to moe.groups = {}", e.topk_groups, e.groups);
  else if (e.experts > 0) {
    if (e.top_k > e.experts)
      problems.add("moe.top_k", "moe.top_k = {} is more than moe.experts = {}: lower moe.top_k", e.top_k, e.experts);
    else if (e.experts % e.groups != 0)
      problems.add("moe.groups", "moe.experts = {} is not a multiple of moe.groups = {}", e.experts, e.groups);
    else if (e.top_k > e.experts / e.groups * e.topk_groups)
      problems.add("moe.top_k",
                   "moe.top_k = {} is more than the {} experts of moe.topk_groups = {} groups: raise moe.topk_groups",
                   e.top_k, e.experts / e.groups * e.topk_groups, e.topk_groups);
  }
  if (e.experts > 0 && e.first_dense >= m.layers)
    problems.add("moe.first_dense",
                 "moe.first_dense = {} leaves no MoE layer of model.layers = {}: lower it, or set moe.experts = 0",
                 e.first_dense, m.layers);
  for (const double layer : e.dense_layers)
    if (layer != std::floor(layer) || layer < 0 || layer >= static_cast<double>(m.layers))
      problems.add("moe.dense_layers", "moe.dense_layers = {}: a layer is a whole number from 0 to {}", layer,
                   m.layers - 1);
  if (e.experts > 0 && e.first_dense < m.layers && !e.dense_layers.empty()) {
    bool any = false;
    for (Index layer = 0; layer < m.layers; ++layer) any = any || c.is_moe(layer);
    if (!any)
      problems.add("moe.dense_layers", "moe.dense_layers leaves no MoE layer: shorten it, or set moe.experts = 0");
  }
  if (e.shared_experts == 0 && (e.shared_gate || e.shared_d_ff > 0)) {
    const char* const key = e.shared_gate ? "moe.shared_gate" : "moe.shared_d_ff";
    problems.add(key, "{} needs moe.shared_experts: set it", key);
  }
  if (e.experts > 0 && e.aux_layers == AuxLayers::joint && e.aux_scope == AuxScope::sequence)
    problems.add(
        "moe.aux_layers",
        "moe.aux_layers = joint with moe.aux_scope = sequence: set moe.aux_scope to global_batch or micro_batch");
  if ((e.choice == Choice::noisy) != (e.noise > 0))
    problems.add("moe.noise", "moe.noise = {} with moe.choice = {}: noisy needs noise above 0, and others have none",
                 e.noise, show(e.choice));
  problems.refuse(e.learned_noise && e.choice != Choice::noisy, c, "moe.learned_noise",
                  fmt::format("moe.choice = {}", show(e.choice)), "noisy");
  const Activation dense = c.ffn_activation().act, expert = e.experts > 0 ? c.expert_activation().act : dense;
  const auto either = [&](Activation act) { return dense == act || expert == act; };
  if (e.experts > 0 && expert == Activation::xielu)
    problems.add("moe.ffn", "moe.ffn = xielu: its learned parameters are of dense FFNs alone: set it to another");
  if (dense != expert && either(Activation::silu_clamped) && either(Activation::silu))
    problems.add("moe.ffn",
                 "moe.ffn = {} with model.ffn = {}: both would have the same model.swish_beta: choose another", e.ffn,
                 m.ffn);
  for (const LayerKind& layers : layer_kinds(c)) check_positions(layers, problems);
  problems.refuse(
      m.parallel_block && (m.norm_position == NormPosition::post || m.norm_position == NormPosition::residual), c,
      "model.norm_position", "model.parallel_block = true", "pre, both or output");
  if (m.embedding_norm && m.norm == NormKind::none)
    problems.add("model.embedding_norm",
                 "model.embedding_norm = true with model.norm = none leaves nothing to compute: change one");
  problems.refuse(m.norm_offset && m.norm == NormKind::batchnorm, c, "model.norm_offset", "model.norm = batchnorm",
                  "false");
  if (m.t5_max_distance <= m.t5_buckets / 2)
    problems.add(
        "model.t5_max_distance",
        "model.t5_max_distance = {} is not above the {} distances that have a bucket of their own: raise it, or "
        "lower model.t5_buckets",
        m.t5_max_distance, m.t5_buckets / 2);
  for (const LayerKind& layers : layer_kinds(c)) {
    check_attention(layers, problems);
    check_qk_clip(layers, problems);
  }
  for (const auto& check : {check_indexers, check_global_projections, check_hashing, check_axial_positions,
                            check_latent, check_mup, check_kind, check_lora})
    check(c, problems);
}

// Checks that need no size of the model.
void check_others(const Config& c, Problems& problems) {
  const auto& t = c.train;
  constexpr std::string_view rates[] = {"train."}, resuming[] = {"run."};
  if (t.schedule != Schedule::constant && t.min_lr > t.lr && !problems.any_wrong(rates))
    problems.add("train.min_lr", "train.min_lr = {} is above train.lr = {}, where train.schedule = {} ends: lower it",
                 t.min_lr, t.lr, show(t.schedule));
  if (t.schedule != Schedule::wsd) {
    const std::string with = fmt::format("train.schedule = {}: it is of wsd", show(t.schedule));
    problems.refuse(t.decay_steps > 0, c, "train.decay_steps", with, "0");
    problems.refuse(t.decay_shape != DecayShape::linear, c, "train.decay_shape", with, "linear");
  }
  for (const auto& [key, value] : {std::pair{"train.patience", static_cast<double>(t.patience)},
                                   {"train.target_loss", t.target_loss},
                                   {"run.keep_best", static_cast<double>(c.run.keep_best)}})
    if (value > 0 && t.validate_every == 0)
      problems.add(key, "{} = {} follows the validation loss: set train.validate_every, or this to 0", key, value);
  if (c.run.resume_step >= 0 && !c.run.resume && !problems.any_wrong(resuming))
    problems.add("run.resume_step", "run.resume_step = {} needs run.resume = true: set it", c.run.resume_step);
}

}  // namespace

void check_values(const Config& c, Problems& problems) {
  const Config defaults;
  for (const KeyEntry& entry : key_entries(c)) {
    if (!entry.sets_value()) continue;
    const Key& key = *entry.key;
    const std::string text = entry.text();
    const Json value = key.type.json(entry.value);
    if (value.is_number() && !(value.get<double>() >= key.bounds.low && value.get<double>() <= key.bounds.high))
      problems.wrong_value(entry.name, "{} = {}: must be from {} to {}", entry.name, text, key.bounds.low,
                           key.bounds.high);
    const auto& values = key.values;
    if (values.empty() || std::find(values.begin(), values.end(), text) != values.end() ||
        text == KeyEntry(defaults, key, nullptr).text())
      continue;
    problems.wrong_value(entry.name, "{} = '{}': expected {}", entry.name, text,
                         values.size() == 2 ? fmt::format("{} or {}", values[0], values[1])
                                            : fmt::format("one of {}", fmt::join(values, ", ")));
  }
}

void complete(Config& c, Problems& problems) {
  check_others(c, problems);
  if (problems.any_wrong(size_keys)) return;
  const auto check_heads = [&](const Model& m, const std::string& key) {
    if (m.head_dim == 0 && m.d_model % m.heads != 0)
      problems.add(key, "model.d_model = {} is not a multiple of {} = {}: change one, or set model.head_dim", m.d_model,
                   key, m.heads);
  };
  if (c.stacks.empty()) check_heads(c.model, "model.heads");
  if (c.moe.ffn.empty()) c.moe.ffn = c.model.ffn;
  if (c.train.objective == Objective::automatic)
    c.train.objective = c.model.kind == ModelKind::encoder           ? Objective::masked
                        : c.model.kind == ModelKind::encoder_decoder ? Objective::span_corruption
                                                                     : Objective::causal;
  c.moe.renormalize = c.moe.renormalizes() ? Renormalize::on : Renormalize::off;
  const bool gated = c.ffn_activation().gated, clamped = has_activation(c, Activation::silu_clamped);
  resolve(c.model, gated, clamped);
  for (Config::Kind& kind : c.kinds) resolve(kind.model, gated, clamped);
  complete_buckets(c);
  if (c.moe.d_ff == 0) c.moe.d_ff = c.model.d_ff;
  if (c.moe.shared_d_ff == 0) c.moe.shared_d_ff = c.moe.shared_experts * c.moe.d_ff;
  if (c.train.lora_rank > 0) {
    if (c.train.lora_alpha == 0) c.train.lora_alpha = static_cast<double>(c.train.lora_rank);
    if (c.train.lora_targets.empty()) c.train.lora_targets = lora_all;
  }
  for (std::size_t i = 0; i < c.stacks.size(); ++i) {
    Config::Kind& stack = c.stacks[i];
    check_heads(stack.model, LayerKind{c, &stack}.key(&Model::heads));
    // Both stacks have the same kind of experts.
    const Config::Moe own = std::exchange(stack.moe, c.moe);
    stack.moe.experts = own.experts;
    stack.moe.every = own.every;
    stack.moe.first_dense = own.first_dense;
    stack.moe.dense_layers = own.dense_layers;
    const Config alone = c.of_stack(i);
    resolve(stack.model, alone.ffn_activation().gated, has_activation(alone, Activation::silu_clamped));
  }
  check_objective_of_pairs(c, problems);
  check_reversible(c, problems);
  if (c.stacks.empty()) check_combinations(c, problems);
  if (!c.stacks.empty()) complete_stacks(c, problems);
  for (std::size_t i = 0; i < c.stacks.size(); ++i) {
    Config stack = c.of_stack(i);
    const AttentionPattern attention = stack.model.attention;
    if (attention == AttentionPattern::indexed || attention == AttentionPattern::lsh) {
      problems.refuse(true, c, c.stacks[i].name + ".attention",
                      "model.kind = encoder_decoder, which has no such layers", "another value");
      continue;
    }
    stack.train.objective = i == 0 ? Objective::masked : Objective::causal;
    stack.model.mtp_depth = 0;
    check_combinations(stack, problems);
  }
  check_activation_numbers(c, problems);
  check_sizes(c, problems);
}

}  // namespace sy
