#include "src/config.h"

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cmath>
#include <cstring>
#include <fstream>
#include <limits>
#include <map>
#include <utility>

#include "src/text/ini.h"
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

struct Bounds {
  double low = -std::numeric_limits<double>::infinity(), high = std::numeric_limits<double>::infinity();
};
struct Row {
  const char *name, *help;
  Bounds bounds;  // of a number
  Effect effect;
};

// Calls visit(Row, value) for every key.
template <class C, class F>
void for_each_key(C& c, F&& visit) {
  const auto key = [&](const char* name, auto& value, const char* help, Bounds bounds = {},
                       Effect effect = Effect::change) {
    visit(Row{name, help, bounds, effect}, value);
  };
  constexpr Effect model = Effect::model, samples = Effect::samples, none = Effect::none;
  constexpr double big = 1e15;
  auto& m = c.model;
  key("model.layers", m.layers, "blocks", {1, 10000}, model);
  key("model.d_model", m.d_model, "width of the residual stream", {1, 1 << 20}, model);
  key("model.heads", m.heads, "query heads", {1, 1 << 16}, model);
  key("model.kv_heads", m.kv_heads, "key and value heads; 0: as many as heads (multi-head), 1: multi-query",
      {0, 1 << 16}, model);
  key("model.head_dim", m.head_dim, "width of a head; 0: d_model / heads", {0, 1 << 16}, model);
  key("model.d_ff", m.d_ff, "width of a dense FFN; 0: gated 8/3 d_model rounded up to 64, otherwise 4 d_model",
      {0, 1 << 24}, model);
  key("model.seq_len", m.seq_len, "positions of a training sequence", {1, 1 << 28}, samples);
  key("model.norm", m.norm, "normalisation of a block's inputs", {}, model);
  key("model.norm_eps", m.norm_eps, "added to the variance", {0, 1}, model);
  key("model.norm_position", m.norm_position, "where a block normalises", {}, model);
  key("model.parallel_block", m.parallel_block, "x + attn(n(x)) + ffn(n(x)) in place of one after the other", {},
      model);
  key("model.ffn", m.ffn, "relu, gelu, gelu_tanh, silu, relu2, or gated: glu, reglu, geglu, geglu_tanh, swiglu", {},
      model);
  key("model.bias", m.bias, "biases in attention, dense FFN and LayerNorm", {}, model);
  key("model.position", m.position, "how positions are told", {}, model);
  key("model.rope_theta", m.rope_theta, "base of the rotary frequencies", {1e-3, big}, model);
  key("model.rope_fraction", m.rope_fraction, "part of each head that is rotated, in (0, 1]", {1e-6, 1}, model);
  key("model.attention", m.attention, "attention pattern: causal", {}, model);
  key("model.window", m.window, "a position sees this many latest ones, itself included; 0: all", {0, big}, model);
  key("model.qk_norm", m.qk_norm, "normalise queries and keys per head", {}, model);
  key("model.attention_softcap", m.attention_softcap, "cap * tanh(score / cap); 0: none", {0, big});
  key("model.output_softcap", m.output_softcap, "cap * tanh(logit / cap); 0: none", {0, big});
  key("model.tie_embeddings", m.tie_embeddings, "the output reads the embedding's table", {}, model);
  auto& e = c.moe;
  key("moe.experts", e.experts, "experts of each MoE layer; 0: a dense model", {0, 1 << 20}, model);
  key("moe.top_k", e.top_k, "experts that each token is sent to", {1, 1 << 20});
  key("moe.every", e.every,
      "layers first_dense, first_dense + every, first_dense + 2 every ... are MoE, the others dense", {1, 10000},
      model);
  key("moe.first_dense", e.first_dense, "this many first layers keep a dense FFN", {0, 10000}, model);
  key("moe.d_ff", e.d_ff, "width of an expert; 0: model.d_ff", {0, 1 << 24}, model);
  key("moe.shared_experts", e.shared_experts, "experts that every token passes, of moe.d_ff each", {0, 1 << 16}, model);
  key("moe.score", e.score, "score of an expert from the router's logits");
  key("moe.renormalize", e.renormalize,
      "divide the chosen weights by their sum; with top_k = 1 set it to false, or the router learns from balance "
      "alone");
  key("moe.scale", e.scale, "multiplies the chosen weights", {1e-30, big});
  key("moe.capacity_factor", e.capacity_factor,
      "an expert takes ceil(factor * top_k * tokens / experts) assignments of each scope; 0: dropless", {0, 1 << 20});
  key("moe.capacity_scope", e.capacity_scope,
      "the tokens that share a capacity: each sequence, or a rank's micro-batch");
  key("moe.drop_order", e.drop_order, "who keeps its place: earlier tokens, first choices, or larger weights");
  key("moe.aux_loss", e.aux_loss, "factor of the load-balance loss", {0, big});
  key("moe.aux_scope", e.aux_scope,
      "the tokens that are balanced together: of a sequence, of a rank's micro-batch, or of the micro-batches that all "
      "ranks compute at once (dp * train.micro_batch sequences)");
  key("moe.z_loss", e.z_loss, "factor of the router z-loss", {0, big});
  key("moe.bias_rate", e.bias_rate, "step of the selection bias towards balance, without a loss; 0: off", {0, big});
  key("moe.groups", e.groups, "experts form this many groups", {1, 1 << 20});
  key("moe.group_limit", e.group_limit,
      "a token chooses within this many best groups; a group's score is the sum of its two best experts', selection "
      "biases included",
      {1, 1 << 20});
  auto& p = c.parallel;
  key("parallel.tp", p.tp, "tensor-parallel ranks; data-parallel = ranks / tp", {1, 1 << 15}, none);
  key("parallel.ep", p.ep, "expert-parallel ranks", {1, 1 << 15}, none);
  key("parallel.etp", p.etp, "ranks that share one expert", {1, 1 << 15}, none);
  auto& t = c.train;
  key("train.steps", t.steps, "optimizer steps", {1, big});
  key("train.global_batch", t.global_batch, "sequences of one step, over all ranks", {1, 1 << 28});
  key("train.micro_batch", t.micro_batch,
      "sequences that one data-parallel rank computes at a time: a step's samples go to (micro-batch, rank, sequence) "
      "in this order",
      {1, 1 << 28});
  key("train.seed", t.seed, "of initial weights and of the order of samples", {}, samples);
  key("train.lr", t.lr, "highest learning rate", {0, big});
  key("train.min_lr", t.min_lr, "learning rate at the last step", {0, big});
  key("train.warmup", t.warmup, "steps of linear warm-up", {0, big});
  key("train.schedule", t.schedule, "after the warm-up; wsd: constant, then linear over the last tenth");
  key("train.weight_decay", t.weight_decay, "AdamW, on matrices only", {0, big});
  key("train.beta1", t.beta1, "AdamW, first moment", {0, 1 - 1e-6});
  key("train.beta2", t.beta2, "AdamW, second moment", {0, 1 - 1e-6});
  key("train.eps", t.eps, "AdamW, added to the root of the second moment", {0, 1});
  key("train.clip", t.clip, "largest norm of the gradient; 0: not clipped", {0, big});
  key("train.recompute", t.recompute, "compute each block's activations again in backward in place of keeping them");
  key("train.z_loss", t.z_loss,
      "factor of the output z-loss, mean log^2 Z; z_loss in the metrics is its sum with the routers'", {0, big});
  key("data.path", c.data.path,
      "folder that `switchyard prepare` wrote; a relative one is looked for in the working directory, then beside the "
      "configuration file",
      {}, samples);
  auto& r = c.run;
  key("run.dir", r.dir, "folder of the run: config, metrics, checkpoints", {}, none);
  key("run.backend", r.backend, "auto, cpu or cuda");
  key("run.dtype", r.dtype, "of weights and activations: f32, or bf16 with f32 sums and optimizer (on cuda)");
  key("run.log_every", r.log_every, "steps between log lines and expert counts", {1, big});
  key("run.checkpoint_every", r.checkpoint_every, "steps between checkpoints; 0: only the last", {0, big});
  key("run.checkpoint_first", r.checkpoint_first,
      "write a checkpoint of step 0, the initial weights, too; run.keep counts it");
  key("run.keep", r.keep, "checkpoints kept; 0: all", {0, big});
  key("run.resume", r.resume, "continue from the newest whole checkpoint of run.dir, if there is one", {}, none);
  key("run.resume_step", r.resume_step, "with run.resume: continue from this step's checkpoint; -1: from the newest",
      {-1, big}, none);
  key("run.init_from", r.init_from, "checkpoint or run whose weights a new run starts from, in place of random ones",
      {}, none);
}

