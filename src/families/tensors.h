// Layout of a model's parameters in the tensors of a family's files. Pure functions.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "dist/shard.h"
#include "src/families/family.h"
#include "src/params/specs.h"

namespace sy {

// Element (i_0, i_1, ...) of a parameter is element base + sum_d offset_d(i_d) of the tensor.
// If a dimension is split into factors, i = (f_0 size_1 + f_1) size_2 + ..., its offset is
// sum_j f_j stride_j.
struct Factor {
  Index size, stride;
};
struct MappedDim {
  Range range;  // indices that are in this tensor
  std::vector<Factor> factors;
  Index offset(Index i) const;  // i: within range
};
struct TensorMapping {
  std::optional<std::size_t> param;  // index in model_tensors(); empty for a filler
  std::vector<MappedDim> dims;
  Index base;
};

struct FileTensor {
  std::string name;
  std::vector<Index> shape;
  std::vector<TensorMapping> mappings;
  bool is_copy = false;  // of a parameter that another tensor has, too
  double constant = 0;   // value of all elements that no parameter covers, unless a file has them
  Index elements() const;
};

// Returns the parameters of a model, and its routers' selection biases,
// "layers.3.moe.selection_bias" [E]. A checkpoint stores the biases separately.
std::vector<ParamSpec> model_tensors(const Config& config, Index vocab);
constexpr std::string_view selection_bias = "moe.selection_bias";

struct FamilyTensors {
  std::vector<FileTensor> tensors;
  std::vector<std::size_t> ones;  // parameters that the family lacks: all their elements are 1
};
// Throws InputError if the family has no tensor for a parameter.
// base: prefix of names; family.base, or empty for files without it.
FamilyTensors family_tensors(const Family& family, const Config& config, const std::vector<ParamSpec>& params,
                             std::string_view base);

// Visits the elements of a box of the parameter that `mapping` covers, in row-major order.
// Calls visit(first, offset, stride, n) for elements first ... first + n - 1 of the box. They are
// elements offset, offset + stride, ... of the tensor. Returns the number of visited elements.
Index for_mapped_ranges(const TensorMapping& mapping, const Box& box,
                        const std::function<void(Index first, Index offset, Index stride, Index n)>& visit);

}  // namespace sy
