#include "src/data/packing.h"

#include <algorithm>
#include <map>
#include <utility>

namespace sy {

Packing::Packing(IndexedTokens tokens, Index seq_len, RandomStream order)
    : tokens_(std::move(tokens)), seq_len_(seq_len), order_(order), first_window_{0} {
  const Index groups = ceil_div(tokens_.documents(), documents_per_group);
  for (Index group = 0; group < groups; ++group)
    first_window_.push_back(first_window_.back() + std::ssize(pack(group)));
}

std::vector<Packing::Segment> Packing::window(Index i) const {
  SY_ASSERT(i >= 0 && i < windows(), "window {} of {}", i, windows());
  const Index group = std::ranges::upper_bound(first_window_, i) - first_window_.begin() - 1;
  return std::move(pack(group)[static_cast<std::size_t>(i - first_window_[static_cast<std::size_t>(group)])]);
}

std::vector<std::vector<Packing::Segment>> Packing::pack(Index group) const {
  struct Rest {
    Segment segment;
    std::uint64_t draw;
  };
  const Index first = group * documents_per_group, count = std::min(documents_per_group, tokens_.documents() - first);
  const std::vector<Index> begins = tokens_.document_begins(first, count + 1);
  std::vector<std::vector<Segment>> windows;
  std::vector<Rest> rests;  // by falling length, then by draw
  for (Index d = 0; d < count; ++d) {
    Range tokens{begins[static_cast<std::size_t>(d)], begins[static_cast<std::size_t>(d) + 1]};
    for (; tokens.size() >= seq_len_; tokens.begin += seq_len_)
      windows.push_back({{{tokens.begin, tokens.begin + seq_len_}, tokens.size() == seq_len_}});
    if (tokens.size() > 0) rests.push_back({{tokens, true}, order_.bits(static_cast<std::uint64_t>(first + d))});
  }
  std::ranges::sort(rests, [](const Rest& a, const Rest& b) {
    return std::pair(-a.segment.tokens.size(), a.draw) < std::pair(-b.segment.tokens.size(), b.draw);
  });

  std::vector<std::vector<Rest>> packed;
  std::map<Index, std::vector<std::size_t>> by_space;  // packed windows, by free tokens
  for (const Rest& rest : rests) {
    const Index size = rest.segment.tokens.size();
    std::size_t to = packed.size();
    Index space = seq_len_;
    if (const auto best = by_space.lower_bound(size); best != by_space.end()) {
      space = best->first;
      to = best->second.back();
      best->second.pop_back();
      if (best->second.empty()) by_space.erase(best);
    } else {
      packed.emplace_back();
    }
    packed[to].push_back(rest);
    if (space > size) by_space[space - size].push_back(to);
  }
  // A token that is late in its window is dropped more often. So the order does not follow from the
  // lengths.
  for (std::vector<Rest>& of_window : packed) {
    std::ranges::sort(of_window, {}, &Rest::draw);
    std::vector<Segment>& segments = windows.emplace_back();
    for (const Rest& rest : of_window) segments.push_back(rest.segment);
  }
  return windows;
}

}  // namespace sy
