// Which tensors a family's files hold, and which element of which parameter is where in them. Pure.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "dist/shard.h"
#include "src/families/family.h"
#include "src/params/specs.h"

namespace sy {

// A parameter's element (i_0, i_1, ...) is element base + sum_d offset_d(i_d) of the tensor. Of a dimension cut into factors,
// i = (f_0 size_1 + f_1) size_2 + ..., the offset is the sum of f_j stride_j.
struct Factor {
  Index size, stride;
};
struct PartDim {
  Range range;  // the elements that are in this tensor
  std::vector<Factor> factors;
  Index offset(Index i) const;  // i: within range
};
struct TensorPart {
  std::optional<std::size_t> param;  // of ModelTensors::all; none: a filler
  std::vector<PartDim> dims;
  Index base;
};

struct FileTensor {
  std::string name;
  std::vector<Index> shape;
  std::vector<TensorPart> parts;
  Index elements() const;
};

// The parameters of a model, and its routers' selection biases, "layers.3.moe.selection_bias" [E], which a checkpoint keeps
// beside them.
std::vector<ParamSpec> model_tensors(const Config& config, Index vocab);
constexpr std::string_view selection_bias = "moe.selection_bias";

struct FamilyTensors {
  std::vector<FileTensor> files;
  std::vector<std::size_t> ones;  // of the parameters: those that the family does not have and that are one everywhere
};
// Throws InputError where the family has no place for a parameter. base: in place of the family's, of files that lack it.
FamilyTensors family_tensors(const Family& family, const Config& config, const std::vector<ParamSpec>& params,
                             std::string_view base);

// The elements of a box of the parameter that are in this part, in row-major order: run(first, offset, stride, n) for elements
// first, first + 1, ... of the box, which are at offset, offset + stride, ... of the tensor. Returns how many there are.
Index for_runs(const TensorPart& part, const Box& box,
               const std::function<void(Index first, Index offset, Index stride, Index n)>& run);

}  // namespace sy
