// What parameters a model has. A pure function of the configuration; memory, initial values, optimizer, checkpoints,
// import and export are all derived from this one list.
#pragma once

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

struct ParamSpec {
  std::string name;  // canonical: "layers.3.moe.experts.up.weight"
  Shape shape;       // global
  Split split{};     // which mesh axis splits which dimension
  Init init;
  bool decay = false;   // weight decay: matrices only
  bool joined = false;  // lies right after the previous one, so that both can be read as one matrix (q, k, v)
  GradGroup group() const { return group_of(split); }
};

// vocab: the number of token ids of the data set.
std::vector<ParamSpec> param_specs(const Config& config, Index vocab);

struct ParamCount {
  Index total = 0;   // all parameters
  Index active = 0;  // those that one token meets: k of the E experts
  Index embedding = 0;
};
ParamCount count_params(const Config& config, Index vocab);

}  // namespace sy
