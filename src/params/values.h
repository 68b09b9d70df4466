// Sources of parameter values: initial values, a checkpoint, or another program's files.
// A source can read any box of any parameter. ParamStore::fill reads the boxes that a rank holds.
#pragma once

#include <functional>
#include <span>

#include "src/params/store.h"

namespace sy {

class ValueSource {
 public:
  virtual ~ValueSource() = default;
  // Reads the values of `box` of the global parameter in row-major order.
  // Throws InputError if the source does not have them.
  virtual void read(const ParamSpec& spec, const Box& box, std::span<float> values) = 0;
};

// Initial values of the specs, drawn by Philox keyed by (seed, name, global index).
// They are the same on every layout.
class InitialValues final : public ValueSource {
 public:
  explicit InitialValues(std::uint64_t seed) : seed_(seed) {}
  void read(const ParamSpec& spec, const Box& box, std::span<float> values) override;

 private:
  std::uint64_t seed_;
};

// Number of elements of a tensor that the host holds at once while it reads or writes it.
constexpr Index chunk_elements = Index{1} << 22;

// Reads elements `local` of a slice's box in order.
// Calls take(first element, values) for each chunk of at most chunk_elements.
void read_values(ValueSource& source, const ParamSlice& slice, Range local,
                 const std::function<void(Index first, std::span<const float> values)>& visit);

// Returns these ranges of a group's weights, in order.
std::vector<OwnedRange> weight_ranges(const GroupLayout& group, WeightRanges ranges);

// Returns the boxes of the global parameter that the range `local` of a slice's box covers, in
// order. Experts are logical ones (ParamSpec::physical_to_logical).
std::vector<Box> global_boxes(const ParamSlice& slice, Range local);

}  // namespace sy
