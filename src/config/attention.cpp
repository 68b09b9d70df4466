// Checks of indexers (model.attention = indexed), of global attention with projections of its own
// (model.global_projections), and of visible prefixes (train.objective = prefix).
#include "src/config/check.h"
#include "src/config/keys.h"

namespace sy {
namespace {

using Model = Config::Model;

// Checks the indexer of sparse attention of some layers.
void check_indexer(const LayerKind& layers, Problems& problems) {
  const Model& m = layers.model();
  if (m.attention != AttentionPattern::indexed) return;
  problems.refuse(m.window > 0, layers.config, layers.key(&Model::window),
                  "model.attention = indexed, which selects the tokens that are seen", "0");
  problems.refuse(m.position == Position::alibi || m.position == Position::t5, layers.config,
                  layers.key(&Model::position), "model.attention = indexed, which has no biases", "another position");
  const Index width = m.kv_lora_rank > 0 ? m.qk_rope_head_dim : m.head_dim;
  const Index rotated = static_cast<Index>(static_cast<double>(width) * m.rope_fraction / 2) * 2;
  if (const std::string key = layers.key(&Model::index_head_dim);
      m.position == Position::rope && m.index_head_dim < rotated)
    problems.add(key, "{} = {} is less than the {} elements of a head that rope rotates: raise it", key,
                 m.index_head_dim, rotated);
}

}  // namespace

void check_indexers(const Config& c, Problems& problems) {
  for (const LayerKind& layers : layer_kinds(c)) check_indexer(layers, problems);
  const Config::Train& t = c.train;
  if (c.num_indexers() == 0) {
    if (t.indexer == IndexerStage::warmup)
      problems.add("train.indexer",
                   "train.indexer = warmup without an indexer to train: set model.attention = indexed, or this to "
                   "sparse");
    return;
  }
  problems.refuse(t.lora_rank > 0, c, "train.lora_rank", "model.attention = indexed: adapters do not train indexers",
                  "0");
  problems.refuse(t.indexer == IndexerStage::warmup && t.qk_clip > 0, c, "train.qk_clip",
                  "train.indexer = warmup: it would scale frozen weights", "0");
  problems.refuse(t.reversible, c, "train.reversible",
                  "model.attention = indexed: inputs that are computed from outputs could select other keys", "false");
}

void check_global_projections(const Config& c, Problems& problems) {
  for (const LayerKind& layers : layer_kinds(c)) {
    const Model& m = layers.model();
    if (!m.global_projections) continue;
    const std::string own = layers.key(&Model::global_projections);
    const auto refuse = [&](bool is_wrong, const std::string& key, const char* to) {
      if (is_wrong)
        problems.add(own, "{} = true with {} = {}: set this to {}, or {} to false", own, key, value_of(c, key), to,
                     own);
    };
    refuse(m.kind != ModelKind::encoder, "model.kind", "encoder");
    refuse(m.attention != AttentionPattern::longformer, layers.key(&Model::attention), "longformer");
    refuse(m.global_tokens == 0, layers.key(&Model::global_tokens), "1 or more");
    refuse(m.kv_lora_rank > 0, "model.kv_lora_rank", "0");
    const bool has_positions =
        m.position == Position::rope || m.position == Position::alibi || m.position == Position::t5;
    refuse(has_positions, layers.key(&Model::position), "learned, sinusoidal or none");
    refuse(m.qk_norm != QkNormKind::none, layers.key(&Model::qk_norm), "none");
    refuse(m.clip_qkv > 0, layers.key(&Model::clip_qkv), "0");
    refuse(m.attention_sinks, layers.key(&Model::attention_sinks), "false");
    refuse(c.data.documents != Documents::join, "data.documents", "join");
    refuse(c.train.lora_rank > 0, "train.lora_rank", "0");
    refuse(c.train.qk_clip > 0, "train.qk_clip", "0");
  }
}

void check_visible_prefix(const Config& c, Problems& problems) {
  if (!c.has_visible_prefix()) return;
  constexpr const char* prefix = "train.objective = prefix, whose prefix all later tokens see";
  problems.refuse(c.model.mtp_depth > 0, c, "model.mtp_depth",
                  "train.objective = prefix: a module would see the tokens that it predicts", "0");
  for (const LayerKind& layers : layer_kinds(c)) {
    const Model& m = layers.model();
    const bool is_causal = m.attention == AttentionPattern::causal;
    problems.refuse(!is_causal, c, layers.key(&Model::attention), prefix, "causal");
    problems.refuse(is_causal && m.window > 0, c, layers.key(&Model::window), prefix, "0");
    if (const std::string key = layers.key(&Model::position); m.position == Position::t5 && m.t5_buckets < 4)
      problems.add("model.t5_buckets",
                   "model.t5_buckets = {} with {} = t5 and train.objective = prefix, where half of the buckets are of "
                   "later tokens: raise it to 4 or more",
                   m.t5_buckets, key);
  }
}

}  // namespace sy
