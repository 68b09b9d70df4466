// What parameters a model has. A pure function of the configuration; memory, initial values, optimizer, checkpoints,
// import and export are all derived from this one list.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "dist/shard.h"
#include "src/config.h"

namespace sy {

enum class InitKind : std::uint8_t { normal, zeros, ones };
struct Init {
  InitKind kind = InitKind::normal;
  double deviation = 0.02;
};

// How the optimizer changes a parameter. A rule of another kind (Muon, of whole matrices) is a value here and a case in
// GradSync::update.
enum class UpdateRule : std::uint8_t { adamw, adamw_without_decay };

struct ParamSpec {
  std::string name;  // canonical: "layers.3.moe.experts.up.weight"
  Shape shape;       // global
  Split split{};     // which mesh axis splits which dimension
  Init init;
  UpdateRule rule = UpdateRule::adamw_without_decay;  // weights decay in matrices only
  bool joined = false;           // lies right after the previous one, so that both can be read as one matrix (q, k, v)
  std::optional<Index> layer{};  // none: of the embedding, the final norm or the output, or shared by layers
  // What lies in each place of the first dimension, where that is not in order: experts (MoeSpec::order).
  std::vector<Index> order{};
  // The part of the model that is the first to read it, so that its gradient is complete after backward of that part: 0 the
  // embedding, then the layers, and the head (final norm and output). It does not fall from one parameter of a list to the next.
  Index part = 0;
  // The mesh axes over which its gradient is summed.
  Axes summed() const { return summed_axes(split); }
};

constexpr Index embedding_part = 0;
// The head's is that of the layer behind the last.
constexpr Index part_of_layer(Index layer) {
  return 1 + layer;
}

// What the names of a layer's parameters begin with: "layers.3."
std::string layer_prefix(Index layer);

// The rows of the embedding for data of so many token ids. Throws InputError where model.vocab is less.
Index model_vocab(const Config& config, Index token_ids);

// vocab: the rows of the embedding.
std::vector<ParamSpec> param_specs(const Config& config, Index vocab);

struct ParamCount {
  Index total = 0;   // all parameters
  Index active = 0;  // those that one token meets: k of the E experts
  Index embedding = 0;
};
ParamCount count_params(const Config& config, Index vocab);

}  // namespace sy
