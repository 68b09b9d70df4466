// Formatting of numbers for messages and tables, and their parsing.
#pragma once

#include <charconv>
#include <optional>
#include <string>
#include <string_view>

#include "kernels/tensor.h"

namespace sy {

// "850 ms", "12 s", "3m 20s", "1h 02m", "2d 03h"; "?" if negative or not finite.
std::string duration_text(double seconds);
// Three digits: "8.51 ms", "850 ms", "2.46 s", "12.3 s", "1234 s"; "?" if negative or not finite.
std::string seconds_text(double seconds);
std::string percent_text(double fraction);            // "12.5 %"; "-" if not finite
std::string count_text(Index n);                      // "1,638,400"
std::string counted(Index n, std::string_view noun);  // "1 rank", "16 ranks"
// "950", "22.4k", "1.64M", "46.70G", "1.162T"; "-" if not finite.
std::string short_count_text(double x);
// "3.142". No minus sign if all digits are 0; "-" if NaN.
std::string number_text(double x, int digits);
std::string megabytes(Index bytes);  // "74.0 MB"
// The current time as ISO 8601 in UTC, with milliseconds or without: "2026-11-24T13:05:09.042Z".
std::string utc_now(bool milliseconds);
// A time in seconds since 1970 in the same form.
std::string utc_text(double seconds, bool milliseconds = true);

// Returns the number that the whole text denotes in decimal digits; empty if it is not a T.
template <class T>
std::optional<T> parse_number(std::string_view text) {
  T value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() && end == text.data() + text.size() ? std::optional(value) : std::nullopt;
}

}  // namespace sy
