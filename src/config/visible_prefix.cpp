// Checks of a decoder with a visible prefix.
#include "src/config/check.h"
#include "src/config/keys.h"

namespace sy {

void check_visible_prefix(const Config& c, Problems& problems) {
  if (!c.has_visible_prefix()) return;
  using Model = Config::Model;
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
