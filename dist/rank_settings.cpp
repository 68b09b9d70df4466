#include "dist/rank_settings.h"

#include <algorithm>
#include <map>
#include <sstream>

#include "dist/file_readers.h"
#include "dist/runtime.h"
#include "kernels/philox.h"

namespace sy {
namespace {

constexpr char end_of_item = '\0';

std::string to_text(const std::vector<RankSetting>& settings) {
  std::string text;
  for (const RankSetting& s : settings) text += s.name + end_of_item + s.value + end_of_item;
  return text;
}

std::vector<RankSetting> from_text(const std::string& text) {
  std::istringstream in(text);
  std::vector<RankSetting> settings;
  for (RankSetting s; std::getline(in, s.name, end_of_item) && std::getline(in, s.value, end_of_item);)
    settings.push_back(s);
  return settings;
}

// Returns lines that describe how the settings of `ranks` differ from those of rank 0.
std::vector<std::string> difference_lines(const std::vector<RankSetting>& first, const std::vector<RankSetting>& other,
                                          const std::vector<int>& ranks, const std::string& host) {
  constexpr std::size_t max_lines = 8;
  const std::string subject = ranks.size() == 1
                                  ? fmt::format("rank {} on {} has", ranks.front(), host)
                                  : fmt::format("ranks {} (the first on {}) have", format_rank_list(ranks), host);
  std::map<std::string, std::string> values;
  for (const RankSetting& s : other) values[s.name] = s.value;
  std::vector<std::string> lines;
  const auto add = [&](const std::string& name, const std::string& there, const std::string& here) {
    const auto shown = [](const std::string& value) { return value.empty() ? "nothing" : value; };
    lines.push_back(fmt::format("{} {} = {}, rank 0 has {}", subject, name, shown(there), shown(here)));
  };
  for (const RankSetting& s : first) {
    const auto found = values.extract(s.name);
    const std::string there = found ? found.mapped() : "";
    if (there != s.value) add(s.name, there, s.value);
  }
  for (const auto& [name, value] : values) add(name, value, "");
  if (lines.size() > max_lines) {
    const std::size_t more = lines.size() - max_lines + 1;
    lines.resize(max_lines - 1);
    lines.push_back(fmt::format("{} {} more settings that differ from those of rank 0", subject, more));
  }
  return lines;
}

}  // namespace

void check_rank_settings(Comm& world, const std::vector<RankSetting>& settings, std::string_view advice) {
  const std::string text = to_text(settings);
  if (equal_on_all_ranks(world, text)) return;

  const auto digest = static_cast<Index>(hash_name(text));
  const int size = world.size();
  std::vector<Index> digests(size);
  world.all_gather(view_of(&digest, {1}), view_of(digests.data(), {size}));
  std::map<Index, std::vector<int>> groups;  // ranks of each digest
  std::vector<Index> order;                  // digests in order of their first rank
  for (int rank = 0; rank < size; ++rank) {
    std::vector<int>& ranks = groups[digests[rank]];
    if (ranks.empty()) order.push_back(digests[rank]);
    ranks.push_back(rank);
  }
  const std::vector<RankSetting> first = from_text(broadcast_text(world, text, 0));
  constexpr std::size_t max_groups = 3;
  std::vector<std::string> lines;
  for (std::size_t i = 1; i < std::min(order.size(), max_groups + 1); ++i) {
    const std::vector<int>& ranks = groups[order[i]];
    const std::vector<RankSetting> other = from_text(broadcast_text(world, text, ranks.front()));
    const std::string name = broadcast_text(world, host_name(), ranks.front());
    const std::vector<std::string> more = difference_lines(first, other, ranks, name);
    lines.insert(lines.end(), more.begin(), more.end());
  }
  if (order.size() > max_groups + 1)
    lines.push_back(fmt::format("{} more groups of ranks differ from rank 0", order.size() - max_groups - 1));
  throw CollectiveError(2, fmt::format("{}: {}", fmt::join(lines, std::string(1, next_line)), advice));
}

}  // namespace sy
