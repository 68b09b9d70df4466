// Results as data: named arrays of numbers with their dimensions and units. One writer each makes
// text, CSV, JSON, HDF5 and HTML of all of them.
#pragma once

#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "kernels/tensor.h"
#include "src/analyse/page.h"
#include "src/text/json.h"

namespace sy {

struct Dimension {
  std::string name;  // "layer"
  std::vector<std::string> labels = {};
  Index size() const { return std::ssize(labels); }
  bool operator==(const Dimension&) const = default;
};
// Returns a dimension with the labels 0, 1, ...
Dimension counted_dimension(std::string name, Index size);
Dimension numbered_dimension(std::string name, std::span<const std::int64_t> numbers);

// Colour scale of a figure on a page.
enum class Look {
  amount,    // from 0 to the largest
  relative,  // relative to `even`, by powers of two
  change,    // around 0
  // No colours: two dimensions make a table. More dimensions appear in the files, and in a listing
  // beside the figure.
  none
};

struct Figure {
  std::string name;   // "saturation", unique in a report; name of the dataset in HDF5
  std::string title;  // displayed name
  std::string unit;   // "share" (shown as a percentage), or any other word
  std::string meaning;
  std::vector<Dimension> dimensions = {};  // one to four
  std::vector<double> values = {};         // row-major; NaN if unknown
  Look look = Look::amount;
  // The value to which Look::relative refers.
  double even = 0;
  Shape shape() const;
};

// A table to be read row by row.
struct Listing {
  std::string name, title, meaning;
  std::vector<std::string> header;
  std::vector<std::vector<Json>> rows = {};  // numbers and texts
  std::size_t text_column = std::string::npos;
};

struct Section {
  std::string name, title, text = {};  // "replay", "Replay of ...", and an introduction
  std::vector<Figure> figures = {};
  std::vector<Listing> listings = {};
};

// Formats a value for text and page.
std::string figure_text(const Figure& figure, double value);
// Groups the figures of one dimension that share it. Each group is one table; too wide groups are
// split.
std::vector<std::vector<const Figure*>> columns_of(const Section& section);
CellTable column_table(const std::vector<const Figure*>& group);
CellTable matrix_table(const Figure& figure);  // figure: two dimensions
// Returns the first rows, at most `most`.
CellTable listing_table(const Listing& listing, std::size_t most);

// Small figures as tables. Larger ones are only named.
std::string sections_text(std::span<const Section> sections);
// One row per value: the figure, a column for each dimension of any figure, and the value. A cell
// is empty if the figure lacks the dimension or the value is unknown.
std::string sections_csv(std::span<const Section> sections);
// {name: {"title", "text",
//   "figures": [{"name", "title", "unit", "meaning", "dimensions": [{"name", "labels"}],
//                "values": nested}],
//   "listings": [{"name", "title", "meaning", "columns", "rows"}]}}
Json sections_json(std::span<const Section> sections);
// Returns the meanings of the figures as an HTML list. Neighbours with the same meaning share an
// entry.
std::string definitions(const std::vector<const Figure*>& figures);
// Adds all sections, each figure with its definition under it.
// A figure of three dimensions becomes one picture per index of the first, or pictures of some
// indices if there are many.
void add_sections(Page& page, std::span<const Section> sections);

// Writes a new file and replaces an older one atomically. Throws Failure.
// Each figure is a dataset /SECTION/FIGURE of f64 with the attributes unit, meaning and dimensions.
// One attribute per dimension holds its labels and has its name.
// provenance: the attribute of this name of the file, as JSON; left out if it is null.
void write_figures(const std::filesystem::path& file, std::span<const Section> sections, const std::string& title,
                   const Json& provenance = {});

}  // namespace sy
