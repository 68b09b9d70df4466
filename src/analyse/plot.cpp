#include "src/analyse/plot.h"

#include <algorithm>
#include <cmath>

#include "src/analyse/gnuplot.h"

namespace sy {
namespace {

// Even steps of brightness, legible to the colour-blind and in grey: ColorBrewer's Purples, RdBu
// and BrBG, and viridis. Red and blue mean overloaded and idle: no other palette of cells has them.
// The palette for lines on a dark page has only bright colours.
const std::vector<std::string> palette_stops[] = {
    {"#fcfbfd", "#efedf5", "#dadaeb", "#bcbddc", "#9e9ac8", "#807dba", "#6a51a3", "#54278f", "#3f007d"},
    {"#2166ac", "#4393c3", "#92c5de", "#d1e5f0", "#f7f7f7", "#fddbc7", "#f4a582", "#d6604d", "#b2182b"},
    {"#8c510a", "#bf812d", "#dfc27d", "#f6e8c3", "#f5f5f5", "#c7eae5", "#80cdc1", "#35978f", "#01665e"},
    {"#440154", "#482878", "#3e4a89", "#31688e", "#26828e", "#1f9e89", "#35b779", "#6dcd59", "#b4de2c", "#fde725"},
    {"#c084fc", "#818cf8", "#38bdf8", "#2dd4bf", "#4ade80", "#a3e635", "#fde047"}};

const std::vector<std::string>& stops_of(Palette p) {
  return palette_stops[static_cast<int>(p)];
}

}  // namespace

double round_up(double x, std::initializer_list<double> digits) {
  SY_ASSERT(x > 0 && std::isfinite(x), "{}", x);
  const double power = std::pow(10, std::floor(std::log10(x) + 1e-12));
  for (double digit : digits)
    if (x <= digit * power * (1 + 1e-12)) return digit * power;
  return std::data(digits)[0] * power * 10;
}

std::string palette_colour(Palette palette, double position) {
  const auto& stops = stops_of(palette);
  const double at = std::clamp(position, 0.0, 1.0) * static_cast<double>(stops.size() - 1);
  const std::size_t i = std::min(static_cast<std::size_t>(at), stops.size() - 2);
  const int a = std::stoi(stops[i].substr(1), nullptr, 16), b = std::stoi(stops[i + 1].substr(1), nullptr, 16);
  std::string out = "#";
  for (int shift : {16, 8, 0}) {
    const double x = (a >> shift & 255), y = (b >> shift & 255);
    out += fmt::format("{:02x}", std::lround(x + (y - x) * (at - static_cast<double>(i))));
  }
  return out;
}

std::vector<std::string> ratio_marks(double low, double high) {
  std::vector<std::string> marks;
  for (long p = std::lround(std::log2(low)); p <= std::lround(std::log2(high)); ++p)
    marks.push_back(fmt::format("{}{}×", p < 0 ? "1/" : "", 1L << std::abs(p)));
  return marks;
}

Heatmap narrow(Heatmap map) {
  constexpr int most_columns = 14;
  map.width = narrow_width;
  map.colour_label.clear();
  if (widest_of(map.row_names) > most_columns) map.wrap_names = most_columns;
  return map;
}

LineChart narrow(LineChart chart) {
  chart.width = narrow_width;
  chart.height = std::min(chart.height, 260);
  chart.legend_below = true;
  return chart;
}

}  // namespace sy
