#include "src/data/visible_prefix.h"

#include <algorithm>

namespace sy {

void VisiblePrefix::apply(const Sample& sample, Index first_token) const {
  const auto S = std::ssize(sample.ids);
  for (Index begin = 0, end = 0; begin < S; begin = end) {
    end = sample.document_start.empty()
              ? S
              : std::ranges::find_if(sample.document_start.subspan(static_cast<std::size_t>(begin)),
                                     [&](std::int32_t start) { return start > begin; }) -
                    sample.document_start.begin();
    const auto choices = static_cast<std::uint64_t>(std::max<Index>(1, end - begin - 1));
    const auto length = static_cast<Index>(1 + stream_.bits(static_cast<std::uint64_t>(first_token + begin)) % choices);
    const auto at = [&](std::span<std::int32_t> of, Index first, Index count) {
      return of.subspan(static_cast<std::size_t>(first), static_cast<std::size_t>(count));
    };
    std::ranges::fill(at(sample.prefix_end, begin, end - begin), static_cast<std::int32_t>(begin + length));
    // The last token of the prefix predicts the first one after it.
    std::ranges::fill(at(sample.targets, begin, length - 1), -1);
  }
}

std::optional<VisiblePrefix> training_prefix(const Config& config) {
  if (!config.has_visible_prefix()) return {};
  return VisiblePrefix(RandomStream(config.train.seed, "visible prefixes"));
}

}  // namespace sy
