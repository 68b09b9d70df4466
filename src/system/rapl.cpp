#include "src/system/rapl.h"

#include <fmt/format.h>

#include <cerrno>
#include <charconv>
#include <cstdio>
#include <cstring>
#include <limits>
#include <memory>
#include <optional>

#include "kernels/environment.h"

namespace sy {
namespace {

namespace fs = std::filesystem;

// Returns the first line of a file of sysfs, whose size is not known before it is read. Empty if it
// cannot be read; errno says why.
std::optional<std::string> first_line(const fs::path& path) {
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> file(std::fopen(path.c_str(), "re"), std::fclose);
  char buffer[64];
  if (!file || !std::fgets(buffer, sizeof buffer, file.get())) return std::nullopt;
  std::string line = buffer;
  while (!line.empty() && (line.back() == '\n' || line.back() == ' ')) line.pop_back();
  return line;
}

std::optional<double> counter(const fs::path& path) {
  const auto line = first_line(path);
  std::uint64_t value = 0;
  if (!line || std::from_chars(line->data(), line->data() + line->size(), value).ec != std::errc()) return std::nullopt;
  return static_cast<double>(value);
}

}  // namespace

fs::path powercap_folder() {
  const char* const folder = environment("SWITCHYARD_POWERCAP");
  return folder && *folder ? folder : "/sys/class/powercap";
}

RaplReader::RaplReader(const fs::path& folder) {
  std::error_code error;
  // The folder has a link to each zone, also to zones of zones.
  for (fs::directory_iterator it(folder, error), end; !error && it != end; it.increment(error)) {
    // The zones of intel-rapl-mmio are the same packages.
    if (!it->path().filename().string().starts_with("intel-rapl:")) continue;
    const auto name = first_line(it->path() / "name");
    if (!name || (!name->starts_with("package") && *name != "dram")) continue;
    const fs::path energy = it->path() / "energy_uj";
    errno = 0;
    const auto now = counter(energy);
    if (!now) {
      problem_ = fmt::format("{} cannot be read{}: ask the administrator for read permission", energy.string(),
                             errno != 0 ? std::string(" (") + std::strerror(errno) + ")" : "");
      return;
    }
    zones_.push_back({energy, counter(it->path() / "max_energy_range_uj").value_or(0), *now});
  }
  if (zones_.empty())
    problem_ = fmt::format("{} has no RAPL zone: virtual machines and some processors have none", folder.string());
}

double RaplReader::joules() {
  for (Zone& zone : zones_) {
    const auto now = counter(zone.energy);
    if (!now && problem_.empty()) problem_ = zone.energy.string() + " cannot be read any more";
    if (!now) break;
    const double difference = *now - zone.last;
    microjoules_ += difference < 0 ? difference + zone.range : difference;
    zone.last = *now;
  }
  return problem_.empty() ? microjoules_ / 1e6 : std::numeric_limits<double>::quiet_NaN();
}

std::string rapl_problem() {
  return RaplReader().problem();
}

}  // namespace sy
