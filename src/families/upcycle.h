// A model with experts from a dense one (Komatsuzaki et al., "Sparse Upcycling", 2022): its first outputs are the dense
// model's, up to rounding.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "src/config.h"
#include "src/params/values.h"

namespace sy {

// experts: of each layer. top_k: that a token is sent to. parts: into how many experts the dense FFN is divided, each of them
// having a part of its width; 1: every expert is a copy of it.
//
// With parts > 1 (He et al., "Upcycling Large Language Models into Mixture of Experts", 2024) experts p, p + 1, ... p + parts - 1
// for p = 0, parts, ... are a whole FFN together. Their rows of the router are the same at first, so that a token that chooses
// one chooses all of them; experts and top_k are multiples of parts, and moe.scale = parts makes up for the weights, which are
// divided by their sum.
struct Upcycling {
  Index experts = 0, top_k = 0, parts = 1;
};
// "experts=8,top_k=2,parts=1". Throws InputError.
Upcycling parse_upcycling(const std::string& text);

// What the dense configuration becomes. Throws InputError where it has experts already or widths that cannot be divided.
// overrides: --section.key=value on top.
Config upcycled_config(const Config& dense, const Upcycling& how, const std::vector<std::string>& overrides);

// The values of its parameters: experts from the FFN of `dense_values`, routers drawn by the seed, the rest as it is.
std::unique_ptr<ValueSource> upcycled_values(ValueSource& dense_values, const std::vector<ParamSpec>& dense,
                                             const Upcycling& how, std::uint64_t seed);

}  // namespace sy
