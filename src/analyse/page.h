// One self-contained web page: no network, no script, light or dark as the reader's browser is set, and fit for
// printing.
#pragma once

#include <string>
#include <vector>

namespace sy {

// Text as HTML.
std::string escaped(const std::string& text);

// Columns of numbers; `text_column` holds words. Cells are text, not HTML.
std::string html_table(const std::vector<std::string>& header, const std::vector<std::vector<std::string>>& rows,
                       std::size_t text_column = std::string::npos);

// A page while it is put together. Pictures are noted as it goes and drawn by one run of gnuplot at the end.
class Page {
 public:
  explicit Page(const std::string& title);
  Page& operator<<(const std::string& html);
  // script: plot.h's script_of(). says: the picture in words, for those who cannot see it. caption: may be
  // empty.
  void picture(const std::string& script, const std::string& says, const std::string& caption = "");
  std::string finish();

 private:
  struct Place {
    std::size_t at;  // in html_
    std::string says;
  };
  std::string html_;
  std::vector<Place> places_;
  std::vector<std::string> scripts_;
};

}  // namespace sy
