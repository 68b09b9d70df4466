#include "src/params/values.h"

#include <algorithm>
#include <cmath>

namespace sy {
namespace {

// Returns the global row-major index of the first element of a box's row.
// Rows run along the last dimension, and are numbered over all other dimensions.
Index row_begin(const Shape& global, const Box& box, Index row) {
  const int n = global.size();
  if (n == 0) return 0;
  Index at = box.begin[n - 1], stride = global[n - 1];
  for (int d = n - 2; d >= 0; --d) {
    at += (box.begin[d] + row % box.size[d]) * stride;
    row /= box.size[d];
    stride *= global[d];
  }
  return at;
}

}  // namespace

void InitialValues::read(const ParamSpec& spec, const Box& box, std::span<float> values) {
  const Init init = spec.init;
  const bool uniform = init.kind == InitKind::uniform;
  if (init.kind == InitKind::constant) return std::fill(values.begin(), values.end(), static_cast<float>(init.stddev));
  if (init.kind != InitKind::normal && !uniform)
    return std::fill(values.begin(), values.end(), init.kind == InitKind::ones);
  const RandomStream random(seed_, "init." + spec.name);
  const int dims = box.size.size();
  const Index width = dims > 0 ? std::max<Index>(1, box.size[dims - 1]) : 1, rows = box.elements() / width;
#pragma omp parallel for
  for (Index row = 0; row < rows; ++row) {
    const Index global = row_begin(spec.shape, box, row);
    for (Index i = 0; i < width; ++i)
      values[row * width + i] = static_cast<float>(
          init.stddev * (uniform ? std::sqrt(3.0) * random.symmetric(global + i) : random.normal(global + i)));
  }
}

void read_values(ValueSource& source, const ParamSlice& slice, Range local,
                 const std::function<void(Index, std::span<const float>)>& visit) {
  std::vector<float> host;
  for (Index first = local.begin; first < local.end; first += chunk_elements) {
    const Range chunk{first, std::min(local.end, first + chunk_elements)};
    host.resize(static_cast<std::size_t>(chunk.size()));
    float* out = host.data();
    for (const Box& box : global_boxes(slice, chunk)) {
      source.read(*slice.spec, box, {out, static_cast<std::size_t>(box.elements())});
      out += box.elements();
    }
    visit(first, host);
  }
}

std::vector<OwnedRange> weight_ranges(const GroupLayout& group, WeightRanges ranges) {
  if (ranges == WeightRanges::owned) return owned_ranges(group);
  std::vector<OwnedRange> all;
  for (const ParamSlice& p : group.slices) all.push_back({&p, {0, p.box.elements()}, p.range()});
  return all;
}

std::vector<Box> global_boxes(const ParamSlice& slice, Range local) {
  const std::vector<Index>& logical = slice.spec->physical_to_logical;
  std::vector<Box> boxes;
  for (Box& box : boxes_of_range(slice.box.size, local)) {
    for (int d = 0; d < box.begin.size(); ++d) box.begin[d] += slice.box.begin[d];
    if (logical.empty()) {
      boxes.push_back(box);
      continue;
    }
    // Consecutive physical experts form one box if their logical experts are consecutive too.
    for (Index physical = box.begin[0]; physical < box.begin[0] + box.size[0];) {
      const Index begin = physical++;
      while (physical < box.begin[0] + box.size[0] && logical[physical] == logical[physical - 1] + 1) ++physical;
      boxes.push_back(box);
      boxes.back().begin[0] = logical[begin];
      boxes.back().size[0] = physical - begin;
    }
  }
  return boxes;
}

}  // namespace sy
