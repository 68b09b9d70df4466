#include "src/text/numbers.h"

#include <fmt/chrono.h>

#include <chrono>
#include <cmath>

namespace sy {

std::string duration_text(double seconds) {
  if (!(seconds >= 0) || !std::isfinite(seconds)) return "?";
  if (seconds < 0.9995) return fmt::format("{:.0f} ms", seconds * 1e3);
  const Index s = std::llround(seconds);
  if (s < 60) return fmt::format("{} s", s);
  if (s < 3600) return fmt::format("{}m {:02}s", s / 60, s % 60);
  if (s < 86400) return fmt::format("{}h {:02}m", s / 3600, s % 3600 / 60);
  return fmt::format("{}d {:02}h", s / 86400, s % 86400 / 3600);
}

std::string seconds_text(double seconds) {
  if (!(seconds >= 0) || !std::isfinite(seconds)) return "?";
  const bool small = seconds < 0.9995;
  const double x = small ? seconds * 1e3 : seconds;
  return fmt::format("{:.{}f} {}", x, x < 9.995 ? 2 : x < 99.95 ? 1 : 0, small ? "ms" : "s");
}

std::string utc_now(bool milliseconds) {
  return utc_text(std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count(),
                  milliseconds);
}

std::string utc_text(double seconds, bool milliseconds) {
  const auto rounded = std::llround(milliseconds ? seconds * 1e3 : std::floor(seconds) * 1e3);
  return fmt::format("{:%FT%T}{}Z", fmt::gmtime(static_cast<std::time_t>(rounded / 1000)),
                     milliseconds ? fmt::format(".{:03}", rounded % 1000) : "");
}

std::string percent_text(double fraction) {
  return std::isfinite(fraction) ? fmt::format("{:.1f} %", fraction * 100) : "-";
}

std::string counted(Index n, std::string_view noun) {
  return fmt::format("{} {}{}", n, noun, n == 1 ? "" : "s");
}

std::string count_text(Index n) {
  const std::string digits = std::to_string(n);
  std::string out;
  for (std::size_t i = 0; i < digits.size(); ++i) {
    const bool group = (digits.size() - i) % 3 == 0 && i > (n < 0 ? 1u : 0u);
    if (group) out += ',';
    out += digits[i];
  }
  return out;
}

std::string short_count_text(double x) {
  if (!std::isfinite(x)) return "-";
  return x >= 1e12  ? fmt::format("{:.3f}T", x / 1e12)
         : x >= 1e9 ? fmt::format("{:.2f}G", x / 1e9)
         : x >= 1e6 ? fmt::format("{:.2f}M", x / 1e6)
         : x >= 1e4 ? fmt::format("{:.1f}k", x / 1e3)
                    : fmt::format("{:.0f}", x);
}

std::string number_text(double x, int digits) {
  if (std::isnan(x)) return "-";
  return fmt::format("{:.{}f}", std::abs(x) < 0.5 * std::pow(10, -digits) ? 0.0 : x, digits);
}

std::string megabytes(Index bytes) {
  return fmt::format("{:.1f} MB", static_cast<double>(bytes) / 1e6);
}

}  // namespace sy
