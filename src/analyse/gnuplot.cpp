#include "src/analyse/gnuplot.h"

#include <algorithm>
#include <cmath>

#include "src/text/table.h"

namespace sy {

std::string in_quotes(const std::string& text) {
  std::string out = "\"";
  for (char c : text) {
    if (c == '\\' || c == '"' || c == '`') out += '\\';
    out += static_cast<unsigned char>(c) < ' ' ? ' ' : c;
  }
  return out + '"';
}

std::string mark_in_quotes(const std::string& text) {
  std::string format;
  for (char c : text) format += c == '%' ? "%%" : std::string(1, c);
  return in_quotes(format);
}

std::string gnuplot_number(double x) {
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

std::string label_at(const std::string& text, const std::string& position, bool upright) {
  return text.empty() ? ""
                      : fmt::format("set label {} at {} center {}textcolor rgb '{}'\n", in_quotes(text), position,
                                    upright ? "rotate " : "", plot_colours.ink);
}

std::string palette_of(Palette palette, double from, double to) {
  std::string out = "set palette defined (";
  for (int i = 0; i <= 16; ++i)
    out += fmt::format("{}{} '{}'", i ? ", " : "", i, palette_colour(palette, from + (to - from) * i / 16));
  return out + ")\n";
}

int widest_of(const std::vector<std::string>& names) {
  int widest = 1;
  for (const std::string& n : names) widest = std::max(widest, display_width(n));
  return widest;
}

std::string step_tics(double low, double high, double available) {
  return fmt::format("set xtics {}\n",
                     gnuplot_number(std::max(1.0, round_up((high - low) * 70 / available, {1, 2, 5, 10}))));
}

std::string value_text(double value, bool ratio, bool percent) {
  return fmt::format("{:.4g}{}", value * (percent ? 100 : 1), ratio ? "×" : percent ? " %" : "");
}

}  // namespace sy
