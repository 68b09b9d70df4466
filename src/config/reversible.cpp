// Check of the settings of reversible layers.
#include "src/config/check.h"
#include "src/config/values.h"

namespace sy {

void check_reversible(const Config& c, Problems& problems) {
  if (!c.train.reversible) {
    if (c.model.reversible_output != ReversibleOutput::mean)
      problems.add("model.reversible_output",
                   "model.reversible_output = {} with train.reversible = false: set that to true, or this to mean",
                   show(c.model.reversible_output));
    return;
  }
  const auto refuse = [&](bool is_set, const char* key, const char* why, const char* to) {
    problems.refuse(is_set, c, key, fmt::format("train.reversible = true: {}", why), to);
  };
  const Config::Model& m = c.model;
  const bool replaces = m.norm_position == NormPosition::post || m.norm_position == NormPosition::residual;
  refuse(m.kind == ModelKind::encoder_decoder, "model.kind", "its layers are not reversible", "decoder or encoder");
  refuse(replaces, "model.norm_position", "a norm of the residual stream cannot be undone", "pre, both or output");
  refuse(m.parallel_block, "model.parallel_block", "attention and FFN need a stream each", "false");
  refuse(m.mtp_depth > 0, "model.mtp_depth", "its modules are not reversible", "0");
  refuse(c.train.recompute != Recompute::none, "train.recompute", "all activations of a layer are computed again",
         "none");
  const auto refuse_concat = [&](bool is_set, const char* key, const char* to) {
    problems.refuse(is_set && m.reversible_output == ReversibleOutput::concat, c, key,
                    "model.reversible_output = concat, whose output is twice as wide", to);
  };
  refuse_concat(m.norm == NormKind::batchnorm, "model.norm", "layernorm or rmsnorm");
  refuse_concat(m.tie_embeddings, "model.tie_embeddings", "false");
  refuse_concat(m.output_transform, "model.output_transform", "false");
  refuse(c.run.dtype == "bf16", "run.dtype", "bf16 is too coarse to compute inputs from outputs", "f32");
}

}  // namespace sy
