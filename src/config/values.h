// Names of the values of enumerations and text keys, and the conversion of values to and from text.
// Only for the files of this folder.
#pragma once

#include <fmt/format.h>

#include <array>
#include <cmath>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "src/config.h"
#include "src/text/numbers.h"

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
    using enum Type;                                       \
    static constexpr EnumName<Type> table[] = __VA_ARGS__; \
  }
SY_ENUM_NAMES(NormKind, {{"none", none}, {"rmsnorm", rmsnorm}, {"layernorm", layernorm}, {"batchnorm", batchnorm}});
SY_ENUM_NAMES(ModelKind, {{"decoder", decoder}, {"encoder", encoder}, {"encoder_decoder", encoder_decoder}});
SY_ENUM_NAMES(NormPosition, {{"pre", pre}, {"post", post}, {"both", both}, {"output", output}, {"residual", residual}});
SY_ENUM_NAMES(NormBias, {{"auto", automatic}, {"true", present}, {"false", absent}});
SY_ENUM_NAMES(Biases, {{"none", none}, {"all", all}, {"qkv", qkv}, {"mlp", mlp}, {"attention", attention}});
SY_ENUM_NAMES(QkNormKind, {{"none", none}, {"head", head}, {"whole", whole}, {"head_layernorm", head_layernorm}});
SY_ENUM_NAMES(RopePairs, {{"half", half}, {"interleaved", interleaved}});
SY_ENUM_NAMES(RopeScaling, {{"none", none},
                            {"linear", linear},
                            {"ntk", ntk},
                            {"dynamic", dynamic},
                            {"llama3", llama3},
                            {"yarn", yarn},
                            {"longrope", longrope}});
SY_ENUM_NAMES(Position, {{"none", none},
                         {"sinusoidal", sinusoidal},
                         {"learned", learned},
                         {"axial", axial},
                         {"t5", t5},
                         {"alibi", alibi},
                         {"rope", rope}});
SY_ENUM_NAMES(Score, {{"softmax", softmax}, {"sigmoid", sigmoid}, {"sqrt_softplus", sqrt_softplus}});
SY_ENUM_NAMES(GroupScore, {{"top2", top2}, {"max", max}});
SY_ENUM_NAMES(Renormalize, {{"auto", automatic}, {"true", on}, {"false", off}});
SY_ENUM_NAMES(Choice, {{"top", top}, {"noisy", noisy}, {"sampled", sampled}, {"balanced", balanced}});
SY_ENUM_NAMES(AttentionPattern, {{"causal", causal},
                                 {"full", full},
                                 {"strided", strided},
                                 {"fixed", fixed},
                                 {"longformer", longformer},
                                 {"local", local},
                                 {"indexed", indexed},
                                 {"lsh", lsh}});
SY_ENUM_NAMES(ReversibleOutput, {{"mean", mean}, {"concat", concat}});
SY_ENUM_NAMES(IndexerStage, {{"warmup", warmup}, {"sparse", sparse}});
SY_ENUM_NAMES(DropOrder, {{"token", token}, {"choice", choice}, {"probability", probability}});
SY_ENUM_NAMES(CapacityScope, {{"sequence", sequence}, {"rank", rank}});
SY_ENUM_NAMES(AuxScope, {{"sequence", sequence}, {"micro_batch", micro_batch}, {"global_batch", global_batch}});
SY_ENUM_NAMES(AuxLayers, {{"each", each}, {"joint", joint}});
SY_ENUM_NAMES(AuxProbability, {{"softmax", softmax}, {"score", score}});
SY_ENUM_NAMES(Recompute,
              {{"none", none}, {"norms", norms}, {"experts", experts}, {"attention", attention}, {"block", block}});
SY_ENUM_NAMES(Objective, {{"auto", automatic},
                          {"causal", causal},
                          {"masked", masked},
                          {"span_corruption", span_corruption},
                          {"prefix", prefix},
                          {"seq2seq", seq2seq}});
