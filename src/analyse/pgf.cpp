// Charts as pgfplots documents.
#include <algorithm>
#include <cctype>
#include <cmath>
#include <string_view>
#include <utility>

#include "src/analyse/plot.h"

namespace sy {
namespace {

// Replaces the characters that TeX reads as commands.
std::string tex_text(const std::string& text) {
  constexpr std::pair<char, const char*> commands[] = {
      {'\\', "\\textbackslash{}"}, {'~', "\\textasciitilde{}"}, {'^', "\\textasciicircum{}"}};
  std::string out;
  for (const char c : text) {
    const auto command = std::ranges::find(commands, c, &std::pair<char, const char*>::first);
    if (std::string_view("%_#&${}").find(c) != std::string_view::npos) out += '\\';
    out += command != std::end(commands)         ? command->second
           : static_cast<unsigned char>(c) < ' ' ? " "
                                                 : std::string(1, c);
  }
  return out;
}

std::string number(double x) {
  return std::isfinite(x) ? fmt::format("{:.8g}", x) : "nan";
}

// Name of a colour. In xcolor a minus has a meaning of its own.
std::string colour_name(const SeriesColour& colour) {
  std::string out = colour.name;
  std::erase(out, '-');
  return out;
}

// "#2563eb" as "2563EB", for \definecolor.
std::string html_colour(const char* colour) {
  std::string out(colour + 1);
  for (char& c : out) c = static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  return out;
}

}  // namespace

std::string pgf_of(const LineChart& chart, const std::vector<std::string>& comments) {
  std::string out;
  for (std::string comment : comments) {
    for (char& c : comment)
      if (static_cast<unsigned char>(c) < ' ') c = ' ';
    out += "% " + comment + "\n";
  }
  out +=
      "\\documentclass[border=2pt]{standalone}\n\\usepackage{pgfplots}\n\\pgfplotsset{compat=1.14}\n"
      "\\begin{document}\n";
  for (const SeriesColour& c : series_colours)
    out += fmt::format("\\definecolor{{{}}}{{HTML}}{{{}}}\n", colour_name(c), html_colour(c.light));
  out += "\\begin{tikzpicture}\n\\begin{axis}[\n  width=0.8\\textwidth, height=0.5\\textwidth,\n";
  out += fmt::format("  xlabel={{{}}}, ylabel={{{}{}}},\n", tex_text(chart.x_label), tex_text(chart.y_label),
                     chart.percent ? " (\\%)" : "");
  const double scale = chart.percent ? 100 : 1;
  if (chart.log_x) {
    std::string marks;
    for (const double x : x_of(chart)) marks += (marks.empty() ? "" : ",") + number(x);
    out += fmt::format("  xmode=log, log basis x=2, xtick={{{0}}}, xticklabels={{{0}}},\n", marks);
  }
  if (chart.log_y)
    out += "  ymode=log,\n";
  else if (chart.y_low)
    out += fmt::format("  ymin={},\n", number(*chart.y_low * scale));
  out += "  legend pos=outer north east, legend cell align=left, grid=major, unbounded coords=jump]\n";
  for (const Line& line : chart.lines) {
    const SeriesColour* const own = colour_of(line.series);
    const bool bars = !line.low.empty();
    std::string options = own ? "color=" + colour_name(*own) + ", " : "";
    options += line.series == Series::ideal ? "dashed, no marks" : "mark=*";
    if (bars) options += ", error bars/.cd, y dir=both, y explicit";
    out += fmt::format("\\addplot+[{}] table[x=x, y=y{}] {{\n  x y{}\n", options,
                       bars ? ", y error minus=minus, y error plus=plus" : "", bars ? " minus plus" : "");
    for (std::size_t k = 0; k < line.x.size(); ++k) {
      out += fmt::format("  {} {}", number(line.x[k]), number(line.y[k] * scale));
      if (bars) {
        const bool bar = std::isfinite(line.low[k]) && std::isfinite(line.high[k]) && std::isfinite(line.y[k]);
        out += fmt::format(" {} {}", number(bar ? (line.y[k] - line.low[k]) * scale : 0),
                           number(bar ? (line.high[k] - line.y[k]) * scale : 0));
      }
      out += "\n";
    }
    out += fmt::format("}};\n\\addlegendentry{{{}}}\n", tex_text(line.name));
  }
  return out + "\\end{axis}\n\\end{tikzpicture}\n\\end{document}\n";
}

}  // namespace sy
