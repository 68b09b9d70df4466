#include "src/config.h"

#include <boost/program_options.hpp>
#include <charconv>
#include <cmath>
#include <fstream>
#include <set>
#include <sstream>

#include "src/text/words.h"

namespace sy {
namespace {

// ---- the words of the enumerations ----

template <class T>
struct Word {
  std::string_view name;
  T value;
};
template <class T>
struct Words;  // Words<T>::table

#define SY_WORDS(Type, ...)                            \
  template <>                                          \
  struct Words<Type> {                                 \
    static constexpr Word<Type> table[] = __VA_ARGS__; \
  }
SY_WORDS(NormKind, {{"none", NormKind::none}, {"rmsnorm", NormKind::rmsnorm}, {"layernorm", NormKind::layernorm}});
SY_WORDS(NormPosition, {{"pre", NormPosition::pre},
                        {"post", NormPosition::post},
                        {"both", NormPosition::both},
                        {"output", NormPosition::output}});
SY_WORDS(Position, {{"none", Position::none},
                    {"sinusoidal", Position::sinusoidal},
                    {"learned", Position::learned},
                    {"t5", Position::t5},
                    {"alibi", Position::alibi},
                    {"rope", Position::rope}});
SY_WORDS(Score, {{"softmax", Score::softmax}, {"sigmoid", Score::sigmoid}});
SY_WORDS(DropOrder,
         {{"token", DropOrder::token}, {"choice", DropOrder::choice}, {"probability", DropOrder::probability}});
SY_WORDS(CapacityScope, {{"sequence", CapacityScope::sequence}, {"rank", CapacityScope::rank}});
SY_WORDS(AuxScope, {{"sequence", AuxScope::sequence},
                    {"micro_batch", AuxScope::micro_batch},
                    {"global_batch", AuxScope::global_batch}});
SY_WORDS(Schedule, {{"constant", Schedule::constant},
                    {"cosine", Schedule::cosine},
                    {"linear", Schedule::linear},
                    {"wsd", Schedule::wsd}});
#undef SY_WORDS

// The feed-forward kinds: activation and whether it gates a linear half.
struct FfnName {
  std::string_view name;
  FfnActivation kind;
};
constexpr FfnName ffn_names[] = {
    {"relu", {Activation::relu, false}},           {"gelu", {Activation::gelu, false}},
    {"gelu_tanh", {Activation::gelu_tanh, false}}, {"silu", {Activation::silu, false}},
    {"relu2", {Activation::relu2, false}},         {"glu", {Activation::sigmoid, true}},
    {"reglu", {Activation::relu, true}},           {"geglu", {Activation::gelu, true}},
    {"geglu_tanh", {Activation::gelu_tanh, true}}, {"swiglu", {Activation::silu, true}},
};

// ---- values to text and back; each says what it accepts ----

std::string show(Index v) {
  return std::to_string(v);
}
std::string show(std::uint64_t v) {
  return std::to_string(v);
}
std::string show(bool v) {
  return v ? "true" : "false";
}
std::string show(double v) {
  return fmt::format("{}", v);
}
std::string show(const std::string& v) {
  return v;
}
template <class T>
requires requires {
  Words<T>::table;
}
std::string show(T v) {
  for (const auto& w : Words<T>::table)
    if (w.value == v) return std::string(w.name);
  return "?";
}

template <class T>
std::string accepts(const T&) {
  if constexpr (std::is_same_v<T, bool>) {
    return "true or false";
  } else if constexpr (std::is_same_v<T, Index> || std::is_same_v<T, std::uint64_t>) {
    return "a whole number";
  } else if constexpr (std::is_same_v<T, double>) {
    return "a number";
  } else if constexpr (std::is_same_v<T, std::string>) {
    return "text";
  } else {
    std::string s = "one of";
    for (const auto& w : Words<T>::table) s += (s.size() > 6 ? ", " : " ") + std::string(w.name);
    return s;
  }
}

template <class T>
bool read(const std::string& text, T& out) {
  const char* end = text.data() + text.size();
  if constexpr (std::is_same_v<T, std::string>) {
    out = text;
    return true;
  } else if constexpr (std::is_same_v<T, bool>) {
    out = text == "true" || text == "1" || text == "yes" || text == "on";
    return out || text == "false" || text == "0" || text == "no" || text == "off";
  } else if constexpr (std::is_arithmetic_v<T>) {
    const auto r = std::from_chars(text.data(), end, out);
    bool finite = true;
    if constexpr (std::is_floating_point_v<T>) finite = std::isfinite(out);
    return r.ec == std::errc() && r.ptr == end && !text.empty() && finite;
  } else {
    for (const auto& w : Words<T>::table)
      if (w.name == text) {
        out = w.value;
        return true;
      }
    return false;
  }
}

// ---- the table of keys ----

template <class C, class F>
void for_each_key(C& c, F&& key) {
  auto& m = c.model;
  key("model.layers", m.layers, "blocks");
  key("model.d_model", m.d_model, "width of the residual stream");
  key("model.heads", m.heads, "query heads");
  key("model.kv_heads", m.kv_heads, "key and value heads; 0: as many as heads (multi-head), 1: multi-query");
  key("model.head_dim", m.head_dim, "width of a head; 0: d_model / heads");
  key("model.d_ff", m.d_ff, "width of a dense FFN; 0: gated 8/3 d_model rounded up to 64, otherwise 4 d_model");
  key("model.seq_len", m.seq_len, "positions of a training sequence");
  key("model.norm", m.norm, "normalisation of a block's inputs");
  key("model.norm_eps", m.norm_eps, "added to the variance");
  key("model.norm_position", m.norm_position, "where a block normalises");
  key("model.parallel_block", m.parallel_block, "x + attn(n(x)) + ffn(n(x)) in place of one after the other");
  key("model.ffn", m.ffn, "relu, gelu, gelu_tanh, silu, relu2, or gated: glu, reglu, geglu, geglu_tanh, swiglu");
  key("model.bias", m.bias, "biases in attention, dense FFN and LayerNorm");
  key("model.position", m.position, "how positions are told");
  key("model.rope_theta", m.rope_theta, "base of the rotary frequencies");
  key("model.rope_fraction", m.rope_fraction, "part of each head that is rotated, in (0, 1]");
  key("model.attention", m.attention, "attention pattern: causal");
  key("model.window", m.window, "a position sees this many latest ones, itself included; 0: all");
  key("model.qk_norm", m.qk_norm, "normalise queries and keys per head");
  key("model.attention_softcap", m.attention_softcap, "cap * tanh(score / cap); 0: none");
  key("model.output_softcap", m.output_softcap, "cap * tanh(logit / cap); 0: none");
  key("model.tie_embeddings", m.tie_embeddings, "the output reads the embedding's table");
  auto& e = c.moe;
  key("moe.experts", e.experts, "experts of each MoE layer; 0: a dense model");
  key("moe.top_k", e.top_k, "experts that each token is sent to");
  key("moe.every", e.every, "every how many layers the FFN is a MoE");
  key("moe.first_dense", e.first_dense, "this many first layers keep a dense FFN");
  key("moe.d_ff", e.d_ff, "width of an expert; 0: model.d_ff");
  key("moe.shared_experts", e.shared_experts, "experts that every token passes, of moe.d_ff each");
  key("moe.score", e.score, "score of an expert from the router's logits");
  key("moe.renormalize", e.renormalize, "divide the chosen weights by their sum");
  key("moe.scale", e.scale, "multiplies the chosen weights");
  key("moe.capacity_factor", e.capacity_factor,
      "an expert takes ceil(factor * top_k * tokens / experts) assignments of each scope; 0: dropless");
  key("moe.capacity_scope", e.capacity_scope,
      "the tokens that share a capacity: each sequence, or a rank's micro-batch");
  key("moe.drop_order", e.drop_order, "who keeps its place: earlier tokens, first choices, or larger weights");
  key("moe.aux_loss", e.aux_loss, "factor of the load-balance loss");
  key("moe.aux_scope", e.aux_scope, "the tokens that are balanced together");
  key("moe.z_loss", e.z_loss, "factor of the router z-loss");
  key("moe.bias_rate", e.bias_rate, "step of the selection bias towards balance, without a loss; 0: off");
  key("moe.groups", e.groups, "experts form this many groups");
  key("moe.group_limit", e.group_limit, "a token chooses within this many best groups");
  auto& p = c.parallel;
  key("parallel.tp", p.tp, "tensor-parallel ranks; data-parallel = ranks / tp");
  key("parallel.ep", p.ep, "expert-parallel ranks");
  key("parallel.etp", p.etp, "ranks that share one expert");
  auto& t = c.train;
  key("train.steps", t.steps, "optimizer steps");
  key("train.global_batch", t.global_batch, "sequences of one step, over all ranks");
  key("train.micro_batch", t.micro_batch, "sequences that one data-parallel rank computes at a time");
  key("train.seed", t.seed, "of initial weights and of the order of samples");
  key("train.lr", t.lr, "highest learning rate");
  key("train.min_lr", t.min_lr, "learning rate at the last step");
  key("train.warmup", t.warmup, "steps of linear warm-up");
  key("train.schedule", t.schedule, "after the warm-up; wsd: constant, then linear over the last tenth");
  key("train.weight_decay", t.weight_decay, "AdamW, on matrices only");
  key("train.beta1", t.beta1, "AdamW, first moment");
  key("train.beta2", t.beta2, "AdamW, second moment");
  key("train.eps", t.eps, "AdamW, added to the root of the second moment");
  key("train.clip", t.clip, "largest norm of the gradient; 0: not clipped");
  key("train.recompute", t.recompute, "compute each block's activations again in backward in place of keeping them");
  key("train.z_loss", t.z_loss, "factor of the output z-loss, mean log^2 Z");
  key("data.path", c.data.path, "folder that `switchyard prepare` wrote");
  auto& r = c.run;
  key("run.dir", r.dir, "folder of the run: config, metrics, checkpoints");
  key("run.backend", r.backend, "auto, cpu or cuda");
  key("run.dtype", r.dtype, "of weights and activations: f32, or bf16 with f32 sums and optimizer (on cuda)");
  key("run.log_every", r.log_every, "steps between log lines and expert counts");
  key("run.checkpoint_every", r.checkpoint_every, "steps between checkpoints; 0: only the last");
  key("run.checkpoint_first", r.checkpoint_first,
      "write a checkpoint of step 0, the initial weights, too; run.keep counts it");
  key("run.keep", r.keep, "checkpoints kept; 0: all");
  key("run.resume", r.resume, "continue from the newest whole checkpoint of run.dir, if there is one");
  key("run.resume_step", r.resume_step, "with run.resume: continue from this step's checkpoint; -1: from the newest");
  key("run.init_from", r.init_from, "checkpoint or run whose weights a new run starts from, in place of random ones");
}

std::vector<std::string> key_names() {
  std::vector<std::string> names;
  Config c;
  for_each_key(c, [&](const char* name, auto&, const char*) { names.emplace_back(name); });
  return names;
}

// Sets one key from text. `where` says who gave it.
void set_key(Config& c, const std::string& name, const std::string& text, const std::string& where) {
  bool known = false;
  for_each_key(c, [&](const char* key, auto& value, const char*) {
    if (name != key) return;
    known = true;
    if (!read(text, value)) bad_input("{}: {} = '{}': expected {}", where, name, text, accepts(value));
  });
  if (known) return;
  const std::string near = nearest(name, key_names());
  bad_input("{}: unknown key '{}': {}", where, name,
            near.empty() ? "`switchyard help config` lists them" : "did you mean '" + near + "'?");
}

struct Bound {
  const char* name;
  double value, low, high;
};

void check(const Config& c, const std::string& origin) {
  constexpr double big = 1e15;
  const auto& m = c.model;
  const auto& e = c.moe;
  const auto& t = c.train;
  const Bound bounds[] = {
      {"model.layers", double(m.layers), 1, 10000},
      {"model.d_model", double(m.d_model), 1, 1 << 20},
      {"model.heads", double(m.heads), 1, 1 << 16},
      {"model.kv_heads", double(m.kv_heads), 1, 1 << 16},
      {"model.head_dim", double(m.head_dim), 1, 1 << 16},
      {"model.d_ff", double(m.d_ff), 1, 1 << 24},
      {"model.seq_len", double(m.seq_len), 1, 1 << 28},
      {"model.norm_eps", m.norm_eps, 0, 1},
      {"model.rope_theta", m.rope_theta, 1e-3, big},
      {"model.rope_fraction", m.rope_fraction, 1e-6, 1},
      {"model.window", double(m.window), 0, big},
      {"model.attention_softcap", m.attention_softcap, 0, big},
      {"model.output_softcap", m.output_softcap, 0, big},
      {"moe.experts", double(e.experts), 0, 1 << 20},
      {"moe.top_k", double(e.top_k), 1, 1 << 20},
      {"moe.every", double(e.every), 1, 10000},
      {"moe.first_dense", double(e.first_dense), 0, 10000},
      {"moe.d_ff", double(e.d_ff), 1, 1 << 24},
      {"moe.shared_experts", double(e.shared_experts), 0, 1 << 16},
      {"moe.scale", e.scale, 1e-30, big},
      {"moe.capacity_factor", e.capacity_factor, 0, big},
      {"moe.aux_loss", e.aux_loss, 0, big},
      {"moe.z_loss", e.z_loss, 0, big},
      {"moe.bias_rate", e.bias_rate, 0, big},
      {"moe.groups", double(e.groups), 1, 1 << 20},
      {"moe.group_limit", double(e.group_limit), 1, double(e.groups)},
      {"parallel.tp", double(c.parallel.tp), 1, 1 << 15},
      {"parallel.ep", double(c.parallel.ep), 1, 1 << 15},
      {"parallel.etp", double(c.parallel.etp), 1, 1 << 15},
      {"train.steps", double(t.steps), 1, big},
      {"train.global_batch", double(t.global_batch), 1, 1 << 30},
      {"train.micro_batch", double(t.micro_batch), 1, 1 << 30},
      {"train.lr", t.lr, 0, big},
      {"train.min_lr", t.min_lr, 0, big},
      {"train.warmup", double(t.warmup), 0, big},
      {"train.weight_decay", t.weight_decay, 0, big},
      {"train.beta1", t.beta1, 0, 1 - 1e-6},
      {"train.beta2", t.beta2, 0, 1 - 1e-6},
      {"train.eps", t.eps, 0, 1},
      {"train.clip", t.clip, 0, big},
      {"train.z_loss", t.z_loss, 0, big},
      {"run.log_every", double(c.run.log_every), 1, big},
      {"run.checkpoint_every", double(c.run.checkpoint_every), 0, big},
      {"run.keep", double(c.run.keep), 0, big},
      {"run.resume_step", double(c.run.resume_step), -1, big},
  };
  for (const Bound& b : bounds)
    if (!(b.value >= b.low && b.value <= b.high))
      bad_input("{}: {} = {}: must be from {} to {}", origin, b.name, b.value, b.low, b.high);

  if (m.heads % m.kv_heads != 0)
    bad_input(
        "{}: model.heads = {} is not a multiple of model.kv_heads = {}: each kv head serves the same number of "
        "query heads",
        origin, m.heads, m.kv_heads);
  if (e.experts > 0) {
    if (e.top_k > e.experts)
      bad_input("{}: moe.top_k = {} is more than moe.experts = {}: lower moe.top_k", origin, e.top_k, e.experts);
    if (e.experts % e.groups != 0)
      bad_input("{}: moe.experts = {} is not a multiple of moe.groups = {}", origin, e.experts, e.groups);
    if (e.top_k > e.experts / e.groups * e.group_limit)
      bad_input("{}: moe.top_k = {} is more than the {} experts of moe.group_limit = {} groups: raise moe.group_limit",
                origin, e.top_k, e.experts / e.groups * e.group_limit, e.group_limit);
    if (e.first_dense >= m.layers)
      bad_input("{}: moe.first_dense = {} leaves no MoE layer of model.layers = {}: lower it, or set moe.experts = 0",
                origin, e.first_dense, m.layers);
  }
  if (m.position == Position::rope && static_cast<Index>(double(m.head_dim) * m.rope_fraction / 2) < 1)
    bad_input("{}: model.rope_fraction = {} of model.head_dim = {} leaves no pair to rotate: raise it", origin,
              m.rope_fraction, m.head_dim);

  if (t.schedule != Schedule::constant && t.min_lr > t.lr)
    bad_input("{}: train.min_lr = {} is above train.lr = {}, where train.schedule = {} ends: lower it", origin,
              t.min_lr, t.lr, show(t.schedule));

  if (c.run.resume_step >= 0 && !c.run.resume)
    bad_input("{}: run.resume_step = {} needs run.resume = true: set it", origin, c.run.resume_step);

  if (c.run.dtype != "f32" && c.run.dtype != "bf16")
    bad_input("{}: run.dtype = '{}': expected f32 or bf16", origin, c.run.dtype);

  // The rows of the survey that a later version builds; until then a configuration that asks for one is refused, not
  // silently trained as something else.
  const std::pair<bool, std::string> missing[] = {
      {m.norm_position != NormPosition::pre, "model.norm_position = " + show(m.norm_position) + " (pre works)"},
      {m.parallel_block, "model.parallel_block = true"},
      {m.position != Position::rope && m.position != Position::none,
       "model.position = " + show(m.position) + " (rope and none work)"},
      {m.attention != "causal", "model.attention = " + m.attention + " (causal works, with model.window)"},
  };
  for (const auto& [is, what] : missing)
    if (is) bad_input("{}: {} is not available in this version: change it", origin, what);

  bool ffn_known = false;
  for (const FfnName& f : ffn_names) ffn_known |= f.name == m.ffn;
  if (!ffn_known) {
    std::string list;
    for (const FfnName& f : ffn_names) list += (list.empty() ? "" : ", ") + std::string(f.name);
    bad_input("{}: model.ffn = '{}': expected one of {}", origin, m.ffn, list);
  }
}

// Fills in what follows from other keys, where it was left 0.
void resolve(Config& c) {
  auto& m = c.model;
  if (m.kv_heads == 0) m.kv_heads = m.heads;
  if (m.head_dim == 0) {
    if (m.heads > 0 && m.d_model % m.heads != 0)
      bad_input("model.d_model = {} is not a multiple of model.heads = {}: change one, or set model.head_dim",
                m.d_model, m.heads);
    m.head_dim = m.heads > 0 ? m.d_model / m.heads : 0;
  }
  const bool gated = c.ffn_activation().gated;
  if (m.d_ff == 0) m.d_ff = gated ? ((m.d_model * 8 + 2) / 3 + 63) / 64 * 64 : 4 * m.d_model;
  if (c.moe.d_ff == 0) c.moe.d_ff = m.d_ff;
}

}  // namespace

bool Config::is_moe(Index layer) const {
  return moe.experts > 0 && layer >= moe.first_dense && (layer - moe.first_dense) % moe.every == 0;
}

DType Config::dtype() const {
  return run.dtype == "bf16" ? DType::bf16 : DType::f32;
}

FfnActivation Config::ffn_activation() const {
  for (const FfnName& f : ffn_names)
    if (f.name == model.ffn) return f.kind;
  return {};
}

const std::vector<ConfigKey>& config_keys() {
  static const std::vector<ConfigKey> keys = [] {
    std::vector<ConfigKey> k;
    const Config defaults;
    for_each_key(defaults, [&](const char* name, const auto& value, const char* help) {
      k.push_back({name, accepts(value), show(value), help});
    });
    return k;
  }();
  return keys;
}

Config parse_config(const std::string& ini_text, const std::string& origin, const std::vector<std::string>& overrides) {
  Config c;
  std::istringstream in(ini_text);
  std::set<std::string> seen;
  try {
    const auto parsed =
        boost::program_options::parse_config_file(in, boost::program_options::options_description(), true);
    for (const auto& option : parsed.options) {
      if (!seen.insert(option.string_key).second)
        bad_input("{}: {} is given twice: keep one", origin, option.string_key);
      set_key(c, option.string_key, option.value.empty() ? "" : option.value.back(), origin);
    }
  } catch (const boost::program_options::error& e) {
    bad_input("{}: {}: lines are [section], key = value or # comment", origin, e.what());
  }
  for (const std::string& o : overrides) {
    const auto equals = o.find('=');
    if (o.rfind("--", 0) != 0 || equals == std::string::npos)
      bad_input("'{}': an override has the form --section.key=value", o);
    set_key(c, o.substr(2, equals - 2), o.substr(equals + 1), "command line");
  }
  resolve(c);
  check(c, origin);
  return c;
}

Config read_config(const std::filesystem::path& file, const std::vector<std::string>& overrides) {
  std::error_code ec;
  if (std::filesystem::is_directory(file, ec)) bad_input("{} is a folder: give a configuration file", file.string());
  std::ifstream in(file);
  if (!in) bad_input("cannot read the configuration {}: check the path; configs/ holds examples", file.string());
  std::stringstream text;
  text << in.rdbuf();
  return parse_config(text.str(), file.string(), overrides);
}

std::string to_ini(const Config& config) {
  std::string out, section;
  for_each_key(config, [&](const char* name, const auto& value, const char*) {
    const std::string key = name;
    const auto dot = key.find('.');
    if (key.substr(0, dot) != section) {
      section = key.substr(0, dot);
      out += (out.empty() ? "[" : "\n[") + section + "]\n";
    }
    out += key.substr(dot + 1) + " = " + show(value) + "\n";
  });
  return out;
}

std::vector<std::string> differences(const Config& a, const Config& b, const std::vector<std::string>& sections) {
  std::vector<std::string> shown_b, out;
  for_each_key(b, [&](const char*, const auto& value, const char*) { shown_b.push_back(show(value)); });
  std::size_t i = 0;
  for_each_key(a, [&](const char* name, const auto& value, const char*) {
    const std::string key = name, theirs = shown_b[i++];
    for (const std::string& s : sections)
      if (key.rfind(s, 0) == 0 && show(value) != theirs)
        out.push_back(key + ": " + show(value) + " here, " + theirs + " there");
  });
  return out;
}

namespace {

// What a layout asks of the model, or "".
std::string problem_of(const Config& c, const Layout& l) {
  if (const std::string p = layout_problem(l); !p.empty()) return p;
  const auto& m = c.model;
  const Index batch = c.train.global_batch, micro = c.train.micro_batch, dp = l.dp();
  const auto over = [](Index value, const char* key, Index by, const char* axis) {
    return fmt::format("{} = {} is not divisible by {} = {}", key, value, axis, by);
  };
  if (m.heads % l.tp != 0) return over(m.heads, "model.heads", l.tp, "parallel.tp");
  if (m.kv_heads >= l.tp && m.kv_heads % l.tp != 0) return over(m.kv_heads, "model.kv_heads", l.tp, "parallel.tp");
  if (m.kv_heads < l.tp && l.tp % m.kv_heads != 0)
    return fmt::format("parallel.tp = {} is not a multiple of model.kv_heads = {}", l.tp, m.kv_heads);
  if (m.d_ff % l.tp != 0) return over(m.d_ff, "model.d_ff", l.tp, "parallel.tp");
  if (c.moe.experts == 0 && l.ep * l.etp > 1)
    return fmt::format("parallel.ep = {} and parallel.etp = {} need experts, but moe.experts = 0", l.ep, l.etp);
  if (c.moe.experts % l.ep != 0) return over(c.moe.experts, "moe.experts", l.ep, "parallel.ep");
  if (c.moe.experts > 0 && c.moe.d_ff % l.etp != 0) return over(c.moe.d_ff, "moe.d_ff", l.etp, "parallel.etp");
  if (c.moe.shared_experts * c.moe.d_ff % l.tp != 0)
    return over(c.moe.shared_experts * c.moe.d_ff, "moe.shared_experts * moe.d_ff", l.tp, "parallel.tp");
  if (batch % (dp * micro) != 0)
    return fmt::format("train.global_batch = {} is not divisible by {} data-parallel ranks * train.micro_batch = {}",
                       batch, dp, micro);
  if (micro * m.seq_len % l.tp != 0)
    return over(micro * m.seq_len, "train.micro_batch * model.seq_len", l.tp, "parallel.tp");
  return {};
}

}  // namespace

void check_config_for_layout(const Config& config, const Layout& layout) {
  const std::string problem = problem_of(config, layout);
  if (problem.empty()) return;
  std::vector<std::string> works;
  std::vector<int> divisors;
  for (int d = 1; d <= layout.ranks; ++d)
    if (layout.ranks % d == 0) divisors.push_back(d);
  for (int tp : divisors)
    for (int ep : divisors)
      for (int etp : divisors)
        if (problem_of(config, {layout.ranks, tp, ep, etp}).empty())
          works.push_back(fmt::format("tp {} ep {} etp {}", tp, ep, etp));
  constexpr std::size_t shown = 24;
  std::string list;
  for (std::size_t i = 0; i < std::min(shown, works.size()); ++i) list += (i ? ", " : "") + works[i];
  if (works.size() > shown) list += fmt::format(" and {} more", works.size() - shown);
  bad_input("{}: {}", problem,
            works.empty()
                ? fmt::format("no layout of {} ranks works with this model and batch; change the number of ranks, "
                              "train.global_batch or train.micro_batch",
                              layout.ranks)
                : fmt::format("on {} ranks these layouts work: {}", layout.ranks, list));
}

void check_config_for_backend(const Config& config, const Backend& backend) {
  if (backend.on_host() && config.dtype() != DType::f32)
    bad_input("run.dtype = {} needs a GPU, and this runs on the {} backend: set run.dtype = f32", config.run.dtype,
              backend.name());
  if (config.model.head_dim > backend.largest_head())
    bad_input(
        "model.head_dim = {}: the {} backend takes heads of up to {}: set it to that or less, or run.backend = cpu",
        config.model.head_dim, backend.name(), backend.largest_head());
}

}  // namespace sy
