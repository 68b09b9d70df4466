// Conversion of a dense model to one with experts (Komatsuzaki et al., "Sparse Upcycling", 2022).
// Before training, its outputs are those of the dense model, up to rounding.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "src/config.h"
#include "src/params/values.h"

namespace sy {

// Options of --upcycle. `experts` is per layer. `top_k` is the number of experts of a token.
// `granularity` (parts=P) is the number of experts into which one copy of the dense FFN is divided
// by its width. If it is 1, every expert is a copy.
//
// With granularity G > 1 (He et al., "Upcycling Large Language Models into Mixture of Experts",
// 2024), experts e, e + 1, ... e + G - 1 for e = 0, G, ... form one whole FFN. Their router rows
// are equal before training, so that a token that chooses one chooses all of them. `experts` and
// `top_k` are multiples of G. moe.scale = G compensates for renormalized weights.
struct Upcycling {
  Index experts = 0, top_k = 0, granularity = 1;
};
// Parses "experts=8,top_k=2,parts=1". Throws InputError.
Upcycling parse_upcycling(const std::string& text);

// Returns the configuration of the upcycled model. overrides: --section.key=value, applied last.
// Throws InputError if the model already has experts, or if granularity does not divide d_ff.
Config upcycled_config(const Config& dense, const Upcycling& upcycling, const std::vector<std::string>& overrides);

// Returns the parameter values of the upcycled model. Experts come from the FFN of `dense_values`,
// routers are drawn with the seed, and other parameters are those of the dense model.
std::unique_ptr<ValueSource> upcycled_values(ValueSource& dense_values, const std::vector<ParamSpec>& dense,
                                             const Upcycling& upcycling, std::uint64_t seed);

}  // namespace sy
