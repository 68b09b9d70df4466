// Pictures drawn by gnuplot, as SVG for a page.
#pragma once

#include <initializer_list>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "kernels/tensor.h"

namespace sy {

enum class Palette {
  amount,        // light to dark
  balance,       // diverging: blue below the middle (idle), white in it, red above (overloaded)
  change,        // diverging: brown below the middle, white in it, green above
  order,         // viridis: lines from first to last
  order_on_dark  // the same on a dark page
};

// Colours other than the data's: text and axes, background and seams between cells, grid lines.
struct PlotColours {
  const char *ink = "#334155", *paper = "#fefefe", *grid = "#e2e8f0";
};
constexpr PlotColours plot_colours;
// Lines with a meaning of their own. Each has one colour on all charts of a page.
enum class Series { by_order, training, validation, own_routing, balanced_routing, ideal };
struct SeriesColour {
  Series series;
  const char *name, *light, *dark;  // name: of the page's CSS variable
};
constexpr SeriesColour series_colours[] = {
    {Series::training, "training", "#64748b", "#94a3b8"},
    {Series::validation, "validation", "#d97706", "#fbbf24"},
    {Series::own_routing, "own-routing", "#2563eb", "#60a5fa"},
    {Series::balanced_routing, "balanced-routing", "#059669", "#34d399"},
    {Series::ideal, "ideal", "#9ca3af", "#9da4b0"},
};
// Returns nullptr for Series::by_order.
constexpr const SeriesColour* colour_of(Series series) {
  for (const SeriesColour& c : series_colours)
    if (c.series == series) return &c;
  return nullptr;
}
// Widths of pictures in pixels: alone in a row, two or three in a row, and on a small screen.
constexpr int full_width = 960, half_width = 420, third_width = 310, narrow_width = 360;
// Number of line colours of Palette::order, and the step between them. They begin at its dark end;
// its bright end is hard to see on white.
constexpr int line_colours = 15;
constexpr double line_colour_step = 1.0 / 16;

// Default limit of row names. Longer ones are cut.
constexpr int row_name_columns = 24;

// Cells coloured by value, in rows (the first is on top) and columns.
struct Heatmap {
  Index rows = 0, columns = 0;
  std::vector<double> values;                        // [rows, columns]; NaN is blank
  std::vector<std::string> row_names, column_names;  // thinned out if they do not fit
  // Range of x. It replaces the column names: the columns divide it equally.
  std::optional<std::pair<double, double>> x_range;
  int longest_name = row_name_columns;  // characters of a row name; longer ones are cut
  int wrap_names = 0;                   // characters per line of a row name; 0 means one line
  std::string x_label, y_label, colour_label;
  Palette palette = Palette::amount;
  // Values of the first and the last colour; values beyond take those colours.
  double low = 0, high = 1;
  // If true, low and high are powers of two and the scale is logarithmic: its marks read 1/2x, 1x,
  // 2x.
  bool ratio = false;
  bool percent = false;  // values are fractions; the colour bar shows percentages
  // [rows, columns], or empty for no text. A text that does not fit is left out.
  std::vector<std::string> cell_texts;
  bool colour_bar = true;
  int width = full_width, plot_height = 0;  // pixels; plot_height 0 means from the number of rows
};

struct Line {
  std::string name;
  std::vector<double> x, y;  // NaN breaks the line
  Series series = Series::by_order;
  // Ends of the error bar of each y. Both are empty if there are none; NaN means no bar.
  std::vector<double> low{}, high{};
};

struct LineChart {
  // Lines without a series are coloured along the palette, from first to last.
  std::vector<Line> lines;
  std::string x_label, y_label;
  std::optional<double> y_low, y_high;
  // Logarithmic axes. Values must be above 0. The x axis then has marks at the x of the lines. The
  // y axis uses neither y_low, y_high nor `percent`.
  bool log_x = false, log_y = false;
  bool percent = false;  // y is a fraction, shown as percentages
  // One per line. With many lines a colour bar of the depths replaces the legend.
  std::vector<double> depths;
  std::string depth_label;
  bool legend_below = false;  // otherwise the legend is to the right
  int width = full_width, height = 300;
};

// A rectangle of a picture, in pixels, with its tooltip.
struct HoverArea {
  double x, y, width, height;
  std::string text;
};
// A picture that is not drawn yet.
struct Plot {
  std::string script;  // gnuplot program that draws this picture alone
  std::vector<std::string> line_tooltips;
  std::vector<HoverArea> areas;
  // If false, the areas lie under the lines, which have tooltips of their own.
  bool areas_on_top = false;
};
// Makes a plot with tooltips. A tooltip names a cell, a line or a position on the x axis, and its
// value.
Plot plot_of(const Heatmap& map);
Plot plot_of(const LineChart& chart);
// The same picture for a small screen, narrow_width pixels wide.
Heatmap narrow(Heatmap map);
LineChart narrow(LineChart chart);
// Returns all x of the lines once, in rising order.
std::vector<double> x_of(const LineChart& chart);
// Returns a LaTeX document that draws the same chart with pgfplots, for papers. Each entry of
// `comments` becomes a comment line at its begin.
std::string pgf_of(const LineChart& chart, const std::vector<std::string>& comments);

// Draws all plots in one run of gnuplot. Returns one <svg> element per plot; ids differ between
// pictures, and tooltips are <title> elements.
// Throws Failure if gnuplot is missing (and names its package) or reports an error.
std::vector<std::string> draw(const std::vector<Plot>& plots);

// Returns the powers of two from low to high as text: "1/4×", "1/2×", "1×", "2×", "4×".
std::vector<std::string> ratio_marks(double low, double high);

// Returns the smallest digit of `digits` times a power of ten that is at least x > 0. The quarters
// of results with the default digits are round too.
double round_up(double x, std::initializer_list<double> digits = {1, 2, 4, 6, 8, 10});

// Returns "#rrggbb" of a palette at a position in [0, 1].
std::string palette_colour(Palette palette, double position);

}  // namespace sy
