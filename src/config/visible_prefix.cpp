// Checks of a decoder with a visible prefix.
#include "src/config/check.h"
#include "src/config/keys.h"
#include "src/config/values.h"

namespace sy {

void check_visible_prefix(const Config& c, Problems& problems) {
  if (!c.has_visible_prefix()) return;
  using Model = Config::Model;
  constexpr const char* prefix = "with train.objective = prefix, whose prefix all later tokens see";
  if (c.model.mtp_depth > 0)
    problems.add("model.mtp_depth",
                 "model.mtp_depth = {} with train.objective = prefix: a module would see the tokens that it predicts: "
                 "set it to 0",
                 c.model.mtp_depth);
  for (const LayerKind& layers : layer_kinds(c)) {
    const Model& m = layers.model();
    if (const std::string key = layers.key(&Model::attention); m.attention != AttentionPattern::causal)
      problems.add(key, "{} = {} {}: set it to causal", key, show(m.attention), prefix);
    else if (const std::string window = layers.key(&Model::window); m.window > 0)
      problems.add(window, "{} = {} {}: set it to 0", window, m.window, prefix);
    if (const std::string key = layers.key(&Model::position); m.position == Position::t5 && m.t5_buckets < 4)
      problems.add("model.t5_buckets",
                   "model.t5_buckets = {} with {} = t5 and train.objective = prefix, where half of the buckets are of "
                   "later tokens: raise it to 4 or more",
                   m.t5_buckets, key);
  }
}

}  // namespace sy
