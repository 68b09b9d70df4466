// Samples on the host: token ids, targets and document starts.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "src/config.h"

namespace sy {

// Memory of one sample, [seq_len] each. In an encoder-decoder, `ids` are those of the decoder.
struct Sample {
  std::span<std::int32_t> ids;  // -1 is padding
  // The next id, or with train.objective = masked the id itself; -1 if no loss counts it.
  std::span<std::int32_t> targets;
  // Position in the sample of the first token of each token's document. Empty if data.documents =
  // join.
  std::span<std::int32_t> document_start;
  // [encoder length] ids of the encoder; -1 is padding. Empty without an encoder.
  std::span<std::int32_t> encoder_ids = {};
  // Position in the sample of the end of the visible prefix of each token's document. Empty if the
  // model has none (Config::has_visible_prefix).
  std::span<std::int32_t> prefix_end = {};

  // Copies the first tokens of another sample, as many as this one has.
  void assign(const Sample& from) const {
    for (const auto tokens :
         {&Sample::ids, &Sample::targets, &Sample::document_start, &Sample::encoder_ids, &Sample::prefix_end})
      std::copy_n((from.*tokens).begin(), (this->*tokens).size(), (this->*tokens).begin());
  }
};

// Samples of the same length, with their memory.
struct SampleBatch {
  Index seq_len, encoder_length = 0;
  std::vector<std::int32_t> ids, targets, document_start;  // [samples * seq_len]
  std::vector<std::int32_t> encoder_ids;                   // [samples * encoder_length]
  std::vector<std::int32_t> prefix_end;                    // [samples * seq_len], or empty

  // Samples of a model without an encoder. has_prefix: Config::has_visible_prefix
  SampleBatch(Index length, const Config::Data& data, Index samples, bool has_prefix = false)
      : seq_len(length),
        ids(static_cast<std::size_t>(samples * length)),
        targets(ids.size()),
        document_start(data.documents == Documents::join ? 0 : ids.size()),
        prefix_end(has_prefix ? ids.size() : 0) {}
  // Samples of a configuration's training.
  SampleBatch(const Config& config, Index samples)
      : SampleBatch(config.decoder_length(), config.data, samples, config.has_visible_prefix()) {
    encoder_length = config.encoder_length();
    encoder_ids.resize(static_cast<std::size_t>(samples * encoder_length));
  }
  // Returns samples [first, first + count).
  Sample slice(Index first, Index count) {
    const auto of = [&](std::vector<std::int32_t>& all, Index length) {
      return all.empty() ? std::span<std::int32_t>() : std::span(all).subspan(first * length, count * length);
    };
    return {of(ids, seq_len), of(targets, seq_len), of(document_start, seq_len), of(encoder_ids, encoder_length),
            of(prefix_end, seq_len)};
  }
  Sample operator[](Index i) { return slice(i, 1); }
  bool operator==(const SampleBatch&) const = default;
};

}  // namespace sy
