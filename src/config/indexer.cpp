// Checks of the settings of indexers (model.attention = indexed).
#include "src/config/check.h"
#include "src/config/values.h"

namespace sy {
namespace {

// Checks the indexer of sparse attention of some layers.
void check_indexer(const LayerKind& layers, Problems& problems) {
  using Model = Config::Model;
  const Model& m = layers.model();
  if (m.attention != AttentionPattern::indexed) return;
  if (const std::string key = layers.key(&Model::window); m.window > 0)
    problems.add(key, "{} = {} with model.attention = indexed, which selects the tokens that are seen: set it to 0",
                 key, m.window);
  if (const std::string key = layers.key(&Model::position); m.position == Position::alibi || m.position == Position::t5)
    problems.add(key, "{} = {} with model.attention = indexed, which has no biases: set it to another position", key,
                 show(m.position));
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
  if (t.lora_rank > 0)
    problems.add("train.lora_rank",
                 "train.lora_rank = {} with model.attention = indexed: adapters do not train indexers: set it to 0",
                 t.lora_rank);
  if (t.indexer == IndexerStage::warmup && t.qk_clip > 0)
    problems.add("train.qk_clip",
                 "train.qk_clip = {} with train.indexer = warmup: it would scale frozen weights: set it to 0",
                 t.qk_clip);
  if (t.reversible)
    problems.add("train.reversible",
                 "train.reversible = true with model.attention = indexed: inputs that are computed from outputs could "
                 "select other keys: set it to false");
}

}  // namespace sy
