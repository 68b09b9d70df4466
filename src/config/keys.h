// The table of configuration keys and the conversion of their values to text. Only for the files of
// this folder.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <limits>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>

#include "src/config.h"

namespace sy {

// ---- the names of the enumerations ----

template <class T>
struct EnumName {
  std::string_view name;
  T value;
};
template <class T>
struct EnumNames;  // EnumNames<T>::table

#define SY_ENUM_NAMES(Type, ...)                           \
  template <>                                              \
  struct EnumNames<Type> {                                 \
    static constexpr EnumName<Type> table[] = __VA_ARGS__; \
  }
SY_ENUM_NAMES(NormKind, {{"none", NormKind::none}, {"rmsnorm", NormKind::rmsnorm}, {"layernorm", NormKind::layernorm}});
SY_ENUM_NAMES(NormPosition, {{"pre", NormPosition::pre},
                             {"post", NormPosition::post},
                             {"both", NormPosition::both},
                             {"output", NormPosition::output},
                             {"residual", NormPosition::residual}});
SY_ENUM_NAMES(NormBias, {{"auto", NormBias::automatic}, {"true", NormBias::present}, {"false", NormBias::absent}});
SY_ENUM_NAMES(Biases, {{"none", Biases::none},
                       {"all", Biases::all},
                       {"qkv", Biases::qkv},
                       {"mlp", Biases::mlp},
                       {"attention", Biases::attention}});
SY_ENUM_NAMES(QkNormKind, {{"none", QkNormKind::none},
                           {"head", QkNormKind::head},
                           {"whole", QkNormKind::whole},
                           {"head_layernorm", QkNormKind::head_layernorm}});
SY_ENUM_NAMES(RopePairs, {{"half", RopePairs::half}, {"interleaved", RopePairs::interleaved}});
SY_ENUM_NAMES(RopeScaling, {{"none", RopeScaling::none},
                            {"linear", RopeScaling::linear},
                            {"ntk", RopeScaling::ntk},
                            {"dynamic", RopeScaling::dynamic},
                            {"llama3", RopeScaling::llama3},
                            {"yarn", RopeScaling::yarn},
                            {"longrope", RopeScaling::longrope}});
SY_ENUM_NAMES(Position, {{"none", Position::none},
                         {"sinusoidal", Position::sinusoidal},
                         {"learned", Position::learned},
                         {"t5", Position::t5},
                         {"alibi", Position::alibi},
                         {"rope", Position::rope}});
SY_ENUM_NAMES(Score,
              {{"softmax", Score::softmax}, {"sigmoid", Score::sigmoid}, {"sqrt_softplus", Score::sqrt_softplus}});
SY_ENUM_NAMES(GroupScore, {{"top2", GroupScore::top2}, {"max", GroupScore::max}});
SY_ENUM_NAMES(Renormalize, {{"auto", Renormalize::automatic}, {"true", Renormalize::on}, {"false", Renormalize::off}});
SY_ENUM_NAMES(Choice, {{"top", Choice::top},
                       {"noisy", Choice::noisy},
                       {"sampled", Choice::sampled},
                       {"balanced", Choice::balanced}});
SY_ENUM_NAMES(AttentionPattern, {{"causal", AttentionPattern::causal},
                                 {"strided", AttentionPattern::strided},
                                 {"fixed", AttentionPattern::fixed},
                                 {"longformer", AttentionPattern::longformer}});
SY_ENUM_NAMES(DropOrder,
              {{"token", DropOrder::token}, {"choice", DropOrder::choice}, {"probability", DropOrder::probability}});
SY_ENUM_NAMES(CapacityScope, {{"sequence", CapacityScope::sequence}, {"rank", CapacityScope::rank}});
SY_ENUM_NAMES(AuxScope, {{"sequence", AuxScope::sequence},
                         {"micro_batch", AuxScope::micro_batch},
                         {"global_batch", AuxScope::global_batch}});
SY_ENUM_NAMES(AuxLayers, {{"each", AuxLayers::each}, {"joint", AuxLayers::joint}});
SY_ENUM_NAMES(AuxProbability, {{"softmax", AuxProbability::softmax}, {"score", AuxProbability::score}});
SY_ENUM_NAMES(Schedule, {{"constant", Schedule::constant},
                         {"cosine", Schedule::cosine},
                         {"linear", Schedule::linear},
                         {"wsd", Schedule::wsd}});
#undef SY_ENUM_NAMES

// The meaning of true and false for a key that was a bool in older files, which are still read.
template <class T>
struct BoolAlias;
template <>
struct BoolAlias<Biases> {
  static constexpr Biases on = Biases::all, off = Biases::none;
};
template <>
struct BoolAlias<QkNormKind> {
  static constexpr QkNormKind on = QkNormKind::head, off = QkNormKind::none;
};

template <>
struct BoolAlias<Renormalize> {
  static constexpr Renormalize on = Renormalize::on, off = Renormalize::off;
};

// Activation of each FFN name, and whether it has a gate projection.
struct FfnName {
  std::string_view name;
  FfnActivation kind;
};
constexpr FfnName ffn_names[] = {
    {"relu", {Activation::relu, false}},
    {"gelu", {Activation::gelu, false}},
    {"gelu_tanh", {Activation::gelu_tanh, false}},
    {"silu", {Activation::silu, false}},
    {"relu2", {Activation::relu2, false}},
    {"glu", {Activation::sigmoid, true}},
    {"reglu", {Activation::relu, true}},
    {"geglu", {Activation::gelu, true}},
    {"geglu_tanh", {Activation::gelu_tanh, true}},
    {"swiglu", {Activation::silu, true}},
    {"swiglu_clamped", {Activation::silu_clamped, true}},
};

// The allowed values of text keys. An empty value is the default of moe.ffn.
constexpr auto ffn_values = [] {
  std::array<std::string_view, std::size(ffn_names)> names;
  for (std::size_t i = 0; i < names.size(); ++i) names[i] = ffn_names[i].name;
  return names;
}();
constexpr std::string_view backend_values[] = {"auto", "cpu", "cuda"}, dtype_values[] = {"f32", "bf16"};

// ---- conversion of values to and from text; accepts() names the values of a type ----

// Writes a whole number without its exponent: "1e9" becomes "1000000000", "1.5e3" becomes "1500".
// Any other text is returned unchanged.
std::string without_exponent(const std::string& text);
std::string show(const Pattern& pattern);
bool read(const std::string& text, Pattern& out);
std::string show(const std::vector<double>& numbers);
bool read(const std::string& text, std::vector<double>& out);

template <class T>
std::string show(const T& v) {
  if constexpr (std::is_same_v<T, bool>) {
    return v ? "true" : "false";
  } else if constexpr (std::is_enum_v<T>) {
    for (const auto& entry : EnumNames<T>::table)
      if (entry.value == v) return std::string(entry.name);
    return "?";
  } else {
    return fmt::format("{}", v);
  }
}

template <class T>
std::string accepts() {
  if constexpr (std::is_same_v<T, bool>) {
    return "true or false";
  } else if constexpr (std::is_integral_v<T>) {
    return "a whole number";
  } else if constexpr (std::is_floating_point_v<T>) {
    return "a number";
  } else if constexpr (std::is_same_v<T, std::string>) {
    return "text";
  } else if constexpr (std::is_same_v<T, std::vector<double>>) {
    return "numbers with commas between them";
  } else if constexpr (std::is_same_v<T, Pattern>) {
    return "names of kinds, each with how many layers of it follow one another, up to 10000 in all: local*5, global";
  } else {
    std::string s = "one of";
    for (const auto& entry : EnumNames<T>::table) s += (s.size() > 6 ? ", " : " ") + std::string(entry.name);
    return s;
  }
}

template <class T>
bool read(const std::string& text, T& out) {
  if constexpr (std::is_same_v<T, std::string>) {
    out = text;
    return true;
  } else if constexpr (std::is_same_v<T, bool>) {
    out = text == "true" || text == "1" || text == "yes" || text == "on";
    return out || text == "false" || text == "0" || text == "no" || text == "off";
  } else if constexpr (std::is_arithmetic_v<T>) {
    const std::string number = std::is_integral_v<T> ? without_exponent(text) : text;
    const char* const end = number.data() + number.size();
    const auto r = std::from_chars(number.data(), end, out);
    bool finite = true;
    if constexpr (std::is_floating_point_v<T>) finite = std::isfinite(out);
    return r.ec == std::errc() && r.ptr == end && !text.empty() && finite;
  } else {
    for (const auto& entry : EnumNames<T>::table)
      if (entry.name == text) {
        out = entry.value;
        return true;
      }
    if constexpr (requires { BoolAlias<T>::on; }) {
      bool flag = false;
      if (!read(text, flag)) return false;
      out = flag ? BoolAlias<T>::on : BoolAlias<T>::off;
      return true;
    }
    return false;
  }
}

// ---- the table ----

struct Bounds {
  double low = -std::numeric_limits<double>::infinity(), high = std::numeric_limits<double>::infinity();
};
// Prefix of the sections in which kinds of layer set their own keys: [attention.NAME].
constexpr std::string_view attention_section = "attention";

struct Traits {
  Bounds bounds{};  // of a number
  ResumePolicy on_resume = ResumePolicy::report;
  // Section in which a kind of layer may set this key of [model]. Empty if all layers share the
  // value.
  std::string_view by_kind{};
  // all values of a text key; empty if any text is allowed
  std::span<const std::string_view> values{};
};

struct Row {
  std::string name;            // "model.window", "attention.local.window"
  std::string_view model_key;  // "model.window": the key that a kind's key replaces, or `name`
  const char* help;
  Traits traits;
  const Config::Kind* kind = nullptr;  // the kind that has the key; nullptr for a key of all layers
  // Returns true if the key sets its own value. Otherwise the value of a kind is that of [model].
  bool sets_value() const {
    return !kind || std::find(kind->own_keys.begin(), kind->own_keys.end(), name) != kind->own_keys.end();
  }
  // the key that sets the value
  std::string source_key() const { return sets_value() ? name : std::string(model_key); }
};

constexpr double big = 1e15;

// Calls key(name, value, help, traits) for every key of [model].
template <class M, class Key>
void for_each_model_key(M& m, Key&& key) {
  constexpr ResumePolicy must_match = ResumePolicy::must_match;
  key("model.layers", m.layers, "the number of layers (blocks)", {{1, 10000}, must_match});
  key("model.pattern", m.pattern,
      "the kinds of the layers in their order, as in local*5, global, which is repeated over the layers and cut where "
      "they end. Layers of kind local take the keys of [attention.local] in place of those of [model]. Empty: all "
      "layers are as [model] says",
      {.on_resume = ResumePolicy::ignore});
  key("model.d_model", m.d_model, "the width of the residual stream", {{1, 1 << 20}, must_match});
  key("model.heads", m.heads, "the number of query heads", {{1, 1 << 16}, must_match});
  key("model.kv_heads", m.kv_heads,
      "the number of key and value heads. 0: as many as query heads (multi-head attention); 1: multi-query attention",
      {{0, 1 << 16}, must_match});
  key("model.head_dim", m.head_dim,
      "the width of a head. 0: d_model / heads. With model.kv_lora_rank: of what a head's queries and keys have besides "
      "model.qk_rope_head_dim (qk_nope_head_dim)",
      {{0, 1 << 16}, must_match});
  key("model.kv_lora_rank", m.kv_lora_rank,
      "the width of the latent that all heads' keys and values are made of, in multi-head latent attention (DeepSeek-V2, "
      "2024): generation keeps this latent and the rotated key alone. 0: there is no latent",
      {{0, 1 << 16}, must_match});
  key("model.q_lora_rank", m.q_lora_rank,
      "with model.kv_lora_rank, the width of the latent that queries are made of. 0: they are made of the "
      "attention's input",
      {{0, 1 << 16}, must_match});
  key("model.qk_rope_head_dim", m.qk_rope_head_dim,
      "with model.kv_lora_rank, the elements of each query, and of a key that all heads share, that rope rotates",
      {{0, 1 << 16}, must_match});
  key("model.v_head_dim", m.v_head_dim, "with model.kv_lora_rank, the width of a head's values. 0: model.head_dim",
      {{0, 1 << 16}, must_match});
  key("model.latent_norm_eps", m.latent_norm_eps,
      "with model.kv_lora_rank, what the rmsnorms of the latents add to the mean square. 0: model.norm_eps",
      {{0, 1}, must_match});
  key("model.vocab", m.vocab,
      "the number of rows of the embedding and of the output, at least the token ids that the data set knows; the others "
      "are never a target. 0: as many as these ids",
      {{0, 1 << 24}});
  key("model.d_ff", m.d_ff,
      "the inner width of a dense FFN. 0: 8/3 d_model rounded up to a multiple of 64 where the FFN is gated, otherwise "
      "4 d_model",
      {{0, 1 << 24}, must_match});
  key("model.seq_len", m.seq_len, "the number of positions in a training sequence",
      {{1, 1 << 28}, ResumePolicy::reorders_samples});
  key("model.norm", m.norm, "the kind of normalisation", {.on_resume = must_match});
  key("model.norm_eps", m.norm_eps,
      "norms add this to the variance (rmsnorm: to the mean square) before they take its root", {{0, 1}, must_match});
  key("model.norm_offset", m.norm_offset,
      "true: norms, those of queries and keys too, multiply by 1 + their weight, which starts at 0 (Gemma, Nemotron)",
      {.on_resume = must_match});
  key("model.norm_position", m.norm_position,
      "where a block normalises, f being attention or the FFN. pre: x + f(norm(x)); post: norm(x + f(x)), and there is "
      "no norm before the output; both: x + norm(f(norm(x))); output: x + norm(f(x)), with no norm of the "
      "input, in a parallel block neither; residual: norm(x) + f(norm(x))",
      {.on_resume = must_match});
  key("model.parallel_block", m.parallel_block,
      "true: attention and FFN read the same input, x + attention(norm(x)) + ffn(norm(x)). false: the FFN reads what "
      "attention has added to",
      {.on_resume = must_match});
  key("model.parallel_norms", m.parallel_norms,
      "with model.parallel_block, 1: attention and FFN read the same norm of the input (GPT-J, PaLM); 2: each has its "
      "own (GPT-NeoX)",
      {{1, 2}, must_match});
  key("model.ffn", m.ffn,
      "the activation of dense FFNs, and of experts where moe.ffn is empty: relu, gelu, gelu_tanh, silu or relu2; or, "
      "gated, glu, reglu, geglu, geglu_tanh, swiglu or swiglu_clamped, which is (clamp(l, -c, c) + 1) * silu(min(x, c)) of up projection l "
      "and gate projection x, with c = model.ffn_clamp",
      {.on_resume = must_match, .values = ffn_values});
  key("model.swish_beta", m.swish_beta,
      "in silu, swiglu and swiglu_clamped, silu(x) is x * sigmoid(swish_beta * x). 0: 1, and in swiglu_clamped 1.702",
      {{0, 1000}, must_match});
  key("model.ffn_clamp", m.ffn_clamp, "where swiglu_clamped cuts off what it gets", {{1e-3, big}, must_match});
  key("model.bias", m.bias,
      "what has biases. all: attention, dense FFNs and layernorm; attention: queries, keys, values and the output of "
      "attention; qkv: queries, keys and values alone; mlp: dense FFNs alone. true is all, and false none",
      {.on_resume = must_match});
  key("model.norm_bias", m.norm_bias, "whether layernorm has a bias. auto: where model.bias is all",
      {.on_resume = must_match});
  key("model.position", m.position,
      "how the model knows where tokens stand. rope: attention rotates queries and keys by their positions; alibi: a score "
      "falls by a slope of its head for each token between (Press et al., 2022); t5: a score has a learned bias by head "
      "and bucket of distances (Raffel et al., 2020); learned: a vector of each position up to model.seq_len is added to "
      "the embedding; sinusoidal: the same with sines and cosines of the position (Vaswani et al., 2017); none: it knows "
      "no more than the causal mask tells",
      {.on_resume = must_match, .by_kind = attention_section});
  key("model.rope_theta", m.rope_theta, "the base of rope's frequencies", {{1e-3, big}, must_match, attention_section});
  key("model.rope_fraction", m.rope_fraction,
      "rope rotates this part of each head, or of model.qk_rope_head_dim, above 0 and up to 1",
      {{1e-6, 1}, must_match, attention_section});
  key("model.rope_pairs", m.rope_pairs,
      "which elements of a head rope rotates together. half: i and i + n of the first 2n; interleaved: 2i and 2i + 1",
      {.on_resume = must_match, .by_kind = attention_section});
  key("model.rope_scaling", m.rope_scaling,
      "how rope's frequencies are changed for sequences longer than those of an earlier training, "
      "model.rope_original_length. linear: all are divided by model.rope_factor; ntk: theta grows instead, so that the "
      "lowest frequency is divided by it; dynamic: the same as far as the length in use asks for it; llama3: low ones are "
      "divided; yarn: low ones are divided, and attention is sharpened; longrope: each is divided by a factor of its own. "
      "The length in use is model.seq_len in training, the window in evaluation and the text so far in generation",
      {.by_kind = attention_section});
  key("model.rope_factor", m.rope_factor, "how many times as long as before model.rope_scaling makes sequences",
      {.bounds = {1, big}, .by_kind = attention_section});
  key("model.rope_original_length", m.rope_original_length,
      "the number of positions of the earlier training, which dynamic, llama3, yarn and longrope need",
      {.bounds = {0, 1 << 28}, .by_kind = attention_section});
  key("model.rope_low_frequency", m.rope_low_frequency,
      "llama3 divides frequencies of fewer turns than this over the original length",
      {.bounds = {1e-6, big}, .by_kind = attention_section});
  key("model.rope_high_frequency", m.rope_high_frequency,
      "llama3 leaves frequencies of more turns than this over the original length as they are",
      {.bounds = {1e-6, big}, .by_kind = attention_section});
  key("model.rope_beta_fast", m.rope_beta_fast,
      "yarn leaves frequencies of more turns than this over the original length as they are",
      {.bounds = {1e-6, big}, .by_kind = attention_section});
  key("model.rope_beta_slow", m.rope_beta_slow,
      "yarn divides frequencies of fewer turns than this over the original length",
      {.bounds = {1e-6, big}, .by_kind = attention_section});
  key("model.rope_whole_dimensions", m.rope_whole_dimensions,
      "true: yarn rounds the first and the last dimension of those between to whole ones",
      {.by_kind = attention_section});
  key("model.rope_attention_factor", m.rope_attention_factor,
      "rotated queries and keys are multiplied by this. 0: by what model.rope_scaling says, which is "
      "0.1 ln(rope_factor) + 1 of yarn, sqrt(1 + ln(rope_factor) / ln(rope_original_length)) of longrope, otherwise 1",
      {.bounds = {0, big}, .by_kind = attention_section});
  key("model.rope_short_factors", m.rope_short_factors,
      "what longrope divides each frequency by in texts of up to model.rope_original_length tokens (training: of "
      "model.seq_len). Empty: the long ones for all texts",
      {.by_kind = attention_section});
  key("model.rope_long_factors", m.rope_long_factors,
      "what longrope divides each frequency by in longer texts. Empty: the short ones for all texts. When a generated text "
      "passes model.rope_original_length, its keys are computed again",
      {.by_kind = attention_section});
  key("model.alibi_scale", m.alibi_scale,
      "with model.position = alibi, the slopes are multiplied by this (Falcon-RW: 1 / sqrt(head_dim))",
      {{0, big}, must_match, attention_section});
  key("model.t5_buckets", m.t5_buckets,
      "the number of buckets of position = t5. Half of them are of one distance each, the others of ranges that grow",
      {{2, 1 << 16}, must_match});
  key("model.t5_max_distance", m.t5_max_distance, "from this distance on, all are in the last bucket of position = t5",
      {{2, 1 << 28}, must_match});
  key("model.t5_shared", m.t5_shared, "true: all layers of position = t5 have the same biases; false: each its own",
      {.on_resume = must_match});
  key("model.attention", m.attention,
      "which tokens a token sees. causal: itself and earlier ones, as many as model.window says; strided: the latest "
      "attention_stride ones, and before these every attention_stride-th; fixed: those of its own run of attention_stride "
      "tokens, and the last attention_summary ones of every run (Child et al., 2019); longformer: the latest window ones, "
      "and the first global_tokens of the sequence (Beltagy et al., 2020)",
      {.on_resume = must_match, .by_kind = attention_section});
  key("model.window", m.window, "a token sees this many tokens, itself and the latest before it. 0: all before it",
      {{0, big}, must_match, attention_section});
  key("model.attention_stride", m.attention_stride, "the stride of attention = strided and of attention = fixed",
      {{1, 1 << 28}, must_match, attention_section});
  key("model.attention_summary", m.attention_summary,
      "attention = fixed: this many tokens at the end of each run are seen from all later ones",
      {{0, 1 << 28}, must_match, attention_section});
  key("model.global_tokens", m.global_tokens,
      "attention = longformer: this many tokens at the start are seen from all later ones",
      {{0, 1 << 28}, must_match, attention_section});
  key("model.attention_sinks", m.attention_sinks,
      "true: each head has a learned logit that takes part in its softmax and has no value, so that it may attend to "
      "nothing (gpt-oss)",
      {.on_resume = must_match, .by_kind = attention_section});
  key("model.qk_norm", m.qk_norm,
      "norm of queries and keys. head: rmsnorm of each head by itself; whole: rmsnorm of the queries of all heads "
      "together, and of the keys (OLMo 2); head_layernorm: layernorm of each head, with a weight of its own and no bias "
      "(Command R+). true is head, and false none",
      {.on_resume = must_match, .by_kind = attention_section});
  key("model.clip_qkv", m.clip_qkv,
      "queries, keys and values are limited to [-c, c] with c = model.clip_qkv, after qk_norm and before RoPE (OLMo, MPT). 0: no limit",
      {.bounds = {0, big}, .on_resume = must_match, .by_kind = attention_section});
  key("model.attention_scale", m.attention_scale,
      "attention's scores are the products of queries and keys times this. 0: 1 / sqrt(the width of a key). T5 has 1; Gemma 2 "
      "and 3 in their largest sizes 1 / sqrt(d_model / heads); DeepSeek's yarn (0.1 mscale_all_dim ln(rope_factor) + 1)^2 "
      "times the usual one, and model.rope_attention_factor = 1",
      {{0, 1e6}, must_match, attention_section});
  key("model.attention_softcap", m.attention_softcap,
      "attention's scores s become cap * tanh(s / cap) with this cap. 0: they stay as they are",
      {.bounds = {0, big}, .by_kind = attention_section});
  key("model.output_softcap", m.output_softcap,
      "the logits z become cap * tanh(z / cap) with this cap. 0: they stay as they are", {{0, big}});
  key("model.logit_scale", m.logit_scale,
      "the logits, model.output_bias included, are multiplied by this before they are capped",
      {{1e-6, 1e6}, must_match});
  key("model.output_bias", m.output_bias,
      "true: the logits have a learned bias, which model.logit_scale multiplies, too (GPT-J)",
      {.on_resume = must_match});
  key("model.tie_embeddings", m.tie_embeddings, "true: the output uses the embedding's weights",
      {.on_resume = must_match});
  key("model.scale_embedding", m.scale_embedding,
      "true: the embedding is multiplied by the root of d_model (Vaswani et al., 2017; Gemma)",
      {.on_resume = must_match});
  key("model.embedding_norm", m.embedding_norm,
      "true: a norm follows the sum of the embedding and its position vectors (BLOOM)", {.on_resume = must_match});
}

// Calls visit(Row, value) for every key, in the order of to_ini(). The keys of kinds follow
// [model].
template <class C, class F>
void for_each_key(C& c, F&& visit) {
  const auto key = [&](const char* name, auto& value, const char* help, const Traits& traits = {}) {
    visit(Row{name, name, help, traits}, value);
  };
  constexpr ResumePolicy must_match = ResumePolicy::must_match, ignore = ResumePolicy::ignore;
  for_each_model_key(c.model, key);
  for (auto& kind : c.kinds)
    for_each_model_key(kind.model, [&](std::string_view name, auto& value, const char* help, const Traits& traits) {
      if (traits.by_kind.empty()) return;
      visit(Row{fmt::format("{}.{}.{}", traits.by_kind, kind.name, name.substr(name.find('.') + 1)), name, help, traits,
                &kind},
            value);
    });
  auto& e = c.moe;
  key("moe.experts", e.experts, "the number of experts of each MoE layer. 0: a dense model",
      {{0, 1 << 20}, must_match});
  key("moe.top_k", e.top_k, "the number of experts that the router sends each token to", {{1, 1 << 20}});
  key("moe.every", e.every,
      "layers first_dense, first_dense + every, first_dense + 2 every and so on, counted from 0, have experts; the "
      "others have a dense FFN",
      {{1, 10000}, must_match});
  key("moe.first_dense", e.first_dense, "this many layers at the start have a dense FFN", {{0, 10000}, must_match});
  key("moe.dense_layers", e.dense_layers,
      "numbers of more layers with a dense FFN, counted from 0, with commas between them", {.on_resume = must_match});
  key("moe.d_ff", e.d_ff, "the inner width of an expert. 0: model.d_ff", {{0, 1 << 24}, must_match});
  key("moe.ffn", e.ffn, "the activation of experts, the shared ones too, as model.ffn. Empty: that of model.ffn",
      {.on_resume = must_match, .values = ffn_values});
  key("moe.shared_experts", e.shared_experts, "the number of experts, of width moe.d_ff each, that every token passes",
      {{0, 1 << 16}, must_match});
  key("moe.shared_d_ff", e.shared_d_ff, "the inner width of all shared experts together. 0: shared_experts * d_ff",
      {{0, 1 << 24}, must_match});
  key("moe.shared_gate", e.shared_gate,
      "true: what the shared experts give is multiplied by sigmoid(w x), with a learned vector w",
      {.on_resume = must_match});
  key("moe.bias", e.bias, "true: the experts have biases, but for the shared ones", {.on_resume = must_match});
  key("moe.router_bias", e.router_bias, "true: the router's logits have a learned bias", {.on_resume = must_match});
  key("moe.score", e.score, "the function that makes scores of the router's logits");
  key("moe.renormalize", e.renormalize,
      "true: the weights of a token's experts are divided by their sum. auto: true if moe.top_k is greater than 1. "
      "With moe.top_k = 1, true makes every weight 1: the router then learns from the load-balance loss alone");
  key("moe.scale", e.scale, "the weights of a token's experts are multiplied by this", {{1e-30, big}});
  key("moe.capacity_factor", e.capacity_factor,
      "an expert takes up to ceil(capacity_factor * top_k * tokens / experts) of the tokens that share a capacity; "
      "what is over is dropped. 0: nothing is dropped",
      {{0, 1 << 20}});
  key("moe.capacity_scope", e.capacity_scope,
      "the tokens that share a capacity: those of a sequence, or those of a rank's micro-batch, of which each "
      "tensor-parallel rank has 1 / parallel.tp");
  key("moe.drop_order", e.drop_order,
      "the assignments that a full expert keeps. token: those of earlier tokens; choice: first choices, "
      "then the second; probability: tokens with larger weights");
  key("moe.aux_loss", e.aux_loss, "the factor of the load-balance loss", {{0, big}});
  key("moe.aux_scope", e.aux_scope,
      "the tokens over which the load-balance loss is taken: those of a sequence; micro_batch: those of a rank's "
      "micro-batch, of which each tensor-parallel rank has 1 / parallel.tp; or those that all ranks compute at once "
      "(dp * train.micro_batch sequences)");
  key("moe.aux_layers", e.aux_layers,
      "each: every MoE layer has a load-balance loss of its own; joint: all have one together, of the means over the layers "
      "of what an expert number gets and of its probability, as transformers defines it for Mixtral, OLMoE and Qwen's");
  key("moe.aux_probability", e.aux_probability,
      "what the load-balance loss takes for the probabilities of a token's experts. softmax: those of the softmax of the "
      "logits; score: the scores of moe.score, divided by their sum over the experts (DeepSeek-V3)");
  key("moe.z_loss", e.z_loss, "the factor of the router z-loss", {{0, big}});
  key("moe.bias_update_rate", e.bias_update_rate,
      "after a step, an expert's selection bias rises by this where it had less than its share, and falls by it where "
      "it had more. 0: there is no such bias",
      {{0, big}});
  key("moe.groups", e.groups, "the experts form this many groups", {{1, 1 << 20}});
  key("moe.topk_groups", e.topk_groups,
      "a token chooses its experts within this many groups, those of the largest moe.group_score", {{1, 1 << 20}});
  key("moe.group_score", e.group_score,
      "the score of a group, selection biases included: the sum of its two best experts' scores, or the best one's");
  key("moe.choice", e.choice,
      "how a token chooses its experts. top: those of the largest scores; noisy: those of the largest logits, to which "
      "training adds normal noise for the choice alone; sampled: training draws them, one after the other, in proportion "
      "to the softmax of the logits of those that are left; balanced: training sends token n to experts n, n + 1 ... "
      "whatever their scores, for measuring what an even load would cost; if moe.topk_groups is below moe.groups, the "
      "token chooses its groups by the same preference and stays within them, so that the load may be uneven. Evaluation "
      "and generation draw nothing: they take the largest ones");
  key("moe.noise", e.noise, "the standard deviation of the noise of moe.choice = noisy", {{0, big}});
  key("moe.learned_noise", e.learned_noise,
      "true: moe.noise is multiplied by softplus(w x) of each expert, with learned w, and the noise is added to the logits "
      "themselves (Shazeer et al., \"Outrageously large neural networks\", 2017)",
      {.on_resume = must_match});
  key("moe.jitter", e.jitter,
      "training multiplies each element of what the router reads by a number between 1 - jitter and 1 + jitter (Fedus et "
      "al., \"Switch Transformers\", 2022)",
      {{0, 1}});
  key("moe.expert_map", e.expert_map,
      "a file that `switchyard experts --placement ep=N --placement-file` wrote: training puts the experts where it says, so "
      "that the ranks are loaded evenly. Results and checkpoints are those of the experts in order. Empty: in order",
      {.on_resume = ignore});
  auto& p = c.parallel;
  key("parallel.tp", p.tp,
      "the number of tensor-parallel ranks, which split attention, dense FFNs and the vocabulary. The data-parallel "
      "ranks are the rest: ranks / tp",
      {{1, 1 << 15}, ignore});
  key("parallel.ep", p.ep, "the number of expert-parallel ranks, which hold the experts between them",
      {{1, 1 << 15}, ignore});
  key("parallel.etp", p.etp, "the number of ranks that split each expert", {{1, 1 << 15}, ignore});
  key("parallel.ranks_per_node", p.ranks_per_node,
      "the number of consecutive ranks on each machine, where experts are on several: a token then travels once to each "
      "machine that has any of its experts, is spread there, and comes back as one sum. 1: it travels once to each rank. "
      "Sums are taken by machine, so that results with another number agree within rounding",
      {{1, 1 << 15}, ignore});
  auto& t = c.train;
  key("train.steps", t.steps, "the number of optimizer steps", {{1, big}});
  key("train.global_batch", t.global_batch, "the number of sequences in a step, over all ranks", {{1, 1 << 28}});
  key("train.micro_batch", t.micro_batch,
      "the number of sequences that a data-parallel rank computes at a time. A step's samples go to (micro-batch, "
      "rank, sequence) in this order",
      {{1, 1 << 28}});
  key("train.seed", t.seed, "the initial weights and the order of the samples follow from this number",
      {.on_resume = ResumePolicy::reorders_samples});
  key("train.lr", t.lr, "the highest learning rate, after the warm-up", {{0, big}});
  key("train.min_lr", t.min_lr, "the learning rate at the last step, unless train.schedule is constant", {{0, big}});
  key("train.warmup", t.warmup, "the learning rate rises from 0 over this many steps", {{0, big}});
  key("train.schedule", t.schedule,
      "how the learning rate goes from train.lr to train.min_lr. constant: it stays; wsd: it stays, then falls "
      "linearly over the last tenth of the steps");
  key("train.weight_decay", t.weight_decay,
      "AdamW's weight decay, of the embedding, of learned positions and of the weights of all products, routers and gates "
      "included. Norms (of queries and keys, too), biases, attention sinks and the table of position = t5 do not decay",
      {{0, big}});
  key("train.beta1", t.beta1, "AdamW's decay of the first moment", {{0, 1 - 1e-6}});
  key("train.beta2", t.beta2, "AdamW's decay of the second moment", {{0, 1 - 1e-6}});
  key("train.eps", t.eps, "AdamW adds this to the root of the second moment", {{0, 1}});
  key("train.clip", t.clip, "a gradient with a larger norm than this is scaled down to it. 0: it is not", {{0, big}});
  key("train.validate_every", t.validate_every,
      "the number of steps between validations, which tell the loss by domain on the data set's validation text, "
      "dropless; there is one after the last step, too. 0: none",
      {{0, big}});
  key("train.validate_windows", t.validate_windows,
      "a validation takes this many windows of model.seq_len tokens of each domain, evenly spread. 0: all", {{0, big}});
  key("train.patience", t.patience,
      "training stops early, with exit code 0, after this many validations in a row that did not lower the validation "
      "loss. 0: it does not",
      {{0, big}});
  key("train.recompute", t.recompute,
      "true: the backward pass computes each block's activations again, which takes time and saves memory");
  key("train.z_loss", t.z_loss,
      "the factor of the output z-loss, the mean of log^2 Z. z_loss in the metrics is its sum with that of the routers",
      {{0, big}});
  key("data.path", c.data.path,
      "the folder that `switchyard prepare` wrote. A relative path is looked for in the working directory, then beside "
      "the configuration file",
      {.on_resume = ResumePolicy::reorders_samples});
  key("data.force", c.data.force,
      "true: data of another tokenizer than the one that the checkpoint was trained with are taken, with a warning; "
      "otherwise run.init_from and run.resume refuse them",
      {.on_resume = ignore});
  auto& r = c.run;
  key("run.dir", r.dir, "the folder of the run, with its configuration, metrics and checkpoints",
      {.on_resume = ignore});
  key("run.backend", r.backend, "what computes: cpu, cuda, or auto, which is a GPU where there is one",
      {.values = backend_values});
  key("run.dtype", r.dtype, "the type of weights and activations: f32, or bf16 with sums and optimizer in f32",
      {.values = dtype_values});
  key("run.log_every", r.log_every, "the number of steps between log lines, and between counts of the experts' tokens",
      {{1, big}});
  key("run.checkpoint_every", r.checkpoint_every,
      "the number of steps between checkpoints. 0: there is one after the last step alone", {{0, big}});
  key("run.checkpoint_first", r.checkpoint_first,
      "true: a checkpoint of the initial weights, step 0, is written, too; run.keep counts it");
  key("run.keep", r.keep,
      "the number of checkpoints that are kept, the newest ones, beside the newest before the loss rose. 0: all",
      {{0, big}});
  key("run.keep_best", r.keep_best,
      "the number of checkpoints with the lowest validation losses that are kept, whatever run.keep says. After a "
      "validation whose loss is among the lowest, there is a checkpoint, too. 0: none",
      {{0, 1000}});
  key("run.keep_every", r.keep_every,
      "checkpoints of steps that are multiples of this are kept, whatever run.keep says. 0: none", {{0, big}});
  key("run.resume", r.resume,
      "true: training goes on from the newest whole checkpoint of run.dir, or starts where there is none",
      {.on_resume = ignore});
  key("run.resume_step", r.resume_step,
      "with run.resume, training goes on from the checkpoint of this step. -1: from the newest", {{-1, big}, ignore});
  key("run.max_hours", r.max_hours,
      "a checkpoint is written, and the run stops with exit code 3, before this many hours since the start of the program "
      "are over. 0: no limit",
      {{0, big}, ignore});
  key("run.init_from", r.init_from,
      "a checkpoint, or a run, whose weights a new run starts from in place of random ones", {.on_resume = ignore});
  auto& l = c.log;
  key("log.csv", l.csv,
      "true: RUN/metrics.csv has a line a step, with the numbers of metrics.jsonl and, every run.log_every steps, each MoE "
      "layer's load imbalance (the busiest expert's load / the mean load) and drop rate",
      {.on_resume = ignore});
  key("log.tensorboard", l.tensorboard, "true: RUN/tensorboard has the same numbers, for TensorBoard",
      {.on_resume = ignore});
  key("log.prometheus", l.prometheus,
      "true: RUN/metrics.prom has the latest of these numbers, as node_exporter's textfile collector reads them",
      {.on_resume = ignore});
  key("log.trace_first", l.trace_first,
      "from this step on, each rank records when it did what, and writes RUN/trace/rank-NNNN.json, which Perfetto "
      "(ui.perfetto.dev) opens. On a GPU, times are those at which the host had the work started. 0: no step",
      {{0, big}, ignore});
  key("log.trace_steps", l.trace_steps, "the number of steps that are recorded", {{1, 10000}, ignore});
}

}  // namespace sy
