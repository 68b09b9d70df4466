// Pictures drawn by gnuplot, as SVG to be put into a page.
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
  balance,       // blue below the middle, white in it, red above: idle and overloaded
  change,        // brown below the middle, white in it, green above
  order,         // viridis: lines from first to last
  order_on_dark  // the same on a dark page
};

// What a picture has besides its data: text and axes, the paper and the seams between cells, the lines of a grid.
struct PlotColours {
  const char *ink = "#334155", *paper = "#fefefe", *grid = "#e2e8f0";
};
constexpr PlotColours plot_colours;
// Lines with a meaning of their own have one colour on all charts of a page.
enum class Series { by_order, training, validation, own_routing, balanced_routing, ideal };
struct SeriesColour {
  Series series;
  const char *name, *light, *dark;  // name: of the page's variable
};
constexpr SeriesColour series_colours[] = {
    {Series::training, "training", "#64748b", "#94a3b8"},
    {Series::validation, "validation", "#d97706", "#fbbf24"},
    {Series::own_routing, "own-routing", "#2563eb", "#60a5fa"},
    {Series::balanced_routing, "balanced-routing", "#059669", "#34d399"},
    {Series::ideal, "ideal", "#9ca3af", "#9da4b0"},
};
// Widths of pictures in pixels: alone in a row, two or three in a row, and on a small screen.
constexpr int full_width = 960, half_width = 420, third_width = 310, narrow_width = 360;
// Where colours of lines are taken from Palette::order: these many, from its dark end on; its bright one is hard to see on white.
constexpr int line_colours = 15;
constexpr double line_colour_step = 1.0 / 16;

// Longer names of rows are cut, unless the picture says otherwise.
constexpr int row_name_columns = 24;

// Cells in rows (the first on top) and columns, coloured by value.
struct Heatmap {
  Index rows = 0, columns = 0;
  std::vector<double> values;                        // [rows, columns]; NaN is left blank
  std::vector<std::string> row_names, column_names;  // thinned out where there is no room
  std::optional<std::pair<double, double>> x_range;  // instead of column names: columns are equal parts of it
  int longest_name = row_name_columns;               // columns of a name; longer ones are cut
  int wrap_names = 0;                                // names of rows have lines of so many columns; 0: one line
  std::string x_label, y_label, colour_label;
  Palette palette = Palette::amount;
  double low = 0, high = 1;  // the values of the first and last colour; values beyond take those colours
  bool ratio = false;        // low and high are powers of two; the scale is logarithmic, its marks read 1/2x, 1x, 2x
  bool percent = false;      // values are fractions; the colour bar's marks are percentages
  std::vector<std::string> cell_texts;  // [rows, columns], or empty: no text; none either where one does not fit
  bool colour_bar = true;
  int width = full_width, plot_height = 0;  // in pixels at full size; 0: from the number of rows
};

struct Line {
  std::string name;
  std::vector<double> x, y;  // NaN breaks the line
  Series series = Series::by_order;
};

struct LineChart {
  std::vector<Line> lines;  // without a series: coloured along the palette from first to last
  std::string x_label, y_label;
  std::optional<double> y_low, y_high;
  bool percent = false;        // y is a fraction, its marks are percentages
  std::vector<double> depths;  // one per line: with many lines a colour bar of these replaces the legend
  std::string depth_label;
  bool legend_below = false;  // otherwise it is to the right
  int width = full_width, height = 300;
};

// A rectangle of a picture, in pixels, and its tooltip.
struct HoverArea {
  double x, y, width, height;
  std::string text;
};
// A picture that is not drawn yet.
struct Plot {
  std::string script;  // the gnuplot program that draws it on its own
  std::vector<std::string> line_tooltips;
  std::vector<HoverArea> areas;
  bool areas_on_top = false;  // false: they lie under the lines, which have tooltips of their own
};
// Tooltips name what a cell, a line or a place along the x axis is of, and its value.
Plot plot_of(const Heatmap& map);
Plot plot_of(const LineChart& chart);
// The same picture for a small screen: narrow_width wide.
Heatmap narrow(Heatmap map);
LineChart narrow(LineChart chart);

// Runs gnuplot once over all plots; one <svg> element each, with ids that differ from picture to
// picture. Tooltips are <title> elements.
// Throws Failure when gnuplot is missing (saying which package has it) or reports an error.
std::vector<std::string> draw(const std::vector<Plot>& plots);

// "1/4×", "1/2×", "1×", "2×", "4×": the powers of two from low to high.
std::vector<std::string> ratio_marks(double low, double high);

// The least of `digits` times a power of ten that is not below x > 0. The quarters of the usual ones are
// round too.
double round_up(double x, std::initializer_list<double> digits = {1, 2, 4, 6, 8, 10});

// "#rrggbb" at a position in [0, 1] of a palette.
std::string palette_colour(Palette palette, double position);

}  // namespace sy
