// Where the values of parameters come from. Initial values, a checkpoint, another program's files: each can read any box of
// any parameter, and ParamStore::fill takes those that a rank holds.
#pragma once

#include <functional>
#include <span>

#include "src/params/store.h"

namespace sy {

class ValueSource {
 public:
  virtual ~ValueSource() = default;
  // values = those of `box` of the whole parameter, in row-major order. Throws InputError where it has none.
  virtual void read(const ParamSpec& spec, const Box& box, std::span<float> values) = 0;
};

// As the specs say, drawn by Philox keyed by (seed, name, global index): the same on every layout.
class InitialValues final : public ValueSource {
 public:
  explicit InitialValues(std::uint64_t seed) : seed_(seed) {}
  void read(const ParamSpec& spec, const Box& box, std::span<float> values) override;

 private:
  std::uint64_t seed_;
};

// What the host holds of a tensor at a time while it is read or written.
constexpr Index piece_elements = Index{1} << 22;

// Reads elements `local` of a placement's box, in order and in pieces: take(first element, values) for each.
void read_values(ValueSource& source, const Placement& placement, Range local,
                 const std::function<void(Index first, std::span<const float> values)>& take);

// The boxes of the whole parameter that a run of a placement's box covers, in the run's order.
std::vector<Box> global_boxes(const Placement& placement, Range local);

}  // namespace sy