SY_ENUM_NAMES(Schedule, {{"constant", constant}, {"cosine", cosine}, {"linear", linear}, {"wsd", wsd}});
SY_ENUM_NAMES(DecayShape, {{"linear", linear}, {"cosine", cosine}, {"1-sqrt", one_minus_sqrt}});
SY_ENUM_NAMES(MemoryCheck, {{"off", off}, {"digest", digest}});
SY_ENUM_NAMES(Documents, {{"join", join}, {"mask", mask}, {"pack", pack}});
#undef SY_ENUM_NAMES

// Set `out` to the value that true or false stands for. Configuration files may have a bool for
// these enumerations.
inline void from_bool(bool flag, Biases& out) {
  out = flag ? Biases::all : Biases::none;
}
inline void from_bool(bool flag, QkNormKind& out) {
  out = flag ? QkNormKind::head : QkNormKind::none;
}
inline void from_bool(bool flag, Renormalize& out) {
  out = flag ? Renormalize::on : Renormalize::off;
}
inline void from_bool(bool flag, Recompute& out) {
  out = flag ? Recompute::block : Recompute::none;
}

// A value of model.ffn: its name, its activation, and whether it has a gate projection.
struct FfnName {
  std::string_view name;
  FfnActivation kind;
};
constexpr FfnName ffn_names[] = {
    {"relu", {Activation::relu, false}},           {"gelu", {Activation::gelu, false}},
    {"gelu_tanh", {Activation::gelu_tanh, false}}, {"silu", {Activation::silu, false}},
    {"relu2", {Activation::relu2, false}},         {"xielu", {Activation::xielu, false}},
    {"glu", {Activation::sigmoid, true}},          {"reglu", {Activation::relu, true}},
    {"geglu", {Activation::gelu, true}},           {"geglu_tanh", {Activation::gelu_tanh, true}},
    {"swiglu", {Activation::silu, true}},          {"swiglu_clamped", {Activation::silu_clamped, true}},
};

// The allowed values of text keys. moe.ffn may also be empty, which means model.ffn.
constexpr auto ffn_values = [] {
  std::array<std::string_view, std::size(ffn_names)> names;
  for (std::size_t i = 0; i < names.size(); ++i) names[i] = ffn_names[i].name;
  return names;
}();
constexpr std::string_view backend_values[] = {"auto", "cpu", "cuda"}, dtype_values[] = {"f32", "bf16"},
                           mllog_divisions[] = {"closed", "open"};

// ---- conversion of values to and from text ----

// show() returns the text of a value.
std::string show(const Pattern& pattern);
std::string show(const BatchRamp& ramp);
std::string show(const BlendSchedule& schedule);
std::string show(Optimizer optimizer);
std::string show(const std::vector<double>& numbers);
template <class T>
std::string show(const T& v) {
  if constexpr (std::is_enum_v<T>) {
    for (const auto& entry : EnumNames<T>::table)
      if (entry.value == v) return std::string(entry.name);
    return "?";
  } else {
    return fmt::format("{}", v);
  }
}

// read() sets `out` and returns true if the text is a value of its type. If it returns false, `out`
// is undefined.
bool read(const std::string& text, bool& out);
bool read(const std::string& text, Pattern& out);
bool read(const std::string& text, BatchRamp& out);
bool read(const std::string& text, BlendSchedule& out);
bool read(const std::string& text, Optimizer& out);
bool read(const std::string& text, std::vector<double>& out);
// Writes a whole number without its exponent: "1e9" becomes "1000000000", "1.5e3" becomes "1500".
// Any other text is returned unchanged.
std::string without_exponent(const std::string& text);
template <class T>
bool read(const std::string& text, T& out) {
  if constexpr (std::is_same_v<T, std::string>) {
    out = text;
    return true;
  } else if constexpr (std::is_arithmetic_v<T>) {
    const auto number = parse_number<T>(std::is_integral_v<T> ? without_exponent(text) : text);
    if (number) out = *number;
    return number && std::isfinite(static_cast<double>(*number));
  } else {
    for (const auto& entry : EnumNames<T>::table)
      if (entry.name == text) {
        out = entry.value;
        return true;
      }
    if constexpr (requires { from_bool(true, out); }) {
      bool flag = false;
      if (!read(text, flag)) return false;
      from_bool(flag, out);
      return true;
    }
    return false;
  }
}

}  // namespace sy
