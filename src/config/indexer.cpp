// Checks of the settings of indexers (model.attention = indexed).
#include "src/config/check.h"
#include "src/config/keys.h"

namespace sy {
namespace {

// Checks the indexer of sparse attention of some layers.
void check_indexer(const LayerKind& layers, Problems& problems) {
  using Model = Config::Model;
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

}  // namespace sy
