// Samples on the host: token ids, targets and document starts.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "src/config.h"

namespace sy {

// Memory of one sample, [seq_len] each.
struct Sample {
  std::span<std::int32_t> ids;  // -1 is padding
  // The next id, or with train.objective = masked the id itself; -1 if no loss counts it.
  std::span<std::int32_t> targets;
  // Position in the sample of the first token of each token's document. Empty if data.documents =
  // join.
  std::span<std::int32_t> document_start;

  // Copies the first tokens of another sample, as many as this one has.
  void assign(const Sample& from) const {
    std::copy_n(from.ids.begin(), ids.size(), ids.begin());
    std::copy_n(from.targets.begin(), targets.size(), targets.begin());
    std::copy_n(from.document_start.begin(), document_start.size(), document_start.begin());
  }
};

// Samples of the same length, with their memory.
struct SampleBatch {
  Index seq_len;
  std::vector<std::int32_t> ids, targets, document_start;  // [samples * seq_len]

  SampleBatch(Index length, const Config::Data& data, Index samples)
      : seq_len(length),
        ids(static_cast<std::size_t>(samples * length)),
        targets(ids.size()),
        document_start(data.documents == Documents::join ? 0 : ids.size()) {}
  // Returns samples [first, first + count).
  Sample slice(Index first, Index count) {
    const auto of = [&](std::vector<std::int32_t>& all) {
      return all.empty() ? std::span<std::int32_t>() : std::span(all).subspan(first * seq_len, count * seq_len);
    };
    return {of(ids), of(targets), of(document_start)};
  }
  Sample operator[](Index i) { return slice(i, 1); }
  bool operator==(const SampleBatch&) const = default;
};

}  // namespace sy
