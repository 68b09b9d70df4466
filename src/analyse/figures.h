// Results as data: arrays of numbers that know what they are, so that text, CSV, JSON, HDF5 and a page need no code of their own
// for each.
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
  std::vector<std::string> labels;
  Index size() const { return std::ssize(labels); }
};
// 0, 1, ... as labels.
Dimension counted_dimension(std::string name, Index size);
Dimension numbered_dimension(std::string name, std::span<const std::int64_t> numbers);

// How a page colours a figure.
enum class Look {
  amount,    // from 0 to the largest
  relative,  // to `even`, by powers of two
  change,    // around 0
  none  // not by colours: what has two dimensions is a table, what has more is in a listing beside it and in the files
};

struct Figure {
  std::string name;   // "saturation", unique in a report; the dataset's name in HDF5
  std::string title;  // for people
  std::string unit;   // "share": shown as a percentage; otherwise any word
  std::string meaning;
  std::vector<Dimension> dimensions;  // one to four
  std::vector<double> values;         // row-major; NaN: not known
  Look look = Look::amount;
  double even = 0;
  Shape shape() const;
};

// Words and numbers that are to be read row by row.
struct Listing {
  std::string name, title, meaning;
  std::vector<std::string> header;
  std::vector<std::vector<Json>> rows;  // numbers and texts
  std::size_t text_column = std::string::npos;
};

struct Section {
  std::string name, title, text;  // "replay", "Replay of ...", what it is about
  std::vector<Figure> figures;
  std::vector<Listing> listings;
};

// What text and page share. Numbers as people read them; and the figures of one dimension, those together that have it in
// common, and so are columns of one table, or of several where one would be too wide.
std::string figure_text(const Figure& figure, double value);
std::vector<std::vector<const Figure*>> columns_of(const Section& section);
std::vector<std::string> column_header(const std::vector<const Figure*>& group);
std::vector<std::vector<std::string>> column_rows(const std::vector<const Figure*>& group);
std::vector<std::string> matrix_header(const Figure& figure);  // of two dimensions
std::vector<std::vector<std::string>> matrix_rows(const Figure& figure);
std::vector<std::vector<std::string>> listing_rows(const Listing& listing, std::size_t most);

// Small figures as tables; of the others that they are there.
std::string sections_text(std::span<const Section> sections);
// A row per value: the figure, its place (a column for each dimension of any of them, empty where a figure has it not), the
// value (empty where it is not known).
std::string sections_csv(std::span<const Section> sections);
// {name: {"title", "figures": [{"name", "unit", "meaning", "dimensions": [{"name", "labels"}], "values": nested}], listings}}
Json sections_json(std::span<const Section> sections);
// What each of them means, as HTML; those with one meaning together.
std::string definitions(const std::vector<const Figure*>& figures);
// Each with its definition under it. What has three dimensions is a picture per index of the first, of a few of them where
// there are many.
void add_sections(Page& page, std::span<const Section> sections);

// A new file, replaced as a whole: /SECTION/FIGURE of f64, with the attributes unit, meaning and dimensions, and the labels of
// each dimension in an attribute of its name. Throws Failure.
void write_figures(const std::filesystem::path& file, std::span<const Section> sections, const std::string& title);

}  // namespace sy
