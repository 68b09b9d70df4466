#include "src/analyse/plot.h"

#include <algorithm>
#include <cmath>

#include "src/text/strings.h"
#include "src/text/table.h"

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
constexpr std::size_t legend_lines = 8;  // a colour bar replaces the legend of more lines
constexpr Index most_areas = 512;        // approximate limit for one picture
constexpr int most_strips = 60;          // limit for one chart

const std::vector<std::string>& stops_of(Palette p) {
  return palette_stops[static_cast<int>(p)];
}

// Returns a gnuplot string in double quotes. In single quotes gnuplot misreads some doubled quotes.
std::string in_quotes(const std::string& text) {
  std::string out = "\"";
  for (char c : text) {
    if (c == '\\' || c == '"' || c == '`') out += '\\';
    out += static_cast<unsigned char>(c) < ' ' ? ' ' : c;
  }
  return out + '"';
}

// gnuplot treats the marks of an axis as formats.
std::string mark_in_quotes(const std::string& text) {
  std::string format;
  for (char c : text) format += c == '%' ? "%%" : std::string(1, c);
  return in_quotes(format);
}

std::string number(double x) {
  return std::isfinite(x) ? fmt::format("{:.6g}", x) : "NaN";
}

std::string prelude(int width, int height) {
  return fmt::format(
      "reset session\n"
      "set encoding utf8\n"
      "set terminal svg size {},{} dynamic noenhanced font 'sans-serif,12' background '{}'\n"
      "set border 0 lc rgb '{}'\n"
      "set tics nomirror scale 0.4 textcolor rgb '{}'\n"
      "set key textcolor rgb '{}'\n",
      width, height, plot_colours.paper, plot_colours.ink, plot_colours.ink, plot_colours.ink);
}

// Places the label of an axis. gnuplot's own position depends on its estimate of the marks' text
// width.
std::string label_at(const std::string& text, const std::string& position, bool upright = false) {
  return text.empty() ? ""
                      : fmt::format("set label {} at {} center {}textcolor rgb '{}'\n", in_quotes(text), position,
                                    upright ? "rotate " : "", plot_colours.ink);
}

// The range of a palette between two positions.
std::string palette_of(Palette palette, double from = 0, double to = 1) {
  std::string out = "set palette defined (";
  for (int i = 0; i <= 16; ++i)
    out += fmt::format("{}{} '{}'", i ? ", " : "", i, palette_colour(palette, from + (to - from) * i / 16));
  return out + ")\n";
}

bool is_number(const std::string& text) {
  return !text.empty() && text[0] >= '0' && text[0] <= '9';
}

int widest_of(const std::vector<std::string>& names) {
  int widest = 1;
  for (const std::string& n : names) widest = std::max(widest, display_width(n));
  return widest;
}

// True if the names of columns are words that do not fit side by side: they stand upright then.
bool upright_names(const std::vector<std::string>& names, double available) {
  return (7.0 * widest_of(names) + 10) * static_cast<double>(names.size()) > available &&
         std::none_of(names.begin(), names.end(), is_number);
}

// Returns lines of at most `width` columns, divided at blanks; longer words are cut.
std::vector<std::string> wrapped(const std::string& text, int width) {
  std::vector<std::string> lines = wrap_text(text, width);
  for (std::string& line : lines) line = fit_width(line, width);
  return lines;
}

// Marks at the middles of rows or columns. If not all fit into `available` pixels, every n-th has
// one.
// needed: pixels of a mark.
std::string name_tics(const std::string& axis, const std::vector<std::string>& names, double available, double needed,
                      int longest_name, int wrap_names = 0) {
  std::size_t every = 1;
  for (std::size_t step : {1, 2, 4, 5, 8, 10, 16, 20, 32, 50, 64, 100, 128, 200, 256, 500, 1000}) {
    every = step;
    if (needed * static_cast<double>(names.size()) <= available * static_cast<double>(step)) break;
  }
  std::string out = fmt::format("set {}tics (", axis);
  for (std::size_t i = 0; i < names.size(); i += every) {
    std::string mark = mark_in_quotes(fit_width(names[i], longest_name));
    if (wrap_names > 0) {
      mark.clear();
      for (const std::string& line : wrapped(names[i], wrap_names)) {
        const std::string quoted = mark_in_quotes(line);
        mark += (mark.empty() ? "" : "\\n") + quoted.substr(1, quoted.size() - 2);
      }
      mark.insert(0, 1, '"');
      mark += '"';
    }
    out += fmt::format("{}{} {}", i ? ", " : "", mark, i);
  }
  return out + ") scale 0\n";
}