std::vector<std::string> key_names() {
  std::vector<std::string> names;
  const Config c;
  for_each_key(c, [&](const Row& row, const auto&) { names.emplace_back(row.name); });
  return names;
}

// Where a key gets its value: a line of the file, or one of
constexpr int no_line = 0, command_line = std::numeric_limits<int>::max();

// What is wrong with a configuration, each thing with its place, so that all of it is said at once.
class Problems {
 public:
  explicit Problems(std::string origin) : origin_(std::move(origin)) {}
  std::string place(int line) const {
    return line == no_line ? origin_ : line == command_line ? "command line" : fmt::format("{}:{}", origin_, line);
  }
  // Notes where a key is given, and returns where it was before.
  int give(const std::string& key, int line) { return std::exchange(lines_[key], line); }
  template <class... Args>
  void at(int line, fmt::format_string<Args...> what, Args&&... args) {
    found_.emplace(line, place(line) + ": " + fmt::format(what, std::forward<Args>(args)...));
  }
  // Where the key is given, or could be.
  template <class... Args>
  void of(const std::string& key, fmt::format_string<Args...> what, Args&&... args) {
    const auto line = lines_.find(key);
    at(line == lines_.end() ? no_line : line->second, what, std::forward<Args>(args)...);
  }
  std::size_t count() const { return found_.size(); }
  void raise() const {
    if (found_.empty()) return;
    std::string text;
    if (found_.size() > 1) text = fmt::format("{}: {} errors: correct each", origin_, found_.size());
    std::size_t shown = 0;
    for (const auto& [line, what] : found_) {
      if (shown++ == most_shown) break;
      text += (text.empty() ? "" : std::string(1, next_line)) + what;
    }
    if (shown > most_shown) text += fmt::format("{}and {} more", next_line, found_.size() - most_shown);
    throw InputError(text);
  }

