// Draws plots in one run of gnuplot, and adds the tooltips that gnuplot cannot make.
#include <fcntl.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <memory>

#include "src/analyse/plot.h"
#include "src/text/strings.h"

namespace sy {
namespace {

std::string xml_text(std::string text) {
  for (const auto& [from, to] : {std::pair("&", "&amp;"), {"<", "&lt;"}, {">", "&gt;"}}) replace_all(text, from, to);
  return text;
}

// Replaces the titles that gnuplot makes up, which browsers show as tooltips. The title of a line
// is "gnuplot_plot_1"; other titles are removed.
void set_line_tooltips(std::string& picture, const std::vector<std::string>& tooltips) {
  replace_all(picture, "<title>Gnuplot</title>", "");
  constexpr std::string_view made_up = "<title>gnuplot_plot_", end = "</title>";
  std::size_t line = 0;
  for (std::size_t at = 0; (at = picture.find(made_up, at)) != std::string::npos; ++line) {
    const std::size_t stop = picture.find(end, at);
    if (stop == std::string::npos) return;
    const std::string title =
        line < tooltips.size() ? fmt::format("<title>{}</title>", xml_text(tooltips[line])) : std::string();
    picture.replace(at, stop + end.size() - at, title);
    at += title.size();
  }
}

// Adds the rectangles of the tooltips. They are not painted.
void add_areas(std::string& picture, const Plot& plot) {
  if (plot.areas.empty()) return;
  std::string group = "<g class=\"hover\" fill=\"none\" stroke=\"none\" pointer-events=\"all\">";
  for (const HoverArea& a : plot.areas)
    group +=
        fmt::format("<rect x=\"{:.1f}\" y=\"{:.1f}\" width=\"{:.1f}\" height=\"{:.1f}\"><title>{}</title></rect>\n",
                    a.x, a.y, a.width, a.height, xml_text(a.text));
  group += "</g>\n";
  const std::size_t lines = picture.find("<g id=\"gnuplot_plot_1\"");
  picture.insert(plot.areas_on_top || lines == std::string::npos ? picture.rfind("</svg>") : lines, group);
}

using File = std::unique_ptr<std::FILE, int (*)(std::FILE*)>;

// Returns a file without a name. Unlike a pipe it cannot fill up, and nothing has to be removed.
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

std::vector<std::string> draw(const std::vector<Plot>& plots) {
  if (plots.empty()) return {};
  const File in = scratch(), out = scratch(), errors = scratch();
  for (const Plot& p : plots) std::fwrite(p.script.data(), 1, p.script.size(), in.get());
  if (std::fflush(in.get()) != 0) fail("cannot write a temporary file for gnuplot: {}", std::strerror(errno));
  std::rewind(in.get());

  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, fileno(in.get()), 0);
  posix_spawn_file_actions_adddup2(&actions, fileno(out.get()), 1);
  posix_spawn_file_actions_adddup2(&actions, fileno(errors.get()), 2);
  // -d: without the user's own settings. gnuplot would read "-" byte by byte, unbuffered.
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
    const Plot& plot = plots[std::min(pictures.size(), plots.size() - 1)];
    set_line_tooltips(picture, plot.line_tooltips);
    add_areas(picture, plot);
    // Browsers would blur the edges of the cells.
    replace_all(picture, "<image ", "<image style='image-rendering:pixelated' ");
    const std::string prefix = fmt::format("p{}-", pictures.size());
    for (const char* use : {"id='", "id=\"", "href='#", "url(#"}) replace_all(picture, use, use + prefix);
    pictures.push_back(std::move(picture));
  }
  if (status != 0 || pictures.size() != plots.size())
    fail("gnuplot could not draw the pictures: {}", content(errors.get()));
  return pictures;
}

}  // namespace sy