std::string ratio_tics(double low, double high) {
  std::string out;
  for (const std::string& mark : ratio_marks(low, high)) {
    out += fmt::format("{}{} {}", out.empty() ? "" : ", ", mark_in_quotes(mark), low);
    low *= 2;
  }
  return "set cbtics (" + out + ")\n";
}

// Round numbers with enough space between their marks.
std::string step_tics(double low, double high, double available) {
  return fmt::format("set xtics {}\n", number(std::max(1.0, round_up((high - low) * 70 / available, {1, 2, 5, 10}))));
}

// White text on dark cells, ink on bright ones.
const char* text_colour(const std::string& background) {
  const int rgb = std::stoi(background.substr(1), nullptr, 16);
  const double brightness = 0.299 * (rgb >> 16) + 0.587 * (rgb >> 8 & 255) + 0.114 * (rgb & 255);
  return brightness < 140 ? "#ffffff" : "#1e293b";
}

// Returns the text of a value in a tooltip.
std::string value_text(double value, bool ratio, bool percent) {
  return fmt::format("{:.4g}{}", value * (percent ? 100 : 1), ratio ? "×" : percent ? " %" : "");
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

namespace {

// Position of a heatmap's cells in its picture, in pixels.
struct Cells {
  double left, top, width, height;  // width, height: of one cell
};

// Tooltips of cells: one per cell if there are few cells, else neighbours in a row share one.
std::vector<HoverArea> cell_areas(const Heatmap& map, const Cells& cells) {
  std::vector<HoverArea> areas;
  const Index each = std::max<Index>(1, map.rows * map.columns / most_areas);
  const auto named = [](const std::string& label, const std::string& name) {
    return label.empty() ? name : label + " " + name;
  };
  const double step = map.x_range ? (map.x_range->second - map.x_range->first) / static_cast<double>(map.columns) : 0;
  for (Index r = 0; r < map.rows && std::ssize(areas) < 4 * most_areas; ++r)
    for (Index c = 0; c < map.columns; c += each) {
      const Index end = std::min(c + each, map.columns);
      double low = INFINITY, high = -INFINITY;
      for (Index i = c; i < end; ++i) {
        const double v = map.values[r * map.columns + i];
        if (!std::isfinite(v)) continue;
        low = std::min(low, v);
        high = std::max(high, v);
      }
      if (low > high) continue;
      std::string at;
      if (map.x_range)
        at = fmt::format("{}s {:.0f} to {:.0f}", map.x_label, map.x_range->first + static_cast<double>(c) * step + 1,
                         map.x_range->first + static_cast<double>(end) * step);
      else if (!map.column_names.empty())
        at = named(map.x_label, map.column_names[c]) + (end > c + 1 ? " to " + map.column_names[end - 1] : "");
      const std::string row = map.row_names.empty() ? "" : named(map.y_label, map.row_names[r]);
      std::string text = fmt::format("{}{}{}: {}", row, row.empty() || at.empty() ? "" : ", ", at,
                                     value_text(low, map.ratio, map.percent));
      if (high > low) text += " to " + value_text(high, map.ratio, map.percent);
      areas.push_back({cells.left + static_cast<double>(c) * cells.width,
                       cells.top + static_cast<double>(r) * cells.height, static_cast<double>(end - c) * cells.width,
                       cells.height, visible(text)});
    }
  return areas;
}

}  // namespace

Plot plot_of(const Heatmap& map) {
  SY_ASSERT(map.rows > 0 && map.columns > 0 && map.low < map.high &&
                static_cast<Index>(map.values.size()) == map.rows * map.columns,
            "heatmap of {} by {}, {} values, from {} to {}", map.rows, map.columns, map.values.size(), map.low,
            map.high);
  std::size_t name_lines = 1;
  int name_width = std::min(widest_of(map.row_names), map.longest_name);
  if (map.wrap_names > 0) {
    name_width = 1;
    for (const std::string& name : map.row_names) {
      const auto lines = wrapped(name, map.wrap_names);
      name_width = std::max(name_width, widest_of(lines));
      name_lines = std::max(name_lines, lines.size());
    }
  }
  const Index row_height = std::max<Index>(30, 15 * static_cast<Index>(name_lines) + 6);
  int plot_height =
      map.plot_height > 0 ? map.plot_height : static_cast<int>(std::clamp<Index>(map.rows * row_height, 110, 560));
  if (name_lines > 1) plot_height = std::max(plot_height, static_cast<int>(map.rows * row_height));
  const int left = (map.y_label.empty() ? 14 : 36) + 7 * name_width;
  const int right = !map.colour_bar ? 20 : map.colour_label.empty() ? 86 : 110, top = 8;
  const double plot_width = map.width - left - right;
  const bool upright = !map.x_range && upright_names(map.column_names, plot_width);
  const int names_height = upright ? 7 * std::min(widest_of(map.column_names), map.longest_name) + 12 : 26;
  const int bottom = names_height + (map.x_label.empty() ? 0 : 26), height = top + plot_height + bottom;
  const double scale = map.percent ? 100 : 1;

  std::string s = prelude(map.width, height);
  s += fmt::format("set lmargin at screen {:.4f}\nset rmargin at screen {:.4f}\n", double(left) / map.width,
                   1 - double(right) / map.width);
  s += fmt::format("set tmargin at screen {:.4f}\nset bmargin at screen {:.4f}\n", 1 - double(top) / height,
                   double(bottom) / height);
  // Columns are centred on 0, 1, ... unless the map has an x_range.
  const auto [x_low, x_high] = map.x_range.value_or(std::pair(-0.5, static_cast<double>(map.columns) - 0.5));
  const double column = (x_high - x_low) / static_cast<double>(map.columns);
  s += fmt::format("set xrange [{}:{}]\nset yrange [{}:-0.5]\n", number(x_low), number(x_high),
                   static_cast<double>(map.rows) - 0.5);
  s += map.x_range ? step_tics(x_low, x_high, plot_width)
                   : name_tics("x", map.column_names, plot_width, upright ? 15 : 7.0 * widest_of(map.column_names) + 10,
                               map.longest_name);
  if (upright) s += "set xtics rotate by 90 right\n";
  s += name_tics("y", map.row_names, plot_height, 15 * static_cast<double>(name_lines), map.longest_name,
                 map.wrap_names);
  s += label_at(map.x_label, fmt::format("graph 0.5, screen {:.4f}", 12.0 / height));
  s += label_at(map.y_label, fmt::format("screen {:.4f}, graph 0.5", 12.0 / map.width), true) + palette_of(map.palette);
  s += fmt::format("set cbrange [{}:{}]\n", number(map.low * scale), number(map.high * scale));
  if (map.ratio)
    s += "set logscale cb 2\n" + ratio_tics(map.low, map.high);
  else
    s += fmt::format("set cbtics {}\n", number((map.high - map.low) * scale / 4));
  if (map.percent) s += "set format cb '%g %%'\n";
  if (map.colour_bar) {
    const double x = 1 - double(right - 14) / map.width;
    s += fmt::format("set colorbox user origin {:.4f},{:.4f} size {:.4f},{:.4f} noborder\n", x, double(bottom) / height,
                     14.0 / map.width, double(plot_height) / height);
    s += label_at(map.colour_label, fmt::format("screen {:.4f}, graph 0.5", 1 - 14.0 / map.width), true);
    s += "set cbtics scale 0\n";
  } else {
    s += "unset colorbox\n";
  }

  // Thin seams, if the cells are large enough.
  if (plot_width >= 12 * static_cast<double>(map.columns) && plot_height >= 10 * static_cast<double>(map.rows)) {
    for (Index c = 1; c < map.columns; ++c)
      s += fmt::format("set arrow from {0},graph 0 to {0},graph 1 nohead front lc rgb '{1}' lw 1.5\n",
                       number(x_low + column * static_cast<double>(c)), plot_colours.paper);
    for (Index r = 1; r < map.rows; ++r)
      s += fmt::format("set arrow from graph 0,first {0} to graph 1,first {0} nohead front lc rgb '{1}' lw 1.5\n",
                       static_cast<double>(r) - 0.5, plot_colours.paper);
  }
  const auto position = [&](double v) {
    return map.ratio ? std::log2(std::max(v, map.low) / map.low) / std::log2(map.high / map.low)
                     : (v - map.low) / (map.high - map.low);
  };
  int widest_text = 0;
  for (const std::string& text : map.cell_texts) widest_text = std::max(widest_text, display_width(text));
  const bool texts = widest_text > 0 && 7 * widest_text <= plot_width / static_cast<double>(map.columns);
  for (Index r = 0; r < map.rows && texts; ++r)
    for (Index c = 0; c < map.columns; ++c) {
      const double v = map.values[r * map.columns + c];
      if (!std::isfinite(v)) continue;
      s += fmt::format("set label {} at {},{} center front textcolor rgb '{}'\n",
                       in_quotes(map.cell_texts[r * map.columns + c]),
                       number(x_low + column * (static_cast<double>(c) + 0.5)), r,
                       text_colour(palette_colour(map.palette, position(v))));
    }
  // gnuplot draws no image of a single row or column: such a row or column is doubled.
  const Index down = map.rows == 1 ? 2 : 1, across = map.columns == 1 ? 2 : 1;
  s += "$cells << END\n";
  for (Index r = 0; r < map.rows * down; ++r) {
    for (Index c = 0; c < map.columns * across; ++c) {
      const double v = map.values[r / down * map.columns + c / across];
      s += number(std::isfinite(v) ? std::clamp(v, map.low, map.high) * scale : v) + ' ';
    }
    s += '\n';
  }
  s += fmt::format("END\nplot $cells matrix using ({}+($1+0.5)*{}):(-0.5+($2+0.5)*{}):3 with image notitle\n", x_low,
                   column / static_cast<double>(across), 1.0 / static_cast<double>(down));
  const Cells cells{double(left), double(top), plot_width / static_cast<double>(map.columns),
                    plot_height / static_cast<double>(map.rows)};
  return {std::move(s), {}, cell_areas(map, cells), true};
}

namespace {

// Distance between the marks of an axis from `low` to `high`, which has about five marks.
double mark_step(double low, double high) {
  return round_up((high - low) / 5, {1, 2, 2.5, 5, 10});
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
      text += fmt::format("\n{}{}{}", visible(line.name), line.name.empty() ? "" : ": ",
                          value_text(line.y[best], false, chart.percent));
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

const SeriesColour* colour_of(Series series) {
  for (const SeriesColour& c : series_colours)
    if (c.series == series) return &c;
  return nullptr;
}

}  // namespace

Plot plot_of(const LineChart& chart) {
  SY_ASSERT(!chart.lines.empty() && chart.depths.size() == chart.lines.size(), "{} lines, {} depths",
            chart.lines.size(), chart.depths.size());
  const std::size_t count = chart.lines.size();
  const bool legend = count > 1 && count <= legend_lines, bar = count > legend_lines;
  const double scale = chart.percent ? 100 : 1;
  double low_x = INFINITY, high_x = -INFINITY, low = INFINITY, high = -INFINITY;
  for (const Line& line : chart.lines) {
    SY_ASSERT(line.x.size() == line.y.size(), "{} x for {} y", line.x.size(), line.y.size());
    for (std::size_t k = 0; k < line.x.size(); ++k) {
      low_x = std::min(low_x, line.x[k]);
      high_x = std::max(high_x, line.x[k]);
      if (!std::isfinite(line.y[k])) continue;
      low = std::min(low, line.y[k] * scale);
      high = std::max(high, line.y[k] * scale);
    }
  }
  SY_ASSERT(low_x <= high_x, "a chart without points");
  if (low_x == high_x) low_x -= 1, high_x += 1;
  // Round bounds, unless the chart has its own.
  if (chart.y_low) low = *chart.y_low * scale;
  if (chart.y_high) high = *chart.y_high * scale;
  if (low > high) low = chart.y_high ? high - 1 : 0, high = low + 1;
  if (high - low < 1e-9 * std::max({std::abs(low), std::abs(high), 1e-300})) {
    const double some = high == 0 ? 1 : std::abs(high) / 10;
    if (!chart.y_low) low -= some;
    if (!chart.y_high || chart.y_low) high += some;
  }
  const double step = mark_step(low, high);
  if (!chart.y_low) low = std::floor(low / step + 1e-9) * step;
  if (!chart.y_high) high = std::ceil(high / step - 1e-9) * step;
  std::vector<std::string> marks;
  std::string tics;
  for (double i = std::ceil(low / step - 1e-9); i * step <= high + step * 1e-9; ++i) {
    marks.push_back(fmt::format("{:.6g}{}", i == 0 ? 0.0 : i * step, chart.percent ? " %" : ""));
    tics += fmt::format("{}{} {}", tics.empty() ? "" : ", ", mark_in_quotes(marks.back()), number(i * step));
  }

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
  s += fmt::format("unset key\nset ytics ({}) scale 0\nset yrange [{}:{}]\n", tics, number(low), number(high));
  if (bar) {
    s += palette_of(Palette::order, 0.15, 0.85) + "set cbtics scale 0\n";
    s += fmt::format("set colorbox user origin {:.4f},{:.4f} size {:.4f},{:.4f} noborder\n", 1 - (right - 12.0) / width,
                     bottom / height, 12.0 / width, plot_height / height);
    s += label_at(chart.depth_label, fmt::format("screen {:.4f}, graph 0.5", 1 - 12.0 / width), true);
    s += fmt::format("set cbrange [{}:{}]\n", number(chart.depths.front()), number(chart.depths.back()));
  }
  Plot plot;
  std::string plots;
  for (std::size_t i = 0; i < count; ++i) {
    const Line& line = chart.lines[i];
    s += fmt::format("$line{} << END\n", i);
    for (std::size_t k = 0; k < line.x.size(); ++k) s += number(line.x[k]) + ' ' + number(line.y[k] * scale) + '\n';
    s += "END\n";
    const double position = count == 1 ? 0.4 : static_cast<double>(i) / static_cast<double>(count - 1);
    const SeriesColour* own = colour_of(line.series);
    const std::string colour =
        own ? own->light : palette_colour(Palette::order, line_colour_step * std::round(position * (line_colours - 1)));
    const std::string paint = bar ? "palette cb " + number(chart.depths[i]) : fmt::format("rgb '{}'", colour);
    // A line through one point would be invisible, and few points should stand out from their line.
    const char* style = line.x.size() == 1   ? "points pt 7 ps 0.7"
                        : line.x.size() < 40 ? "linespoints pt 7 ps 0.35 lw 1.8"
                                             : "lines lw 1.8";
    plots += fmt::format("{}$line{} using 1:2 with {} lc {} notitle", i ? ", \\\n     " : "", i, style, paint);
    plot.line_tooltips.push_back(line_tooltip(chart, line));
    if (!legend) continue;
    const int at = static_cast<int>(i), n = static_cast<int>(count);
    const double x = chart.legend_below ? left + at % in_a_row * entry_width : width - right + 14;
    const int row = at / in_a_row;
    const double y = chart.legend_below ? entry_height * (rows_below - row) - 10.0
                                        : bottom + plot_height / 2 + entry_height * ((n - 1) / 2.0 - at);
    s += fmt::format("set arrow from screen {0:.4f},{2:.4f} to screen {1:.4f},{2:.4f} nohead lc {3} lw 2.4\n",
                     x / width, (x + dash - 4) / width, y / height, paint);
    s += fmt::format("set label {} at screen {:.4f},{:.4f} left textcolor rgb '{}'\n", in_quotes(names[i]),
                     (x + dash + 2) / width, y / height, plot_colours.ink);
  }
  s += fmt::format("set xrange [{}:{}]\n", number(low_x), number(high_x)) + step_tics(low_x, high_x, plot_width);
  plot.script = s + "plot " + plots + "\n";
  if (bar) return plot;  // so many values would not fit into a tooltip

  std::vector<double> x_values;
  for (const Line& line : chart.lines) x_values.insert(x_values.end(), line.x.begin(), line.x.end());
  std::sort(x_values.begin(), x_values.end());
  x_values.erase(std::unique(x_values.begin(), x_values.end()), x_values.end());
  const double strips = std::min<double>(most_strips, static_cast<double>(x_values.size()));
  const auto x_of_strip = [&](double i) {
    return x_values[static_cast<std::size_t>(i * static_cast<double>(x_values.size()) / strips)];
  };
  const auto pixel = [&](double x) { return left + (x - low_x) / (high_x - low_x) * plot_width; };
  double from = low_x;  // each strip reaches half-way to the next
  for (double i = 0; i < strips; ++i) {
    const double to = i + 1 < strips ? (x_of_strip(i) + x_of_strip(i + 1)) / 2 : high_x;
    plot.areas.push_back(
        {pixel(from), double(top), pixel(to) - pixel(from), plot_height, strip_text(chart, x_of_strip(i), from, to)});
    from = to;
  }
  return plot;
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
