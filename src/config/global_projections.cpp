// Checks of global attention with projections of its own (model.global_projections).
#include "src/config/check.h"
#include "src/config/keys.h"
#include "src/config/values.h"

namespace sy {
namespace {

void check_global_attention(const LayerKind& layers, Problems& problems) {
  using Model = Config::Model;
  const Model& m = layers.model();
  if (!m.global_projections) return;
  const std::string own = layers.key(&Model::global_projections);
  const auto refuse = [&](bool is_wrong, const std::string& key, const std::string& value, const char* to) {
    if (is_wrong) problems.add(own, "{} = true with {} = {}: set this to {}, or {} to false", own, key, value, to, own);
  };
  refuse(m.kind != ModelKind::encoder, "model.kind", show(m.kind), "encoder");
  refuse(m.attention != AttentionPattern::longformer, layers.key(&Model::attention), show(m.attention), "longformer");
  refuse(m.global_tokens == 0, layers.key(&Model::global_tokens), "0", "1 or more");
  refuse(m.kv_lora_rank > 0, "model.kv_lora_rank", show(m.kv_lora_rank), "0");
  const bool has_positions =
      m.position == Position::rope || m.position == Position::alibi || m.position == Position::t5;
  refuse(has_positions, layers.key(&Model::position), show(m.position), "learned, sinusoidal or none");
  refuse(m.qk_norm != QkNormKind::none, layers.key(&Model::qk_norm), show(m.qk_norm), "none");
  refuse(m.clip_qkv > 0, layers.key(&Model::clip_qkv), show(m.clip_qkv), "0");
  refuse(m.attention_sinks, layers.key(&Model::attention_sinks), "true", "false");
  const Config& c = layers.config;
  refuse(c.data.documents != Documents::join, "data.documents", show(c.data.documents), "join");
  refuse(c.train.lora_rank > 0, "train.lora_rank", show(c.train.lora_rank), "0");
  refuse(c.train.qk_clip > 0, "train.qk_clip", show(c.train.qk_clip), "0");
}

}  // namespace

void check_global_projections(const Config& c, Problems& problems) {
  for (const LayerKind& layers : layer_kinds(c)) check_global_attention(layers, problems);
}

}  // namespace sy
