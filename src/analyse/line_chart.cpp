#include <algorithm>
#include <cmath>

#include "src/analyse/gnuplot.h"
#include "src/text/table.h"

namespace sy {
namespace {

constexpr std::size_t legend_lines = 8;  // a colour bar replaces the legend of more lines
constexpr int most_strips = 60;          // limit for one chart

// ", 1.2 to 1.3": the error bar of a point; empty if it has none.
std::string bar_text(const LineChart& chart, const Line& line, std::size_t k) {
  if (line.low.empty() || !std::isfinite(line.low[k]) || !std::isfinite(line.high[k])) return "";
  return fmt::format(", {} to {}", value_text(line.low[k], false, chart.percent),
                     value_text(line.high[k], false, chart.percent));
}

// Returns the tooltip of a chart at x: x, and the point of each line in `low` to `high` that is
// nearest to x.
std::string strip_text(const LineChart& chart, double x, double low, double high) {
  std::string text = fmt::format("{}{}{:.6g}", chart.x_label, chart.x_label.empty() ? "" : " ", x);
  for (const Line& line : chart.lines) {
    std::size_t best = line.x.size();
    for (std::size_t k = 0; k < line.x.size(); ++k)
      if (std::isfinite(line.y[k]) && (best == line.x.size() || std::abs(line.x[k] - x) < std::abs(line.x[best] - x)))
        best = k;
    if (best < line.x.size() && line.x[best] >= low && line.x[best] <= high)
      text += fmt::format("\n{}{}{}{}", visible(line.name), line.name.empty() ? "" : ": ",
                          value_text(line.y[best], false, chart.percent), bar_text(chart, line, best));
  }
  return text;
}

// "layer 3: 1.25 at step 200, from 1 to 3.5"
std::string line_tooltip(const LineChart& chart, const Line& line) {
  double low = INFINITY, high = -INFINITY;
  std::size_t last = line.x.size();
  for (std::size_t k = 0; k < line.x.size(); ++k) {
    if (!std::isfinite(line.y[k])) continue;
    low = std::min(low, line.y[k]);
    high = std::max(high, line.y[k]);
    last = k;
  }
  if (last == line.x.size()) return visible(line.name);
  const auto text = [&](double y) { return value_text(y, false, chart.percent); };
  return fmt::format("{}{}{} at {} {:.6g}, from {} to {}", visible(line.name), line.name.empty() ? "" : ": ",
                     text(line.y[last]), chart.x_label, line.x[last], text(low), text(high));
}

// Marks of the y axis: a list for gnuplot, and their texts.
struct YAxis {
  std::string tics;
  std::vector<std::string> marks;
  void add(const std::string& mark, double at) {
    marks.push_back(mark);
    tics += fmt::format("{}{} {}", tics.empty() ? "" : ", ", mark_in_quotes(mark), gnuplot_number(at));
  }
};

// Changes the bounds to round ones, unless the chart has its own.
YAxis linear_axis(const LineChart& chart, double& low, double& high) {
  const double scale = chart.percent ? 100 : 1;
  if (chart.y_low) low = *chart.y_low * scale;
  if (chart.y_high) high = *chart.y_high * scale;
  if (low > high) low = chart.y_high ? high - 1 : 0, high = low + 1;
  if (high - low < 1e-9 * std::max({std::abs(low), std::abs(high), 1e-300})) {
    const double some = high == 0 ? 1 : std::abs(high) / 10;
    if (!chart.y_low) low -= some;
    if (!chart.y_high || chart.y_low) high += some;
  }
  const double step = round_up((high - low) / 5, {1, 2, 2.5, 5, 10});  // of about five marks
  if (!chart.y_low) low = std::floor(low / step + 1e-9) * step;
  if (!chart.y_high) high = std::ceil(high / step - 1e-9) * step;
  YAxis axis;
  const auto add = [&](double y) { axis.add(fmt::format("{:.6g}{}", y, chart.percent ? " %" : ""), y); };
  double i = std::ceil(low / step - 1e-9);
  if (const double gap = i - low / step; gap > 1e-9) {
    add(low);
    if (gap < 0.5) ++i;  // its text would touch that of `low`
  }
  for (; i * step <= high + step * 1e-9; ++i) add(i == 0 ? 0.0 : i * step);
  return axis;
}

// "500", "2k", "1.5M"
std::string short_mark(double y) {
  constexpr std::pair<double, const char*> units[] = {{1e12, "T"}, {1e9, "G"}, {1e6, "M"}, {1e3, "k"}};
  for (const auto& [size, name] : units)
    if (y >= size) return fmt::format("{:.6g}{}", y / size, name);
  return fmt::format("{:.6g}", y);
}

// Changes the bounds to marks. The marks are 1, 2 and 5 times powers of ten, or the powers alone if
// the range is wide.
YAxis log_axis(double& low, double& high) {
  const int first = static_cast<int>(std::floor(std::log10(low) + 1e-9)),
            last = static_cast<int>(std::ceil(std::log10(high) - 1e-9));
  std::vector<double> marks;
  for (int power = first; power <= last; ++power)
    for (const double digit : {1., 2., 5.})
      if (digit == 1 || last - first <= 4) marks.push_back(digit * std::pow(10, power));
  std::size_t from = 0, to = marks.size() - 1;
  while (from + 1 < marks.size() && marks[from + 1] <= low * (1 + 1e-9)) ++from;
  while (to > from + 1 && marks[to - 1] >= high * (1 - 1e-9)) --to;
  low = marks[from];
  high = marks[to];
  YAxis axis;
  for (std::size_t i = from; i <= to; ++i) axis.add(short_mark(marks[i]), marks[i]);
  return axis;
}

// Returns the lines that mark a logarithmic x axis at those of `values` that have enough space.
std::string log_tics(const std::vector<double>& values, double low, double high, double available) {
  constexpr double least_distance = 36;
  std::string tics;
  double last = -INFINITY;
  for (const double x : values) {
    const double at = std::log(x / low) / std::log(high / low) * available;
    if (at - last < least_distance) continue;
    last = at;
    tics +=
        fmt::format("{}{} {}", tics.empty() ? "" : ", ", mark_in_quotes(fmt::format("{:.6g}", x)), gnuplot_number(x));
  }
  return fmt::format("set logscale x 2\nunset mxtics\nset xtics ({})\n", tics);
}

}  // namespace

std::vector<double> x_of(const LineChart& chart) {
  std::vector<double> values;
  for (const Line& line : chart.lines) values.insert(values.end(), line.x.begin(), line.x.end());
  std::sort(values.begin(), values.end());
  values.erase(std::unique(values.begin(), values.end()), values.end());
  return values;
}

Plot plot_of(const LineChart& chart) {
  SY_ASSERT(!chart.lines.empty() && chart.depths.size() == chart.lines.size(), "{} lines, {} depths",
            chart.lines.size(), chart.depths.size());
  const std::size_t count = chart.lines.size();
  const bool legend = count > 1 && count <= legend_lines, bar = count > legend_lines;
  const double scale = chart.percent ? 100 : 1;
  double low_x = INFINITY, high_x = -INFINITY, low = INFINITY, high = -INFINITY;
  for (const Line& line : chart.lines) {
    SY_ASSERT(line.x.size() == line.y.size() && line.low.size() == line.high.size() &&
                  (line.low.empty() || line.low.size() == line.y.size()),
              "{} x for {} y, {} and {} ends of error bars", line.x.size(), line.y.size(), line.low.size(),
              line.high.size());
    for (const double x : line.x) {
      low_x = std::min(low_x, x);
      high_x = std::max(high_x, x);
    }
    for (const std::vector<double>* values : {&line.y, &line.low, &line.high})
      for (const double y : *values) {
        if (!std::isfinite(y)) continue;
        low = std::min(low, y * scale);
        high = std::max(high, y * scale);
      }
  }
  SY_ASSERT(low_x <= high_x, "a chart without points");
  SY_ASSERT((!chart.log_x || low_x > 0) && (!chart.log_y || low > 0), "a logarithmic axis from {}, {}", low_x, low);
  if (chart.log_x) {
    // Space for the error bars at the first and the last x.
    low_x /= 1.1, high_x *= 1.1;
  } else if (low_x == high_x) {
    low_x -= 1, high_x += 1;
  }
  const auto [tics, marks] = chart.log_y ? log_axis(low, high) : linear_axis(chart, low, high);

  // Space around the plot, in pixels. An entry of the legend is a dash and a name.
  constexpr int entry_height = 18, dash = 20;
  const int most_columns = std::max(8, (chart.legend_below ? chart.width - 70 : chart.width * 2 / 5) / 7);
  std::vector<std::string> names;
  for (const Line& line : chart.lines) names.push_back(fit_width(visible(line.name), most_columns));
  const int entry_width = 7 * widest_of(names) + dash + 14;
  const int left = (chart.y_label.empty() ? 14 : 38) + 7 * widest_of(marks), top = 12;
  const int in_a_row = std::max(1, (chart.width - left) / entry_width);
  const int rows_below = legend && chart.legend_below ? static_cast<int>((count + in_a_row - 1) / in_a_row) : 0;
  const int right = bar ? 86 : legend && !chart.legend_below ? entry_width + 14 : 16;
  const int bottom = 28 + (chart.x_label.empty() ? 0 : 20) + entry_height * rows_below;
  const double width = chart.width, height = chart.height + entry_height * rows_below;
  const double plot_width = width - left - right, plot_height = height - top - bottom;

  std::string s = prelude(chart.width, static_cast<int>(height));
  s += fmt::format(
      "set lmargin at screen {:.4f}\nset rmargin at screen {:.4f}\nset tmargin at screen {:.4f}\nset bmargin at screen {:.4f}\n",
      left / width, 1 - right / width, 1 - top / height, bottom / height);
  s += fmt::format("set border 1 lw 0.8\nset grid ytics lt 1 lc rgb '{}' lw 1\nset grid noxtics\nset tics nomirror\n",
                   plot_colours.grid);
  s += label_at(chart.x_label, fmt::format("graph 0.5, screen {:.4f}", (12.0 + entry_height * rows_below) / height));
  s += label_at(chart.y_label, fmt::format("screen {:.4f}, graph 0.5", 12.0 / width), true);
  s += fmt::format("unset key\nset ytics ({}) scale 0\nset yrange [{}:{}]\n", tics, gnuplot_number(low),
                   gnuplot_number(high));
  if (bar) {
    s += palette_of(Palette::order, 0.15, 0.85) + "set cbtics scale 0\n";
    s += fmt::format("set colorbox user origin {:.4f},{:.4f} size {:.4f},{:.4f} noborder\n", 1 - (right - 12.0) / width,
                     bottom / height, 12.0 / width, plot_height / height);
    s += label_at(chart.depth_label, fmt::format("screen {:.4f}, graph 0.5", 1 - 12.0 / width), true);
    s +=
        fmt::format("set cbrange [{}:{}]\n", gnuplot_number(chart.depths.front()), gnuplot_number(chart.depths.back()));
  }
  Plot plot;
  std::string plots;
  for (std::size_t i = 0; i < count; ++i) {
    const Line& line = chart.lines[i];
    s += fmt::format("$line{} << END\n", i);
    const bool bars = !line.low.empty();
    for (std::size_t k = 0; k < line.x.size(); ++k) {
      s += gnuplot_number(line.x[k]) + ' ' + gnuplot_number(line.y[k] * scale);
      // Without a bar, both ends are at the point.
      for (const std::vector<double>* ends : {&line.low, &line.high})
        if (bars) s += ' ' + gnuplot_number((std::isfinite((*ends)[k]) ? (*ends)[k] : line.y[k]) * scale);
      s += '\n';
    }
    s += "END\n";
    const double position = count == 1 ? 0.4 : static_cast<double>(i) / static_cast<double>(count - 1);
    const SeriesColour* own = colour_of(line.series);
    const std::string colour =
        own ? own->light : palette_colour(Palette::order, line_colour_step * std::round(position * (line_colours - 1)));
    const std::string paint = bar ? "palette cb " + gnuplot_number(chart.depths[i]) : fmt::format("rgb '{}'", colour);
    // A line through one point would be invisible, and few points should stand out from their line.
    const bool ideal = line.series == Series::ideal && line.x.size() > 1;
    const char* style = ideal                ? "lines dt 2 lw 1.8"
                        : bars               ? "yerrorlines pt 7 ps 0.5 lw 1.8"
                        : line.x.size() == 1 ? "points pt 7 ps 0.7"
                        : line.x.size() < 40 ? "linespoints pt 7 ps 0.35 lw 1.8"
                                             : "lines lw 1.8";
    plots += fmt::format("{}$line{} using {} with {} lc {} notitle", i ? ", \\\n     " : "", i,
                         bars ? "1:2:3:4" : "1:2", style, paint);
    plot.line_tooltips.push_back(line_tooltip(chart, line));
    if (!legend) continue;
    const int at = static_cast<int>(i), n = static_cast<int>(count);
    const double x = chart.legend_below ? left + at % in_a_row * entry_width : width - right + 14;
    const int row = at / in_a_row;
    const double y = chart.legend_below ? entry_height * (rows_below - row) - 10.0
                                        : bottom + plot_height / 2 + entry_height * ((n - 1) / 2.0 - at);
    s += fmt::format("set arrow from screen {0:.4f},{2:.4f} to screen {1:.4f},{2:.4f} nohead lc {3} lw 2.4{4}\n",
                     x / width, (x + dash - 4) / width, y / height, paint, ideal ? " dt 2" : "");
    s += fmt::format("set label {} at screen {:.4f},{:.4f} left textcolor rgb '{}'\n", in_quotes(names[i]),
                     (x + dash + 2) / width, y / height, plot_colours.ink);
  }
  const std::vector<double> x_values = x_of(chart);
  s += fmt::format("set xrange [{}:{}]\n", gnuplot_number(low_x), gnuplot_number(high_x)) +
       (chart.log_x ? log_tics(x_values, low_x, high_x, plot_width) : step_tics(low_x, high_x, plot_width));
  if (chart.log_y) s += "set logscale y 10\nunset mytics\n";
  plot.script = s + "plot " + plots + "\n";
  if (bar) return plot;  // so many values would not fit into a tooltip

  const double strips = std::min<double>(most_strips, static_cast<double>(x_values.size()));
  const auto x_of_strip = [&](double i) {
    return x_values[static_cast<std::size_t>(i * static_cast<double>(x_values.size()) / strips)];
  };
  const auto pixel = [&](double x) {
    const double position =
        chart.log_x ? std::log(x / low_x) / std::log(high_x / low_x) : (x - low_x) / (high_x - low_x);
    return left + position * plot_width;
  };
  double from = low_x;  // each strip reaches half-way to the next
  for (double i = 0; i < strips; ++i) {
    const double here = x_of_strip(i), next = i + 1 < strips ? x_of_strip(i + 1) : high_x;
    const double to = i + 1 == strips ? high_x : chart.log_x ? std::sqrt(here * next) : (here + next) / 2;
    plot.areas.push_back(
        {pixel(from), double(top), pixel(to) - pixel(from), plot_height, strip_text(chart, here, from, to)});
    from = to;
  }
  return plot;
}

}  // namespace sy
