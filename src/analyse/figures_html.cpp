// Figures on a page: pictures and tables with their definitions.
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

// Returns at most `most` of these, evenly spread, including the first and the last.
std::vector<Index> some_of(const std::vector<Index>& all, Index most) {
  std::vector<Index> out;
  const Index n = std::ssize(all), count = std::min(n, most);
  for (Index i = 0; i < count; ++i) out.push_back(all[count == 1 ? 0 : i * (n - 1) / (count - 1)]);
  return out;
}

// Returns the column of labels that are left-aligned; npos if the labels are numbers.
std::size_t text_column(const Dimension& down) {
  const bool numbers = std::all_of(down.labels.begin(), down.labels.end(), [](const std::string& label) {
    return !label.empty() && label[0] >= '0' && label[0] <= '9';
  });
  return numbers ? std::string::npos : 0;
}

Palette palette_for(const Figure& f) {
  return f.look == Look::amount ? Palette::amount : f.look == Look::relative ? Palette::balance : Palette::change;
}

struct Scale {
  double low = 0, high = 1;
};

// Returns one scale for all pictures of a figure.
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

// Marks of a colour bar that several pictures share.
std::vector<std::string> marks_of(const Figure& f, const Scale& scale) {
  if (f.look == Look::relative) return ratio_marks(scale.low, scale.high);
  std::vector<std::string> marks;
  for (int i = 0; i <= 4; ++i) {
    const double v = scale.low + (scale.high - scale.low) * i / 4;
    marks.push_back(f.unit == "share" ? fmt::format("{:.4g} %", v * 100) : fmt::format("{:.4g}", v));
  }
  return marks;
}

std::string scale_meaning(const Figure& f) {
  return f.look == Look::relative ? "Share, relative to an even one of " + percent_text(f.even)
         : f.unit == "share"      ? f.title
                                  : f.title + ", " + f.unit;
}

// Shows as many decimals as the largest value needs for three digits.
std::string cell_number(double value, double largest) {
  const int decimals = std::clamp(2 - static_cast<int>(std::floor(std::log10(largest))), 0, 5);
  return number_text(value, decimals);
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
  map.palette = palette_for(f);
  map.low = scale.low;
  map.high = scale.high;
  map.colour_bar = width == full_width;
  map.colour_label = f.look == Look::relative ? "share / even" : percent ? "" : f.unit;
  const bool texts = map.rows * map.columns <= most_cell_texts && map.columns <= most_columns_with_text;
  for (Index i = 0; i < map.rows * map.columns; ++i) {
    const double v = f.values[offset + i];
    map.values.push_back(f.look == Look::relative ? v / f.even : v);
    if (!texts) continue;
    map.cell_texts.push_back(!std::isfinite(v) ? "" : percent ? number_text(v * 100, 1) : cell_number(v, scale.high));
  }
  return map;
}

void add_figure(Page& page, const Figure& f) {
  if (f.values.empty() || (f.look == Look::none && f.dimensions.size() > 2)) return;
  const bool table = f.look == Look::none;
  page << "<h3>" + escaped(f.title) +
              (table ? fmt::format(", by {} and {}", f.dimensions[0].name, f.dimensions[1].name) : "") + "</h3>\n";
  const Scale scale = scale_of(f);
  if (table) {
    page << html_table(matrix_table(f), text_column(f.dimensions[0]));
  } else if (f.dimensions.size() == 2) {
    page.picture(heatmap_of(f, scale, 0, 0, full_width), f.title);
  } else {
    Index each = 1, pictures = 1;
    const std::size_t lead = f.dimensions.size() - 2;
    for (std::size_t d = 0; d < f.dimensions.size(); ++d) (d < lead ? pictures : each) *= f.dimensions[d].size();
    std::vector<Index> with_values;  // after the last MoE layer there are no paths
    for (Index i = 0; i < pictures; ++i)
      if (std::any_of(f.values.begin() + i * each, f.values.begin() + (i + 1) * each,
                      [](double v) { return std::isfinite(v); }))
        with_values.push_back(i);
    pictures = std::ssize(with_values);
    if (pictures > 1) page << scale_bar(scale_meaning(f), palette_for(f), marks_of(f, scale));
    page << fmt::format("<div class=\"{}\">\n", pictures > 1 ? "grid two" : "grid");
    for (Index i : some_of(with_values, most_pictures)) {
      std::string caption;
      for (Index d = static_cast<Index>(lead), rest = i; d-- > 0; rest /= f.dimensions[d].size())
        caption = fmt::format("{} {}{}{}", f.dimensions[d].name, f.dimensions[d].labels[rest % f.dimensions[d].size()],
                              caption.empty() ? "" : ", ", caption);
      page.picture(heatmap_of(f, scale, lead, i * each, pictures > 1 ? half_width : full_width),
                   f.title + ", " + caption, caption);
    }
    page << "</div>\n";
    if (pictures > most_pictures)
      page << fmt::format("<p class=\"muted\">{} of {}; the files have all.</p>\n", most_pictures, pictures);
  }
  page << "<p class=\"muted\">" + escaped(f.meaning) + (table ? " Unit: " + escaped(f.unit) + "." : "") +
              (f.look == Look::relative
                   ? fmt::format(" Colours: relative to an even share of {}.", percent_text(f.even))
                   : std::string()) +
              "</p>\n";
}

}  // namespace

std::string definitions(const std::vector<const Figure*>& figures) {
  std::string out = "<ul class=\"muted\">";
  for (std::size_t i = 0; i < figures.size();) {
    std::string titles;
    const std::string &meaning = figures[i]->meaning, &unit = figures[i]->unit;
    for (; i < figures.size() && figures[i]->meaning == meaning; ++i)
      titles += (titles.empty() ? "" : "; ") + figures[i]->title;
    const bool unit_in_title = unit != "nats per token" || titles.find(unit) != titles.npos;
    out += "<li><b>" + escaped(titles) + "</b>" + (unit_in_title ? "" : ", " + escaped(unit)) + ": " +
           escaped(meaning) + "</li>\n";
  }
  return out + "</ul>\n";
}

void add_sections(Page& page, std::span<const Section> sections) {
  for (const Section& s : sections) {
    page.section(s.name, s.title);
    page << "<p>" + escaped(s.text) + "</p>\n";
    for (const auto& group : columns_of(s)) {
      page << html_table(column_table(group), text_column(group[0]->dimensions[0]));
      page << definitions(group);
    }
    for (const Figure& f : s.figures)
      if (f.dimensions.size() > 1) add_figure(page, f);
    for (const Listing& l : s.listings) {
      page << "<h3>" + escaped(l.title) + "</h3>\n";
      CellTable table = listing_table(l, most_listed);
      for (auto& row : table.rows)
        for (std::string& cell : row) cell = visible(cell);
      page << html_table(table, l.text_column);
      page << "<p class=\"muted\">" + escaped(l.meaning) +
                  (l.rows.size() > most_listed ? fmt::format(" The first {} of {}.", most_listed, l.rows.size())
                                               : std::string()) +
                  "</p>\n";
    }
    page << "</section>\n";
  }
}

}  // namespace sy
