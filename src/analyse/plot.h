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
  amount,   // light to dark
  balance,  // blue below the middle, white in it, red above
  order     // viridis: lines from first to last
};

// What a picture has besides its data: text and axes, the paper and the seams between cells, the lines of a grid.
struct PlotColours {
  const char *ink = "#334155", *paper = "#fefefe", *grid = "#e2e8f0";
};
constexpr PlotColours plot_colours;
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
  std::string x_label, y_label, colour_label;
  Palette palette = Palette::amount;
  double low = 0, high = 1;  // the values of the first and last colour; values beyond take those colours
  bool ratio = false;        // low and high are powers of two; the scale is logarithmic, its marks read 1/2x, 1x, 2x
  bool percent = false;      // values are fractions; the colour bar's marks are percentages
  std::vector<std::string> cell_texts;  // [rows, columns], or empty: no text; none either where one does not fit
  bool colour_bar = true;
  int width = 960, plot_height = 0;  // in pixels at full size; 0: from the number of rows
};

struct Line {
  std::string name;
  std::vector<double> x, y;  // NaN breaks the line
};

struct LineChart {
  std::vector<Line> lines;  // coloured along the palette from first to last
  std::string x_label, y_label;
  std::optional<double> y_low, y_high;
  bool percent = false;        // y is a fraction, its marks are percentages
  std::vector<double> depths;  // one per line: with many lines a colour bar of these replaces the legend
  std::string depth_label;
  int width = 960, height = 300;
};

// The gnuplot program that draws a picture on its own.
std::string script_of(const Heatmap& map);
std::string script_of(const LineChart& chart);

// Runs gnuplot once over all scripts; one <svg> element each, with ids that differ from picture to
// picture. The <title> of a line, which browsers show as a tooltip, is its name.
// Throws Failure when gnuplot is missing (saying which package has it) or reports an error.
std::vector<std::string> draw(const std::vector<std::string>& scripts);

// "1/4×", "1/2×", "1×", "2×", "4×": the powers of two from low to high.
std::vector<std::string> ratio_marks(double low, double high);

// The least of `digits` times a power of ten that is not below x > 0. The quarters of the usual ones are
// round too.
double round_up(double x, std::initializer_list<double> digits = {1, 2, 4, 6, 8, 10});

// "#rrggbb" at a position in [0, 1] of a palette.
std::string palette_colour(Palette palette, double position);

}  // namespace sy
