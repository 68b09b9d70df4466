#include "src/text/strings.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <utility>

namespace sy {

namespace {

// Number of insertions, deletions, replacements and swaps of neighbours that turn `a` into `b`
// (optimal string alignment). `limit` if there are more.
std::size_t edit_distance(const std::string& a, const std::string& b, std::size_t limit) {
  if (std::max(a.size(), b.size()) - std::min(a.size(), b.size()) >= limit) return limit;
  // rows i - 2, i - 1 and i of the table
  std::vector<std::size_t> before, last(b.size() + 1), row(b.size() + 1);
  std::iota(row.begin(), row.end(), std::size_t{0});
  for (std::size_t i = 1; i <= a.size(); ++i) {
    before = std::exchange(last, row);
    row[0] = i;
    for (std::size_t j = 1; j <= b.size(); ++j) {
      row[j] = std::min({last[j] + 1, row[j - 1] + 1, last[j - 1] + (a[i - 1] != b[j - 1])});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) row[j] = std::min(row[j], before[j - 2] + 1);
    }
    // No number of a later row is below the least of this one. A swap adds 1 to the row before
    // this one, whose least number is smaller by at most 1.
    if (std::ranges::min(row) >= limit) return limit;
  }
  return std::min(row.back(), limit);
}

}  // namespace

std::string nearest(const std::string& name, const std::vector<std::string>& known) {
  std::string best;
  // At most a third of the letters after the last dot or dash may differ; otherwise it is another
  // name.
  const std::size_t suffix = name.size() - (name.find_last_of(".-") + 1);
  std::size_t best_distance = std::max<std::size_t>(1, (suffix + 1) / 3) + 1;
  for (const std::string& k : known)
    if (const std::size_t distance = edit_distance(name, k, best_distance); distance < best_distance) {
      best_distance = distance;
      best = k;
    }
  return best;
}

std::string_view new_name_of(std::string_view name, std::span<const Renamed> table) {
  for (const Renamed& renamed : table)
    if (renamed.old_name == name) return renamed.new_name;
  return {};
}

std::string_view trimmed(std::string_view text) {
  constexpr std::string_view blanks = " \t\r\n\v\f";
  const std::size_t first = text.find_first_not_of(blanks);
  return first == text.npos ? std::string_view() : text.substr(first, text.find_last_not_of(blanks) + 1 - first);
}

std::vector<std::string> split_list(std::string_view text) {
  std::vector<std::string> items;
  while (!text.empty()) {
    const std::size_t comma = text.find(',');
    items.emplace_back(trimmed(text.substr(0, comma)));
    text.remove_prefix(comma == text.npos ? text.size() : comma + 1);
  }
  return items;
}

void replace_all(std::string& text, std::string_view from, std::string_view to) {
  std::string out;
  std::size_t copied = 0;
  for (std::size_t at; (at = text.find(from, copied)) != text.npos; copied = at + from.size())
    out.append(text, copied, at - copied).append(to);
  text = out.append(text, copied);
}

std::string shell_quote(const std::string& argument) {
  constexpr std::string_view plain = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-+=./,:@%";
  if (!argument.empty() && argument.find_first_not_of(plain) == argument.npos) return argument;
  std::string quoted = argument;
  replace_all(quoted, "'", "'\\''");
  return "'" + quoted + "'";
}

std::string csv_field(const std::string& text) {
  if (text.find_first_of(",\"\r\n") == text.npos) return text;
  std::string inner = text;
  replace_all(inner, "\"", "\"\"");
  return "\"" + inner + "\"";
}

std::string join(const std::vector<std::string>& items, std::string_view separator) {
  return fmt::format("{}", fmt::join(items, separator));
}

}  // namespace sy
