#include <algorithm>
#include <cmath>

#include "src/analyse/gnuplot.h"
#include "src/text/table.h"

namespace sy {
namespace {

constexpr Index most_areas = 512;  // approximate limit for one picture

bool is_number(const std::string& text) {
  return !text.empty() && text[0] >= '0' && text[0] <= '9';
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

// White text on dark cells, ink on bright ones.
const char* text_colour(const std::string& background) {
  const int rgb = std::stoi(background.substr(1), nullptr, 16);
  const double brightness = 0.299 * (rgb >> 16) + 0.587 * (rgb >> 8 & 255) + 0.114 * (rgb & 255);
  return brightness < 140 ? "#ffffff" : "#1e293b";
}

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
  s += fmt::format("set xrange [{}:{}]\nset yrange [{}:-0.5]\n", gnuplot_number(x_low), gnuplot_number(x_high),
                   static_cast<double>(map.rows) - 0.5);
  s += map.x_range ? step_tics(x_low, x_high, plot_width)
                   : name_tics("x", map.column_names, plot_width, upright ? 15 : 7.0 * widest_of(map.column_names) + 10,
                               map.longest_name);
  if (upright) s += "set xtics rotate by 90 right\n";
  s += name_tics("y", map.row_names, plot_height, 15 * static_cast<double>(name_lines), map.longest_name,
                 map.wrap_names);
  s += label_at(map.x_label, fmt::format("graph 0.5, screen {:.4f}", 12.0 / height));
  s += label_at(map.y_label, fmt::format("screen {:.4f}, graph 0.5", 12.0 / map.width), true) + palette_of(map.palette);
  s += fmt::format("set cbrange [{}:{}]\n", gnuplot_number(map.low * scale), gnuplot_number(map.high * scale));
  if (map.ratio)
    s += "set logscale cb 2\n" + ratio_tics(map.low, map.high);
  else
    s += fmt::format("set cbtics {}\n", gnuplot_number((map.high - map.low) * scale / 4));
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
                       gnuplot_number(x_low + column * static_cast<double>(c)), plot_colours.paper);
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
                       gnuplot_number(x_low + column * (static_cast<double>(c) + 0.5)), r,
                       text_colour(palette_colour(map.palette, position(v))));
    }
  // gnuplot draws no image of a single row or column: such a row or column is doubled.
  const Index down = map.rows == 1 ? 2 : 1, across = map.columns == 1 ? 2 : 1;
  s += "$cells << END\n";
  for (Index r = 0; r < map.rows * down; ++r) {
    for (Index c = 0; c < map.columns * across; ++c) {
      const double v = map.values[r / down * map.columns + c / across];
      s += gnuplot_number(std::isfinite(v) ? std::clamp(v, map.low, map.high) * scale : v) + ' ';
    }
    s += '\n';
  }
  s += fmt::format("END\nplot $cells matrix using ({}+($1+0.5)*{}):(-0.5+($2+0.5)*{}):3 with image notitle\n", x_low,
                   column / static_cast<double>(across), 1.0 / static_cast<double>(down));
  const Cells cells{double(left), double(top), plot_width / static_cast<double>(map.columns),
                    plot_height / static_cast<double>(map.rows)};
  return {std::move(s), {}, cell_areas(map, cells), true};
}

}  // namespace sy
