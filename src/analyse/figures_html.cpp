// Figures on a page: pictures and tables, with their definitions.
#include <algorithm>
#include <cmath>

#include "src/analyse/figures.h"
#include "src/analyse/plot.h"
#include "src/text/numbers.h"
#include "src/text/table.h"

namespace sy {
namespace {

constexpr Index most_pictures = 12, most_cell_texts = 128, most_columns_with_text = 16;
constexpr std::size_t most_listed = 256;

// At most so many indices of n, evenly spread, the first and the last among them.
std::vector<Index> some_of(Index n, Index most) {
  std::vector<Index> out;
  const Index count = std::min(n, most);
  for (Index i = 0; i < count; ++i) out.push_back(count == 1 ? 0 : i * (n - 1) / (count - 1));
  return out;
}

struct Scale {
  double low = 0, high = 1;
};

// One scale for all pictures of a figure.
Scale scale_of(const Figure& f) {
  double most = 0;
  for (double v : f.values) {
    if (!std::isfinite(v)) continue;
    most = std::max(most, f.look == Look::relative ? std::abs(std::log2(std::max(v / f.even, 1.0 / 8))) : std::abs(v));
  }
  if (f.look == Look::relative) {
    const double high = std::exp2(std::clamp(std::ceil(most - 1e-9), 1.0, 3.0));
    return {1 / high, high};
  }
  const double high = round_up(std::max(most, 1e-6));
  return {f.look == Look::change ? -high : 0, high};
}

Heatmap heatmap_of(const Figure& f, const Scale& scale, std::size_t first_dim, Index offset, int width) {
  const Dimension &down = f.dimensions[first_dim], &across = f.dimensions[first_dim + 1];
  Heatmap map;
  map.rows = down.size();
  map.columns = across.size();
  map.row_names = down.labels;
  map.column_names = across.labels;
  map.y_label = down.name;
  map.x_label = across.name;
  map.width = width;
  const bool percent = f.unit == "share";
  map.percent = percent && f.look != Look::relative;
  map.ratio = f.look == Look::relative;
  map.palette = f.look == Look::amount ? Palette::amount : Palette::balance;
  map.low = scale.low;
  map.high = scale.high;
  map.colour_label = f.look == Look::relative ? f.title + " / even" : f.title;
  const bool texts =
      map.rows * map.columns <= most_cell_texts && map.columns <= (width < 900 ? 8 : most_columns_with_text);
  for (Index i = 0; i < map.rows * map.columns; ++i) {
    const double v = f.values[offset + i];
    map.values.push_back(f.look == Look::relative ? v / f.even : v);
    if (!texts) continue;
    map.cell_texts.push_back(!std::isfinite(v) ? ""
                             : percent         ? fmt::format("{:.1f}", v * 100)
                                               : fmt::format("{:.2g}", v));
  }
  return map;
}

void add_figure(Page& page, const Figure& f) {
  if (f.values.empty()) return;
  page << "<h3>" + escaped(f.title) + "</h3>\n";
  const Scale scale = scale_of(f);
  if (f.dimensions.size() == 2) {
    page.picture(script_of(heatmap_of(f, scale, 0, 0, 960)), f.title);
  } else {
    Index each = 1, pictures = 1;
    const std::size_t lead = f.dimensions.size() - 2;
    for (std::size_t d = 0; d < f.dimensions.size(); ++d) (d < lead ? pictures : each) *= f.dimensions[d].size();
    page << fmt::format("<div class=\"{}\">\n", pictures > 1 ? "grid two" : "grid");
    for (Index i : some_of(pictures, most_pictures)) {
      std::string caption;
      for (Index d = static_cast<Index>(lead), rest = i; d-- > 0; rest /= f.dimensions[d].size())
        caption = fmt::format("{} {}{}{}", f.dimensions[d].name, f.dimensions[d].labels[rest % f.dimensions[d].size()],
                              caption.empty() ? "" : ", ", caption);
      page.picture(script_of(heatmap_of(f, scale, lead, i * each, pictures > 1 ? 480 : 960)), f.title + ", " + caption,
                   caption);
    }
    page << "</div>\n";
    if (pictures > most_pictures)
      page << fmt::format("<p class=\"muted\">{} of {}; the files have all.</p>\n", most_pictures, pictures);
  }
  page << "<p class=\"muted\">" + escaped(f.meaning) +
              (f.look == Look::relative
                   ? fmt::format(" Colours: relative to an even share of {}.", percent_text(f.even))
                   : std::string()) +
              "</p>\n";
}

}  // namespace

void add_sections(Page& page, std::span<const Section> sections) {
  for (const Section& s : sections) {
    page << "<section id=\"" + escaped(s.name) + "\"><h2>" + escaped(s.title) + "</h2>\n<p>" + escaped(s.text) +
                "</p>\n";
    for (const auto& group : columns_of(s)) {
      page << html_table(column_header(group), column_rows(group)) << "<ul class=\"muted\">";
      for (const Figure* f : group) page << "<li><b>" + escaped(f->title) + "</b>: " + escaped(f->meaning) + "</li>\n";
      page << "</ul>\n";
    }
    for (const Figure& f : s.figures)
      if (f.dimensions.size() > 1) add_figure(page, f);
    for (const Listing& l : s.listings) {
      page << "<h3>" + escaped(l.title) + "</h3>\n";
      auto rows = listing_rows(l, most_listed);
      for (auto& row : rows)
        for (std::string& cell : row) cell = visible(cell);
      page << html_table(l.header, rows, l.text_column);
      page << "<p class=\"muted\">" + escaped(l.meaning) +
                  (l.rows.size() > most_listed ? fmt::format(" The first {} of {}.", most_listed, l.rows.size())
                                               : std::string()) +
                  "</p>\n";
    }
    page << "</section>\n";
  }
}

}  // namespace sy
