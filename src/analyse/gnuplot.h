// Fragments of gnuplot programs, which the kinds of plots share.
#pragma once

#include <string>
#include <vector>

#include "src/analyse/plot.h"

namespace sy {

// Returns a gnuplot string in double quotes. In single quotes gnuplot misreads some doubled quotes.
std::string in_quotes(const std::string& text);
// Returns the mark of an axis in double quotes. gnuplot treats it as a format.
std::string mark_in_quotes(const std::string& text);
// Formats a number for gnuplot.
std::string gnuplot_number(double x);
// Begins the script of a picture of this size, in pixels.
std::string prelude(int width, int height);
// Returns the line that places the label of an axis. gnuplot's own position depends on its estimate
// of the marks' text width.
std::string label_at(const std::string& text, const std::string& position, bool upright = false);
// Returns the line that sets the colours to the range of a palette between two positions.
std::string palette_of(Palette palette, double from = 0, double to = 1);
// Returns the columns of the widest name, at least 1.
int widest_of(const std::vector<std::string>& names);
// Returns the line that marks the x axis at round numbers, with enough space between the marks.
std::string step_tics(double low, double high, double available);
// Returns the text of a value in a tooltip.
std::string value_text(double value, bool ratio, bool percent);

}  // namespace sy