 private:
  static constexpr std::size_t most_shown = 20;
  std::string origin_;
  std::map<std::string, int> lines_;
  std::multimap<int, std::string> found_;
};

// Sets one key from text that stands on `line`. Returns whether it has a value that can be computed with.
bool set_key(Config& c, const std::string& name, const std::string& text, int line, Problems& problems) {
  const std::size_t before = problems.count();
  bool known = false;
  for_each_key(c, [&](const Row& row, auto& value) {
    if (name != row.name) return;
    known = true;
    auto given = value;
    if (!read(text, given))
      problems.at(line, "{} = '{}': expected {}", name, text, accepts(value));
    else
      value = given;
  });
  if (!known) {
    const std::string near = nearest(name, key_names());
    problems.at(line, "unknown key '{}': {}", name,
                near.empty() ? "`switchyard help config` lists them" : "did you mean '" + near + "'?");
  }
  return problems.count() == before;
}

void check_bounds(const Config& c, Problems& problems) {
  for_each_key(c, [&]<class T>(const Row& row, const T& value) {
    if constexpr (std::is_same_v<T, Index> || std::is_same_v<T, double>)
      if (!(double(value) >= row.bounds.low && double(value) <= row.bounds.high))
        problems.of(row.name, "{} = {}: must be from {} to {}", row.name, value, row.bounds.low, row.bounds.high);
  });
}

// Fills in what follows from other keys, where it was left 0.
void resolve(Config& c, Problems& problems) {
  auto& m = c.model;
  if (m.kv_heads == 0) m.kv_heads = m.heads;
  if (m.head_dim == 0 && m.d_model % m.heads != 0)
    problems.of("model.heads",
                "model.d_model = {} is not a multiple of model.heads = {}: change one, or set model.head_dim",
                m.d_model, m.heads);
  if (m.head_dim == 0) m.head_dim = std::max<Index>(1, m.d_model / m.heads);
  const bool gated = c.ffn_activation().gated;
  if (m.d_ff == 0) m.d_ff = gated ? ((m.d_model * 8 + 2) / 3 + 63) / 64 * 64 : 4 * m.d_model;
  if (c.moe.d_ff == 0) c.moe.d_ff = m.d_ff;
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

void check(const Config& c, Problems& problems) {
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
  if (m.position == Position::rope && static_cast<Index>(double(m.head_dim) * m.rope_fraction / 2) < 1)
    problems.of("model.rope_fraction",
                "model.rope_fraction = {} of model.head_dim = {} leaves no pair to rotate: raise it", m.rope_fraction,
                m.head_dim);

  if (t.schedule != Schedule::constant && t.min_lr > t.lr)
    problems.of("train.min_lr", "train.min_lr = {} is above train.lr = {}, where train.schedule = {} ends: lower it",
                t.min_lr, t.lr, show(t.schedule));

  if (c.run.resume_step >= 0 && !c.run.resume)
    problems.of("run.resume_step", "run.resume_step = {} needs run.resume = true: set it", c.run.resume_step);

  if (c.run.dtype != "f32" && c.run.dtype != "bf16")
    problems.of("run.dtype", "run.dtype = '{}': expected f32 or bf16", c.run.dtype);

  // The rows of the survey that a later version builds; until then a configuration that asks for one is refused, not
  // silently trained as something else.
  struct Missing {
    bool is;
    const char* key;
    std::string what;
  };
  const Missing missing[] = {
      {m.norm_position != NormPosition::pre, "model.norm_position", show(m.norm_position) + " (pre works)"},
      {m.parallel_block, "model.parallel_block", "true"},
      {m.position != Position::rope && m.position != Position::none, "model.position",
       show(m.position) + " (rope and none work)"},
      {m.attention != "causal", "model.attention", m.attention + " (causal works, with model.window)"},
  };
  for (const auto& [is, key, what] : missing)
    if (is) problems.of(key, "{} = {} is not available in this version: change it", key, what);

  bool ffn_known = false;
  std::vector<std::string> ffns;
  for (const FfnName& f : ffn_names) {
    ffn_known |= f.name == m.ffn;
    ffns.emplace_back(f.name);
  }
  if (!ffn_known) problems.of("model.ffn", "model.ffn = '{}': expected one of {}", m.ffn, join(ffns, ", "));
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
    for_each_key(defaults, [&](const Row& row, const auto& value) {
      k.push_back({row.name, accepts(value), show(value), row.help});
    });
    return k;
  }();
  return keys;
}

