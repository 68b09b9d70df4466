#include "src/analyse/figures.h"

#include <algorithm>
#include <cmath>

#include "src/io/hdf5/array_file.h"
#include "src/system/files.h"
#include "src/text/numbers.h"
#include "src/text/strings.h"
#include "src/text/table.h"

namespace sy {
namespace fs = std::filesystem;
namespace {

constexpr Index most_text_columns = 12, most_text_rows = 256;
constexpr std::size_t most_columns = 9;

// Numbers of decimals of the units whose values are not counts.
constexpr std::pair<std::string_view, int> decimals_of_units[] = {
    {"ratio", 3}, {"bits", 4}, {"nats per token", 4}, {"probability", 4}, {"score", 4}};

std::string cell_text(const Json& cell) {
  if (cell.is_string()) return cell.get<std::string>();
  if (cell.is_null()) return "-";
  if (cell.is_integer()) return count_text(cell.get<Index>());
  const double value = cell.get<double>();
  return std::isfinite(value) ? number_text(value, 4) : "-";
}

// Returns the values of the dimensions from `dim` on, nested.
Json nested(const Figure& f, std::size_t dim, const double*& at) {
  if (dim == f.dimensions.size()) {
    const double value = *at++;
    return std::isfinite(value) && value == std::floor(value) && std::abs(value) < 1e15
               ? Json(static_cast<std::int64_t>(value))
               : Json(value);
  }
  Json out = Json::array();
  for (Index i = 0; i < f.dimensions[dim].size(); ++i) out.push_back(nested(f, dim + 1, at));
  return out;
}

void check(const Figure& f) {
  SY_ASSERT(f.shape().elements() == std::ssize(f.values), "{} of {} holds {} values", f.name, f.shape().str(),
            f.values.size());
}

}  // namespace

std::string figure_text(const Figure& f, double value) {
  if (!std::isfinite(value)) return "-";
  if (f.unit == "share") return percent_text(value);
  for (const auto& [unit, decimals] : decimals_of_units)
    if (f.unit == unit) return number_text(value, decimals);
  return value == std::floor(value) && std::abs(value) < 1e15 ? count_text(static_cast<Index>(value))
                                                              : fmt::format("{:.5g}", value);
}

std::vector<std::vector<const Figure*>> columns_of(const Section& section) {
  std::vector<std::vector<const Figure*>> groups;
  for (const Figure& f : section.figures) {
    if (f.dimensions.size() != 1) continue;
    const auto group = std::ranges::find_if(groups, [&](const auto& g) { return g[0]->dimensions == f.dimensions; });
    if (group == groups.end())
      groups.push_back({&f});
    else
      group->push_back(&f);
  }
  // A group that is too wide becomes several tables of about equal width.
  std::vector<std::vector<const Figure*>> tables;
  for (const auto& group : groups) {
    const std::size_t num_tables = (group.size() + most_columns - 1) / most_columns;
    for (std::size_t p = 0; p < num_tables; ++p)
      tables.emplace_back(group.begin() + static_cast<std::ptrdiff_t>(p * group.size() / num_tables),
                          group.begin() + static_cast<std::ptrdiff_t>((p + 1) * group.size() / num_tables));
  }
  return tables;
}

CellTable column_table(const std::vector<const Figure*>& group) {
  const Dimension& down = group[0]->dimensions[0];
  CellTable table{{down.name}, {}};
  for (const Figure* f : group) table.columns.push_back(f->title);
  for (Index i = 0; i < down.size(); ++i) {
    table.rows.push_back({down.labels[i]});
    for (const Figure* f : group) table.rows.back().push_back(figure_text(*f, f->values[i]));
  }
  return table;
}

CellTable matrix_table(const Figure& f) {
  const Dimension &down = f.dimensions[0], &across = f.dimensions[1];
  CellTable table{{down.name}, {}};
  table.columns.insert(table.columns.end(), across.labels.begin(), across.labels.end());
  for (Index i = 0; i < down.size(); ++i) {
    table.rows.push_back({down.labels[i]});
    for (Index j = 0; j < across.size(); ++j)
      table.rows.back().push_back(figure_text(f, f.values[i * across.size() + j]));
  }
  return table;
}

CellTable listing_table(const Listing& listing, std::size_t most) {
  CellTable table{listing.header, {}};
  for (std::size_t i = 0; i < std::min(most, listing.rows.size()); ++i) {
    table.rows.emplace_back();
    for (const Json& cell : listing.rows[i]) table.rows.back().push_back(cell_text(cell));
  }
  return table;
}

Shape Figure::shape() const {
  Shape shape;
  for (const Dimension& d : dimensions) shape.push_back(d.size());
  return shape;
}

Dimension counted_dimension(std::string name, Index size) {
  Dimension d{std::move(name)};
  for (Index i = 0; i < size; ++i) d.labels.push_back(std::to_string(i));
  return d;
}

Dimension numbered_dimension(std::string name, std::span<const std::int64_t> numbers) {
  Dimension d{std::move(name)};
  for (std::int64_t n : numbers) d.labels.push_back(std::to_string(n));
  return d;
}

std::string sections_text(std::span<const Section> sections) {
  std::string out;
  for (const Section& s : sections) {
    out += fmt::format("\n{}\n", visible(s.title));
    if (!s.text.empty()) out += visible(s.text) + "\n";
    for (const auto& group : columns_of(s)) out += text_table(column_table(group));
    std::vector<std::string> elsewhere;
    for (const Figure& f : s.figures) {
      if (f.dimensions.size() == 1) continue;
      if (f.dimensions.size() > 2 || f.dimensions[1].size() > most_text_columns ||
          f.dimensions[0].size() > most_text_rows)
        elsewhere.push_back(f.title);
      else
        out += fmt::format("\n{} (by {} and {})\n{}", f.title, f.dimensions[0].name, f.dimensions[1].name,
                           text_table(matrix_table(f)));
    }
    for (const Listing& l : s.listings) {
      out += fmt::format("\n{}\n{}", l.title, text_table(listing_table(l, most_text_rows)));
      if (l.rows.size() > most_text_rows) out += fmt::format("the first {} of {}\n", most_text_rows, l.rows.size());
    }
    if (!elsewhere.empty()) out += fmt::format("\nIn the page and the files: {}\n", join(elsewhere, ", "));
  }
  return out;
}

std::string sections_csv(std::span<const Section> sections) {
  std::vector<std::string> dimension_names;
  for (const Section& s : sections)
    for (const Figure& f : s.figures)
      for (const Dimension& d : f.dimensions)
        if (std::find(dimension_names.begin(), dimension_names.end(), d.name) == dimension_names.end())
          dimension_names.push_back(d.name);
  std::string out = "section,figure,unit";
  for (const std::string& p : dimension_names) out += "," + csv_field(p);
  out += ",value\n";
  for (const Section& s : sections)
    for (const Figure& f : s.figures) {
      check(f);
      std::vector<std::size_t> column(f.dimensions.size());
      for (std::size_t d = 0; d < column.size(); ++d)
        column[d] = std::ranges::find(dimension_names, f.dimensions[d].name) - dimension_names.begin();
      std::vector<std::string> cells(dimension_names.size());
      for (Index i = 0; i < std::ssize(f.values); ++i) {
        Index rest = i;
        for (std::size_t d = column.size(); d-- > 0; rest /= f.dimensions[d].size())
          cells[column[d]] = csv_field(f.dimensions[d].labels[rest % f.dimensions[d].size()]);
        out += fmt::format("{},{},{}", s.name, f.name, f.unit);
        for (const std::string& cell : cells) out += "," + cell;
        out += std::isfinite(f.values[i]) ? fmt::format(",{}\n", f.values[i]) : ",\n";
      }
    }
  return out;
}

Json sections_json(std::span<const Section> sections) {
  Json out = Json::object();
  for (const Section& s : sections) {
    Json section = {{"title", s.title}, {"text", s.text}, {"figures", Json::array()}, {"listings", Json::array()}};
    for (const Figure& f : s.figures) {
      check(f);
      Json dimensions = Json::array();
      for (const Dimension& d : f.dimensions) dimensions.push_back({{"name", d.name}, {"labels", d.labels}});
      const double* at = f.values.data();
      section["figures"].push_back({{"name", f.name},
                                    {"title", f.title},
                                    {"unit", f.unit},
                                    {"meaning", f.meaning},
                                    {"dimensions", std::move(dimensions)},
                                    {"values", nested(f, 0, at)}});
    }
    for (const Listing& l : s.listings) {
      Json rows = Json::array();
      for (const auto& row : l.rows) rows.push_back(Json::array({row.begin(), row.end()}));
      section["listings"].push_back({{"name", l.name},
                                     {"title", l.title},
                                     {"meaning", l.meaning},
                                     {"columns", l.header},
                                     {"rows", std::move(rows)}});
    }
    out.append(s.name, std::move(section));
  }
  return out;
}

void write_figures(const fs::path& file, std::span<const Section> sections, const std::string& title,
                   const Json& provenance) {
  // Limit of the size of an attribute.
  constexpr std::size_t most_label_bytes = 60000;
  std::vector<ArrayFileEntry> entries = {{"/", {{"meaning", title}}}};
  if (!provenance.is_null()) entries.front().attributes.emplace_back("provenance", provenance.dump());
  for (const Section& s : sections) {
    entries.push_back({"/" + s.name, {{"meaning", s.title}}});
    for (const Figure& f : s.figures) {
      check(f);
      std::vector<std::string> dimensions;
      for (const Dimension& d : f.dimensions) dimensions.push_back(d.name);
      ArrayFileEntry entry{
          .name = "/" + s.name + "/" + f.name,
          .attributes = {{"dimensions", join(dimensions, ", ")}, {"unit", f.unit}, {"meaning", f.meaning}},
          .dtype = DType::f64,
          .shape = f.shape(),
          .data = f.values.data()};
      for (const Dimension& d : f.dimensions)
        if (std::string labels = join(d.labels, ", "); labels.size() <= most_label_bytes)
          entry.attributes.emplace_back(d.name, std::move(labels));
      entries.push_back(std::move(entry));
    }
  }
  write_array_file(file, entries);
}

}  // namespace sy
