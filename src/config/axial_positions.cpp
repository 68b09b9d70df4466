// Checks of axial positions (model.position = axial).
#include <algorithm>
#include <cmath>

#include "src/config/check.h"
#include "src/config/values.h"

namespace sy {

void check_axial_positions(const Config& c, Problems& problems) {
  const Config::Model& m = c.model;
  const auto is_pair = [](const std::vector<double>& numbers) {
    return numbers.size() == 2 &&
           std::ranges::all_of(numbers, [](double n) { return n == std::floor(n) && n >= 1 && n <= 0x1p28; });
  };
  if (m.position != Position::axial) {
    for (const auto& [key, numbers] :
         {std::pair{"model.axial_shape", m.axial_shape}, std::pair{"model.axial_widths", m.axial_widths}})
      if (!numbers.empty())
        problems.add(key, "{} = {} with model.position = {}: it is of axial: leave it out", key, show(numbers),
                     show(m.position));
    return;
  }
  if (!is_pair(m.axial_shape) || m.axial_shape[0] * m.axial_shape[1] < static_cast<double>(m.seq_len))
    problems.add("model.axial_shape",
                 "model.axial_shape = {}: model.position = axial needs two whole numbers, whose product is at least "
                 "model.seq_len = {}",
                 show(m.axial_shape), m.seq_len);
  if (!is_pair(m.axial_widths) || m.axial_widths[0] + m.axial_widths[1] != static_cast<double>(m.d_model))
    problems.add(
        "model.axial_widths",
        "model.axial_widths = {}: model.position = axial needs two whole numbers, whose sum is model.d_model = "
        "{}",
        show(m.axial_widths), m.d_model);
}

}  // namespace sy
