// One self-contained web page: no network, no script, light or dark as the reader's browser is set, and fit for
// printing.
#pragma once

#include <string>
#include <vector>

#include "src/analyse/plot.h"

namespace sy {

// Text as HTML.
std::string escaped(const std::string& text);

// Columns of numbers; `text_column` holds words. Cells are text, not HTML.
std::string html_table(const std::vector<std::string>& header, const std::vector<std::vector<std::string>>& rows,
                       std::size_t text_column = std::string::npos);

// The colours of several pictures, as a bar with marks under it: what they mean, and the marks, evenly spread from its first
// colour to its last.
std::string scale_bar(const std::string& meaning, Palette palette, const std::vector<std::string>& marks);

// A page while it is put together. Pictures are noted as it goes and drawn by one run of gnuplot at the end.
class Page {
 public:
  explicit Page(const std::string& title);
  Page& operator<<(const std::string& html);
  // Begins a section, which the caller ends with </section>, and which the contents name.
  void section(const std::string& id, const std::string& title);
  // Links to all sections, here: before the first of them.
  void contents();
  // Adds a picture. If it is wide, a small screen shows a narrow one in its place.
  // says: the picture in words, for those who cannot see it. caption: may be empty.
  void picture(const Heatmap& map, const std::string& says, const std::string& caption = "");
  void picture(const LineChart& chart, const std::string& says, const std::string& caption = "");
  std::string finish();

 private:
  struct Place {
    std::size_t at;  // in html_
    std::string says;
    const char* screen;  // class of the pictures for one kind of screen; "" if it is for all
  };
  template <class Picture>
  void add_picture(const Picture& picture, const std::string& says, const std::string& caption);
  struct Heading {
    std::string id, title;
  };
  std::string html_;
  std::size_t contents_at_ = std::string::npos;
  std::vector<Heading> headings_;
  std::vector<Place> places_;
  std::vector<Plot> plots_;
};

}  // namespace sy
