// Settings of attention by hashing (model.attention = lsh): checks, and the default of the buckets.
#include <algorithm>
#include <cmath>

#include "src/config/check.h"
#include "src/config/keys.h"
#include "src/config/values.h"

namespace sy {
namespace {

using Model = Config::Model;

// Returns a function that adds an error if a setting excludes attention by hashing.
auto refusal(Problems& problems, const Config& c) {
  return [&](bool is_set, const std::string& key, const char* why, const char* to) {
    problems.refuse(is_set, c, key, fmt::format("model.attention = lsh: {}", why), to);
  };
}

// Checks the factors of the number of buckets of some layers.
void check_buckets(const LayerKind& layers, Problems& problems) {
  const Model& m = layers.model();
  const std::string key = layers.key(&Model::lsh_buckets);
  double buckets = 1;
  for (const double factor : m.lsh_buckets) {
    if (factor != std::floor(factor) || factor < 1 || factor > 0x1p20)
      return problems.add(key, "{} = {}: a factor is a whole number from 2 to 2^20", key, show(m.lsh_buckets));
    if (std::fmod(factor, 2) != 0 && m.lsh_buckets != std::vector<double>{1})
      return problems.add(key,
                          "{} = {}: {} is odd, but half of the buckets are the opposites of the others: set even "
                          "numbers, or 1",
                          key, show(m.lsh_buckets), factor);
    buckets *= factor;
  }
  if (std::fmod(static_cast<double>(m.seq_len), buckets) != 0)
    problems.add(key, "{} = {}: the {} buckets do not divide model.seq_len = {} evenly: set a divisor", key,
                 show(m.lsh_buckets), buckets, m.seq_len);
}

// Checks attention by hashing of some layers.
void check_layers(const LayerKind& layers, Problems& problems) {
  const Model& m = layers.model();
  if (m.attention != AttentionPattern::lsh) return;
  if (const std::string key = layers.key(&Model::lsh_chunk_length); m.seq_len % m.lsh_chunk_length != 0)
    problems.add(key, "{} = {} does not divide model.seq_len = {}: set a divisor", key, m.lsh_chunk_length, m.seq_len);
  check_buckets(layers, problems);
  const auto refuse = refusal(problems, layers.config);
  refuse(m.position == Position::rope || m.position == Position::alibi || m.position == Position::t5,
         layers.key(&Model::position), "the hash ignores positions of attention", "axial, learned, sinusoidal or none");
  refuse(m.kv_heads != m.heads, "model.kv_heads", "each query is also a key", "0");
  refuse(m.window > 0, layers.key(&Model::window), "chunks limit what a token sees", "0");
  refuse(m.attention_sinks, layers.key(&Model::attention_sinks), "it has no sinks", "false");
  refuse(m.qk_norm != QkNormKind::none, layers.key(&Model::qk_norm), "keys have length 1 already", "none");
  refuse(m.clip_qkv > 0, layers.key(&Model::clip_qkv), "it has no limit", "0");
  refuse(m.attention_softcap > 0, layers.key(&Model::attention_softcap), "its scores are not capped", "0");
  refuse(m.kv_lora_rank > 0, "model.kv_lora_rank", "it has no latents", "0");
}

// Returns the power of two up to 2 * seq_len / lsh_chunk_length that divides seq_len. A large one
// has two factors.
std::vector<double> automatic_buckets(const Model& m) {
  const Index chunks = m.seq_len / m.lsh_chunk_length;
  int power = 0;
  while (Index{2} << power <= 2 * chunks && m.seq_len % (Index{2} << power) == 0) ++power;
  const double limit =
      2 * std::max(std::floor(std::sqrt(static_cast<double>(chunks))), static_cast<double>(m.lsh_chunk_length));
  if (std::exp2(power) <= limit) return {std::exp2(power)};
  return {std::exp2(power / 2), std::exp2(power - power / 2)};
}

}  // namespace

void complete_buckets(Config& c) {
  const auto complete = [](Model& m) {
    if (m.attention == AttentionPattern::lsh && m.lsh_buckets.empty()) m.lsh_buckets = automatic_buckets(m);
  };
  complete(c.model);
  for (Config::Kind& kind : c.kinds) {
    complete(kind.model);
    if (c.model.lsh_buckets.empty()) c.model.lsh_buckets = kind.model.lsh_buckets;
  }
  // The written configuration has the buckets of a kind that differ from those of [model].
  const Key& key = *std::ranges::find(key_table(), "model.lsh_buckets", &Key::name);
  for (Config::Kind& kind : c.kinds)
    if (kind.model.attention == AttentionPattern::lsh) keep_own_value(c, kind, key);
}

void check_hashing(const Config& c, Problems& problems) {
  for (const LayerKind& layers : layer_kinds(c)) check_layers(layers, problems);
  if (c.num_lsh_layers() == 0) return;
  const auto refuse = refusal(problems, c);
  refuse(c.train.qk_clip > 0, "train.qk_clip", "its keys have length 1", "0");
  refuse(c.train.lora_rank > 0, "train.lora_rank", "it has no adapters", "0");
  refuse(c.model.mtp_depth > 0, "model.mtp_depth", "modules have no hash", "0");
  refuse(c.data.documents != Documents::join, "data.documents", "it sorts the tokens of all documents together",
         "join");
  refuse(c.has_visible_prefix(), "train.objective", "it has no visible prefix", "causal");
}

}  // namespace sy
