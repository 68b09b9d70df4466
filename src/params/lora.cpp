#include "src/params/lora.h"

#include <algorithm>
#include <cmath>

#include "src/config/lora_targets.h"
#include "src/params/param_list.h"

namespace sy {
namespace {

constexpr std::string_view weight_suffix = ".weight";

std::string adapter_name(const std::string& weight, const char* name) {
  SY_ASSERT(weight.ends_with(weight_suffix), "{} is no weight", weight);
  return weight.substr(0, weight.size() - weight_suffix.size()) + "." + name;
}

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

// Appends dimensions [first, first + count) of `from`.
void append_dims(const Shape& from, int first, int count, Shape& to) {
  for (int d = first; d < first + count; ++d) to.push_back(from[d]);
}

Shape a_shape(const LinearDims& dims, const Shape& weight, Index rank) {
  Shape shape;
  append_dims(weight, 0, dims.stack, shape);
  shape.push_back(rank);
  append_dims(weight, dims.stack + dims.outputs, dims.inputs, shape);
  return shape;
}

Shape b_shape(const LinearDims& dims, const Shape& weight, Index rank) {
  Shape shape;
  append_dims(weight, 0, dims.stack + dims.outputs, shape);
  shape.push_back(rank);
  return shape;
}

ParamSpec adapter_spec(const ParamSpec& weight, std::string name, const Shape& shape, double scale) {
  return {.name = std::move(name),
          .shape = shape,
          .init = init_zeros,
          .decays = true,
          .layer = weight.layer,
          .physical_to_logical = weight.physical_to_logical,
          .bucket = weight.bucket,
          .is_weight = true,
          .adapter = AdapterSpec{weight.name, scale}};
}

}  // namespace

std::string lora_a_name(const std::string& weight) {
  return adapter_name(weight, "lora_a");
}

std::string lora_b_name(const std::string& weight) {
  return adapter_name(weight, "lora_b");
}

LinearDims linear_dims(const ParamSpec& weight) {
  SY_ASSERT(weight.matrix, "{} has no matrices", weight.name);
  const auto [stack_dims, row_dims, heads] = *weight.matrix;
  const int stack = heads ? 0 : stack_dims;
  return {stack, stack_dims - stack + row_dims, weight.shape.size() - stack_dims - row_dims};
}

ParamSpec lora_a_spec(const ParamSpec& weight, Index rank, double scale) {
  const LinearDims dims = linear_dims(weight);
  ParamSpec a = adapter_spec(weight, lora_a_name(weight.name), a_shape(dims, weight.shape, rank), scale);
  const auto inputs = weight.split.begin() + dims.stack + dims.outputs;
  std::copy_n(weight.split.begin(), dims.stack, a.split.begin());
  std::copy_n(inputs, dims.inputs, a.split.begin() + dims.stack + 1);
  const Index Q = weight.shape.elements(dims.stack + dims.outputs);
  a.init = {InitKind::uniform, 1 / std::sqrt(3 * static_cast<double>(Q))};
  return a;
}

ParamSpec lora_b_spec(const ParamSpec& weight, Index rank, double scale) {
  const LinearDims dims = linear_dims(weight);
  ParamSpec b = adapter_spec(weight, lora_b_name(weight.name), b_shape(dims, weight.shape, rank), scale);
  std::copy_n(weight.split.begin(), dims.stack + dims.outputs, b.split.begin());
  return b;
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
      for (auto [list, make] : {std::pair{&a, &lora_a_spec}, std::pair{&b, &lora_b_spec}}) {
        list->push_back(make(spec, rank, scale));
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

Box lora_a_box(const ParamSpec& weight, const Box& box, Index rank) {
  const LinearDims dims = linear_dims(weight);
  return {a_shape(dims, box.begin, 0), a_shape(dims, box.size, rank)};
}

Box lora_b_box(const ParamSpec& weight, const Box& box, Index rank) {
  const LinearDims dims = linear_dims(weight);
  return {b_shape(dims, box.begin, 0), b_shape(dims, box.size, rank)};
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
