#include "src/analyse/plot.h"

#include <fcntl.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <memory>

#include "src/text/table.h"
#include "src/text/words.h"

namespace sy {
namespace {

// Even steps of brightness, legible to the colour-blind and in grey: ColorBrewer's GnBu and RdBu, and
// viridis.
const std::vector<std::string> palette_stops[] = {
    {"#f7fcf0", "#e0f3db", "#ccebc5", "#a8ddb5", "#7bccc4", "#4eb3d3", "#2b8cbe", "#0868ac", "#084081"},
    {"#2166ac", "#4393c3", "#92c5de", "#d1e5f0", "#f7f7f7", "#fddbc7", "#f4a582", "#d6604d", "#b2182b"},
    {"#440154", "#482878", "#3e4a89", "#31688e", "#26828e", "#1f9e89", "#35b779", "#6dcd59", "#b4de2c", "#fde725"}};
constexpr std::size_t legend_lines = 8;  // more lines are told apart by the colour bar

const std::vector<std::string>& stops_of(Palette p) {
  return palette_stops[static_cast<int>(p)];
}

// A string of gnuplot's. Between double quotes: between single ones it misreads some doubled quotes.
std::string in_quotes(const std::string& text) {
  std::string out = "\"";
  for (char c : text) {
    if (c == '\\' || c == '"' || c == '`') out += '\\';
    out += static_cast<unsigned char>(c) < ' ' ? ' ' : c;
  }
  return out + '"';
}

// Marks on an axis are formats too.
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

std::string label_of(const std::string& axis, const std::string& text) {
  return text.empty() ? ""
                      : fmt::format("set {}label {} textcolor rgb '{}'\n", axis, in_quotes(text), plot_colours.ink);
}

// Where gnuplot puts the label of an axis depends on what it takes the text of the marks to measure.
std::string label_at(const std::string& text, const std::string& place, bool upright = false) {
  return text.empty() ? ""
                      : fmt::format("set label {} at {} center {}textcolor rgb '{}'\n", in_quotes(text), place,
                                    upright ? "rotate " : "", plot_colours.ink);
}

// The part of a palette between two positions.
std::string palette_of(Palette palette, double from = 0, double to = 1) {
  std::string out = "set palette defined (";
  for (int i = 0; i <= 16; ++i)
    out += fmt::format("{}{} '{}'", i ? ", " : "", i, palette_colour(palette, from + (to - from) * i / 16));
  return out + ")\n";
}

// Marks at the middles of rows or columns; every n-th where all would not fit into `room` pixels.
std::string name_tics(const std::string& axis, const std::vector<std::string>& names, double room, int longest_name) {
  int widest = 1;
  for (const std::string& n : names) widest = std::max(widest, display_width(n));
  const double needed = axis == "y" ? 15 : 7.0 * widest + 10;
  std::size_t every = 1;
  for (std::size_t step : {1, 2, 4, 5, 8, 10, 16, 20, 32, 50, 64, 100, 128, 200, 256, 500, 1000}) {
    every = step;
    if (needed * static_cast<double>(names.size()) <= room * static_cast<double>(step)) break;
  }
  std::string out = fmt::format("set {}tics (", axis);
  for (std::size_t i = 0; i < names.size(); i += every)
    out += fmt::format("{}{} {}", i ? ", " : "", mark_in_quotes(fit_width(names[i], longest_name)), i);
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

// Round numbers, with room between their marks.
std::string step_tics(double low, double high, double room) {
  return fmt::format("set xtics {}\n", number(std::max(1.0, round_up((high - low) * 70 / room, {1, 2, 5, 10}))));
}

// White on dark cells, ink on bright ones.
const char* text_colour(const std::string& background) {
  const int rgb = std::stoi(background.substr(1), nullptr, 16);
  const double brightness = 0.299 * (rgb >> 16) + 0.587 * (rgb >> 8 & 255) + 0.114 * (rgb & 255);
  return brightness < 140 ? "#ffffff" : "#1e293b";
}

// A comment that gives the name of a line, by its number from 1 on, to name_lines.
constexpr std::string_view name_of_line = "# line ";

// Replaces the titles that gnuplot makes up, which browsers show as tooltips. A line without an entry
// in the legend is "gnuplot_plot_1" and gets its name; other titles are removed.
void name_lines(std::string& picture, const std::string& script) {
  replace_all(picture, "<title>Gnuplot</title>", "");
  constexpr std::string_view made_up = "<title>gnuplot_plot_", end = "</title>";
  for (std::size_t at = 0; (at = picture.find(made_up, at)) != std::string::npos;) {
    const std::size_t digits = at + made_up.size(), stop = picture.find(end, digits);
    if (stop == std::string::npos) return;
    std::string name;
    const std::string comment = "\n" + std::string(name_of_line) + picture.substr(digits, stop - digits) + " ";
    if (const std::size_t line = script.find(comment); line != std::string::npos) {
      name = script.substr(line + comment.size(), script.find('\n', line + 1) - line - comment.size());
      for (const auto& [from, to] : {std::pair("&", "&amp;"), {"<", "&lt;"}, {">", "&gt;"}})
        replace_all(name, from, to);
    }
    picture.replace(at, stop + end.size() - at, name.empty() ? "" : fmt::format("<title>{}</title>", name));
    at += name.size();
  }
}

using File = std::unique_ptr<std::FILE, int (*)(std::FILE*)>;

// A file without a name: no pipe that could fill up, nothing to remove.
File scratch() {
  File file(std::tmpfile(), std::fclose);
  if (!file) fail("cannot make a temporary file for gnuplot: {}", std::strerror(errno));
  return file;
}

std::string content(std::FILE* file) {
  std::string text;
  std::rewind(file);
  char buffer[1 << 16];
  while (const std::size_t n = std::fread(buffer, 1, sizeof buffer, file)) text.append(buffer, n);
  return text;
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

std::string script_of(const Heatmap& map) {
  SY_ASSERT(map.rows > 0 && map.columns > 0 && map.low < map.high &&
                static_cast<Index>(map.values.size()) == map.rows * map.columns,
            "heatmap of {} by {}, {} values, from {} to {}", map.rows, map.columns, map.values.size(), map.low,
            map.high);
  const int plot_height =
      map.plot_height > 0 ? map.plot_height : static_cast<int>(std::clamp<Index>(map.rows * 30, 110, 560));
  int name_width = 1;
  for (const std::string& n : map.row_names) name_width = std::max(name_width, display_width(n));
  const int left = (map.y_label.empty() ? 14 : 36) + 7 * std::min(name_width, map.longest_name);
  const int right = !map.colour_bar ? 20 : map.colour_label.empty() ? 86 : 110, top = 8;
  const int bottom = map.x_label.empty() ? 26 : 52, height = top + plot_height + bottom;
  const double plot_width = map.width - left - right;
  const double scale = map.percent ? 100 : 1;

  std::string s = prelude(map.width, height);
  s += fmt::format("set lmargin at screen {:.4f}\nset rmargin at screen {:.4f}\n", double(left) / map.width,
                   1 - double(right) / map.width);
  s += fmt::format("set tmargin at screen {:.4f}\nset bmargin at screen {:.4f}\n", 1 - double(top) / height,
                   double(bottom) / height);
  // Columns are centred on 0, 1, ... unless they have a range of their own.
  const auto [x_low, x_high] = map.x_range.value_or(std::pair(-0.5, static_cast<double>(map.columns) - 0.5));
  const double column = (x_high - x_low) / static_cast<double>(map.columns);
  s += fmt::format("set xrange [{}:{}]\nset yrange [{}:-0.5]\n", number(x_low), number(x_high), map.rows - 0.5);
  s += map.x_range ? step_tics(x_low, x_high, plot_width)
                   : name_tics("x", map.column_names, plot_width, map.longest_name);
  s += name_tics("y", map.row_names, plot_height, map.longest_name);
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

  // Thin seams where cells are large enough to have them.
  if (plot_width >= 12 * map.columns && plot_height >= 10 * map.rows) {
    for (Index c = 1; c < map.columns; ++c)
      s += fmt::format("set arrow from {0},graph 0 to {0},graph 1 nohead front lc rgb '{1}' lw 1.5\n",
                       number(x_low + column * static_cast<double>(c)), plot_colours.paper);
    for (Index r = 1; r < map.rows; ++r)
      s += fmt::format("set arrow from graph 0,first {0} to graph 1,first {0} nohead front lc rgb '{1}' lw 1.5\n",
                       r - 0.5, plot_colours.paper);
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
                       in_quotes(map.cell_texts[r * map.columns + c]), number(x_low + column * (c + 0.5)), r,
                       text_colour(palette_colour(map.palette, position(v))));
    }
  // gnuplot draws no image of a single row or column: that one is given as two halves.
  const Index down = map.rows == 1 ? 2 : 1, across = map.columns == 1 ? 2 : 1;
  s += "$cells << END\n";
  for (Index r = 0; r < map.rows * down; ++r) {
    for (Index c = 0; c < map.columns * across; ++c) {
      const double v = map.values[r / down * map.columns + c / across];
      s += number(std::isfinite(v) ? std::clamp(v, map.low, map.high) * scale : v) + ' ';
    }
    s += '\n';
  }
  return s + fmt::format("END\nplot $cells matrix using ({}+($1+0.5)*{}):(-0.5+($2+0.5)*{}):3 with image notitle\n",
                         x_low, column / across, 1.0 / down);
}

std::string script_of(const LineChart& chart) {
  SY_ASSERT(!chart.lines.empty() && chart.depths.size() == chart.lines.size(), "{} lines, {} depths",
            chart.lines.size(), chart.depths.size());
  const std::size_t count = chart.lines.size();
  const bool legend = count > 1 && count <= legend_lines, bar = count > legend_lines;
  const double scale = chart.percent ? 100 : 1;
  std::string s = prelude(chart.width, chart.height);
  s += fmt::format("set border 1 lw 0.8\nset grid ytics lt 1 lc rgb '{}' lw 1\nset grid noxtics\nset tics nomirror\n",
                   plot_colours.grid);
  s += label_of("x", chart.x_label) + label_of("y", chart.y_label);
  s += "set ytics scale 0\n";
  s += legend ? "set key outside right center Left reverse samplen 1.5 spacing 1.2\n" : "unset key\n";
  s += legend || bar ? "" : "set rmargin 3\n";
  if (chart.percent) s += "set format y '%g %%'\n";
  const auto bound = [&](std::optional<double> x) { return x ? number(*x * scale) : std::string("*"); };
  s += fmt::format("set yrange [{}:{}]\n", bound(chart.y_low), bound(chart.y_high));
  if (bar) {
    s += palette_of(Palette::order, 0.15, 0.85) + "set colorbox noborder\nset cbtics scale 0\n" +
         label_of("cb", chart.depth_label);
    s += fmt::format("set cbrange [{}:{}]\n", number(chart.depths.front()), number(chart.depths.back()));
  }
  std::string plots, only_x;
  double low_x = INFINITY, high_x = -INFINITY;
  for (std::size_t i = 0; i < count; ++i) {
    const Line& line = chart.lines[i];
    SY_ASSERT(line.x.size() == line.y.size(), "{} x for {} y", line.x.size(), line.y.size());
    s += fmt::format("$line{} << END\n", i);
    for (std::size_t k = 0; k < line.x.size(); ++k) {
      s += number(line.x[k]) + ' ' + number(line.y[k] * scale) + '\n';
      low_x = std::min(low_x, line.x[k]);
      high_x = std::max(high_x, line.x[k]);
    }
    s += "END\n";
    const double place = count == 1 ? 0.4 : static_cast<double>(i) / static_cast<double>(count - 1);
    const std::string colour =
        palette_colour(Palette::order, line_colour_step * std::round(place * (line_colours - 1)));
    const std::string paint = bar ? "palette cb " + number(chart.depths[i]) : fmt::format("rgb '{}'", colour);
    // A line through one point would not be seen.
    const std::string style = line.x.size() == 1 ? "points pt 7 ps 0.7" : "lines lw 1.8";
    plots += fmt::format("{}$line{} using 1:2 with {} lc {} {}", i ? ", \\\n     " : "", i, style, paint,
                         legend ? "title " + in_quotes(line.name) : "notitle");
    s += fmt::format("{}{} {}\n", name_of_line, i + 1, visible(line.name));
  }
  SY_ASSERT(low_x <= high_x, "a chart without points");
  if (low_x == high_x) low_x -= 1, high_x += 1;
  s += fmt::format("set xrange [{}:{}]\n", number(low_x), number(high_x));
  s += step_tics(low_x, high_x, chart.width - (legend || bar ? 170 : 80));
  return s + "plot " + plots + "\n";
}

std::vector<std::string> draw(const std::vector<std::string>& scripts) {
  if (scripts.empty()) return {};
  const File in = scratch(), out = scratch(), errors = scratch();
  for (const std::string& s : scripts) std::fwrite(s.data(), 1, s.size(), in.get());
  if (std::fflush(in.get()) != 0) fail("cannot write a temporary file for gnuplot: {}", std::strerror(errno));
  std::rewind(in.get());

  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, fileno(in.get()), 0);
  posix_spawn_file_actions_adddup2(&actions, fileno(out.get()), 1);
  posix_spawn_file_actions_adddup2(&actions, fileno(errors.get()), 2);
  // -d: without the person's own settings. "-" would be read byte by byte, unbuffered.
  char name[] = "gnuplot", plain[] = "-d", standard_input[] = "/dev/stdin";
  char* argv[] = {name, plain, standard_input, nullptr};
  pid_t child = 0;
  const int spawned = posix_spawnp(&child, name, &actions, nullptr, argv, environ);
  posix_spawn_file_actions_destroy(&actions);
  if (spawned == ENOENT) fail("gnuplot, which draws the pictures, is not installed: apt-get install gnuplot-nox");
  if (spawned != 0) fail("cannot start gnuplot: {}", std::strerror(spawned));
  int status = 0;
  while (waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  const std::string svg = content(out.get());
  std::vector<std::string> pictures;
  for (std::size_t at = 0; (at = svg.find("<svg", at)) != std::string::npos;) {
    const std::size_t end = svg.find("</svg>", at);
    if (end == std::string::npos) break;
    std::string picture = svg.substr(at, end + 6 - at);
    at = end;
    name_lines(picture, scripts[std::min(pictures.size(), scripts.size() - 1)]);
    // Cells have edges, which browsers would smooth.
    replace_all(picture, "<image ", "<image style='image-rendering:pixelated' ");
    const std::string prefix = fmt::format("p{}-", pictures.size());
    for (const char* use : {"id='", "id=\"", "href='#", "url(#"}) replace_all(picture, use, use + prefix);
    pictures.push_back(std::move(picture));
  }
  if (status != 0 || pictures.size() != scripts.size())
    fail("gnuplot could not draw the pictures: {}", content(errors.get()));
  return pictures;
}

}  // namespace sy