Config parse_config(const std::string& ini_text, const std::string& origin, const std::vector<std::string>& overrides) {
  Config c;
  Problems problems(origin);
  const IniText ini = read_ini(ini_text);
  for (const IniProblem& p : ini.problems) problems.at(p.line, "{}", p.what);
  bool values = true;  // no key is left whose value is unknown
  for (const IniEntry& entry : ini.entries) {
    const int before = problems.give(entry.key, entry.line);
    if (before != no_line)
      problems.at(entry.line, "{} is given twice, at {} too: keep one", entry.key, problems.place(before));
    values &= set_key(c, entry.key, entry.value, entry.line, problems);
  }
  for (const std::string& o : overrides) {
    const auto equals = o.find('=');
    if (o.rfind("--", 0) != 0 || equals == std::string::npos)
      bad_input("'{}': an override has the form --section.key=value", o);
    const std::string key = o.substr(2, equals - 2);
    problems.give(key, command_line);
    values &= set_key(c, key, o.substr(equals + 1), command_line, problems);
  }
  const std::size_t read = problems.count();
  check_bounds(c, problems);
  if (values && problems.count() == read) {
    resolve(c, problems);
    check(c, problems);
    check_sizes(c, problems);
  }
  problems.raise();
  return c;
}

Config read_config(const std::filesystem::path& file, const std::vector<std::string>& overrides) {
  std::error_code ec;
  if (std::filesystem::is_directory(file, ec)) bad_input("{} is a folder: give a configuration file", file.string());
  std::ifstream in(file);
  if (!in)
    bad_input("cannot read the configuration {} ({}): check the path; configs/ holds examples", file.string(),
              std::strerror(errno));
  std::string text(1 << 20, '\0');
  in.read(text.data(), static_cast<std::streamsize>(text.size()));
  if (in) bad_input("{} is larger than 1 MiB: give a configuration file", file.string());
  text.resize(static_cast<std::size_t>(in.gcount()));
  Config c = parse_config(text, file.string(), overrides);
  const bool given = std::any_of(overrides.begin(), overrides.end(),
                                 [](const std::string& o) { return o.starts_with("--data.path="); });
  const std::filesystem::path beside = file.parent_path() / c.data.path;
  if (!given && !c.data.path.empty() && !std::filesystem::exists(c.data.path, ec) &&
      std::filesystem::exists(beside, ec))
    c.data.path = beside.string();
  return c;
}

std::string to_ini(const Config& config) {
  std::string out, section;
  for_each_key(config, [&](const Row& row, const auto& value) {
    const std::string key = row.name;
    const auto dot = key.find('.');
    if (key.substr(0, dot) != section) {
      section = key.substr(0, dot);
      out += (out.empty() ? "[" : "\n[") + section + "]\n";
    }
    out += key.substr(dot + 1) + " = " + ini_value(show(value)) + "\n";
  });
  return out;
}

std::vector<KeyDifference> differences(const Config& here, const Config& there, Effect effect) {
  std::vector<std::string> theirs;
  for_each_key(there, [&](const Row&, const auto& value) { theirs.push_back(show(value)); });
  std::vector<KeyDifference> out;
  std::size_t i = 0;
  for_each_key(here, [&](const Row& row, const auto& value) {
    const std::string& other = theirs[i++];
    if (row.effect == effect && show(value) != other) out.push_back({row.name, show(value), other});
  });
  return out;
}

}  // namespace sy
