#include "src/text/table.h"

#include <algorithm>
#include <cstdint>
#include <sstream>

#include "kernels/check.h"

namespace sy {
namespace {

struct CodePoint {
  std::uint32_t value;
  std::size_t bytes;
};

// Returns the number of bytes of a character from its first byte.
std::size_t length_of(unsigned char lead) {
  return lead < 0x80 ? 1 : lead >= 0xf0 ? 4 : lead >= 0xe0 ? 3 : lead >= 0xc0 ? 2 : 1;
}

// Returns the code point at the start of `s`; an invalid byte stands for itself.
CodePoint decode(std::string_view s) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(s[i]); };
  const unsigned char lead = byte(0);
  const std::size_t n = length_of(lead);
  if (n == 1 || n > s.size()) return {lead, 1};
  std::uint32_t value = lead & (0x7f >> n);
  for (std::size_t i = 1; i < n; ++i) {
    if ((byte(i) & 0xc0) != 0x80) return {lead, 1};
    value = value << 6 | (byte(i) & 0x3f);
  }
  return {value, n};
}

struct WidthRange {
  std::uint32_t first, last;
  int width;
};
// Unicode's East Asian width and combining classes of characters common in names and prose.
constexpr WidthRange width_table[] = {
    {0x0300, 0x036f, 0}, {0x200b, 0x200f, 0},   {0x20d0, 0x20ff, 0},  {0xfe00, 0xfe0f, 0}, {0x1100, 0x115f, 2},
    {0x2e80, 0xa4cf, 2}, {0xac00, 0xd7a3, 2},   {0xf900, 0xfaff, 2},  {0xfe30, 0xfe6f, 2}, {0xff00, 0xff60, 2},
    {0xffe0, 0xffe6, 2}, {0x1f300, 0x1faff, 2}, {0x20000, 0x3fffd, 2}};

int width_of(std::uint32_t value) {
  for (const WidthRange& r : width_table)
    if (value >= r.first && value <= r.last) return r.width;
  return 1;
}

// Returns the number of bytes of the colour sequence (ESC [ ... m) at the start of `s`, or 0.
std::size_t colour_bytes(std::string_view s) {
  if (s.substr(0, 2) != "\x1b[") return 0;
  const std::size_t end = s.find('m');
  return end == std::string_view::npos ? 0 : end + 1;
}

// Calls f(bytes, width) for each character or colour sequence, until f returns false.
template <class F>
void each_glyph(std::string_view text, F f) {
  for (std::size_t at = 0; at < text.size();) {
    const std::string_view rest = text.substr(at);
    std::size_t bytes = colour_bytes(rest);
    int width = 0;
    if (bytes == 0) {
      const CodePoint c = decode(rest);
      bytes = c.bytes;
      width = width_of(c.value);
    }
    if (!f(rest.substr(0, bytes), width)) return;
    at += bytes;
  }
}

bool starts_with_number(const std::string& cell) {
  const std::size_t at = !cell.empty() && (cell[0] == '-' || cell[0] == '+') ? 1 : 0;
  return at < cell.size() && cell[at] >= '0' && cell[at] <= '9';
}

}  // namespace

int display_width(std::string_view text) {
  int width = 0;
  each_glyph(text, [&](std::string_view, int w) { return width += w, true; });
  return width;
}

std::string visible(std::string_view text, std::string_view keep) {
  std::string out;
  for (std::size_t at = 0; at < text.size();) {
    const CodePoint c = decode(text.substr(at));
    const bool ill_formed = c.bytes == 1 && c.value >= 0x80;
    if (c.value < 0x20 && keep.find(static_cast<char>(c.value)) == keep.npos)
      out += {'\xe2', '\x90', static_cast<char>(0x80 + c.value)};  // U+2400 and up
    else if (c.value == 0x7f)
      out += "\u2421";
    else if (ill_formed || (c.value >= 0x80 && c.value < 0xa0))
      out += "\ufffd";
    else
      out += text.substr(at, c.bytes);
    at += c.bytes;
  }
  return out;
}

std::size_t whole_characters(std::string_view text) {
  for (std::size_t back = 1; back <= std::min<std::size_t>(3, text.size()); ++back) {
    const std::size_t at = text.size() - back;
    const unsigned char byte = static_cast<unsigned char>(text[at]);
    if ((byte & 0xc0) == 0x80) continue;
    return back < length_of(byte) ? at : text.size();
  }
  return text.size();
}

std::string fit_width(std::string_view text, int width) {
  if (display_width(text) <= width) return std::string(text);
  std::string cut;
  int used = 0;
  each_glyph(text, [&](std::string_view glyph, int w) {
    if (used + w > width - 1) return false;
    cut += glyph;
    used += w;
    return true;
  });
  return width > 0 ? cut + "…" : cut;
}

std::vector<std::string> wrap_text(const std::string& text, int width) {
  std::vector<std::string> lines(1);
  std::istringstream input(text);
  for (std::string item; input >> item;) {
    std::string& line = lines.back();
    if (line.empty())
      line = item;
    else if (display_width(line) + 1 + display_width(item) <= width)
      line += " " + item;
    else
      lines.push_back(item);
  }
  return lines;
}

void Table::row(std::vector<std::string> cells) {
  SY_ASSERT(cells.size() <= header_.size(), "{} cells under {} headings", cells.size(), header_.size());
  cells.resize(header_.size());
  for (std::size_t c = 0; c + painted_ < cells.size(); ++c) cells[c] = visible(cells[c]);
  rows_.push_back(std::move(cells));
}

std::string Table::str() const {
  const std::size_t columns = header_.size();
  std::vector<int> widths(columns);
  std::vector<bool> right(columns);
  for (std::size_t c = 0; c < columns; ++c) {
    widths[c] = display_width(header_[c]);
    bool only_numbers = true;
    for (const auto& row : rows_) {
      widths[c] = std::max(widths[c], display_width(row[c]));
      const bool number = starts_with_number(row[c]);
      right[c] = right[c] || number;
      only_numbers = only_numbers && (number || row[c].empty() || row[c] == "-");
    }
    right[c] = right[c] && only_numbers;
  }
  std::string out;
  const auto line = [&](const std::vector<std::string>& cells) {
    for (std::size_t c = 0; c < columns; ++c) {
      const std::string padding(widths[c] - display_width(cells[c]), ' ');
      out += c ? "  " : "";
      out += right[c] ? padding + cells[c] : cells[c] + padding;
    }
    out.erase(out.find_last_not_of(' ') + 1);
    out += '\n';
  };
  line(header_);
  for (std::size_t c = 0; c < columns; ++c) {
    out += c ? "  " : "";
    for (int i = 0; i < widths[c]; ++i) out += "─";
  }
  out += '\n';
  for (const auto& row : rows_) line(row);
  return out;
}

std::string text_table(const CellTable& cells) {
  Table table(cells.columns);
  for (const auto& row : cells.rows) table.row(row);
  return table.str();
}

}  // namespace sy
