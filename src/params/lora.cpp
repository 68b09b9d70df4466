#include "src/params/lora.h"

#include <algorithm>
#include <cmath>

#include "src/config/lora_targets.h"
#include "src/params/param_list.h"

namespace sy {
namespace {

constexpr std::string_view weight_suffix = ".weight";

// Returns the target of a weight: "experts.up" of "layers.3.moe.experts.up.weight".
std::string_view target_of(const ParamSpec& spec) {
  std::string_view name = spec.name;
  if (!spec.matrix || !spec.layer || !name.ends_with(weight_suffix)) return {};
  name.remove_suffix(weight_suffix.size());
  name.remove_prefix(layer_prefix(*spec.layer).size());
  constexpr std::string_view moe = "moe.";
  if (name.starts_with(moe)) name.remove_prefix(moe.size());
  return name;
}

// Dimensions of a weight that a matrix of its adapter has before `rank` and after it.
struct SharedDims {
  int before, first_after, after;  // numbers of them; index of the first of the latter
};
SharedDims shared_dims(const ParamSpec& weight, LoraMatrix matrix) {
  const auto [stack, outputs, inputs] = linear_dims(weight);
  return matrix == LoraMatrix::a ? SharedDims{stack, stack + outputs, inputs} : SharedDims{stack + outputs, 0, 0};
}

// Returns the dimensions of a matrix of the adapter. weight: those of the weight
Shape lora_dims(const SharedDims& shared, const Shape& weight, Index rank) {
  Shape dims;
  for (int d = 0; d < shared.before; ++d) dims.push_back(weight[d]);
  dims.push_back(rank);
  for (int d = 0; d < shared.after; ++d) dims.push_back(weight[shared.first_after + d]);
  return dims;
}

}  // namespace

std::string lora_name(const std::string& weight, LoraMatrix matrix) {
  SY_ASSERT(weight.ends_with(weight_suffix), "{} is no weight", weight);
  return weight.substr(0, weight.size() - weight_suffix.size()) + (matrix == LoraMatrix::a ? ".lora_a" : ".lora_b");
}

LinearDims linear_dims(const ParamSpec& weight) {
  SY_ASSERT(weight.matrix, "{} has no matrices", weight.name);
  const auto [stack_dims, row_dims, heads] = *weight.matrix;
  const int stack = heads ? 0 : stack_dims;
  return {stack, stack_dims - stack + row_dims, weight.shape.size() - stack_dims - row_dims};
}

ParamSpec lora_spec(const ParamSpec& weight, LoraMatrix matrix, Index rank, double scale) {
  const SharedDims shared = shared_dims(weight, matrix);
  ParamSpec spec{.name = lora_name(weight.name, matrix),
                 .shape = lora_dims(shared, weight.shape, rank),
                 .init = init_zeros,
                 .decays = true,
                 .layer = weight.layer,
                 .physical_to_logical = weight.physical_to_logical,
                 .bucket = weight.bucket,
                 .is_weight = true,
                 .adapter = AdapterSpec{weight.name, scale}};
  std::copy_n(weight.split.begin(), shared.before, spec.split.begin());
  std::copy_n(weight.split.begin() + shared.first_after, shared.after, spec.split.begin() + shared.before + 1);
  const Index Q = weight.shape.elements(shared.first_after);
  if (matrix == LoraMatrix::a) spec.init = {InitKind::uniform, 1 / std::sqrt(3 * static_cast<double>(Q))};
  return spec;
}

std::vector<ParamSpec> with_adapters(std::vector<ParamSpec> specs, const Config& config) {
  const Index rank = config.train.lora_rank;
  const double scale = config.train.lora_scale();
  std::vector<ParamSpec> all;
  for (std::size_t begin = 0, end; begin < specs.size(); begin = end) {
    std::vector<ParamSpec> a, b;
    for (end = begin; end == begin || (end < specs.size() && specs[end].fused_with_previous); ++end) {
      const ParamSpec& spec = specs[end];
      if (const std::string_view target = target_of(spec); target.empty() || !covers_lora_target(config, target))
        continue;
      for (auto [list, matrix] : {std::pair{&a, LoraMatrix::a}, std::pair{&b, LoraMatrix::b}}) {
        list->push_back(lora_spec(spec, matrix, rank, scale));
        list->back().fused_with_previous = list->size() > 1;
      }
    }
    for (std::size_t i = begin; i < end; ++i) {
      specs[i].frozen = true;
      all.push_back(std::move(specs[i]));
    }
    for (std::vector<ParamSpec>* list : {&a, &b}) std::ranges::move(*list, std::back_inserter(all));
  }
  return all;
}

Config without_lora(Config config) {
  const Config defaults;
  config.train.lora_rank = defaults.train.lora_rank;
  config.train.lora_alpha = defaults.train.lora_alpha;
  config.train.lora_targets = defaults.train.lora_targets;
  return config;
}

Box lora_box(const ParamSpec& weight, LoraMatrix matrix, const Box& box, Index rank) {
  const SharedDims shared = shared_dims(weight, matrix);
  return {lora_dims(shared, box.begin, 0), lora_dims(shared, box.size, rank)};
}

void add_adapter(const ParamSpec& weight, const Box& box, Index rank, double scale, std::span<const float> a,
                 std::span<const float> b, std::span<float> values) {
  const LinearDims dims = linear_dims(weight);
  const Index Q = box.size.elements(dims.stack + dims.outputs), rows = box.size.elements() / std::max<Index>(Q, 1),
              N = box.size.elements(dims.stack) / std::max<Index>(Q, 1);
#pragma omp parallel for
  for (Index row = 0; row < rows; ++row) {
    const Index map = row / N;
    for (Index i = 0; i < Q; ++i) {
      double sum = 0;
      for (Index k = 0; k < rank; ++k)
        sum += static_cast<double>(b[row * rank + k]) * static_cast<double>(a[(map * rank + k) * Q + i]);
      float& value = values[row * Q + i];
      value = static_cast<float>(static_cast<double>(value) + scale * sum);
    }
  }
}

}  // namespace sy
