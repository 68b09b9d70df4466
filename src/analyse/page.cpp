#include "src/analyse/page.h"

#include <fmt/format.h>

#include "src/text/strings.h"

namespace sy {
namespace {

constexpr const char* style = R"(
:root { color-scheme: light dark; --page: #f8fafc; --ink: #1e293b; --muted: #64748b; --card: #fff; --edge: #e2e8f0; --rule: #cbd5e1; --row: #f1f5f9; }
@media (prefers-color-scheme: dark) { :root { --page: #0f172a; --ink: #e2e8f0; --muted: #94a3b8; --card: #1e293b; --edge: #334155; --rule: #475569; --row: #334155; } }
@media print { :root { color-scheme: light; --page: #fff; --ink: #1e293b; --muted: #64748b; --card: #fff; --edge: #cbd5e1; --rule: #cbd5e1; --row: #f1f5f9; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--page); color: var(--ink); font: 15px/1.55 system-ui, -apple-system, "Segoe UI", "Noto Sans", "DejaVu Sans", sans-serif; }
main { max-width: 1040px; margin: 0 auto; padding: 40px 24px 64px; }
h1 { font-size: 28px; line-height: 1.2; margin: 0 0 4px; letter-spacing: -.01em; }
h2 { font-size: 20px; margin: 0 0 4px; }
h3 { font-size: 15px; margin: 24px 0 4px; } h3::first-letter { text-transform: uppercase; }
nav { margin: 20px 0 0; font-size: 14px; } nav a { color: inherit; margin-right: 18px; white-space: nowrap; }
p { margin: 4px 0 12px; max-width: 76ch; }
.muted { color: var(--muted); }
section { background: var(--card); border: 1px solid var(--edge); border-radius: 10px; padding: 22px 24px; margin-top: 20px; }
.tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(130px, 1fr)); gap: 12px; margin: 24px 0 8px; }
.tile { background: var(--card); border: 1px solid var(--edge); border-radius: 10px; padding: 12px 14px; }
.tile b { display: block; font-size: 24px; line-height: 1.25; font-weight: 600; font-variant-numeric: tabular-nums; }
.tile span { display: block; color: var(--muted); font-size: 13px; line-height: 1.35; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: 2px 20px; margin: 12px 0 0; }
dt { color: var(--muted); } dd { margin: 0; overflow-wrap: anywhere; }
svg { display: block; width: 100%; height: auto; border-radius: 6px; }
ul { margin: 8px 0 12px; padding-left: 20px; max-width: 90ch; }
svg text, svg tspan { font-family: inherit; }
figure { margin: 0; break-inside: avoid; } figcaption { font-weight: 600; font-size: 14px; }
.grid { display: grid; gap: 16px 20px; }
.two { grid-template-columns: repeat(2, minmax(0, 1fr)); } .three { grid-template-columns: repeat(3, minmax(0, 1fr)); }
.scale { display: grid; grid-auto-columns: minmax(0, 1fr); margin: 4px 0 12px; font-size: 12px; color: var(--ink); text-align: center; }
.scale i { grid-row: 1; height: 12px; border-radius: 3px; }
.scale span { grid-row: 2; }
.scroll, figure { overflow-x: auto; }
table { border-collapse: collapse; font-size: 14px; font-variant-numeric: tabular-nums; margin-top: 8px; }
th, td { padding: 4px 10px; text-align: right; white-space: nowrap; }
th { color: var(--muted); font-weight: 500; border-bottom: 1px solid var(--rule); white-space: normal; vertical-align: bottom; } td { border-bottom: 1px solid var(--row); }
th.text, td.text { text-align: left; } td.text { white-space: normal; min-width: 6em; }
summary { cursor: pointer; font-weight: 600; margin-top: 16px; }
.advice { border-left: 4px solid #b2182b; }
.hover rect:hover { fill: var(--ink); fill-opacity: .08; }
svg.small { display: none; }
@media screen and (max-width: 720px) { .two, .three { grid-template-columns: minmax(0, 1fr); } main { padding: 24px 12px 40px; } section { padding: 16px 14px; }
  th, td { padding: 4px 8px; } dl { grid-template-columns: minmax(0, 1fr); } dt { margin-top: 6px; }
  svg.large { display: none; } svg.small { display: block; } }
@media print { body { font-size: 12px; } main { padding: 0; max-width: none; } .three { grid-template-columns: repeat(2, minmax(0, 1fr)); }
  h2, h3, section > p, figure, .grid, .scale, .scroll { break-after: avoid; } section > :last-child { break-after: auto; } p, li, tr { break-inside: avoid; } thead, tr:first-child { break-after: avoid; }
  table { font-size: 11px; } th, td { padding: 3px 9px; } .tiles { grid-template-columns: repeat(7, 1fr); gap: 6px; } nav { display: none; }
  .tile { padding: 8px 10px; } .tile b { font-size: 18px; } .scroll, figure { overflow: visible; } * { print-color-adjust: exact; -webkit-print-color-adjust: exact; } }
)";

// CSS variables of the chart lines: --line-0, --line-1, ... by their order, and the series by name.
std::string line_styles() {
  const auto list = [](Palette palette, double step, const char* SeriesColour::*shade) {
    std::string out;
    for (int i = 0; i < line_colours; ++i) out += fmt::format(" --line-{}: {};", i, palette_colour(palette, i * step));
    for (const SeriesColour& c : series_colours) out += fmt::format(" --{}: {};", c.name, c.*shade);
    return out;
  };
  const std::string light = list(Palette::order, line_colour_step, &SeriesColour::light),
                    dark = list(Palette::order_on_dark, 1.0 / (line_colours - 1), &SeriesColour::dark);
  return fmt::format(
      ":root {{{}}}\n@media (prefers-color-scheme: dark) {{ :root {{{}}} }}\n@media print {{ :root {{{}}} }}\n", light,
      dark, light);
}

// The page's colour of this name. A picture outside of the page falls back to `otherwise`.
std::string in_page(const std::string& name, const std::string& otherwise) {
  return fmt::format("var(--{}, {})", name, otherwise);
}

// gnuplot writes line colours as "rgb( 51,  65,  85)", and text colours without the blanks.
void recolour(std::string& svg, const std::string& colour, const std::string& name) {
  const int rgb = std::stoi(colour.substr(1), nullptr, 16);
  for (const char* form : {"rgb({:>3}, {:>3}, {:>3})", "rgb({},{},{})"})
    replace_all(svg, fmt::format(fmt::runtime(form), rgb >> 16, rgb >> 8 & 255, rgb & 255), in_page(name, colour));
}

// Uses the page's colours for all but the data, so that a picture is dark on a dark page.
std::string in_page_colours(std::string svg) {
  replace_all(svg, fmt::format("fill=\"{}\"", plot_colours.paper),
              "fill=\"" + in_page("card", plot_colours.paper) + "\"");
  recolour(svg, plot_colours.paper, "card");
  recolour(svg, plot_colours.ink, "ink");
  recolour(svg, plot_colours.grid, "edge");
  for (int i = 0; i < line_colours; ++i)
    recolour(svg, palette_colour(Palette::order, i * line_colour_step), fmt::format("line-{}", i));
  for (const SeriesColour& c : series_colours) recolour(svg, c.light, c.name);
  return svg;
}

}  // namespace

std::string escaped(std::string text) {
  for (const auto& [from, to] : {std::pair("&", "&amp;"), {"<", "&lt;"}, {">", "&gt;"}, {"\"", "&quot;"}})
    replace_all(text, from, to);
  return text;
}

std::string html_table(const CellTable& table, std::size_t text_column) {
  std::string out = "<div class=\"scroll\"><table>\n";
  const auto line = [&](const std::vector<std::string>& cells, const char* tag) {
    out += "<tr>";
    for (std::size_t i = 0; i < cells.size(); ++i)
      out += fmt::format("<{0}{1}>{2}</{0}>", tag, i == text_column ? " class=\"text\"" : "", escaped(cells[i]));
    out += "</tr>\n";
  };
  line(table.columns, "th");
  for (const auto& row : table.rows) line(row, "td");
  return out + "</table></div>\n";
}

std::string provenance_html(const Json& record, ProvenanceDetail detail) {
  if (record.is_null()) return "";
  std::string html = "<footer><p class=\"muted\">" + escaped(provenance_line(record)) + "</p>\n";
  if (detail == ProvenanceDetail::full) {
    CellTable values{{"name", "value"}, {}};
    for (const auto& [name, value] : provenance_entries(record))
      if (!value.empty()) values.rows.push_back({name, value});
    html += "<details><summary>Provenance</summary>\n" + html_table(values, 1) + "</details>\n";
  }
  return html + "</footer>\n";
}

std::string svg_document(std::string picture, const std::string& title, const Json& record) {
  if (!record.is_null()) picture.insert(picture.rfind("</svg>"), "<metadata>" + escaped(record.dump()) + "</metadata>");
  if (!title.empty()) picture.insert(picture.find('>') + 1, "<title>" + escaped(title) + "</title>");
  return "<?xml version=\"1.0\" encoding=\"utf-8\"?>\n" + picture + "\n";
}

std::string scale_bar(const std::string& meaning, Palette palette, const std::vector<std::string>& marks) {
  const std::size_t n = marks.size();
  std::string out = "<p class=\"muted\">" + escaped(meaning) + "</p>";
  out += fmt::format(
      "<div class=\"scale\" style=\"max-width:{}px\"><i style=\"grid-column:1/span {};margin:0 {:.3f}%;"
      "background:linear-gradient(to right",
      64 * n, n, 50.0 / static_cast<double>(n));
  for (int i = 0; i <= 16; ++i) out += "," + palette_colour(palette, i / 16.0);
  out += ")\"></i>";
  for (const std::string& m : marks) out += "<span>" + escaped(m) + "</span>";
  return out + "</div>\n";
}

Page::Page(const std::string& title) {
  html_ =
      "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
      "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n<title>" +
      escaped(title) + "</title>\n<style>" + style + line_styles() + "</style>\n</head>\n<body><main>\n";
}

Page& Page::operator<<(const std::string& html) {
  html_ += html;
  return *this;
}

void Page::section(const std::string& id, const std::string& title) {
  html_ += "<section id=\"" + escaped(id) + "\"><h2>" + escaped(title) + "</h2>\n";
  headings_.emplace_back(id, title);
}

void Page::contents() {
  contents_at_ = html_.size();
}

template <class Picture>
void Page::picture(const Picture& picture, const std::string& alt_text, const std::string& caption) {
  html_ += "<figure>";
  if (!caption.empty()) html_ += "<figcaption>" + escaped(caption) + "</figcaption>";
  const bool wide = picture.width > half_width;
  picture_slots_.push_back({html_.size(), alt_text, wide ? "large" : ""});
  plots_.push_back(plot_of(picture));
  if (wide) {
    picture_slots_.push_back({html_.size(), alt_text, "small"});
    plots_.push_back(plot_of(narrow(picture)));
  }
  html_ += "</figure>\n";
}

template void Page::picture(const Heatmap&, const std::string&, const std::string&);
template void Page::picture(const LineChart&, const std::string&, const std::string&);

std::string Page::finish() {
  const auto pictures = draw(plots_);
  std::string out;
  std::size_t from = 0;
  if (contents_at_ != std::string::npos) {
    out.append(html_, 0, from = contents_at_);
    out += "<nav>";
    for (const auto& [id, title] : headings_) out += "<a href=\"#" + escaped(id) + "\">" + escaped(title) + "</a> ";
    out += "</nav>\n";
  }
  for (std::size_t i = 0; i < pictures.size(); ++i) {
    out.append(html_, from, picture_slots_[i].at - from);
    from = picture_slots_[i].at;
    out += "<svg role=\"img\" aria-label=\"" + escaped(picture_slots_[i].alt_text) + "\"";
    if (*picture_slots_[i].screen) out += fmt::format(" class=\"{}\"", picture_slots_[i].screen);
    out += in_page_colours(pictures[i]).substr(4);
  }
  return out.append(html_, from) + "</main></body>\n</html>\n";
}

}  // namespace sy
