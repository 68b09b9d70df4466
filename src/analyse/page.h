// One self-contained web page: no network and no script.
// It is light or dark as the reader's browser is set, and can be printed.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "src/analyse/plot.h"
#include "src/provenance/provenance.h"
#include "src/text/table.h"

namespace sy {

// Escapes text for HTML.
std::string escaped(std::string text);

// Table of numbers; the column `text_column` holds text. Cells are plain text, not HTML.
std::string html_table(const CellTable& table, std::size_t text_column = std::string::npos);

// Returns the end of a page: a record's public members on one line and, if `detail` is full, its
// values. Empty if the record is null.
std::string provenance_html(const Json& record, ProvenanceDetail detail);

// Returns an SVG file with a picture that draw() has returned. title: may be empty. record: the
// file's provenance; may be null.
std::string svg_document(std::string picture, const std::string& title, const Json& record);

// Colour bar that several pictures share. It shows the meaning of the colours and marks, evenly
// spread from the first colour to the last.
std::string scale_bar(const std::string& meaning, Palette palette, const std::vector<std::string>& marks);

// Builder of a page. Pictures are collected first; finish() draws them in one run of gnuplot.
class Page {
 public:
  explicit Page(const std::string& title);
  Page& operator<<(const std::string& html);
  // Begins a section and adds it to the contents. The caller ends it with </section>.
  void section(const std::string& id, const std::string& title);
  // Inserts links to all sections. Call it before the first section.
  void contents();
  // Adds a picture. A small screen shows a narrow version of a wide picture.
  // alt_text: the picture in words, for readers who cannot see it. caption: may be empty.
  template <class Picture>  // Heatmap or LineChart
  void picture(const Picture& picture, const std::string& alt_text, const std::string& caption = "");
  std::string finish();

 private:
  struct PictureSlot {
    std::size_t at;  // offset in html_
    std::string alt_text;
    const char* screen;  // class of the pictures for one kind of screen; "" means all screens
  };
  std::string html_;
  std::size_t contents_at_ = std::string::npos;
  std::vector<std::pair<std::string, std::string>> headings_;  // ids and titles
  std::vector<PictureSlot> picture_slots_;
  std::vector<Plot> plots_;
};

}  // namespace sy
