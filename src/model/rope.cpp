#include "src/model/rope.h"

#include <cmath>

namespace sy {

std::vector<float> rope_table(const RopeSpec& rope, Index positions) {
  std::vector<float> table;
  table.reserve(positions * rope.rotated);
  for (Index p = 0; p < positions; ++p)
    for (Index i = 0; i < rope.rotated / 2; ++i) {
      const double angle = static_cast<double>(p) * std::pow(rope.theta, -2.0 * i / rope.rotated);
      table.push_back(static_cast<float>(std::cos(angle)));
      table.push_back(static_cast<float>(std::sin(angle)));
    }
  return table;
}

RopeTables::RopeTables(Backend& backend, const std::vector<BlockSpec>& blocks, Index positions) {
  for (const BlockSpec& block : blocks) {
    const std::optional<RopeSpec>& rope = block.attention.rope;
    if (!rope || of(rope)) continue;
    tables_.emplace_back(*rope, backend.tensor({positions, rope->rotated / 2, 2}));
    backend.to_device(rope_table(*rope, positions).data(), tables_.back().second);
  }
}

ConstView RopeTables::of(const std::optional<RopeSpec>& rope) const {
  for (const auto& [spec, table] : tables_)
    if (rope == spec) return table;
  return {};
}

}  // namespace sy
